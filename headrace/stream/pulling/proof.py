"""Proving pulled files, each as a whole before it gets its name: by the manifests among them, the CRC that the store
keeps, or the digest that it keeps, which whole files can be compared with."""

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from headrace.source.files import MANIFEST_NAME
from headrace.source.manifest import ObjectSums, parse_manifest, sums_of
from headrace.source.objects import ObjectInfo
from headrace.store.base import Reader, read_whole
from headrace.store.crc import CRCS
from headrace.store.errors import Changed, Corrupt, StoreError
from headrace.store.stored_checksum import checksum_of
from headrace.store.stored_digest import StoredDigest, digest_of, digest_of_file
from headrace.stream.checkpoint.headers import ReaderPool
from headrace.stream.pulling.pull import FoundFile
from headrace.stream.verify.blocks import BlockBook, Expected, sum_up
from headrace.stream.verify.mode import VerifyMode
from headrace.stream.verify.sums import NotVerifiable

_NO_MANIFEST = f"there is no {MANIFEST_NAME}"
_READ_BYTES = 8 << 20
_ASKED_AT_ONCE = 4
# What a file should add up to, or why nobody knows.
Told = Expected | StoredDigest | str
_WAYS = "`headrace push` notes a SHA-256 of each file; --exclude leaves a file out, and --verify auto takes it as it is."
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
        self._sums: dict[str, Callable[[], Told]] = {}
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
            pool = ReaderPool(group[0].store, min(_ASKED_AT_ONCE, len(group)))
            self._closes.append(pool.abort)
            for file, wait in zip(group, pool.map(_ask, [file.item for file in group]), strict=True):
                self._sums[file.path] = partial(self._told, file, wait)

    def _told(self, file: FoundFile, wait: Callable[[], Told]) -> Told:
        folder = file.path.rpartition("/")[0]
        manifest = f"{MANIFEST_NAME} does not name it" if folder in self._manifests else _NO_MANIFEST
        try:
            told = wait()
        except Changed:
            raise
        except StoreError as error:
            if self._mode == "require":
                raise
            told = f"the store does not tell its checksum ({error.message})"
        return f"{manifest}, and {told}" if isinstance(told, str) else told

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
            if self._mode != "off" and not file.item.size_bytes:
                self._note(file)  # by its size
            return
        uri = file.store.source.uri_of(file.item.name)
        expected = self._sums[file.path]()
        if isinstance(expected, str):
            if self._mode == "require":
                raise NotVerifiable(uri, f"It cannot be verified: {expected}.", remedy=_WAYS)
            return
        if isinstance(expected, StoredDigest):
            _compare_digest(path, expected, uri)
        else:
            _compare(path, expected, uri)
        self._note(file)

    def _note(self, file: FoundFile) -> None:
        with self._lock:
            self.proved.append(file.path)

    def close(self) -> None:
        """End what is still asked for."""
        for close in self._closes:
            close()


def _giving(expected: Expected) -> Callable[[], Told]:
    return lambda: expected


def _ask(reader: Reader, item: ObjectInfo) -> Told:
    """What the store keeps: a CRC, which is sooner computed, or else a digest."""
    told = checksum_of(reader, item)
    if isinstance(told, str):
        return digest_of(reader, item) or told
    return Expected(told.crc, item.size_bytes, 0, (told.value,), f"the {told.crc.name} that the store keeps")


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


def _compare_digest(path: Path, expected: StoredDigest, uri: str) -> None:
    found = digest_of_file(path, expected.kind)
    if found != expected.value:
        raise Corrupt(
            uri,
            f"The file is not what it should be: its {expected.kind} is {found}, but {expected.told_by} says "
            f"{expected.value}.",
            remedy=_REMEDY,
        )
