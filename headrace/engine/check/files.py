"""Are the files those of one whole model? Small ones are fetched, of the weights only the headers are read."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from headrace.engine.check.finding import Finding, Findings, fail, ok, tried, warn
from headrace.engine.check.place import Place, check_readable
from headrace.engine.loading.checkpoint import BadMetadata
from headrace.source.files import CONFIG_NAME, INDEX_NAME, BadModelFiles, choose_metadata
from headrace.source.objects import ObjectInfo
from headrace.source.weight_files import choose_weights, describe, read_index
from headrace.stream.checkpoint.header import Shard
from headrace.stream.checkpoint.headers import fetch_file, fetch_shard
from headrace.stream.checkpoint.index import check_index
from headrace.stream.checkpoint.inventory import list_tensors, total_by_dtype, total_of

_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Files:
    """The files of a model that were found and read.

    Attributes:
        metadata: name → content.
        shards: the weights with their proved headers.
    """

    metadata: Mapping[str, bytes]
    shards: tuple[Shard, ...]


def check_files(place: Place) -> Findings[Files | None]:
    """Config, weights, index, headers."""
    chosen = yield from tried("files", lambda: choose_metadata(place.listing, place.where))
    if chosen is None:
        return None
    if place.listing.find(CONFIG_NAME) is None:
        yield fail("files", _no_config(place))
        return None
    largest = max(place.listing.objects, key=lambda item: item.size_bytes)
    if largest.size_bytes and not (yield from check_readable(place, largest)):
        return None
    waiting = dict(
        zip(
            [item.name for item in chosen.metadata],
            place.pool.map(fetch_file, chosen.metadata),
            strict=True,
        )
    )
    metadata: dict[str, bytes] = {}
    for name, wait in waiting.items():
        content = yield from tried("files", wait)
        if content is None:
            return None
        metadata[name] = content
    yield ok("files", f"{', '.join(metadata)}.", metadata=list(metadata))
    shards = yield from _check_weights(place, metadata.get(INDEX_NAME))
    return None if shards is None else Files(metadata, shards)


def _no_config(place: Place) -> BadMetadata:
    return BadMetadata(
        f"{place.where} holds no {CONFIG_NAME}. {describe(place.listing)}",
        remedy="Name the folder that holds the model, or upload the file.",
    )


def _check_weights(place: Place, index: bytes | None) -> Findings[tuple[Shard, ...] | None]:
    weights = yield from tried("weights", lambda: choose_weights(place.listing, place.where, index))
    if weights is None:
        return None
    yield _told_weights(place, weights, index)
    waits = [
        place.pool.map(partial(fetch_shard, where=place.store.source.uri_of(item.name)), [item])[0]
        for item in weights
    ]
    shards: list[Shard] = []
    for wait in waits:
        shard = yield from tried("headers", wait)
        if shard is not None:
            shards.append(shard)
    if len(shards) < len(weights):
        return None
    rows = list_tensors(shards)
    dtypes = {total.label: total.size_bytes for total in total_by_dtype(rows)}
    total = total_of(rows)
    yield ok(
        "headers",
        f"{total.tensors:,} tensors, {total.elements:,} parameters, {total.size_bytes:,} bytes of "
        f"{', '.join(dtypes)}; every header fits its object's size.",
        tensors=total.tensors,
        parameters=total.elements,
        size_bytes=total.size_bytes,
        dtypes=dtypes,
    )
    if index is not None:
        yield _check_index(place, index, shards)
    return tuple(shards)


def _told_weights(place: Place, weights: Sequence[ObjectInfo], index: bytes | None) -> Finding:
    names = {item.name for item in weights}
    others = [
        item.name
        for item in place.listing.objects
        if item.name.endswith(".safetensors") and item.name not in names
    ]
    by = f"named by {INDEX_NAME}" if index is not None else "by their names"
    count = f"{len(weights)} object{'s' if len(weights) > 1 else ''}"
    total = sum(item.size_bytes for item in weights)
    text = f"{count}, {total:,} bytes, {by}."
    if others:
        text += f" Not loaded: {_listed(others)}."
    return ok("weights", text, objects=sorted(names), size_bytes=total, not_loaded=others)


def _check_index(place: Place, index: bytes, shards: Sequence[Shard]) -> Finding:
    """Each tensor that it names must be there; what it may leave out without harm is hardly so on purpose."""
    try:
        check_index(index, shards, place.where)
    except BadModelFiles as error:
        return fail("index", error)
    named = read_index(index, "")
    unnamed = sorted(name for shard in shards for name in shard.tensors if name not in named)
    claimed = json.loads(index).get("metadata")
    size = claimed.get("total_size") if isinstance(claimed, dict) else None
    total = sum(info.end - info.start for shard in shards for info in shard.tensors.values())
    remedy = "Upload the shards and the index of one and the same checkpoint."
    if unnamed:
        return warn(
            "index", f"It does not name {len(unnamed)} tensors of its shards: {_listed(unnamed)}.", remedy
        )
    if isinstance(size, int) and size != total:
        return warn("index", f"It says that the tensors have {size:,} bytes; they have {total:,}.", remedy)
    return ok(
        "index", f"It names {len(named):,} tensors, each of which is where it says.", tensors=len(named)
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
