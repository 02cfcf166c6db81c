"""The checksum that a store keeps: which ones can be compared with, and how they are asked for."""

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.demo.store import SeaweedStore
from headrace.source.objects import ObjectInfo
from headrace.source.uri import parse_source
from headrace.store.base import read_range
from headrace.store.crc import CRC32, CRC32C, CRC64NVME, Crc
from headrace.store.errors import AccessDenied, Changed, TransientError
from headrace.store.local.store import LocalStore
from headrace.store.s3.client import make_s3_client
from headrace.store.s3.settings import resolve_s3_settings
from headrace.store.s3.store import S3Store
from headrace.store.stored_checksum import StoredChecksum, checksum_in, checksum_of
from tests.faults import server as faults
from tests.faults.opening import store_of
from tests.faults.server import FaultServer, Stored, fault_server

DATA = b"content"
ENCODED = {crc.name: crc.encode(crc.of([DATA])) for crc in (CRC64NVME, CRC32C, CRC32)}


@pytest.mark.parametrize("crc", [CRC64NVME, CRC32C, CRC32], ids=lambda crc: crc.name)
def test_a_full_object_crc_can_be_compared_with(crc: Crc) -> None:
    headers = {f"x-amz-checksum-{crc.name}": ENCODED[crc.name], "x-amz-checksum-type": "FULL_OBJECT"}
    assert checksum_in(headers) == StoredChecksum(crc, crc.of([DATA]))


def test_without_a_type_it_is_of_the_whole_object() -> None:
    assert checksum_in({"x-amz-checksum-crc32": ENCODED["crc32"]}) == StoredChecksum(CRC32, CRC32.of([DATA]))


@pytest.mark.parametrize(
    "headers",
    [
        {"x-amz-checksum-crc32": "GoBP7A==-2", "x-amz-checksum-type": "COMPOSITE"},
        {"x-amz-checksum-crc32": "GoBP7A==-2"},
        {"x-amz-checksum-crc32": "GoBP7A==", "x-amz-checksum-type": "composite"},
    ],
)
def test_a_checksum_of_checksums_cannot(headers: dict[str, str]) -> None:
    assert checksum_in(headers) == "the store keeps only a checksum of the parts' checksums"


@pytest.mark.parametrize(
    "headers", [{}, {"x-amz-checksum-sha256": "AAAA"}, {"x-amz-checksum-crc32": "no CRC"}]
)
def test_what_is_no_crc_is_none(headers: dict[str, str]) -> None:
    assert checksum_in(headers) == "the store keeps no CRC of the whole object"


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with fault_server({}) as running:
        running.objects["model/a"] = Stored(DATA, '"1"')
        yield running


@pytest.fixture
def store(server: FaultServer) -> S3Store:
    return store_of(server)


def item_of(store: S3Store) -> ObjectInfo:
    (item,) = store.list().objects
    return item


def test_it_is_asked_for_without_the_object_and_on_the_same_connection(
    server: FaultServer, store: S3Store
) -> None:
    server.head_fields = {"x-amz-checksum-crc64nvme": ENCODED["crc64nvme"]}
    item, reader = item_of(store), store.open_reader()
    assert checksum_of(reader, item) == StoredChecksum(CRC64NVME, CRC64NVME.of([DATA]))
    assert read_range(reader, item, 2, 3) == DATA[2:5]
    asked = server.log[-2:]
    assert [(one.method, one.headers.get("x-amz-checksum-mode")) for one in asked] == [
        ("HEAD", "ENABLED"),
        ("GET", None),
    ]
    assert asked[0].connection == asked[1].connection


def test_the_checksum_of_another_version_is_a_change(server: FaultServer, store: S3Store) -> None:
    item = item_of(store)
    server.objects["model/a"] = Stored(DATA, '"2"')
    with pytest.raises(Changed, match="listed as 1, now 2"):
        checksum_of(store.open_reader(), item)


def test_an_object_that_is_gone_is_a_change(server: FaultServer, store: S3Store) -> None:
    item = item_of(store)
    server.objects.clear()
    with pytest.raises(Changed, match="removed after it was listed"):
        checksum_of(store.open_reader(), item)


@pytest.mark.parametrize(("status", "kind"), [(403, AccessDenied), (503, TransientError)])
def test_a_refusal_is_told_as_what_it_is(
    status: int, kind: type[Exception], server: FaultServer, store: S3Store
) -> None:
    item = item_of(store)
    server.refuse = lambda asked: faults.error_answer(status)
    with pytest.raises(kind):
        checksum_of(store.open_reader(), item)


def test_a_folder_keeps_none(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(DATA)
    store = LocalStore(parse_source(str(tmp_path)))
    (item,) = store.list().objects
    assert checksum_of(store.open_reader(), item) == "this kind of store keeps no checksums"


def test_a_real_store_gives_what_it_was_given(seaweed: SeaweedStore) -> None:
    client: Any = make_s3_client(resolve_s3_settings(seaweed.environment()), attempts=1)
    bucket = f"sums-{secrets.token_hex(6)}"
    client.create_bucket(Bucket=bucket)
    data = secrets.token_bytes(100_000)
    checksum = CRC64NVME.encode(CRC64NVME.of([data]))
    client.put_object(Bucket=bucket, Key="m/a", Body=data, ChecksumCRC64NVME=checksum)
    client.put_object(Bucket=bucket, Key="m/b", Body=data)
    source = parse_source(f"s3://{bucket}/m")
    store = S3Store(source, resolve_s3_settings(seaweed.environment()))
    with_one, without = store.list().objects
    reader = store.open_reader()
    assert checksum_of(reader, with_one) == StoredChecksum(CRC64NVME, CRC64NVME.of([data]))
    assert checksum_of(reader, without) == "the store keeps no CRC of the whole object"
