"""What is computed of a file before it is uploaded, in one reading."""

import hashlib
from collections.abc import Callable

from headrace.store.crc import CRC32
from headrace.store.upload_plan import LocalFile

_CHUNK_BYTES = 1 << 20


def sha256_of(file: LocalFile, *also: Callable[[bytes], None]) -> str:
    """The file's SHA-256 in hexadecimal; its bytes are given to others too, in order."""
    digest = hashlib.sha256()
    with open(file.path, "rb") as content:
        while chunk := content.read(_CHUNK_BYTES):
            digest.update(chunk)
            for update in also:
                update(chunk)
    return digest.hexdigest()


class WholeCrc:
    """The CRC-32 of a file whose bytes come in order, as S3 writes it."""

    def __init__(self) -> None:
        self._value = 0

    def update(self, data: bytes) -> None:
        """The next bytes of the file."""
        self._value = CRC32.of([data], self._value)

    @property
    def text(self) -> str:
        """Of what has been taken in so far."""
        return CRC32.encode(self._value)
