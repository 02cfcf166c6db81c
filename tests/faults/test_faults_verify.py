"""A transfer that is verified: what is damaged on the way is read again, what is damaged in the store is an error."""

import random
from collections.abc import Iterator

import numpy as np
import pytest
from safetensors.numpy import save

from headrace.source.manifest import BLOCK_BYTES, BadManifest, ObjectSums, encode_manifest
from headrace.store.crc import CRC32, CRC64NVME, Crc
from headrace.store.errors import AccessDenied, Changed, Corrupt, StoreError
from headrace.stream.checkpoint.header import Shard, header_length, parse_header
from headrace.stream.plan import Placement, plan_reads
from headrace.stream.retry import RetryPolicy
from headrace.stream.transfer.transfer import Transfer
from headrace.stream.verify.mode import VerifyMode
from headrace.stream.verify.sums import NotVerifiable, verifier_of
from headrace.stream.verify.verifier import BlockVerifier
from tests.faults import server as faults
from tests.faults.opening import only_object, store_of
from tests.faults.server import Behaviour, Exchange, FaultServer, Stored, fault_server

KEY = "model/model.safetensors"
NAME = "model.safetensors"
BODY = 3 * BLOCK_BYTES + 12_345
_RANDOM = random.Random(5)
OBJECT = save(
    {
        name: np.frombuffer(_RANDOM.randbytes(size), np.uint8)
        for name, size in (("a", 100), ("b", BODY - 300), ("c", 200))
    }
)
CHUNK = 2_600_000
AT_ONCE = RetryPolicy(attempts=3, first_s=0.0)
MANIFEST = encode_manifest(
    {
        NAME: ObjectSums(
            len(OBJECT),
            BLOCK_BYTES,
            tuple(CRC64NVME.of([OBJECT[at : at + BLOCK_BYTES]]) for at in range(0, len(OBJECT), BLOCK_BYTES)),
        )
    }
)
pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with fault_server({KEY: OBJECT}) as running:
        yield running


class Load:
    """One verified load of the server's object."""

    def __init__(
        self, server: FaultServer, mode: VerifyMode, manifest: bytes | None, *, without: int = 0
    ) -> None:
        """Args: without: bytes at the object's end that are not read."""
        store = store_of(server)
        item = only_object(store)
        where = store.source.uri_of(item.name)
        length = header_length(OBJECT[:8], item.size_bytes, where)
        self.shard: Shard = parse_header(OBJECT[8 : 8 + length], item, where)
        verifier = verifier_of(mode, store, [self.shard], manifest)
        assert verifier is not None
        self.verifier: BlockVerifier = verifier
        self.first, self.end = 8 + length, item.size_bytes - without
        self.memory = bytearray(self.end - self.first)
        plan = plan_reads([Placement(0, self.first, self.end, 0, 0, "U8", "U8")], chunk_bytes=CHUNK)
        self.transfer = Transfer(
            plan,
            [item],
            store,
            memoryview(self.memory),
            concurrency=1,
            policy=AT_ONCE,
            verifier=verifier,
            hedge=False,
        )

    def run(self) -> str:
        """What the summary says; the bytes are in place."""
        try:
            self.transfer.wait()
        finally:
            self.verifier.close()
        assert bytes(self.memory) == OBJECT[self.first : self.end]
        return self.verifier.summary().describe()

    def failure(self, kind: type[StoreError]) -> StoreError:
        with pytest.raises(kind) as caught:
            self.run()
        return caught.value


def flipped(at: int) -> Behaviour:
    """The body with a wrong bit, counted from its first byte."""

    def behave(exchange: Exchange) -> None:
        body = bytearray(exchange.wanted)
        body[at] ^= 4
        exchange.head()
        exchange.send(bytes(body))

    return behave


def test_what_is_right_is_verified_whole(server: FaultServer) -> None:
    assert Load(server, "auto", MANIFEST).run() == (
        f"Verified 100 % of the {len(OBJECT):,} bytes read, by headrace.manifest.json."
    )
    assert not [asked for asked in server.log if asked.method == "HEAD"]


def test_a_bit_that_flips_on_the_way_is_read_again(server: FaultServer) -> None:
    server.play(flipped(1_200_000))
    load = Load(server, "require", MANIFEST)
    assert load.run().startswith("Verified 100 %")
    assert load.transfer.progress().retries == 1


def test_a_bit_that_flips_in_a_block_s_first_part_is_an_error(server: FaultServer) -> None:
    server.play(flipped(2_599_999))  # of a block that the next chunk completes
    error = Load(server, "auto", MANIFEST).failure(Corrupt)
    assert error.cause.endswith("What arrived of them last was read twice.")
    assert error.remedy.startswith("Start again;")


def test_a_bit_that_is_wrong_in_the_store_is_an_error_that_says_where(server: FaultServer) -> None:
    at = 2 * BLOCK_BYTES + 77
    spoiled = OBJECT[:at] + bytes([OBJECT[at] ^ 1]) + OBJECT[at + 1 :]
    server.objects[KEY] = Stored.of(spoiled)
    error = Load(server, "auto", MANIFEST).failure(Corrupt)
    assert error.uri == "s3://bucket/model/model.safetensors"
    assert error.cause.startswith(
        f"Bytes {2 * BLOCK_BYTES}-{3 * BLOCK_BYTES - 1} are not what they should be"
    )


def test_a_manifest_of_other_weights_is_stale(server: FaultServer) -> None:
    server.objects[KEY] = Stored.of(OBJECT + b"x")
    store = store_of(server)
    shard = Shard(only_object(store), {})
    with pytest.raises(BadManifest, match="is stale"):
        verifier_of("auto", store, [shard], MANIFEST)


@pytest.mark.parametrize("crc", [CRC64NVME, CRC32], ids=lambda crc: crc.name)
def test_what_the_store_keeps_verifies_a_whole_object(server: FaultServer, crc: Crc) -> None:
    server.head_fields = {f"x-amz-checksum-{crc.name}": crc.encode(crc.of([OBJECT]))}
    assert Load(server, "require", None).run() == (
        f"Verified 100 % of the {len(OBJECT):,} bytes read, by the {crc.name} that the store keeps."
    )


def test_the_last_chunk_is_read_again_where_the_whole_does_not_add_up(server: FaultServer) -> None:
    server.head_fields = {"x-amz-checksum-crc64nvme": CRC64NVME.encode(CRC64NVME.of([OBJECT]))}
    chunks = -(-(BODY) // CHUNK)
    server.play(*[faults.honest] * (chunks - 1), flipped(5))
    load = Load(server, "auto", None)
    assert load.run().startswith("Verified 100 %")
    assert load.transfer.progress().retries == 1


def test_a_whole_that_does_not_add_up_is_corrupt(server: FaultServer) -> None:
    server.head_fields = {"x-amz-checksum-crc64nvme": CRC64NVME.encode(1)}
    error = Load(server, "auto", None).failure(Corrupt)
    assert f"Bytes 0-{len(OBJECT) - 1} are not what they should be" in error.cause
    assert "the crc64nvme that the store keeps says 0000000000000001" in error.cause


def test_an_object_that_is_read_in_part_is_not_proved_by_a_checksum_of_the_whole(server: FaultServer) -> None:
    server.head_fields = {"x-amz-checksum-crc64nvme": CRC64NVME.encode(CRC64NVME.of([OBJECT]))}
    assert Load(server, "auto", None, without=200).run() == (
        "Not verifiable: none of what its checksums are of was read whole."
    )


def test_blocks_prove_what_they_can_of_an_object_that_is_read_in_part(server: FaultServer) -> None:
    assert Load(server, "auto", MANIFEST, without=200).run().startswith("Verified 99.6 % of the ")


NO_CRC = "there is no headrace.manifest.json, and the store keeps no CRC of the whole object"


def test_the_store_is_not_asked_where_only_a_manifest_counts(server: FaultServer) -> None:
    server.head_fields = {"x-amz-checksum-crc64nvme": CRC64NVME.encode(1)}
    assert Load(server, "manifest", None).run() == "Not verifiable: there is no headrace.manifest.json."
    assert not [asked for asked in server.log if asked.method == "HEAD"]
    assert Load(server, "manifest", MANIFEST).run().startswith("Verified 100 %")


def test_what_nobody_knows_is_said(server: FaultServer) -> None:
    assert Load(server, "auto", None).run() == f"Not verifiable: {NO_CRC}."


def test_what_nobody_knows_is_an_error_where_it_is_required(server: FaultServer) -> None:
    error = Load(server, "require", None).failure(NotVerifiable)
    assert error.cause == f"It cannot be verified: {NO_CRC}."
    assert "headrace push --manifest" in error.remedy


def refuse_heads(server: FaultServer) -> None:
    server.refuse = lambda asked: faults.error_answer(403) if asked.method == "HEAD" else None


def test_a_store_that_does_not_tell_is_told_with_its_answer(server: FaultServer) -> None:
    refuse_heads(server)
    said = Load(server, "auto", None).run()
    assert said.startswith("Not verifiable: there is no headrace.manifest.json, and the store does not tell")
    assert "HTTP 403" in said


def test_a_store_that_does_not_tell_is_an_error_where_it_is_required(server: FaultServer) -> None:
    refuse_heads(server)
    Load(server, "require", None).failure(AccessDenied)


def test_the_checksum_of_another_version_is_a_change(server: FaultServer) -> None:
    server.head_fields = {"ETag": '"another"', "x-amz-checksum-crc64nvme": CRC64NVME.encode(1)}
    Load(server, "auto", None).failure(Changed)


def test_nothing_is_asked_for_where_it_is_off(server: FaultServer) -> None:
    store = store_of(server)
    assert verifier_of("off", store, [Shard(only_object(store), {})], b"not even read") is None
