"""Where a load's checksums come from: the manifest beside the weights, or what the store keeps of each object."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from headrace.source.files import MANIFEST_NAME
from headrace.source.manifest import ObjectSums, parse_manifest, sums_of
from headrace.source.objects import ObjectInfo
from headrace.store.base import Store
from headrace.store.crc import CRCS
from headrace.store.errors import Changed, StoreError
from headrace.store.stored_checksum import checksum_of
from headrace.stream.checkpoint.header import Shard
from headrace.stream.checkpoint.headers import ReaderPool
from headrace.stream.verify.blocks import Expected
from headrace.stream.verify.mode import VerifyMode
from headrace.stream.verify.verifier import BlockVerifier

_AT_ONCE = 4
_NO_MANIFEST = f"there is no {MANIFEST_NAME}"
_WAYS = (
    "`headrace push --manifest` writes a manifest beside the weights; AWS and Google keep a CRC of the whole object, "
    "unless it was uploaded with composite checksums."
)


class NotVerifiable(StoreError):
    """Verification is required, and there is nothing to compare an object with."""


@dataclass(frozen=True, slots=True)
class Sums:
    """Where the checksums of one place's objects come from.

    Attributes:
        expect: what the checksums of an object should be, by its number, or why nobody knows; it may wait.
        close: ends what `expect` waits for.
    """

    expect: Callable[[int], Expected | str]
    close: Callable[[], None] = lambda: None


def verifier_of(
    mode: VerifyMode, store: Store, shards: Sequence[Shard], manifest: bytes | None
) -> BlockVerifier | None:
    """What a transfer of these shards is proved with; None for "off". `close` it at the end.

    Args:
        mode: see headrace.stream.verify.mode.
        manifest: as find_sums.

    Raises:
        BadManifest: the manifest cannot be read, or was made for other weights.
    """
    if mode == "off":
        return None
    items = [shard.item for shard in shards]
    sums = find_sums(mode, store, items, manifest)
    return BlockVerifier([store.source.uri_of(item.name) for item in items], shards, sums.expect, sums.close)


def find_sums(mode: VerifyMode, store: Store, items: Sequence[ObjectInfo], manifest: bytes | None) -> Sums:
    """The checksums of a place's objects.

    With a manifest nothing is asked for. Without, the store may be asked for the checksum of each object, while the
    first bytes are on their way, on connections of their own.

    Args:
        manifest: the content of MANIFEST_NAME in the objects' folder, None where there is none.

    Raises:
        BadManifest: the manifest cannot be read, or was made for other weights.
    """
    if manifest is not None:
        return Sums(_by_manifest(manifest, items, store.source.uri))
    if mode == "manifest":
        return Sums(lambda _number: _NO_MANIFEST)
    pool = ReaderPool(store, max(1, min(_AT_ONCE, len(items))))
    return Sums(_by_store(pool, items, required=mode == "require"), pool.abort)


def _by_manifest(data: bytes, items: Sequence[ObjectInfo], where: str) -> Callable[[int], Expected]:
    known: Mapping[str, ObjectSums] = parse_manifest(data, f"{where}/{MANIFEST_NAME}")
    found = sums_of(known, [(item.name, item.size_bytes) for item in items], where)
    crc = CRCS["crc64nvme"]
    expected = [Expected(crc, sums.size_bytes, sums.block_bytes, sums.sums, MANIFEST_NAME) for sums in found]
    return expected.__getitem__


def _by_store(
    pool: ReaderPool, items: Sequence[ObjectInfo], *, required: bool
) -> Callable[[int], Expected | str]:
    asked = pool.map(checksum_of, items)

    def expect(number: int) -> Expected | str:
        item = items[number]
        try:
            told = asked[number]()
        except Changed:
            raise
        except StoreError as error:
            if required:
                raise
            return f"{_NO_MANIFEST}, and the store does not tell its checksum ({error.message})"
        if not isinstance(told, str):
            name = f"the {told.crc.name} that the store keeps"
            return Expected(told.crc, item.size_bytes, 0, (told.value,), name)
        reason = f"{_NO_MANIFEST}, and {told}"
        if required:
            raise NotVerifiable(
                pool.store.source.uri_of(item.name), f"It cannot be verified: {reason}.", remedy=_WAYS
            )
        return reason

    return expect
