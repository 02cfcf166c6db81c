"""CRCs: known values, combination from parts, and S3's spelling."""

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.store.crc import CRC32, CRC32C, CRC64NVME, CRCS, Crc

EVERY = pytest.mark.parametrize("crc", CRCS.values(), ids=CRCS)


@pytest.mark.parametrize(
    ("crc", "check"), [(CRC64NVME, "ae8b14860a799888"), (CRC32C, "e3069283"), (CRC32, "cbf43926")]
)
def test_the_catalogue_s_check_value_is_met(crc: Crc, check: str) -> None:
    assert crc.text(crc.of([b"123456789"])) == check


@given(st.binary(max_size=3000))
def test_crc32_is_that_of_zlib(data: bytes) -> None:
    assert CRC32.of([data]) == zlib.crc32(data)


@EVERY
@given(parts=st.lists(st.binary(max_size=300), max_size=6))
def test_views_one_after_another_are_one_message(crc: Crc, parts: list[bytes]) -> None:
    assert crc.of(parts) == crc.of([b"".join(parts)])


@EVERY
@given(first=st.binary(max_size=300), second=st.binary(max_size=300))
def test_two_messages_combine(crc: Crc, first: bytes, second: bytes) -> None:
    assert crc.combine(crc.of([first]), crc.of([second]), len(second)) == crc.of([first + second])


@EVERY
def test_no_bytes_give_zero(crc: Crc) -> None:
    assert crc.of([]) == crc.of([b""]) == 0


def test_a_strided_view_is_refused() -> None:
    with pytest.raises(AssertionError):
        CRC32.of([memoryview(b"abcdef")[::2]])


@EVERY
@given(data=st.binary(max_size=50))
def test_s3_s_spelling_comes_back(crc: Crc, data: bytes) -> None:
    assert crc.decode(crc.encode(crc.of([data]))) == crc.of([data])


@pytest.mark.parametrize("text", ["", "smi4LC3m9V", "smi4LC3m9VA=-2", "????????????", "AAAA", "ü"])
def test_what_is_no_checksum_is_none(text: str) -> None:
    assert CRC64NVME.decode(text) is None
