"""Which of the listed files are the weights, and which are the metadata that is fetched whole."""

import itertools
import json
import re
from collections.abc import Callable, Sequence
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
# What stands in for tokenizer.json where there is none: SentencePiece, tiktoken, GPT-2's pair of files.
VOCABULARY_NAMES = frozenset({"tokenizer.model", "tiktoken.model", "vocab.json", "merges.txt"})
VOCABULARY_SUFFIX = ".tiktoken"
_METADATA_NAMES = frozenset({CONFIG_NAME, GENERATION_CONFIG_NAME, INDEX_NAME, MANIFEST_NAME})
_SHOWN = 8  # names in a message
_NUMBERED = re.compile(r"(.+)-(\d{5,18})-of-(\d{5,18})\.safetensors", re.ASCII)


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
    """Whether a file, by its base name, has a part in making text and tokens of each other."""
    return name in TOKENIZER_NAMES or _is_vocabulary(name)


def _is_vocabulary(name: str) -> bool:
    return name in VOCABULARY_NAMES or name.endswith(VOCABULARY_SUFFIX)


def choose_metadata(listing: Listing, where: str, *, tokenizer_only: bool = False) -> ModelFiles:
    """Pick the metadata by role and size; no other vocabulary beside a tokenizer.json, which holds it already.

    Raises:
        BadModelFiles: a metadata file that is far too large to be one, or a link that leads nowhere.
    """
    names = TOKENIZER_NAMES if tokenizer_only else TOKENIZER_NAMES | _METADATA_NAMES
    _refuse_broken_links(listing, where, lambda name: name in names)
    needs_vocabulary = listing.find(TOKENIZER_NAME) is None
    metadata = tuple(
        item
        for item in listing.objects
        if item.name in names or (needs_vocabulary and _is_vocabulary(item.name))
    )
    for item in metadata:
        if item.size_bytes > MAX_METADATA_BYTES:
            raise BadModelFiles(
                f"{where}/{item.name} has {item.size_bytes:,} bytes; a metadata file has {MAX_METADATA_BYTES:,} "
                "at the most.",
                remedy="Check what was uploaded under this name.",
            )
    return ModelFiles(metadata, listing.find(INDEX_NAME), listing)


def choose_weights(listing: Listing, where: str, index: bytes | None) -> tuple[ObjectInfo, ...]:
    """The safetensors that hold the model's weights, sorted by name.

    With an index: the shards that it names. Without: model.safetensors, or the only safetensors file, or a
    complete numbered set.

    Raises:
        BadModelFiles: there are none (it says what is there), a shard is missing, or the choice is not clear.
    """
    if index is not None:
        return _shards_of_index(listing, where, index)
    if listing.find("model.safetensors") is None:  # then the choice depends on all that there are
        _refuse_broken_links(listing, where, lambda name: name.endswith(".safetensors"))
    candidates = [item for item in listing.objects if item.name.endswith(".safetensors")]
    if not candidates:
        raise BadModelFiles(
            f"{where} holds no .safetensors file. {describe(listing)}", remedy=_weights_remedy(listing)
        )
    single = listing.find("model.safetensors") or (candidates[0] if len(candidates) == 1 else None)
    numbered = [(item, match) for item in candidates if (match := _NUMBERED.fullmatch(item.name))]
    if single is not None and not _NUMBERED.fullmatch(single.name):
        return (single,)
    sets = {(match.group(1), match.group(3)) for _, match in numbered}
    if len(sets) == 1:
        _check_complete(numbered, where)
        return tuple(item for item, _ in numbered)
    raise BadModelFiles(
        f"{where} holds several .safetensors files and no {INDEX_NAME}, so it is not clear which are the weights: "
        f"{', '.join(item.name for item in candidates[:_SHOWN])}.",
        remedy=f"Upload {INDEX_NAME} or keep one model in a folder.",
    )


def _check_complete(numbered: Sequence[tuple[ObjectInfo, re.Match[str]]], where: str) -> None:
    """The files of a set must carry the numbers from 1 to its total, each once."""
    total = int(numbered[0][1].group(3))
    numbers = [int(match.group(2)) for _, match in numbered]
    strangers = [item.name for item, match in numbered if not 1 <= int(match.group(2)) <= total]
    if strangers or len(set(numbers)) != len(numbers):
        raise BadModelFiles(
            f"{where} holds shards whose numbers do not make a set of {total}: "
            f"{', '.join((strangers or [item.name for item, _ in numbered])[:_SHOWN])}.",
            remedy="Keep one model in a folder.",
        )
    if len(numbers) < total:
        present = set(numbers)
        # The total is only a name's claim: it may be far too large to count up to.
        gaps = (number for number in range(1, total + 1) if number not in present)
        missing = list(itertools.islice(gaps, _SHOWN))
        more = " …" if total - len(numbers) > len(missing) else ""
        raise BadModelFiles(
            f"{where} holds {len(numbers)} of {total} shards; missing: "
            f"{', '.join(f'{number:05d}' for number in missing)}{more}.",
            remedy="Upload the missing shards (and the index file).",
        )


def read_index(index: bytes, where: str) -> dict[str, str]:
    """The index's map of tensor name → shard name. Raises BadModelFiles if it is not one."""
    try:
        weight_map = json.loads(index)["weight_map"]
        valid = isinstance(weight_map, dict) and all(isinstance(shard, str) for shard in weight_map.values())
    except (ValueError, KeyError, TypeError, RecursionError):
        weight_map, valid = {}, False
    if not valid or not weight_map:
        raise BadModelFiles(
            f'{where}/{INDEX_NAME} is not a safetensors index: it must be JSON with a "weight_map" of tensor names '
            "to file names.",
            remedy="Upload the index again.",
        )
    result: dict[str, str] = weight_map
    return result


def _shards_of_index(listing: Listing, where: str, index: bytes) -> tuple[ObjectInfo, ...]:
    names = sorted(set(read_index(index, where).values()))
    found = {item.name: item for item in listing.objects}
    missing = [name for name in names if name not in found]
    _refuse_broken_links(listing, where, set(missing).__contains__)
    if missing:
        raise BadModelFiles(
            f"{where}/{INDEX_NAME} names {len(missing)} of {len(names)} shards that are not there: "
            f"{', '.join(missing[:_SHOWN])}{' …' if len(missing) > _SHOWN else ''}.",
            remedy="Upload the missing shards, or the index that belongs to the ones that are there.",
        )
    return tuple(found[name] for name in names)


def _refuse_broken_links(listing: Listing, where: str, counts: Callable[[str], bool]) -> None:
    broken = [name for name in listing.broken_links if counts(name)]
    if broken:
        raise BadModelFiles(
            f"{where}/{broken[0]} is a link that leads nowhere"
            f"{f' (and {len(broken) - 1} more are)' if len(broken) > 1 else ''}.",
            remedy="Put the file there: a hub's cache loses what its links lead to when it is cleaned or copied.",
        )


def describe(listing: Listing) -> str:
    """A sentence that says what is there, for an error."""
    names = [item.name for item in listing.objects] + [folder + "/" for folder in listing.folders]
    if not names:
        return "Nothing is there."
    shown = ", ".join(names[:10])
    return f"There is: {shown}{f' and {len(names) - 10} more' if len(names) > 10 else ''}."


def _weights_remedy(listing: Listing) -> str:
    if any(item.name.endswith((".bin", ".pt", ".pth")) for item in listing.objects):
        return (
            "Pickled weights (.bin, .pt) are never loaded: convert them, e.g. with transformers' "
            "save_pretrained, and upload the safetensors."
        )
    if listing.folders:
        return "Name the folder that holds the model."
    return "Only safetensors are served: check the prefix or upload them with `headrace push`."
