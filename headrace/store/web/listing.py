"""A model's folder on a server without listings: the well-known names and those that the index gives, looked up."""

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from queue import SimpleQueue

from headrace.source.files import (
    CONFIG_NAME,
    GENERATION_CONFIG_NAME,
    INDEX_NAME,
    MANIFEST_NAME,
    MAX_METADATA_BYTES,
    PROCESSOR_NAMES,
    TOKENIZER_NAME,
    TOKENIZER_NAMES,
    VOCABULARY_NAMES,
)
from headrace.source.weight_files import read_index
from headrace.store.base import Found, Store, read_whole
from headrace.store.errors import AccessDenied, NotFound, TimedOut, TransientError
from headrace.store.threads import start_some

SINGLE_NAME = "model.safetensors"
MAX_SHARDS = 10_000
_SIDE_BY_SIDE = 8
# Of one look-up. Among hundreds one that fails is usual, and to list all anew would fail again.
_TRIES = 4
_LONGEST_PAUSE_S = 5.0
# A header of a shard is wanted next; of a small file, nothing where it is in the cache.
_WEIGHTS_FIRST_BYTES = 256 << 10
_METADATA_FIRST_BYTES = 16 << 10
_MOST_FIRST_BYTES = 64 << 20  # of all shards together, since they are kept until they are wanted
# Those first that others are looked up after: an index's shards, a vocabulary where there is no tokenizer.json, and
# the processors' settings of a model whose config.json tells that it sees or hears.
_NAMES = (
    INDEX_NAME,
    CONFIG_NAME,
    TOKENIZER_NAME,
    SINGLE_NAME,
    GENERATION_CONFIG_NAME,
    MANIFEST_NAME,
    *sorted(TOKENIZER_NAMES - {TOKENIZER_NAME}),
)
_VOCABULARIES = (*sorted(VOCABULARY_NAMES), "qwen.tiktoken")
_ALL_NAMES = frozenset({*_NAMES, *_VOCABULARIES, *PROCESSOR_NAMES})
# Beginnings of what config.json calls the parts of models that see or hear, and their tokens.
_SENSES = ("vision", "image", "video", "audio", "speech", "mm_")


def list_by_looking_up(store: Store) -> tuple[Found, ...]:
    """What there is of the files that a model can have: the small ones, and the weights by the index or alone.

    A server that hides what is not there behind 403 is believed as long as it shows anything at all.

    Raises:
        NotFound: there is nothing.
        StoreError: as Store.look_up, the first that comes.
    """
    where = store.source.uri

    shards: list[str] = []

    def look_up(name: str) -> tuple[Found | AccessDenied | None, Iterable[str]]:
        first_bytes = _METADATA_FIRST_BYTES
        if ".safetensors" in name:
            first_bytes = min(_WEIGHTS_FIRST_BYTES, _MOST_FIRST_BYTES // max(1, len(shards)))
        instead = _VOCABULARIES if name == TOKENIZER_NAME else ()
        try:
            found = store.look_up(name, first_bytes)
        except NotFound:
            return None, instead
        except AccessDenied as error:
            return error, instead
        if name not in (INDEX_NAME, CONFIG_NAME) or found.item.size_bytes > MAX_METADATA_BYTES:
            return found, ()
        whole = Found(found.item, _whole(store, found))
        if name == CONFIG_NAME:
            return whole, sorted(PROCESSOR_NAMES) if has_senses(whole.prefix) else ()
        shards.extend(shards_of(whole.prefix, where))
        return whole, shards

    results = _spread(look_up, _NAMES)
    found = tuple(result for result in results if isinstance(result, Found))
    if not found:
        for result in results:
            if isinstance(result, AccessDenied):
                raise result
        raise NotFound(
            where,
            f"None of {CONFIG_NAME}, {SINGLE_NAME}, {INDEX_NAME} and a tokenizer's files is there.",
            remedy="Give the folder that holds them. A web server has no listing, so that weights are found by "
            f"{INDEX_NAME} or under the name {SINGLE_NAME} only.",
        )
    return found


def _whole(store: Store, found: Found) -> bytes:
    """All of the object: in one piece, which a server without ranges can send too."""
    if len(found.prefix) == found.item.size_bytes:
        return found.prefix
    reader = store.open_reader()
    try:
        return read_whole(reader, found.item)
    finally:
        reader.close()


def has_senses(config: bytes) -> bool:
    """Whether a config.json is of a model that takes more than text, which a processor prepares."""
    try:
        fields = json.loads(config)
    except (ValueError, RecursionError):
        return False  # said where it is read
    return isinstance(fields, dict) and any(name.startswith(_SENSES) for name in fields)


def shards_of(index: bytes, where: str) -> list[str]:
    """The files that an index names, but for what no file of this folder can be called."""
    names = dict.fromkeys(read_index(index, where).values())
    usable = [name for name in names if "/" not in name and name not in ("", ".", "..", *_ALL_NAMES)]
    return usable[:MAX_SHARDS]


Result = Found | AccessDenied | None


def _spread(work: Callable[[str], tuple[Result, Iterable[str]]], names: Iterable[str]) -> list[Result]:
    """Do the work for each name, and for the names that come of it, in a few threads; the first error is raised.

    What fails in passing is done again, but for a server that is silent: whoever waits for it waits long enough.
    """
    tasks: SimpleQueue[str | None] = SimpleQueue()
    lock, results, errors = threading.Lock(), list[Result](), list[BaseException]()
    failures = Counter[str]()
    left = 0
    for name in names:
        tasks.put(name)
        left += 1

    def serve() -> None:
        nonlocal left
        while (name := tasks.get()) is not None:
            more: list[str] = []
            try:
                if not errors:
                    result, named = work(name)
                    more = list(named)
                    results.append(result)
            except TransientError as error:
                failures[name] += 1
                if isinstance(error, TimedOut) or failures[name] == _TRIES:
                    errors.append(error)
                else:
                    time.sleep(_pause_s(error, failures[name]))
                    more = [name]
            except BaseException as error:  # raised to the caller below
                errors.append(error)
            for each in more:
                tasks.put(each)
            with lock:
                left += len(more) - 1
                if left == 0:
                    for _ in threads:
                        tasks.put(None)

    threads = [
        threading.Thread(target=serve, name=f"look-up-{number}", daemon=True)
        for number in range(_SIDE_BY_SIDE)
    ]
    try:
        for thread in start_some(threads):
            thread.join()
    except BaseException as error:  # an interrupt: nothing more is asked
        errors.append(error)
        raise
    if errors:
        raise errors[0]
    return results


def _pause_s(error: TransientError, failures: int) -> float:
    wanted_s = error.retry_after_s
    return min(0.05 * 2**failures if wanted_s is None else max(wanted_s, 0.0), _LONGEST_PAUSE_S)
