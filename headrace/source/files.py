"""A model's files by their names, and which of the listed ones are the metadata that is fetched whole."""

from collections.abc import Callable
from dataclasses import dataclass

from headrace.errors import HeadraceError
from headrace.source.objects import Listing, ObjectInfo

INDEX_NAME = "model.safetensors.index.json"
CONFIG_NAME = "config.json"
GENERATION_CONFIG_NAME = "generation_config.json"
MANIFEST_NAME = "headrace.manifest.json"
MAX_METADATA_BYTES = 64 << 20
TOKENIZER_NAME = "tokenizer.json"
TOKENIZER_NAMES = frozenset(
    {
        TOKENIZER_NAME,
        "tokenizer_config.json",
        "special_tokens_map.json",
        "added_tokens.json",
        "chat_template.jinja",
        "chat_template.json",
    }
)
# What stands in for tokenizer.json where there is none: SentencePiece, tiktoken, GPT-2's pair of files, Mistral's.
VOCABULARY_NAMES = frozenset({"tokenizer.model", "tiktoken.model", "vocab.json", "merges.txt", "tekken.json"})
VOCABULARY_SUFFIX = ".tiktoken"
# How pictures, sound and video become a model's inputs.
PROCESSOR_NAMES = frozenset(
    {"processor_config.json", "preprocessor_config.json", "video_preprocessor_config.json"}
)
# Folders of further chat templates: transformers' own, and what some uploads call it.
TEMPLATE_FOLDERS = ("additional_chat_templates", "templates")
_TEMPLATE_SUFFIX = ".jinja"
_METADATA_NAMES = (
    frozenset({CONFIG_NAME, GENERATION_CONFIG_NAME, INDEX_NAME, MANIFEST_NAME}) | PROCESSOR_NAMES
)


class BadModelFiles(HeadraceError):
    """The files under the prefix are not a model that can be served."""


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The files that count.

    Attributes:
        metadata: small files, fetched whole and cached.
        index: model.safetensors.index.json, if there is one (it is in `metadata` too).
        listing: what was listed.
    """

    metadata: tuple[ObjectInfo, ...]
    index: ObjectInfo | None
    listing: Listing


def is_tokenizer_file(name: str) -> bool:
    """Whether a file, by its name below the model's folder, has a part in making text and tokens of each other."""
    return name in TOKENIZER_NAMES or _is_vocabulary(name) or is_template(name)


def is_template(name: str) -> bool:
    """Whether it is one of further chat templates, in one of TEMPLATE_FOLDERS."""
    folder, _, file = name.partition("/")
    return folder in TEMPLATE_FOLDERS and "/" not in file and file.endswith(_TEMPLATE_SUFFIX)


def _is_vocabulary(name: str) -> bool:
    return name in VOCABULARY_NAMES or (name.endswith(VOCABULARY_SUFFIX) and "/" not in name)


def choose_metadata(listing: Listing, where: str, *, tokenizer_only: bool = False) -> ModelFiles:
    """Pick the metadata by role and size; no other vocabulary beside a tokenizer.json, which holds it already.

    Never *.py: nothing here runs code that comes with a model.

    Raises:
        BadModelFiles: a metadata file that is far too large to be one, or a link that leads nowhere.
    """
    names = TOKENIZER_NAMES if tokenizer_only else TOKENIZER_NAMES | _METADATA_NAMES
    refuse_broken_links(listing, where, lambda name: name in names)
    needs_vocabulary = listing.find(TOKENIZER_NAME) is None
    metadata = tuple(
        item
        for item in listing.objects
        if item.name in names or is_template(item.name) or (needs_vocabulary and _is_vocabulary(item.name))
    )
    for item in metadata:
        if item.size_bytes > MAX_METADATA_BYTES:
            raise BadModelFiles(
                f"{where}/{item.name} has {item.size_bytes:,} bytes; a metadata file has {MAX_METADATA_BYTES:,} "
                "at the most.",
                remedy="Check what was uploaded under this name.",
            )
    return ModelFiles(metadata, listing.find(INDEX_NAME), listing)


def refuse_broken_links(listing: Listing, where: str, counts: Callable[[str], bool]) -> None:
    """Raise BadModelFiles for a link that leads nowhere, if a file of its name counts."""
    broken = [name for name in listing.broken_links if counts(name)]
    if broken:
        raise BadModelFiles(
            f"{where}/{broken[0]} is a link that leads nowhere"
            f"{f' (and {len(broken) - 1} more are)' if len(broken) > 1 else ''}.",
            remedy="Put the file there: a hub's cache loses what its links lead to when it is cleaned or copied.",
        )
