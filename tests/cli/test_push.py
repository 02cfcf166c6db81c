"""`headrace push` as a person or a script sees it."""

import io
import json
import os
import secrets
import shlex
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from headrace.cli.main import main
from headrace.cli.progress import decimal_size, transfer_progress
from headrace.demo.safetensors_file import PendingTensor, write_checkpoint
from headrace.demo.store import SeaweedStore


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder with all that a model needs to be pushed."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    tensors = [PendingTensor(name, (64,), lambda: np.zeros(64, dtype=np.float32)) for name in "abcd"]
    write_checkpoint(folder, tensors, shards=2)
    return folder


@pytest.fixture
def bucket(seaweed: SeaweedStore, monkeypatch: pytest.MonkeyPatch) -> str:
    """A name for a bucket that does not exist yet, in a store that the environment names."""
    for name, value in seaweed.environment().items():
        monkeypatch.setenv(name, value)
    return f"push-{secrets.token_hex(6)}"


def push(*args: object) -> int:
    return main(["push", *map(str, args)])


def error_of(args: Sequence[object], capsys: pytest.CaptureFixture[str], *, code: int = 1) -> str:
    """What a push that must fail writes to stderr."""
    assert push(*args) == code
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("error: ")
    return shown.err


def test_a_push_sums_up_and_says_how_to_serve(
    model: Path, bucket: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert push(model, f"s3://{bucket}/m", "--create-bucket") == 0
    shown = capsys.readouterr().out
    assert f"s3://{bucket}/m: 4 uploaded (" in shown
    assert f"Made the bucket {bucket}." in shown
    assert f"Serve it: headrace serve s3://{bucket}/m" in shown
    assert push(model, f"s3://{bucket}/m") == 0
    assert "0 uploaded (0 B), 4 there already (" in capsys.readouterr().out


def test_json_is_one_object_and_nothing_else(
    model: Path, bucket: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (model / ".git").mkdir()
    assert push(model, f"s3://{bucket}/m", "--create-bucket", "--json") == 0
    shown = capsys.readouterr()
    facts = json.loads(shown.out)
    assert shown.out.count("\n") == 1
    assert shown.err == ""
    assert facts["uri"] == f"s3://{bucket}/m"
    assert facts["uploaded"] == [
        "config.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
    ]
    assert facts["skipped"] == []
    assert facts["bytes_uploaded"] == sum(path.stat().st_size for path in model.iterdir() if path.is_file())
    assert facts["seconds"] > 0


def test_quiet_says_nothing(model: Path, bucket: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert push(model, f"s3://{bucket}/m", "--create-bucket", "--quiet") == 0
    assert capsys.readouterr() == ("", "")


def test_what_is_left_out_is_named(model: Path, bucket: str, capsys: pytest.CaptureFixture[str]) -> None:
    (model / ".cache").mkdir()
    assert push(model, f"s3://{bucket}/m", "--create-bucket") == 0
    assert "Left out: .cache/." in capsys.readouterr().out


def test_a_bucket_is_not_made_unasked(model: Path, bucket: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown = error_of([model, f"s3://{bucket}/m"], capsys)
    assert f"There is no bucket {bucket}" in shown
    assert "--create-bucket" in shown


def test_a_folder_without_a_config_is_refused(
    model: Path, bucket: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (model / "config.json").unlink()
    shown = error_of([model, f"s3://{bucket}/m"], capsys)
    assert "holds no config.json" in shown
    assert "--force" in shown


def test_a_folder_without_safetensors_is_refused(
    model: Path, bucket: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for shard in model.glob("*.safetensors"):
        shard.unlink()
    assert "holds no safetensors files" in error_of([model, f"s3://{bucket}/m"], capsys)


def test_a_missing_shard_is_refused(model: Path, bucket: str, capsys: pytest.CaptureFixture[str]) -> None:
    (model / "model-00002-of-00002.safetensors").unlink()
    shown = error_of([model, f"s3://{bucket}/m"], capsys)
    assert "model-00002-of-00002.safetensors" in shown
    assert "--force" in shown


def test_a_truncated_shard_is_refused(model: Path, bucket: str, capsys: pytest.CaptureFixture[str]) -> None:
    shard = model / "model-00001-of-00002.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1])
    shown = error_of([model, f"s3://{bucket}/m"], capsys)
    assert f"{shard} is not a whole safetensors file" in shown


def test_a_git_lfs_pointer_is_refused(model: Path, bucket: str, capsys: pytest.CaptureFixture[str]) -> None:
    shard = model / "model-00001-of-00002.safetensors"
    shard.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 269060552\n")
    assert "git lfs pull" in error_of([model, f"s3://{bucket}/m"], capsys)


def test_a_shard_that_is_a_link_to_nowhere_is_named(
    model: Path, bucket: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shard = model / "model-00001-of-00002.safetensors"
    shard.unlink()
    shard.symlink_to(model / "nothing")
    assert f"{shard} is a link that leads nowhere" in error_of([model, f"s3://{bucket}/m"], capsys)


def test_a_name_that_is_not_utf8_is_refused_before_anything_is_sent(
    model: Path, bucket: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (model / os.fsdecode(b"\xff\xfe.bin")).touch()
    shown = error_of([model, f"s3://{bucket}/m", "--create-bucket"], capsys)
    assert "\\udcff\\udcfe.bin: the file's name is not UTF-8" in shown
    (model / os.fsdecode(b"\xff\xfe.bin")).unlink()
    assert "There is no bucket" in error_of([model, f"s3://{bucket}/m"], capsys)


def test_the_command_to_serve_can_be_pasted(
    model: Path, bucket: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert push(model, f"s3://{bucket}//my model's//", "--create-bucket") == 0
    hint = capsys.readouterr().out.partition("Serve it: ")[2]
    assert shlex.split(hint) == ["headrace", "serve", f"s3://{bucket}/my model's"]


def test_force_uploads_any_folder(tmp_path: Path, bucket: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "note.txt").write_text("not a model")
    assert push(tmp_path, f"s3://{bucket}/m", "--create-bucket", "--force") == 0
    assert "1 uploaded" in capsys.readouterr().out


def test_an_empty_folder_is_refused_even_by_force(
    tmp_path: Path, bucket: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "holds no file to upload" in error_of([tmp_path, f"s3://{bucket}/m", "--force"], capsys)


def test_a_folder_that_is_not_there_is_an_error(
    tmp_path: Path, bucket: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "is not there" in error_of([tmp_path / "nowhere", f"s3://{bucket}/m"], capsys)


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_web_server_is_not_pushed_to(model: Path, scheme: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown = error_of([model, f"{scheme}://host/m"], capsys, code=2)
    assert f"{scheme}:// can be read from, not pushed to" in shown


def test_a_name_without_a_scheme_makes_no_folder(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "s3://BUCKET/PREFIX" in error_of([model, "bucket/m"], capsys, code=2)


def test_a_folder_that_is_missing_is_made_only_when_asked_for(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "deep" / "copy"
    assert "--create-bucket" in error_of([model, copy.as_uri()], capsys)
    assert not copy.exists()
    assert push(model, copy, "--create-bucket") == 0
    assert {path.name for path in copy.iterdir()} == {path.name for path in model.iterdir()}


def test_missing_credentials_are_told(
    model: Path, bucket: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    assert "AWS_ACCESS_KEY_ID" in error_of([model, f"s3://{bucket}/m"], capsys)


class Clock:
    """Seconds that pass when told to."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_without_a_terminal_progress_is_a_line_now_and_then() -> None:
    stream, clock = io.StringIO(), Clock()
    with transfer_progress(2_000_000, "pushing", stream, clock) as advance:
        advance(500_000)
        assert stream.getvalue() == ""
        clock.now = 5.0
        advance(500_000)
        advance(500_000)
    assert stream.getvalue() == "pushing: 1.0 MB of 2.0 MB (50 %)\n"


def test_on_a_terminal_progress_is_a_bar() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    with transfer_progress(2_000_000, "pushing", stream) as advance:
        advance(2_000_000)
    assert "pushing: 100%" in stream.getvalue()


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (999, "999 B"), (269_060_552, "269.1 MB"), (2_000_000_000_000, "2.0 TB")]
)
def test_sizes_are_decimal(size: int, text: str) -> None:
    assert decimal_size(size) == text


def test_a_manifest_is_made_where_it_is_asked_for(
    model: Path, bucket: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert push(model, f"s3://{bucket}/m", "--create-bucket", "--manifest", "--json") == 0
    assert "headrace.manifest.json" in json.loads(capsys.readouterr().out)["uploaded"]


def test_a_manifest_of_nothing_is_refused(
    tmp_path: Path, bucket: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.txt").write_text("no model")
    said = error_of([tmp_path, f"s3://{bucket}/m", "--manifest", "--force"], capsys)
    assert "nothing to make a manifest of" in said


def test_a_folder_that_was_made_is_told_by_its_name(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert push(model, tmp_path / "copy", "--create-bucket") == 0
    assert f"Made the folder {tmp_path / 'copy'}." in capsys.readouterr().out


def test_the_folder_may_be_named_by_a_file_uri(model: Path, tmp_path: Path) -> None:
    assert push(model.as_uri(), tmp_path / "copy", "--create-bucket", "--quiet") == 0
    assert (tmp_path / "copy" / "config.json").is_file()


def test_a_bucket_is_not_pushed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "`headrace pull URI DIR`" in error_of(["s3://bucket/model", tmp_path], capsys, code=2)


def test_a_folder_is_not_pushed_into_itself(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "lies in the folder that is pushed" in error_of([model, model / "copy"], capsys, code=2)
