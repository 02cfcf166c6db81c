"""Uploads to gs://: in pieces that are resumed, proved by what the store answers, and ended without a trace."""

import hashlib
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.source.uri import parse_source
from headrace.store.base import read_whole
from headrace.store.crc import CRC32C
from headrace.store.errors import (
    AccessDenied,
    BadEndpoint,
    Corrupt,
    NotFound,
    StoreError,
    TransientError,
    Truncated,
    Unsupported,
)
from headrace.store.gcs import session as gcs_session
from headrace.store.gcs.settings import GcsSettings, resolve_gcs_settings
from headrace.store.gcs.store import GcsStore
from headrace.store.gcs.uploader import GcsUploader
from headrace.store.upload.plan import LocalFile, find_files
from headrace.store.upload.upload import upload_files
from headrace.store.upload.uploader import FileSums, open_uploader
from tests.fake_gcs import fake_gcs
from tests.store.scripted_gcs import Answer, Asked, ScriptedGcs, error, scripted_gcs

PIECE = 256 << 10
DATA = random.Random(6).randbytes(3 * PIECE + 1000)
TOKEN = "ya29.scripted-token"
pytestmark = pytest.mark.timeout(60)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gcs_session, "PIECE_BYTES", PIECE)


@pytest.fixture
def server() -> Iterator[ScriptedGcs]:
    with scripted_gcs() as running:
        yield running


@pytest.fixture
def file(tmp_path: Path) -> LocalFile:
    path = tmp_path / "a b.safetensors"
    path.write_bytes(DATA)
    return LocalFile(path, path.name, len(DATA))


def settings_of(server: ScriptedGcs) -> GcsSettings:
    return resolve_gcs_settings({"HEADRACE_GCS_ENDPOINT": server.url, "HEADRACE_GCS_TOKEN": TOKEN})


def uploader_of(server: ScriptedGcs, first_wait_s: float = 0.0) -> GcsUploader:
    return GcsUploader(parse_source("gs://bucket/m"), settings_of(server), first_wait_s=first_wait_s)


def sums_of(data: bytes) -> FileSums:
    return FileSums(hashlib.sha256(data).hexdigest(), CRC32C.of([data]))


def put(server: ScriptedGcs, file: LocalFile) -> list[int]:
    """Upload the file; the progress that was told."""
    told: list[int] = []
    uploader_of(server).put_file(file, sums_of(file.path.read_bytes()), told.append)
    return told


def pieces(server: ScriptedGcs) -> list[str]:
    return [asked.headers["content-range"] for asked in server.log if asked.method == "PUT"]


def put_aside(uploader: GcsUploader, file: LocalFile) -> tuple[threading.Thread, list[StoreError]]:
    """Upload in another thread; what it raises comes into the list."""
    errors: list[StoreError] = []

    def run() -> None:
        try:
            uploader.put_file(file, sums_of(DATA), lambda count: None)
        except StoreError as caught:
            errors.append(caught)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, errors


class Once:
    """Answers one of the pieces otherwise, by its number from 0 on."""

    def __init__(self, server: ScriptedGcs, number: int, take: int, answer: Answer) -> None:
        self.server, self.number, self.take, self.given = server, number, take, answer
        server.refuse = self.answer

    def answer(self, asked: Asked) -> Answer | None:
        if asked.method != "PUT":
            return None
        self.number -= 1
        if self.number != -1:
            return None
        self.server.take(asked, self.take)
        return self.given


def test_a_folder_is_pushed_listed_and_read_back_and_a_second_push_sends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "model"
    (folder / "templates").mkdir(parents=True)
    contents = {
        "model.safetensors": DATA,
        "config.json": b"{}",
        "empty.txt": b"",
        "templates/ü b.jinja": b"t",
    }
    for name, data in contents.items():
        (folder / name).write_bytes(data)
    (tmp_path / "buckets").mkdir()
    with fake_gcs(tmp_path / "buckets") as gcs:
        for name, value in gcs.environment.items():
            monkeypatch.setenv(name, value)
        destination = parse_source("gs://new-bucket/a b")
        files = find_files(folder).files
        with pytest.raises(NotFound, match="--create-bucket"):
            upload_files(files, destination)
        told: list[int] = []
        first = upload_files(files, destination, create_bucket=True, on_bytes=told.append)
        assert first.bucket_created
        assert set(first.uploaded) == set(contents)
        assert sum(told) == sum(map(len, contents.values()))
        store = GcsStore(destination, resolve_gcs_settings(gcs.environment))
        reader = store.open_reader()
        assert {item.name: read_whole(reader, item) for item in store.list_below()} == contents
        (folder / "config.json").write_bytes(b"[]")
        second = upload_files(files, destination)
        assert second.uploaded == ("config.json",)


def test_who_pushes_is_found_by_the_environment(server: ScriptedGcs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_GCS_ENDPOINT", server.url)
    monkeypatch.setenv("HEADRACE_GCS_TOKEN", TOKEN)
    assert open_uploader(parse_source("gs://bucket/m")).sizes() == {}
    assert server.tokens == [f"Bearer {TOKEN}"]


def test_a_file_goes_in_pieces_with_its_checksums(server: ScriptedGcs, file: LocalFile) -> None:
    assert put(server, file) == [PIECE, PIECE, PIECE, 1000]
    stored = server.objects["m/a b.safetensors"]
    assert stored.data == DATA
    assert stored.metadata == {"headrace-sha256": hashlib.sha256(DATA).hexdigest()}
    assert pieces(server)[0] == f"bytes 0-{PIECE - 1}/{len(DATA)}"
    assert uploader_of(server).holds(file, sums_of(DATA))
    assert not uploader_of(server).holds(file, sums_of(b"other"))


def test_an_empty_file_is_an_object_too(server: ScriptedGcs, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    put(server, LocalFile(tmp_path / "empty", "empty", 0))
    assert server.objects["m/empty"].data == b""


def test_the_address_of_a_session_leads_to_the_endpoint_and_nowhere_else(
    server: ScriptedGcs, file: LocalFile
) -> None:
    put(server, file)  # the server's Location names another host
    assert all(asked.headers["host"] == server.url.removeprefix("http://") for asked in server.log)


@pytest.mark.parametrize("taken", [0, 1000, PIECE])
def test_a_piece_that_fails_is_resumed_where_the_store_says(
    taken: int, server: ScriptedGcs, file: LocalFile
) -> None:
    Once(server, 1, taken, error(503, "backendError"))
    assert sum(put(server, file)) == len(DATA)
    assert server.objects["m/a b.safetensors"].data == DATA
    assert f"bytes */{len(DATA)}" in pieces(server)


def test_a_store_that_took_only_a_part_of_a_piece_gets_the_rest(server: ScriptedGcs, file: LocalFile) -> None:
    Once(server, 0, PIECE // 2, Answer(308, b"", {"Range": f"bytes=0-{PIECE // 2 - 1}"}))
    assert put(server, file)[0] == PIECE // 2
    assert server.objects["m/a b.safetensors"].data == DATA


def test_an_answer_that_was_lost_after_the_last_piece_is_asked_for_again(
    server: ScriptedGcs, file: LocalFile
) -> None:
    Once(server, 3, 1000, error(500, "internalError"))
    assert sum(put(server, file)) == len(DATA)


@pytest.mark.parametrize("status", [404, 410])
def test_a_session_that_the_store_has_dropped_is_begun_anew(
    status: int, server: ScriptedGcs, file: LocalFile
) -> None:
    Once(server, 2, 0, error(status, "notFound"))
    told = put(server, file)
    assert min(told) < 0
    assert sum(told) == len(DATA)
    assert len(server.uploads) == 2


def test_what_fails_again_and_again_ends_it_and_nothing_stays_behind(
    server: ScriptedGcs, file: LocalFile
) -> None:
    server.refuse = lambda asked: error(503, "backendError") if asked.method == "PUT" else None
    with pytest.raises(TransientError):
        put(server, file)
    assert server.cancelled == 1
    assert server.objects == {}


def test_a_store_that_takes_nothing_ends_it(server: ScriptedGcs, file: LocalFile) -> None:
    server.refuse = lambda asked: Answer(308) if asked.method == "PUT" else None
    with pytest.raises(TransientError, match="took none"):
        put(server, file)


@pytest.mark.parametrize(
    ("answer", "kind", "said"),
    [
        (error(403, "forbidden", "No storage.objects.create."), AccessDenied, "storage.objectUser"),
        (Answer(200), Unsupported, "without saying where"),
        (Answer(404, b"", {"Content-Type": "text/html"}), BadEndpoint, "does not answer as Cloud Storage"),
    ],
)
def test_an_upload_that_cannot_begin_says_why(
    answer: Answer, kind: type[StoreError], said: str, server: ScriptedGcs, file: LocalFile
) -> None:
    server.refuse = lambda asked: answer if asked.method == "POST" else None
    with pytest.raises(kind, match=said):
        put(server, file)


@pytest.mark.parametrize(
    ("facts", "kind"),
    [
        (b'{"size": "7", "crc32c": "AAAAAA=="}', Truncated),
        (b'{"size": "%d", "crc32c": "AAAAAA=="}' % len(DATA), Corrupt),
        (b"<html>", Unsupported),
    ],
)
def test_what_the_store_holds_is_compared_with_the_file(
    facts: bytes, kind: type[StoreError], server: ScriptedGcs, file: LocalFile
) -> None:
    server.refuse = lambda asked: Answer(200, facts) if asked.method == "PUT" else None
    with pytest.raises(kind):
        put(server, file)


def test_bytes_that_are_not_those_that_were_hashed_are_refused_by_the_store(
    server: ScriptedGcs, file: LocalFile
) -> None:
    with pytest.raises(StoreError, match="CRC32C does not match"):
        uploader_of(server).put_file(file, sums_of(b"other"), lambda count: None)
    assert server.objects == {}


def test_a_file_that_became_shorter_is_found_out(server: ScriptedGcs, file: LocalFile) -> None:
    file.path.write_bytes(DATA[:PIECE])
    with pytest.raises(Truncated, match="shorter"):
        uploader_of(server).put_file(file, sums_of(DATA), lambda count: None)
    assert server.objects == {}


def test_an_upload_that_is_ended_from_another_thread_leaves_nothing(
    server: ScriptedGcs, file: LocalFile
) -> None:
    held, released = threading.Event(), threading.Event()

    def hold(asked: Asked) -> Answer | None:
        if asked.method == "PUT":
            held.set()
            released.wait()
        return None

    server.refuse = hold
    uploader = uploader_of(server)
    thread, errors = put_aside(uploader, file)
    held.wait()
    uploader.abort()
    thread.join()
    released.set()
    assert "was ended" in str(errors[0])
    assert server.cancelled == 1
    with pytest.raises(StoreError, match="was ended"):
        uploader.put_file(file, sums_of(DATA), lambda count: None)
    uploader.close()


def test_a_wait_for_another_try_ends_with_the_upload(server: ScriptedGcs, file: LocalFile) -> None:
    failed = threading.Event()

    def fail(asked: Asked) -> Answer | None:
        if asked.method == "PUT":
            failed.set()
            return error(503, "backendError")
        return None

    server.refuse = fail
    uploader = uploader_of(server, first_wait_s=3600.0)
    thread, errors = put_aside(uploader, file)
    failed.wait()
    uploader.abort()
    thread.join()
    assert "was ended" in str(errors[0])


def test_a_bucket_is_made_in_the_project_that_the_environment_names(
    server: ScriptedGcs, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.bucket_exists = False
    with pytest.raises(NotFound) as caught:
        uploader_of(server).make_bucket()
    assert "GOOGLE_CLOUD_PROJECT" in caught.value.remedy
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "my-project")
    assert uploader_of(server).make_bucket()
    assert server.log[-1].query == {"project": "my-project"}
    assert not uploader_of(server).make_bucket()


def test_no_message_holds_the_token_or_the_sessions_address(server: ScriptedGcs, file: LocalFile) -> None:
    Once(server, 0, 0, error(403, "forbidden", "No."))
    with pytest.raises(AccessDenied) as caught:
        put(server, file)
    assert TOKEN not in str(caught.value)
    assert "upload_id" not in str(caught.value)
