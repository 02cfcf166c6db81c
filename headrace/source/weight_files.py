"""Which of the listed files are the weights, and what is told where that is not clear."""

import itertools
import json
import re
from collections.abc import Mapping, Sequence

from headrace.errors import printable
from headrace.source.files import INDEX_NAME, BadModelFiles, refuse_broken_links
from headrace.source.objects import Listing, ObjectInfo

_SHOWN = 8  # names in a message
_SUFFIX = ".safetensors"
_STEM = "model"
SINGLE_NAME = _STEM + _SUFFIX
# Beginnings of the names of safetensors files that are no weights of the model in transformers' layout.
_OTHER_ROLES = (".", "consolidated", "adapter_", "optimizer", "scheduler", "training_", "rng_state", "scaler")
_PICKLED = (".bin", ".pt", ".pth", ".ckpt")
_PICKLED_REMEDY = (
    "Pickled weights (.bin, .pt) are never loaded, since reading them can run any code: convert them where you trust "
    "them, e.g. with transformers' from_pretrained(...).save_pretrained(DIR), and upload the safetensors with "
    "`headrace push DIR URI`, which converts nothing by itself."
)
_Numbered = tuple[ObjectInfo, re.Match[str]]
_NUMBERED = re.compile(r"(.+)-(\d{5,18})-of-(\d{5,18})\.safetensors", re.ASCII)


def choose_weights(listing: Listing, where: str, index: bytes | None) -> tuple[ObjectInfo, ...]:
    """The safetensors that hold the model's weights, sorted by name.

    With an index: the shards that it names. Without: model.safetensors, or the only safetensors file, or a
    complete numbered set.

    Raises:
        BadModelFiles: there are none (it says what is there), a shard is missing, or the choice is not clear.
    """
    if index is not None:
        return _shards_of_index(listing, where, index)
    single = listing.find(SINGLE_NAME)
    if single is not None:
        return (single,)
    # The choice depends on all that there are.
    refuse_broken_links(listing, where, lambda name: name.endswith(_SUFFIX))
    candidates = [item for item in listing.objects if is_weight_name(item.name)]
    if not candidates:
        raise _no_weights(listing, where)
    if len(candidates) == 1 and not _NUMBERED.fullmatch(candidates[0].name):
        return (candidates[0],)
    sets = _numbered_sets(candidates)
    chosen = _choose_set(sets)
    if chosen is not None:
        _check_complete(sets[chosen], where)
        return tuple(item for item, _ in sets[chosen])
    raise BadModelFiles(
        f"{where} holds several .safetensors files and no {INDEX_NAME}, so it is not clear which are the weights: "
        f"{', '.join(item.name for item in candidates[:_SHOWN])}.",
        remedy=f"Upload {INDEX_NAME} or keep one model in a folder.",
    )


def is_weight_name(name: str) -> bool:
    """Whether a file of this name may hold a model's weights.

    Not those in folders below (`original/`), hidden ones, Mistral's and Meta's own layouts (consolidated*), adapters,
    nor what a trainer keeps beside the weights.
    """
    return name.endswith(_SUFFIX) and "/" not in name and not name.startswith(_OTHER_ROLES)


def _numbered_sets(candidates: Sequence[ObjectInfo]) -> "dict[tuple[str, str], list[_Numbered]]":
    """The files of numbered sets, by stem and total."""
    sets: dict[tuple[str, str], list[_Numbered]] = {}
    for item in candidates:
        match = _NUMBERED.fullmatch(item.name)
        if match is not None:
            sets.setdefault((match.group(1), match.group(3)), []).append((item, match))
    return sets


def _choose_set(sets: "Mapping[tuple[str, str], Sequence[_Numbered]]") -> tuple[str, str] | None:
    """The only set; of several the one called "model", as second precisions have a word more (model.fp16)."""
    named = [key for key in sets if key[0] == _STEM] if len(sets) > 1 else list(sets)
    return named[0] if len(named) == 1 else None


def _check_complete(numbered: Sequence[_Numbered], where: str) -> None:
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
    others = [name for name in names if not name.endswith(_SUFFIX)]
    if others:
        raise BadModelFiles(
            f"{where}/{INDEX_NAME} names files that are no safetensors: {_some(others)}.",
            remedy=_PICKLED_REMEDY
            if others[0].endswith(_PICKLED)
            else "Upload the index that belongs to the shards.",
        )
    below = [name for name in names if "/" in name]
    if below:
        raise BadModelFiles(
            f"{where}/{INDEX_NAME} names files outside of its own folder, where none is read: {_some(below)}.",
            remedy="Put the shards beside the index, and only their names into it.",
        )
    found = {item.name: item for item in listing.objects}
    missing = [name for name in names if name not in found]
    refuse_broken_links(listing, where, set(missing).__contains__)
    if missing:
        raise BadModelFiles(
            f"{where}/{INDEX_NAME} names {len(missing)} of {len(names)} shards that are not there: {_some(missing)}.",
            remedy="Upload the missing shards, or the index that belongs to the ones that are there.",
        )
    return tuple(found[name] for name in names)


def _some(names: Sequence[str]) -> str:
    return f"{', '.join(printable(name, keep='') for name in names[:_SHOWN])}{' …' if len(names) > _SHOWN else ''}"


def describe(listing: Listing) -> str:
    """A sentence that says what is there, for an error."""
    names = [item.name for item in listing.objects] + [folder + "/" for folder in listing.folders]
    if not names:
        return "Nothing is there."
    # Keys may hold line breaks, which would look like the end of the sentence.
    shown = ", ".join(printable(name, keep="") for name in names[:10])
    return f"There is: {shown}{f' and {len(names) - 10} more' if len(names) > 10 else ''}."


def _no_weights(listing: Listing, where: str) -> BadModelFiles:
    """The error that says what is there instead, and the way out."""
    others = [item.name for item in listing.objects if item.name.endswith(_SUFFIX) and "/" not in item.name]
    if others:
        return BadModelFiles(
            f"{where} holds no weights in the layout that is served: {', '.join(others[:_SHOWN])} "
            f"{'are' if len(others) > 1 else 'is'} {_role_of(others[0])}.",
            remedy=_role_remedy(others[0]),
        )
    return BadModelFiles(
        f"{where} holds no .safetensors file. {describe(listing)}", remedy=_weights_remedy(listing)
    )


def _role_of(name: str) -> str:
    if name.startswith("adapter_"):
        return "an adapter's, which changes another model's weights"
    if name.startswith("consolidated"):
        return "in the original layout of Mistral's or Meta's own programs"
    return "a trainer's state" if not name.startswith(".") else "hidden"


def _role_remedy(name: str) -> str:
    if name.startswith("adapter_"):
        return "Merge it into its base model (peft's merge_and_unload, then save_pretrained) and upload the result."
    if name.startswith("consolidated"):
        return "Upload the model in transformers' layout: its repository on the hub has it, or convert it."
    return f"Upload {SINGLE_NAME} or a complete numbered set."


def _weights_remedy(listing: Listing) -> str:
    if any(item.name.endswith(_PICKLED) for item in listing.objects):
        return _PICKLED_REMEDY
    if any(item.name.endswith(".gguf") for item in listing.objects):
        return "GGUF files are not read: upload the checkpoint that they were made from, as safetensors."
    if listing.folders:
        return "Name the folder that holds the model."
    return "Only safetensors are served: check the prefix or upload them with `headrace push`."
