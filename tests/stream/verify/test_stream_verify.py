"""Verification as bytes arrive: any split in any order proves the same, any wrong byte is found."""

import random
import threading
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.source.objects import ObjectInfo
from headrace.store.crc import CRC64NVME, CRCS, Crc
from headrace.store.errors import Changed, Corrupt, TransientError
from headrace.stream.checkpoint.header import Shard
from headrace.stream.verify.blocks import Expected
from headrace.stream.verify.verifier import BlockVerifier

HEADER = b'{"a":1}'
URIS = ["s3://b/m/model.safetensors", "s3://b/m/b.safetensors"]


def shard(data: bytes) -> Shard:
    return Shard(ObjectInfo("k", "model.safetensors", len(data), "1"), {}, HEADER)


def an_object(body: bytes) -> bytes:
    return len(HEADER).to_bytes(8, "little") + HEADER + body


def expect(data: bytes, block_bytes: int, crc: Crc = CRC64NVME) -> Expected:
    step = block_bytes or len(data)
    sums = [crc.of([data[at : at + step]]) for at in range(0, len(data), step)]
    return Expected(crc, len(data), block_bytes, sums, "the manifest")


def verifier_of(data: bytes, block_bytes: int, crc: Crc = CRC64NVME) -> BlockVerifier:
    return BlockVerifier(URIS, [shard(data)], lambda number: expect(data, block_bytes, crc))


def feed(verifier: BlockVerifier, start: int, data: bytes, views: int = 1) -> None:
    """Hand bytes over in that many views, some of them empty perhaps."""
    bounds = [len(data) * number // views for number in range(views + 1)]
    verifier.received(0, start, [memoryview(data)[begin:end] for begin, end in pairwise(bounds)])


@st.composite
def splits(draw: st.DrawFn) -> tuple[bytes, list[tuple[int, int]]]:
    """An object and the chunks in which all but its header arrives."""
    body = draw(st.binary(min_size=1, max_size=400))
    first = len(an_object(b""))
    bounds = {first, first + len(body)} | draw(st.sets(st.integers(first, first + len(body)), max_size=8))
    return an_object(body), draw(st.permutations(list(pairwise(sorted(bounds)))))


BLOCKS = st.sampled_from([0, 1, 7, 16, 64, 1000])
KINDS = st.sampled_from(list(CRCS.values()))


@given(splits(), BLOCKS, KINDS, st.integers(1, 4))
def test_every_split_in_every_order_is_proved_whole(
    split: tuple[bytes, list[tuple[int, int]]], block_bytes: int, crc: Crc, views: int
) -> None:
    data, chunks = split
    verifier = verifier_of(data, block_bytes, crc)
    for start, end in chunks:
        feed(verifier, start, data[start:end], views)
    verified = verifier.summary()
    assert verified.bytes_received == verified.bytes_verified == len(data)
    assert verified.describe() == f"Verified 100 % of the {len(data):,} bytes read, by the manifest."


@given(splits(), BLOCKS, KINDS, st.data())
def test_a_wrong_byte_is_found_wherever_it_is(
    split: tuple[bytes, list[tuple[int, int]]], block_bytes: int, crc: Crc, data: st.DataObject
) -> None:
    content, chunks = split
    at = data.draw(st.integers(chunks[0][0] if len(chunks) == 1 else len(an_object(b"")), len(content) - 1))
    flipped = data.draw(st.integers(1, 255))
    damaged = content[:at] + bytes([content[at] ^ flipped]) + content[at + 1 :]
    verifier = verifier_of(content, block_bytes, crc)
    with pytest.raises(TransientError) as caught:  # noqa: PT012
        for start, end in chunks:
            feed(verifier, start, damaged[start:end])
    first, last = map(int, caught.value.cause.split()[1].split("-"))
    assert first <= at <= last


@given(splits(), BLOCKS, st.data())
def test_what_was_damaged_on_the_way_is_right_when_it_is_read_again(
    split: tuple[bytes, list[tuple[int, int]]], block_bytes: int, data: st.DataObject
) -> None:
    content, chunks = split
    verifier = verifier_of(content, block_bytes)
    for number, (start, end) in enumerate(chunks):
        # Damage in a block's earlier parts cannot be told before its last part: so only in a last one here.
        if number == len(chunks) - 1:
            at = data.draw(st.integers(start, end - 1))
            damaged = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
            with pytest.raises(TransientError):
                feed(verifier, start, damaged[start:end])
        feed(verifier, start, content[start:end])
    verified = verifier.summary()
    assert verified.bytes_received == verified.bytes_verified == len(content)


def test_what_is_wrong_twice_is_corrupt_with_both_checksums() -> None:
    data = an_object(bytes(1000))
    verifier = verifier_of(data, 100)
    wrong = bytes(399) + b"\x01" + bytes(85)
    with pytest.raises(TransientError):
        feed(verifier, 15, wrong)
    with pytest.raises(Corrupt) as caught:
        feed(verifier, 15, wrong)
    said = str(caught.value)
    assert said.startswith(
        "s3://b/m/model.safetensors: Bytes 400-499 are not what they should be: their crc64nvme is "
    )
    assert f"the manifest says {CRC64NVME.text(CRC64NVME.of([data[400:500]]))}" in said
    assert CRC64NVME.text(CRC64NVME.of([bytes(14) + b"\x01" + bytes(85)])) in said
    assert "upload it again" in caught.value.remedy


def test_a_wrong_header_is_corrupt_at_once() -> None:
    data = an_object(b"body")
    other = data.replace(b"a", b"b")
    verifier = BlockVerifier(URIS, [shard(data)], lambda number: expect(other, 5))
    with pytest.raises(Corrupt, match="Bytes 10-14 are not what"):
        feed(verifier, 15, b"body")


def test_blocks_that_are_read_in_part_are_counted_as_not_verified() -> None:
    data = an_object(bytes(985))
    verifier = verifier_of(data, 100)
    feed(verifier, 15, data[15:250])
    feed(verifier, 300, data[300:1000])
    verified = verifier.summary()
    assert (verified.bytes_received, verified.bytes_verified) == (950, 900)
    assert verified.describe() == "Verified 94.7 % of the 950 bytes read, by the manifest."


def test_almost_all_is_not_called_all() -> None:
    data = an_object(bytes(99_985))
    verifier = verifier_of(data, 10)
    feed(verifier, 15, data[15:99_995])
    assert verifier.summary().describe().startswith("Verified 99.9 % of the 99,995 bytes")


def test_objects_without_checksums_are_named_with_the_reason() -> None:
    data = an_object(b"body")
    other = Shard(ObjectInfo("k2", "b.safetensors", len(data), "1"), {}, HEADER)
    none = BlockVerifier(URIS, [shard(data), other], lambda number: "there is no manifest")
    some = BlockVerifier(
        "s3://b/m",
        [shard(data), other],
        lambda number: "the store keeps no CRC" if number else expect(data, 0),
    )
    for verifier in (none, some):
        for number in range(2):
            verifier.received(number, 15, [memoryview(b"body")])
    assert none.summary().describe() == "Not verifiable: there is no manifest."
    assert some.summary().describe() == (
        "Verified 50.0 % of the 38 bytes read, by the manifest; "
        "not verifiable: b.safetensors: the store keeps no CRC."
    )


def test_an_object_that_is_not_read_whole_is_not_proved_by_the_store_s_checksum() -> None:
    data = an_object(b"body")
    verifier = verifier_of(data, 0)
    feed(verifier, 15, b"bod")
    assert verifier.summary().describe() == (
        "Not verifiable: none of what its checksums are of was read whole."
    )


def test_a_load_of_nothing_is_told_as_that() -> None:
    assert verifier_of(an_object(b""), 0).summary().describe() == "Nothing was read, so nothing was verified."


def test_a_checksum_that_does_not_come_is_the_load_s_error() -> None:
    def fail(number: int) -> Expected:
        raise Changed("s3://b/m/model.safetensors", "The object was replaced.")

    with pytest.raises(Changed):
        BlockVerifier(URIS, [shard(b"")], fail).received(0, 15, [memoryview(b"body")])


def test_many_workers_prove_one_object_together() -> None:
    data = an_object(random.Random(1).randbytes(200_000))
    verifier = verifier_of(data, 1000)
    starts = list(range(15, len(data), 333))
    random.Random(2).shuffle(starts)
    threads = [
        threading.Thread(
            target=lambda mine: [feed(verifier, at, data[at : at + 333]) for at in mine],
            args=(starts[number::4],),
        )
        for number in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert verifier.summary().bytes_verified == len(data)
