"""What is computed of a file before it is uploaded, in one reading."""

import hashlib
from collections.abc import Callable

from headrace.store.crc import Crc
from headrace.store.upload.plan import LocalFile

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
    """The CRC of a file whose bytes come in order.

    Attributes:
        value: of what has been taken in so far.
    """

    def __init__(self, crc: Crc) -> None:
        self._crc = crc
        self.value = 0

    def update(self, data: bytes) -> None:
        """The next bytes of the file."""
        self.value = self._crc.of([data], self.value)
