"""Verification of what was opened by name, perhaps in several places: each place may have a manifest of its own."""

import time
from collections.abc import Callable

from headrace.source.files import MANIFEST_NAME, MAX_METADATA_BYTES
from headrace.source.manifest import BadManifest
from headrace.store.base import Store, read_range
from headrace.store.errors import AccessDenied, NotFound, TransientError
from headrace.stream.checkpoint.headers import SMALL_READ_POLICY
from headrace.stream.library.opening import Opened
from headrace.stream.library.several_stores import SeveralStores
from headrace.stream.retry import persistently
from headrace.stream.verify.blocks import Expected
from headrace.stream.verify.mode import VerifyMode
from headrace.stream.verify.sums import Sums, find_sums
from headrace.stream.verify.verifier import BlockVerifier

_FIRST_BYTES = 1 << 20


def verify_opened(mode: VerifyMode, opened: Opened) -> BlockVerifier | None:
    """What a transfer of opened objects is proved with; None for "off". `close` it at the end.

    Each place is asked for a manifest first: one request.

    Raises:
        BadManifest: a manifest cannot be read, or was made for other objects.
        StoreError: a store does not answer.
    """
    if mode == "off":
        return None
    store, shards = opened.store, opened.shards
    places: dict[int, tuple[Store, list[int]]] = {}
    for number, shard in enumerate(shards):
        origin = store.origin(shard.item)[0] if isinstance(store, SeveralStores) else store
        places.setdefault(id(origin), (origin, []))[1].append(number)
    expect: dict[int, Callable[[], Expected | str]] = {}
    closes: list[Callable[[], None]] = []
    for origin, numbers in places.values():
        own = [shards[number].item for number in numbers]
        if isinstance(store, SeveralStores):
            own = [store.origin(item)[1] for item in own]
        sums = find_sums(mode, origin, own, fetch_manifest(origin))
        closes.append(sums.close)
        for place, number in enumerate(numbers):
            expect[number] = _asking(sums, place)

    def close() -> None:
        for one in closes:
            one()

    uris = [store.source.uri_of(shard.item.name) for shard in shards]
    return BlockVerifier(uris, shards, lambda number: expect[number](), close)


def _asking(sums: Sums, place: int) -> Callable[[], Expected | str]:
    return lambda: sums.expect(place)


def fetch_manifest(store: Store) -> bytes | None:
    """The content of a place's manifest, None where it has none.

    Raises:
        BadManifest: it is far too large to be one.
        StoreError: the store does not answer.
    """
    try:
        found = persistently(
            lambda: store.look_up(MANIFEST_NAME, _FIRST_BYTES),
            SMALL_READ_POLICY,
            time.sleep,
            retried=(TransientError,),
        )
    except (NotFound, AccessDenied):  # S3 says the latter of what is not there to who may not list
        return None
    item, first = found.item, found.prefix
    if item.size_bytes > MAX_METADATA_BYTES:
        raise BadManifest(
            f"{store.source.uri_of(MANIFEST_NAME)} has {item.size_bytes:,} bytes; a manifest has "
            f"{MAX_METADATA_BYTES:,} at the most.",
            remedy="Check what was uploaded under this name.",
        )
    if len(first) == item.size_bytes:
        return first
    reader = store.open_reader()
    try:
        rest = item.size_bytes - len(first)
        return first + persistently(
            lambda: read_range(reader, item, len(first), rest), SMALL_READ_POLICY, time.sleep
        )
    finally:
        reader.close()
