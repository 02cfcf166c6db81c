"""Uploading a folder: order, skipping, proof, interruption and repair, on a real store."""

import os
import secrets
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.session import Session

from headrace.demo.store import SeaweedStore
from headrace.source.uri import ModelSource, parse_source
from headrace.store.errors import AccessDenied, BadEndpoint, BadSignature, NotFound, TlsError, Unsupported
from headrace.store.s3.settings import S3Settings, resolve_s3_settings
from headrace.store.s3.uploader import PART_BYTES
from headrace.store.upload.digest import sha256_of
from headrace.store.upload.file import CannotReadFile
from headrace.store.upload.plan import BadFileName, find_files, upload_stages
from headrace.store.upload.upload import FileChanged, upload_files
from headrace.store.upload.uploader import CHECKSUM_KEY
from tests.identities import READER


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Files as a model has them, with other content."""
    made = tmp_path / "model"
    made.mkdir()
    for name, size in (("config.json", 30), ("tokenizer.json", 500), ("model.safetensors", 3000)):
        (made / name).write_bytes(secrets.token_bytes(size))
    return made


@pytest.fixture
def settings(seaweed: SeaweedStore) -> S3Settings:
    return resolve_s3_settings(seaweed.environment())


@pytest.fixture
def client(seaweed: SeaweedStore) -> Any:
    return Session().create_client(
        "s3",
        endpoint_url=seaweed.endpoint_url,
        region_name="us-east-1",
        aws_access_key_id=seaweed.access_key,
        aws_secret_access_key=seaweed.secret_key,
    )


@pytest.fixture
def destination(client: Any) -> ModelSource:
    """A prefix in a new bucket."""
    bucket = f"bucket-{secrets.token_hex(6)}"
    client.create_bucket(Bucket=bucket)
    return parse_source(f"s3://{bucket}/some/prefix")


def stored(client: Any, destination: ModelSource) -> dict[str, bytes]:
    """Key → content of everything in the bucket."""
    listed = client.list_objects_v2(Bucket=destination.bucket).get("Contents", ())
    return {
        item["Key"]: client.get_object(Bucket=destination.bucket, Key=item["Key"])["Body"].read()
        for item in listed
    }


def test_every_file_arrives_under_the_prefix(
    folder: Path, settings: S3Settings, client: Any, destination: ModelSource
) -> None:
    (folder / "extra").mkdir()
    (folder / "extra" / "note with spaces ü.txt").write_text("nested")
    (folder / "empty.txt").touch()
    result = upload_files(find_files(folder).files, destination, settings)
    assert stored(client, destination) == {
        f"some/prefix/{path.relative_to(folder).as_posix()}": path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }
    assert len(result.uploaded) == 5
    assert result.bytes_uploaded == sum(file.size_bytes for file in find_files(folder).files)


def test_the_root_of_a_bucket_can_be_pushed_to(
    folder: Path, settings: S3Settings, client: Any, destination: ModelSource
) -> None:
    upload_files(find_files(folder).files, parse_source(f"s3://{destination.bucket}"), settings)
    assert set(stored(client, destination)) == {"config.json", "tokenizer.json", "model.safetensors"}


def test_the_checksum_is_stored_beside_the_object(
    folder: Path, settings: S3Settings, client: Any, destination: ModelSource
) -> None:
    files = find_files(folder).files
    upload_files(files, destination, settings)
    for file in files:
        head = client.head_object(Bucket=destination.bucket, Key=f"some/prefix/{file.name}")
        assert head["Metadata"] == {CHECKSUM_KEY: sha256_of(file)}


def test_a_second_push_sends_nothing(folder: Path, settings: S3Settings, destination: ModelSource) -> None:
    files = find_files(folder).files
    upload_files(files, destination, settings)
    result = upload_files(files, destination, settings)
    assert result.uploaded == ()
    assert result.skipped == ("config.json", "model.safetensors", "tokenizer.json")
    assert (result.bytes_uploaded, result.bytes_skipped) == (0, 3530)


def test_a_file_of_the_same_size_with_other_content_is_sent_again(
    folder: Path, settings: S3Settings, client: Any, destination: ModelSource
) -> None:
    upload_files(find_files(folder).files, destination, settings)
    new = secrets.token_bytes(3000)
    (folder / "model.safetensors").write_bytes(new)
    result = upload_files(find_files(folder).files, destination, settings)
    assert result.uploaded == ("model.safetensors",)
    assert stored(client, destination)["some/prefix/model.safetensors"] == new


def test_an_object_without_our_checksum_is_sent_again(
    folder: Path, settings: S3Settings, client: Any, destination: ModelSource
) -> None:
    content = (folder / "model.safetensors").read_bytes()
    client.put_object(Bucket=destination.bucket, Key="some/prefix/model.safetensors", Body=content)
    result = upload_files(find_files(folder).files, destination, settings)
    assert "model.safetensors" in result.uploaded


def test_what_only_the_store_has_is_named_and_left_alone(
    folder: Path, settings: S3Settings, client: Any, destination: ModelSource
) -> None:
    client.put_object(Bucket=destination.bucket, Key="some/prefix/old.safetensors", Body=b"old")
    client.put_object(Bucket=destination.bucket, Key="some/prefix-of-another", Body=b"not ours")
    result = upload_files(find_files(folder).files, destination, settings)
    assert result.only_in_store == ("old.safetensors",)
    assert stored(client, destination)["some/prefix/old.safetensors"] == b"old"


def test_a_large_file_goes_in_parts_and_arrives_whole(
    folder: Path, settings: S3Settings, client: Any, destination: ModelSource
) -> None:
    content = secrets.token_bytes(1000) + bytes(2 * PART_BYTES) + secrets.token_bytes(1000)
    (folder / "model.safetensors").write_bytes(content)
    told: list[int] = []
    upload_files(find_files(folder).files, destination, settings, on_bytes=told.append)
    head = client.head_object(Bucket=destination.bucket, Key="some/prefix/model.safetensors")
    assert head["ETag"].strip('"').endswith("-3")  # three parts
    assert stored(client, destination)["some/prefix/model.safetensors"] == content
    assert sum(told) == len(content) + 530


def test_weights_go_first_and_the_config_last(folder: Path) -> None:
    (folder / "model.safetensors.index.json").touch()
    stages = upload_stages(find_files(folder).files)
    names = [[file.name for file in stage] for stage in stages]
    assert names == [
        ["model.safetensors"],
        ["model.safetensors.index.json", "tokenizer.json"],
        ["config.json"],
    ]


def test_dot_files_and_linked_folders_are_left_out_and_named(folder: Path) -> None:
    for name in (".git", ".cache", "real"):
        (folder / name).mkdir()
        (folder / name / "file").touch()
    (folder / ".gitattributes").touch()
    (folder / "linked").symlink_to(folder / "real")
    os.mkfifo(folder / "pipe")
    found = find_files(folder)
    assert [file.name for file in found.files] == [
        "config.json",
        "model.safetensors",
        "real/file",
        "tokenizer.json",
    ]
    assert found.left_out == (".cache/", ".git/", ".gitattributes", "linked/", "pipe")


def test_a_linked_file_is_followed(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "blob").write_bytes(b"twelve bytes")
    (folder / "weights.safetensors").symlink_to(tmp_path / "blob")
    assert find_files(folder).files[-1].size_bytes == 12


@pytest.mark.parametrize("name", [b"\xff\xfe.bin", b"a\nb.txt", b"\x7f", "\x85".encode()])
def test_a_name_that_no_key_can_hold_is_refused_and_told(folder: Path, name: bytes) -> None:
    with open(os.fsencode(folder) + b"/" + name, "wb"):
        pass
    with pytest.raises(BadFileName, match="it cannot be the key of an object") as caught:
        find_files(folder)
    assert str(caught.value).isprintable()


def test_odd_names_of_what_is_left_out_can_be_printed(folder: Path) -> None:
    os.mkdir(os.fsencode(folder) + b"/.\xff")  # noqa: PTH102 - Path takes no bytes
    assert find_files(folder).left_out == (".\\xff/",)


def test_links_that_lead_nowhere_are_left_out(folder: Path) -> None:
    (folder / "dangling").symlink_to(folder / "nothing")
    (folder / "circle").symlink_to(folder / "circle")
    assert find_files(folder).left_out == ("circle", "dangling")


def test_ctrl_c_leaves_neither_parts_nor_a_config(
    folder: Path, settings: S3Settings, client: Any, destination: ModelSource
) -> None:
    with open(folder / "model.safetensors", "wb") as file:
        file.truncate(12 * PART_BYTES)
    once = threading.Lock()

    def interrupt_once(_count: int) -> None:
        if once.acquire(blocking=False):
            uploads = client.list_multipart_uploads(Bucket=destination.bucket).get("Uploads", ())
            begun.extend(upload["Key"] for upload in uploads)
            os.kill(os.getpid(), signal.SIGINT)

    begun: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        upload_files(find_files(folder).files, destination, settings, on_bytes=interrupt_once)
    assert begun == ["some/prefix/model.safetensors"]
    assert "Uploads" not in client.list_multipart_uploads(Bucket=destination.bucket)
    assert stored(client, destination) == {}


def test_an_interrupted_push_goes_on_where_it_stopped(
    folder: Path, settings: S3Settings, destination: ModelSource
) -> None:
    (folder / "second.safetensors").write_bytes(b"after the first")
    weights = [file for file in find_files(folder).files if file.name == "model.safetensors"]
    upload_files(weights, destination, settings)
    result = upload_files(find_files(folder).files, destination, settings)
    assert result.skipped == ("model.safetensors",)


def test_a_file_that_changes_under_the_upload_is_an_error_and_the_config_stays_away(
    folder: Path, settings: S3Settings, client: Any, destination: ModelSource
) -> None:
    def overwrite(_count: int) -> None:
        os.utime(folder / "model.safetensors", ns=(1, 1))

    with pytest.raises(FileChanged, match=r"model\.safetensors was changed while it was uploaded"):
        upload_files(find_files(folder).files, destination, settings, on_bytes=overwrite)
    assert "some/prefix/config.json" not in stored(client, destination)


class CuttingProxy:
    """Passes connections on to the store, but resets the first ones that upload, in the middle of the body."""

    def __init__(self, target_port: int, cuts: int) -> None:
        self.cuts_left = cuts
        self._target_port = target_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client:
            first = client.recv(1 << 16)
            if first.startswith(b"PUT") and self.cuts_left > 0:
                self.cuts_left -= 1
                return
            with socket.create_connection(("127.0.0.1", self._target_port)) as server:
                server.sendall(first)
                back = threading.Thread(target=self._copy, args=(server, client), daemon=True)
                back.start()
                self._copy(client, server)
                back.join()

    @staticmethod
    def _copy(source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(1 << 16):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            return


@pytest.fixture
def cutting_proxy(seaweed: SeaweedStore) -> Iterator[CuttingProxy]:
    proxy = CuttingProxy(int(seaweed.endpoint_url.rpartition(":")[2]), cuts=2)
    yield proxy
    proxy.close()


def test_a_connection_that_breaks_in_the_body_is_tried_again(
    folder: Path, seaweed: SeaweedStore, cutting_proxy: CuttingProxy, client: Any, destination: ModelSource
) -> None:
    settings = resolve_s3_settings({**seaweed.environment(), "AWS_ENDPOINT_URL": cutting_proxy.url})
    upload_files(find_files(folder).files, destination, settings)
    assert cutting_proxy.cuts_left == 0
    assert len(stored(client, destination)) == 3


def test_a_missing_bucket_is_an_error_that_names_the_flag(folder: Path, settings: S3Settings) -> None:
    with pytest.raises(NotFound, match="There is no bucket not-made-yet") as caught:
        upload_files(find_files(folder).files, parse_source("s3://not-made-yet/x"), settings)
    assert "--create-bucket" in caught.value.remedy


def test_a_missing_bucket_is_made_when_asked_for(folder: Path, settings: S3Settings) -> None:
    destination = parse_source(f"s3://made-{secrets.token_hex(6)}/x")
    files = find_files(folder).files
    assert upload_files(files, destination, settings, create_bucket=True).bucket_created
    assert not upload_files(files, destination, settings, create_bucket=True).bucket_created


@pytest.mark.parametrize("bucket", ["My_Bucket", "x", "dots..dots"])
def test_a_bucket_that_no_store_makes_is_told_with_the_rule(
    bucket: str, folder: Path, settings: S3Settings
) -> None:
    files = find_files(folder).files
    with pytest.raises(NotFound, match=bucket.replace(".", r"\.")) as caught:
        upload_files(files, parse_source(f"s3://{bucket}/m"), settings, create_bucket=True)
    assert "3 to 63 lower-case letters" in caught.value.remedy


def test_a_bucket_name_that_is_refused_without_a_word_is_told_with_the_rule(folder: Path) -> None:
    # Amazon answers the HEAD for such a bucket with a bare 400, which no store at hand does.
    with socket.create_server(("127.0.0.1", 0)) as server:

        def refuse() -> None:
            peer, _ = server.accept()
            with peer:
                peer.recv(1 << 16)
                peer.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

        thread = threading.Thread(target=refuse)
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "s", "AWS_ENDPOINT_URL": url}
        with pytest.raises(NotFound, match=r"No bucket can have this name\. \(HTTP 400\)"):
            upload_files(
                find_files(folder).files,
                parse_source("s3://My_Bucket/m"),
                resolve_s3_settings(keys),
                create_bucket=True,
            )
        thread.join()


def test_a_store_that_lists_the_objects_elsewhere_is_told(
    folder: Path, settings: S3Settings, destination: ModelSource
) -> None:
    # SeaweedFS takes // for /, so that what is pushed to a//b would never be found there.
    doubled = parse_source(f"s3://{destination.bucket}//a//b/")
    with pytest.raises(Unsupported, match="it takes // for /") as caught:
        upload_files(find_files(folder).files, doubled, settings)
    assert f"s3://{destination.bucket}/a/b." in caught.value.remedy


def test_a_wrong_secret_is_told_without_showing_it(
    folder: Path, seaweed: SeaweedStore, destination: ModelSource
) -> None:
    wrong = {**seaweed.environment(), "AWS_SECRET_ACCESS_KEY": "a-secret-that-is-wrong"}
    with pytest.raises(BadSignature) as caught:
        upload_files(find_files(folder).files, destination, resolve_s3_settings(wrong))
    assert "a-secret-that-is-wrong" not in str(caught.value)


def test_a_reader_may_not_push(folder: Path, seaweed: SeaweedStore, destination: ModelSource) -> None:
    settings = resolve_s3_settings(seaweed.environment(READER))
    with pytest.raises(AccessDenied, match=rf"{destination.uri}/model\.safetensors") as caught:
        upload_files(find_files(folder).files, destination, settings)
    assert "s3:PutObject" in caught.value.remedy


def test_an_endpoint_that_nobody_listens_at_is_told_after_one_attempt(
    folder: Path, seaweed: SeaweedStore
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        settings = resolve_s3_settings({**seaweed.environment(), "AWS_ENDPOINT_URL": url})
        with pytest.raises(BadEndpoint, match=url):
            upload_files(find_files(folder).files, parse_source("s3://b-b-b/x"), settings)


def test_https_spoken_to_a_plain_store_is_a_tls_error(folder: Path, seaweed: SeaweedStore) -> None:
    url = seaweed.endpoint_url.replace("http:", "https:")
    settings = resolve_s3_settings({**seaweed.environment(), "AWS_ENDPOINT_URL": url})
    with pytest.raises(TlsError):
        upload_files(find_files(folder).files, parse_source("s3://b-b-b/x"), settings)


def test_a_proxy_of_the_environment_is_not_asked_for_loopback(
    folder: Path, settings: S3Settings, destination: ModelSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert len(upload_files(find_files(folder).files, destination, settings).uploaded) == 3


def test_a_file_that_is_gone_when_it_is_sent_is_told(
    folder: Path, settings: S3Settings, destination: ModelSource
) -> None:
    files = find_files(folder).files
    hashed: list[int] = []

    def remove_the_rest(count: int) -> None:
        hashed.append(count)
        for path in folder.rglob("*.json"):
            path.unlink()

    with pytest.raises(CannotReadFile, match="cannot be read: No such file or directory"):
        upload_files(files, destination, settings, on_bytes=remove_the_rest)
    assert hashed
