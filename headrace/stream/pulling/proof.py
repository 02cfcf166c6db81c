"""Proving pulled files, each as a whole before it gets its name, by the manifests among them or the store's own CRC."""

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from headrace.source.files import MANIFEST_NAME
from headrace.source.manifest import ObjectSums, parse_manifest, sums_of
from headrace.store.base import read_whole
from headrace.store.crc import CRCS
from headrace.store.errors import Corrupt
from headrace.stream.checkpoint.headers import ReaderPool
from headrace.stream.pulling.pull import FoundFile
from headrace.stream.verify.blocks import BlockBook, Expected, sum_up
from headrace.stream.verify.mode import VerifyMode
from headrace.stream.verify.sums import NotVerifiable, Sums, find_sums

_READ_BYTES = 8 << 20
_REMEDY = (
    "Pull again; if it is always so, the object is damaged: upload it again, with `headrace push --manifest`."
)


class FileProver:
    """Proves the files of one pull; counts what it could prove. Thread-safe; `close` it at the end.

    Attributes:
        proved: paths of the files that are what they should be.
    """

    def __init__(self, mode: VerifyMode, found: Sequence[FoundFile]) -> None:
        """Read the manifests that are among the files.

        Raises:
            BadManifest: one cannot be read.
            StoreError: as reading does.
        """
        self.proved: list[str] = []
        self._mode: VerifyMode = mode
        self._manifests = {} if mode == "off" else _read_manifests(found)
        self._sums: dict[str, Callable[[], Expected | str]] = {}
        self._closes: list[Callable[[], None]] = []
        self._lock = threading.Lock()

    def begin(self, files: Sequence[FoundFile]) -> None:
        """What is going to be fetched: the store is asked for the checksums that no manifest has, where it may be.

        Raises BadManifest where a manifest was made for other objects.
        """
        rest: dict[int, list[FoundFile]] = {}
        for file in files:
            expected = self._by_manifest(file)
            if expected is not None:
                self._sums[file.path] = _giving(expected)
            elif self._mode in ("auto", "require") and file.item.size_bytes:
                rest.setdefault(id(file.store), []).append(file)
        for group in rest.values():
            sums = find_sums("auto", group[0].store, [file.item for file in group], None)
            self._closes.append(sums.close)
            for number, file in enumerate(group):
                self._sums[file.path] = _asking(sums, number)

    def _by_manifest(self, file: FoundFile) -> Expected | None:
        folder, _, name = file.path.rpartition("/")
        manifest = self._manifests.get(folder, {})
        if name not in manifest:
            return None
        (sums,) = sums_of(manifest, [(name, file.item.size_bytes)], folder or file.store.source.uri)
        return Expected(CRCS["crc64nvme"], sums.size_bytes, sums.block_bytes, sums.sums, MANIFEST_NAME)

    def prove(self, file: FoundFile, path: Path) -> None:
        """Compare a whole file with what it should be.

        Raises:
            Corrupt: it is something else.
            NotVerifiable: that was required, and nobody knows.
            OSError: it cannot be read.
        """
        if file.path not in self._sums:
            return
        uri = file.store.source.uri_of(file.item.name)
        expected = self._sums[file.path]()
        if isinstance(expected, str):
            if self._mode == "require":
                raise NotVerifiable(
                    uri, f"It cannot be verified: {expected}.", remedy="Pull with --verify auto."
                )
            return
        _compare(path, expected, uri)
        with self._lock:
            self.proved.append(file.path)

    def close(self) -> None:
        """End what is still asked for."""
        for close in self._closes:
            close()


def _giving(expected: Expected) -> Callable[[], Expected | str]:
    return lambda: expected


def _asking(sums: Sums, number: int) -> Callable[[], Expected | str]:
    return lambda: sums.expect(number)


def _read_manifests(found: Sequence[FoundFile]) -> dict[str, Mapping[str, ObjectSums]]:
    """By the folder that each lies in."""
    manifests: dict[str, Mapping[str, ObjectSums]] = {}
    for file in found:
        folder, _, name = file.path.rpartition("/")
        if name == MANIFEST_NAME:
            pool = ReaderPool(file.store, 1)
            try:
                content = pool.map(read_whole, [file.item])[0]()
            finally:
                pool.abort()
            manifests[folder] = parse_manifest(content, file.store.source.uri_of(file.item.name))
    return manifests


def _compare(path: Path, expected: Expected, uri: str) -> None:
    book = BlockBook(expected)
    at = 0
    buffer = memoryview(bytearray(_READ_BYTES))
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            wrong = book.add(sum_up(at, [buffer[:count]], expected))
            if wrong is not None:
                first, end = expected.bounds(wrong.block)
                raise Corrupt(
                    uri,
                    f"Bytes {first}-{end - 1} are not what they should be: their {expected.crc.name} is "
                    f"{expected.crc.text(wrong.found)}, but {expected.told_by} says "
                    f"{expected.crc.text(expected.sums[wrong.block])}.",
                    remedy=_REMEDY,
                )
            at += count
    assert book.bytes_verified == expected.size_bytes == at
