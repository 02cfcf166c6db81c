"""The manifest that a push makes, and the checksums of whole objects that it sends, on a real store."""

import json
import secrets
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.demo.store import SeaweedStore
from headrace.source.files import MANIFEST_NAME
from headrace.source.manifest import BLOCK_BYTES, ObjectSums, parse_manifest
from headrace.source.uri import ModelSource, parse_source
from headrace.store.base import open_store
from headrace.store.block_sums import BlockSummer
from headrace.store.crc import CRC32, CRC64NVME
from headrace.store.s3.client import make_s3_client
from headrace.store.s3.settings import S3Settings, resolve_s3_settings
from headrace.store.s3.uploader import PART_BYTES
from headrace.store.stored_checksum import StoredChecksum, checksum_of
from headrace.store.upload.plan import find_files
from headrace.store.upload.upload import FileChanged, UploadResult, upload_files
from tests.manifests import sums_of_file

WEIGHTS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "model"
    (made / "original").mkdir(parents=True)
    for name, size in ((WEIGHTS[0], 3 * BLOCK_BYTES + 5), (WEIGHTS[1], 100), ("original/x.safetensors", 10)):
        (made / name).write_bytes(secrets.token_bytes(size))
    (made / "config.json").write_text("{}")
    return made


@pytest.fixture
def settings(seaweed: SeaweedStore, monkeypatch: pytest.MonkeyPatch) -> S3Settings:
    for name, value in seaweed.environment().items():
        monkeypatch.setenv(name, value)
    return resolve_s3_settings()


@pytest.fixture
def destination(settings: S3Settings) -> ModelSource:
    client: Any = make_s3_client(settings, attempts=1)
    bucket = f"manifest-{secrets.token_hex(6)}"
    client.create_bucket(Bucket=bucket)
    return parse_source(f"s3://{bucket}/m")


def stored_manifest(destination: ModelSource, settings: S3Settings) -> dict[str, ObjectSums]:
    client: Any = make_s3_client(settings, attempts=1)
    answer = client.get_object(Bucket=destination.bucket, Key=f"m/{MANIFEST_NAME}")
    return parse_manifest(answer["Body"].read(), "the store")


def push(
    folder: Path, destination: ModelSource, settings: S3Settings, *, manifest: bool = False
) -> UploadResult:
    return upload_files(find_files(folder).files, destination, settings, manifest=manifest)


def expected(folder: Path) -> dict[str, ObjectSums]:
    return {name: sums_of_file(folder / name) for name in WEIGHTS}


@given(st.binary(max_size=50), st.lists(st.integers(0, 3 * BLOCK_BYTES), max_size=4), st.integers(0, 2))
def test_the_sums_do_not_depend_on_how_the_bytes_come(pattern: bytes, cuts: list[int], blocks: int) -> None:
    content = (pattern or b"?") * ((blocks * BLOCK_BYTES) // max(len(pattern), 1) + 1)
    summer = BlockSummer()
    bounds = sorted({0, len(content), *(min(cut, len(content)) for cut in cuts)})
    for start, end in pairwise(bounds):
        summer.update(content[start:end])
    starts = range(0, len(content), BLOCK_BYTES)
    assert summer.sums() == ObjectSums(
        len(content), BLOCK_BYTES, tuple(CRC64NVME.of([content[at : at + BLOCK_BYTES]]) for at in starts)
    )


def test_a_push_with_a_manifest_puts_the_sums_of_all_weights_beside_them(
    folder: Path, destination: ModelSource, settings: S3Settings
) -> None:
    result = push(folder, destination, settings, manifest=True)
    assert MANIFEST_NAME in result.uploaded
    assert result.bytes_uploaded > sum(file.size_bytes for file in find_files(folder).files)
    assert stored_manifest(destination, settings) == expected(folder)
    assert not (folder / MANIFEST_NAME).exists()


def test_a_push_without_one_makes_none(folder: Path, destination: ModelSource, settings: S3Settings) -> None:
    push(folder, destination, settings)
    assert open_store(destination).list().find(MANIFEST_NAME) is None


def test_a_second_push_skips_it_too(folder: Path, destination: ModelSource, settings: S3Settings) -> None:
    push(folder, destination, settings, manifest=True)
    again = push(folder, destination, settings, manifest=True)
    assert again.uploaded == ()
    assert MANIFEST_NAME in again.skipped


def test_a_prefix_that_has_one_gets_a_new_one_with_new_weights(
    folder: Path, destination: ModelSource, settings: S3Settings
) -> None:
    push(folder, destination, settings, manifest=True)
    (folder / WEIGHTS[1]).write_bytes(secrets.token_bytes(100))
    result = push(folder, destination, settings)
    assert set(result.uploaded) == {WEIGHTS[1], MANIFEST_NAME}
    assert result.only_in_store == ()
    assert stored_manifest(destination, settings) == expected(folder)


def test_one_in_the_folder_is_not_trusted(
    folder: Path, destination: ModelSource, settings: S3Settings
) -> None:
    (folder / MANIFEST_NAME).write_text(json.dumps({"of": "another model"}))
    push(folder, destination, settings)
    assert stored_manifest(destination, settings) == expected(folder)


def test_it_is_there_before_config_json_and_after_the_weights(
    folder: Path, destination: ModelSource, settings: S3Settings
) -> None:
    push(folder, destination, settings, manifest=True)
    written: dict[str, Any] = {}
    client: Any = make_s3_client(settings, attempts=1)
    for name in (*WEIGHTS, MANIFEST_NAME, "config.json"):
        written[name] = client.head_object(Bucket=destination.bucket, Key=f"m/{name}")["LastModified"]
    assert max(written[name] for name in WEIGHTS) <= written[MANIFEST_NAME] <= written["config.json"]


@pytest.fixture
def with_checksums(settings: S3Settings, monkeypatch: pytest.MonkeyPatch) -> S3Settings:
    """As for a bucket of AWS, whose uploads carry checksums by default."""
    monkeypatch.setenv("AWS_REQUEST_CHECKSUM_CALCULATION", "when_supported")
    return settings


@pytest.mark.parametrize("size", [1000, PART_BYTES + 100], ids=["in one part", "in several parts"])
def test_where_checksums_are_sent_the_store_keeps_one_of_the_whole_object(
    size: int, tmp_path: Path, destination: ModelSource, with_checksums: S3Settings
) -> None:
    data = secrets.token_bytes(size)
    (tmp_path / "a.bin").write_bytes(data)
    upload_files(find_files(tmp_path).files, destination, with_checksums)
    store = open_store(destination)
    (item,) = store.list().objects
    assert checksum_of(store.open_reader(), item) == StoredChecksum(CRC32, CRC32.of([data]))


def test_a_file_that_changes_meanwhile_is_told_as_that_also_when_the_store_finds_it_out(
    tmp_path: Path, destination: ModelSource, with_checksums: S3Settings
) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(secrets.token_bytes(3 * PART_BYTES))
    changed = threading.Event()

    def spoil(count: int) -> None:
        if count > 0 and not changed.is_set():
            changed.set()
            with open(path, "r+b") as file:
                file.seek(-100, 2)
                file.write(bytes(100))

    with pytest.raises(FileChanged, match="was changed while it was uploaded"):
        upload_files(find_files(tmp_path).files, destination, with_checksums, on_bytes=spoil)
