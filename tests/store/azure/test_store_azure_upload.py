"""headrace push to az://: what is sent, in how many requests, what is proved, and how it ends."""

import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.cli.main import main
from headrace.source.uri import parse_source
from headrace.store.azure.settings import resolve_azure_settings
from headrace.store.azure.store import AzureStore
from headrace.store.azure.uploader import AzureUploader
from headrace.store.base import read_whole
from headrace.store.crc import CRC64NVME
from headrace.store.errors import (
    AccessDenied,
    NoCredentials,
    NotFound,
    StoreError,
    Throttled,
    Truncated,
    Unsupported,
)
from headrace.store.stored_checksum import StoredChecksum, checksum_of
from headrace.store.upload.digest import sha256_of
from headrace.store.upload.plan import LocalFile, find_files
from headrace.store.upload.upload import upload_files
from headrace.store.upload.uploader import FileSums
from tests.azurite import Azurite, account_signature, azurite
from tests.store.scripted_azure import Answer, Asked, ScriptedAzure, error, scripted_azure

DATA = random.Random(5).randbytes(1_000_000)
pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Azurite]:
    with azurite(tmp_path_factory.mktemp("azurite")) as server:
        server.make_container("models")
        yield server


@pytest.fixture
def scripted() -> Iterator[ScriptedAzure]:
    with scripted_azure() as server:
        yield server


@pytest.fixture
def file(tmp_path: Path) -> LocalFile:
    path = tmp_path / "model.safetensors"
    path.write_bytes(DATA)
    return LocalFile(path, "model.safetensors", len(DATA))


def uploader_of(
    server: Azurite | ScriptedAzure, uri: str, block_bytes: int = 1 << 24, **environ: str
) -> AzureUploader:
    source = parse_source(uri)
    settings = resolve_azure_settings(source, {**server.environment, **environ})
    return AzureUploader(source, settings, block_bytes=block_bytes, first_wait_s=0.0)


def store_of(server: Azurite | ScriptedAzure, uri: str) -> AzureStore:
    source = parse_source(uri)
    return AzureStore(source, resolve_azure_settings(source, server.environment))


def put(uploader: AzureUploader, file: LocalFile) -> list[int]:
    """Put a file; what was told of bytes on the way."""
    told: list[int] = []
    crc = CRC64NVME.of([file.path.read_bytes()])
    try:
        uploader.put_file(file, FileSums(sha256_of(file), crc), told.append)
    finally:
        uploader.close()
    return told


@pytest.mark.parametrize("block_bytes", [len(DATA), 300_000, 333_333, 999_999])
def test_a_file_is_stored_whole_in_one_request_or_in_blocks(
    server: Azurite, file: LocalFile, block_bytes: int
) -> None:
    uri = f"az://models/blocks-{block_bytes}"
    told = put(uploader_of(server, uri, block_bytes), file)
    assert (sum(told), len(told)) == (len(DATA), -(-len(DATA) // block_bytes))
    store = store_of(server, uri)
    (item,) = store.list().objects
    reader = store.open_reader()
    assert read_whole(reader, item) == DATA
    assert checksum_of(reader, item) == StoredChecksum(CRC64NVME, CRC64NVME.of([DATA]))


def test_an_empty_file_is_stored(server: Azurite, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    put(uploader_of(server, "az://models/empty"), LocalFile(tmp_path / "empty", "empty", 0))
    assert store_of(server, "az://models/empty").look_up("empty", 1).item.size_bytes == 0


def test_a_second_push_sends_nothing_and_a_changed_file_is_sent(
    server: Azurite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    folder = tmp_path / "model"
    (folder / "templates").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "templates" / "a b.jinja").write_text("x")
    destination = parse_source("az://models/twice")
    first = upload_files(find_files(folder).files, destination)
    assert first.uploaded == ("config.json", "templates/a b.jinja")
    second = upload_files(find_files(folder).files, destination)
    assert (second.uploaded, second.skipped) == ((), first.uploaded)
    (folder / "config.json").write_text("[]")
    assert upload_files(find_files(folder).files, destination).uploaded == ("config.json",)


def test_a_missing_container_is_made_only_when_asked_for(
    server: Azurite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "config.json").write_text("{}")
    push = ["push", str(tmp_path), "az://brand-new/m", "--force", "--quiet"]
    assert main(push) != 0
    assert "--create-bucket" in capsys.readouterr().err
    assert main([*push, "--create-bucket"]) == 0
    assert main([*push, "--create-bucket"]) == 0
    assert [item.name for item in store_of(server, "az://brand-new/m").list().objects] == ["config.json"]


def test_bytes_that_change_on_the_way_are_refused_by_the_store(
    server: Azurite, file: LocalFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.store.azure.uploader._md5", lambda data: "AAAAAAAAAAAAAAAAAAAAAA==")
    with pytest.raises(StoreError, match="contentMD5 doesn't match"):
        put(uploader_of(server, "az://models/mangled", 300_000), file)
    with pytest.raises(NotFound):
        store_of(server, "az://models/mangled").look_up("model.safetensors", 1)


def test_a_signature_that_may_not_write_is_told(server: Azurite, file: LocalFile) -> None:
    reading = {"AZURE_STORAGE_ACCOUNT_KEY": "", "AZURE_STORAGE_SAS_TOKEN": account_signature("rl")}
    with pytest.raises(AccessDenied, match=r"has not the permission .*\(it has: rl\)"):
        put(uploader_of(server, "az://models/reader", **reading), file)


def test_nobody_writes_without_saying_who_it_is(server: Azurite) -> None:
    with pytest.raises(NoCredentials, match="must say who it is"):
        uploader_of(server, "az://models/m", AZURE_STORAGE_ACCOUNT_KEY="")


def test_a_backslash_in_a_name_is_refused_as_the_store_makes_a_slash_of_it(
    server: Azurite, file: LocalFile
) -> None:
    with pytest.raises(Unsupported, match="backslash"):
        put(uploader_of(server, "az://models/m"), LocalFile(file.path, "a\\b", file.size_bytes))


def test_what_fails_for_a_moment_is_sent_again(scripted: ScriptedAzure, file: LocalFile) -> None:
    left = [error(503, "ServerBusy"), error(500, "InternalError"), error(429)]
    lock = threading.Lock()

    def refuse(asked: Asked) -> Answer | None:
        with lock:
            return left.pop() if left and asked.method == "PUT" else None

    scripted.refuse = refuse
    told = put(uploader_of(scripted, "az://models/m", 300_000), file)
    assert sum(told) == len(DATA)
    assert scripted.blobs["m/model.safetensors"].data == DATA


def test_what_fails_always_ends_the_upload_and_commits_nothing(
    scripted: ScriptedAzure, file: LocalFile
) -> None:
    scripted.refuse = lambda asked: error(503, "ServerBusy") if asked.query.get("comp") == "block" else None
    with pytest.raises(Throttled):
        put(uploader_of(scripted, "az://models/m", 300_000), file)
    assert scripted.blobs == {}


def test_an_object_of_another_size_than_the_file_is_told(scripted: ScriptedAzure, file: LocalFile) -> None:
    scripted.refuse = lambda asked: Answer(200, b"short") if asked.method == "HEAD" else None
    with pytest.raises(Truncated, match=r"1,000,000 bytes were uploaded, but the store holds 5\."):
        put(uploader_of(scripted, "az://models/m"), file)


def test_blocks_of_two_uploads_at_once_have_different_names(scripted: ScriptedAzure, file: LocalFile) -> None:
    for _ in range(2):
        put(uploader_of(scripted, "az://models/m", 300_000), file)
    names = [asked.query["blockid"] for asked in scripted.log if asked.query.get("comp") == "block"]
    assert len(set(names)) == len(names) == 8
    assert len({len(name) for name in names}) == 1


def test_an_abort_ends_what_is_under_way_and_refuses_what_comes(
    scripted: ScriptedAzure, file: LocalFile
) -> None:
    arrived, go_on = threading.Event(), threading.Event()

    def refuse(asked: Asked) -> Answer | None:
        if asked.query.get("comp") == "block":
            arrived.set()
            go_on.wait(30)
        return None

    scripted.refuse = refuse
    uploader = uploader_of(scripted, "az://models/m", 300_000)
    caught: list[Exception] = []

    def run() -> None:
        try:
            put(uploader, file)
        except StoreError as error:
            caught.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert arrived.wait(30)
    uploader.abort()
    thread.join(30)
    go_on.set()
    assert not thread.is_alive()
    assert "The upload was ended." in str(caught[0])
    assert scripted.blobs == {}
    with pytest.raises(StoreError, match="ended"):
        uploader.holds(file, FileSums(""))
