"""The CRCs that stores keep and manifests hold: computed part by part in any order, then combined.

The arithmetic is anycrc's: carry-less multiplication, 26-30 GB/s a core, with the interpreter's lock held (8 MiB:
0.3 ms). awscrt would release it, but botocore imports all of it wherever it is installed: 60 ms of every start.
"""

import base64
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any


@dataclass(frozen=True, slots=True)
class Crc:
    """One kind of CRC. The CRC of no bytes is 0.

    Attributes:
        name: as S3 spells it in `x-amz-checksum-NAME`.
        size_bytes: how long a value is.
    """

    name: str
    size_bytes: int

    def of(self, views: Iterable[memoryview | bytes], before: int = 0) -> int:
        """The CRC of byte views one after another, which follow on what gave `before`."""
        model = _model(self.name)
        value = before
        for view in views:
            plain = memoryview(view)
            # The library would take every n-th byte of a strided view for the first n.
            assert plain.contiguous and plain.itemsize == 1
            value = model.calc(plain.cast("B"), value)
        return value

    def combine(self, first: int, second: int, second_bytes: int) -> int:
        """The CRC of two messages one after the other, from their CRCs and the second one's length."""
        value: int = _model(self.name).combine(first, second, second_bytes)
        return value

    def text(self, value: int) -> str:
        """A value as a person reads it: hexadecimal digits."""
        return f"{value:0{2 * self.size_bytes}x}"

    def encode(self, value: int) -> str:
        """A value as S3 writes it: base64 of its bytes, the highest first."""
        return base64.b64encode(value.to_bytes(self.size_bytes, "big")).decode()

    def decode(self, text: str) -> int | None:
        """The value that S3 wrote, None for what is none."""
        try:
            data = base64.b64decode(text, validate=True)
        except ValueError:
            return None
        return int.from_bytes(data, "big") if len(data) == self.size_bytes else None


CRC64NVME = Crc("crc64nvme", 8)
CRC32C = Crc("crc32c", 4)
CRC32 = Crc("crc32", 4)
CRCS = {crc.name: crc for crc in (CRC64NVME, CRC32C, CRC32)}
_MODELS = {"crc64nvme": "CRC64-NVME", "crc32c": "CRC32C", "crc32": "CRC32"}


@cache
def _model(name: str) -> Any:
    import anycrc  # 11 ms that a load without anything to verify does not spend

    return anycrc.Model(_MODELS[name])
