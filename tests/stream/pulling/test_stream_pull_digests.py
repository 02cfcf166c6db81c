"""Pulled files that no manifest names and no CRC is kept of: proved by the digest that an upload or the hub has noted."""

import hashlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.cli.main import main
from headrace.demo.store import SeaweedStore
from headrace.source.uri import parse_source
from headrace.store.hub.open import open_hub
from headrace.store.s3.client import make_s3_client
from headrace.store.s3.settings import resolve_s3_settings
from headrace.store.stored_digest import digest_of, digest_of_file, noted_digest
from tests.hub_imitation import Hub, hub_imitation

BUCKET = "pulled-by-digest"
CONTENT = b'{"model_type": "none"}'


@pytest.fixture
def uri(seaweed: SeaweedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A folder that was pushed without a manifest; its weights have no CRC in the store."""
    for name, value in seaweed.environment().items():
        monkeypatch.setenv(name, value)
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_bytes(CONTENT)
    (folder / "empty.txt").touch()
    uri = f"s3://{BUCKET}/model"
    assert main(["push", str(folder), uri, "--create-bucket", "--force", "--quiet"]) == 0
    return uri


def put(seaweed: SeaweedStore, name: str, noted: str | None) -> None:
    client = make_s3_client(resolve_s3_settings(seaweed.environment()), attempts=1)
    metadata = {} if noted is None else {"headrace-sha256": noted}
    client.put_object(Bucket=BUCKET, Key=f"model/{name}", Body=CONTENT, Metadata=metadata)


def test_a_pushed_file_is_proved_by_the_note_of_its_upload(
    uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pull", uri, str(tmp_path / "copy"), "--verify", "require", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verified"] == ["config.json", "empty.txt"]


def test_a_file_that_is_not_what_was_pushed_is_removed_and_told(
    uri: str, seaweed: SeaweedStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(seaweed, "config.json", hashlib.sha256(b"another file").hexdigest())
    assert main(["pull", uri, str(tmp_path / "copy")]) == 1
    said = capsys.readouterr().err
    assert "model/config.json" in said
    assert "the note of its upload says" in said
    assert not (tmp_path / "copy" / "config.json").exists()


def test_a_file_of_another_tool_is_told_where_proof_is_required(
    uri: str, seaweed: SeaweedStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(seaweed, "other.txt", None)
    assert main(["pull", uri, str(tmp_path / "copy"), "--verify", "require"]) == 1
    assert "model/other.txt: It cannot be verified" in capsys.readouterr().err
    assert main(["pull", uri, str(tmp_path / "copy"), "--verify", "auto", "--quiet"]) == 0


@pytest.mark.parametrize("noted", ["", "abc", "g" * 64])
def test_a_note_that_is_no_digest_is_none(noted: str) -> None:
    assert noted_digest(noted) is None


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with hub_imitation() as running:
        monkeypatch.setenv("HF_ENDPOINT", running.hub_url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
        running.repository("org/name").commit({"config.json": CONTENT, "model.safetensors": b"large" * 999})
        yield running


def test_the_hubs_files_are_proved_by_the_names_of_their_content(
    hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pull", "hf://org/name", str(tmp_path / "copy"), "--verify", "require", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verified"] == ["config.json", "model.safetensors"]


def test_the_hubs_digests_are_asked_of_nobody(hub: Hub) -> None:
    store = open_hub(parse_source("hf://org/name"))
    items = store.list().objects
    asked = len(hub.asked)
    kinds = [found.kind for item in items if (found := digest_of(store.open_reader(), item))]
    assert kinds == ["git object id", "SHA-256"]
    assert len(hub.asked) == asked


def test_a_git_object_id_is_gits_own(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    told = subprocess.run(
        ["git", "hash-object", "--no-filters", str(path)], capture_output=True, text=True, check=True
    )
    assert digest_of_file(path, "git object id") == told.stdout.strip()
