"""Opening a checkpoint: the listing, the small files and the headers of all shards, side by side. No torch."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from headrace.errors import HeadraceError
from headrace.ipc.options import EngineOptions
from headrace.ipc.timeline import Timeline
from headrace.models.decoder.fields import read_token_ids
from headrace.source.cache import MetadataCache
from headrace.source.files import (
    CONFIG_NAME,
    GENERATION_CONFIG_NAME,
    INDEX_NAME,
    choose_metadata,
    is_tokenizer_file,
)
from headrace.source.objects import Listing, ObjectInfo
from headrace.source.uri import parse_source
from headrace.source.weight_files import choose_weights, describe
from headrace.store.base import Store, open_store
from headrace.stream.checkpoint.header import Shard
from headrace.stream.checkpoint.headers import ReaderPool, fetch_file, fetch_shard
from headrace.stream.checkpoint.index import check_index
from headrace.stream.checkpoint.model_listing import list_with_templates

_SMALL_READS_AT_ONCE = 8


class BadMetadata(HeadraceError):
    """A small file of the model is missing or broken."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """An opened checkpoint: everything but the weights' bytes.

    Attributes:
        where: the model's URI or folder.
        config: config.json, parsed.
        files: every metadata file, name → content.
        tokenizer_files: those of the tokenizer, perhaps from another place.
        shards: the weights' objects with their proved headers; empty with --load-format dummy.
        readers: open connections to be handed on to the transfer.
    """

    store: Store
    where: str
    config: Mapping[str, Any]
    files: Mapping[str, bytes]
    tokenizer_files: Mapping[str, bytes]
    shards: tuple[Shard, ...]
    pool: ReaderPool


def open_checkpoint(options: EngineOptions, timeline: Timeline) -> Checkpoint:
    """List the model and fetch what is small.

    Raises:
        HeadraceError: of every kind that a wrong name, a store or a broken checkpoint can cause.
    """
    source = parse_source(options.model)
    with timeline.phase("open store"):
        store = open_store(source)
    with timeline.phase("list"):
        listing = list_with_templates(store)
    if listing.find(CONFIG_NAME) is None:
        raise BadMetadata(
            f"{source.uri} holds no {CONFIG_NAME}. {describe(listing)}",
            remedy="Name the folder that holds the model, or upload the file.",
        )
    pool = ReaderPool(store, _SMALL_READS_AT_ONCE)
    try:
        with timeline.phase("headers and metadata"):
            files, shards = _fetch(store, listing, pool, dummy=options.load_format == "dummy")
        tokenizer_files = {name: data for name, data in files.items() if is_tokenizer_file(name)}
        if options.tokenizer_path is not None:
            with timeline.phase("tokenizer files"):
                tokenizer_files = fetch_tokenizer(options.tokenizer_path)
        config = parse_json_object(files[CONFIG_NAME], source.uri_of(CONFIG_NAME))
    except BaseException:
        pool.abort()
        raise
    return Checkpoint(store, source.uri, config, files, tokenizer_files, shards, pool)


def _fetch(
    store: Store, listing: Listing, pool: ReaderPool, *, dummy: bool
) -> tuple[dict[str, bytes], tuple[Shard, ...]]:
    where = store.source.uri
    chosen = choose_metadata(listing, where)
    cache = MetadataCache.of(store.identity, chosen.metadata) if store.source.scheme != "file" else None
    cached = cache.read() if cache else None
    index: bytes | None = None
    waiting = {}
    if cached is None:
        waiting = {
            item.name: result
            for item, result in zip(chosen.metadata, pool.map(fetch_file, chosen.metadata), strict=True)
        }
    if chosen.index is not None and not dummy:
        index = cached[INDEX_NAME] if cached is not None else waiting[INDEX_NAME]()
    weights = () if dummy else choose_weights(listing, where, index)
    fetches = [
        pool.map(partial(fetch_shard, where=store.source.uri_of(item.name)), [item])[0] for item in weights
    ]
    files = cached if cached is not None else {name: result() for name, result in waiting.items()}
    shards = tuple(fetch() for fetch in fetches)
    if index is not None:
        check_index(index, shards, where)
    if cache and cached is None:
        cache.write_aside(files)
    return dict(files), shards


def fetch_tokenizer(path: str) -> dict[str, bytes]:
    """The tokenizer's files from a place of their own, name → content. Raises as open_checkpoint."""
    store = open_store(parse_source(path))
    listing = list_with_templates(store)
    items: tuple[ObjectInfo, ...] = choose_metadata(listing, store.source.uri, tokenizer_only=True).metadata
    if not items:
        raise BadMetadata(
            f"{store.source.uri} (--tokenizer-path) holds no tokenizer. {describe(listing)}",
            remedy="Name the folder that holds tokenizer.json.",
        )
    pool = ReaderPool(store, _SMALL_READS_AT_ONCE)
    fetches = pool.map(fetch_file, items)
    files = {item.name: fetch() for item, fetch in zip(items, fetches, strict=True)}
    for reader in pool.take_readers():
        reader.close()
    return files


def decode_text(data: bytes, where: str) -> str:
    """The text of a small file, without the byte order mark that some editors write. Raises BadMetadata."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadMetadata(
            f"{where} is not UTF-8 text (byte {error.start}).", remedy="Save it as UTF-8 and upload it again."
        ) from None


def parse_json_object(data: bytes, where: str) -> dict[str, Any]:
    """A JSON file that must be an object. Raises BadMetadata."""
    try:
        value = json.loads(decode_text(data, where))
    except (ValueError, RecursionError) as error:
        raise BadMetadata(f"{where} is not valid JSON: {error}.", remedy="Upload it again.") from None
    if not isinstance(value, dict):
        raise BadMetadata(f"{where} is not a JSON object.", remedy="Upload it again.")
    return value


def eos_token_ids(checkpoint: Checkpoint) -> tuple[int, ...]:
    """Every end-of-sequence id that config.json and generation_config.json name, ascending.

    Raises:
        HeadraceError: a file is not JSON, or what it names is no token id.
    """
    found = set(read_token_ids(checkpoint.config, "eos_token_id"))
    if GENERATION_CONFIG_NAME in checkpoint.files:
        where = f"{checkpoint.where}/{GENERATION_CONFIG_NAME}"
        document = parse_json_object(checkpoint.files[GENERATION_CONFIG_NAME], where)
        found.update(read_token_ids(document, "eos_token_id", file=where))
    return tuple(sorted(found))
