"""A folder as the place that is pushed to: written aside, proved, and sent again only where it changed."""

import os
import stat
from pathlib import Path

import pytest

from headrace.source.uri import parse_folder_to_be
from headrace.store.errors import NotFound, StoreError
from headrace.store.upload.file import CannotReadFile
from headrace.store.upload.plan import find_files
from headrace.store.upload.upload import FileChanged, UploadResult, upload_files


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    (folder / "templates").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(os.urandom(5_000))
    (folder / "templates" / "a.jinja").write_text("a")
    return folder


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    folder = tmp_path / "copy"
    folder.mkdir()
    return folder


def push(model: Path, copy: Path, **options: object) -> UploadResult:
    return upload_files(find_files(model).files, parse_folder_to_be(str(copy)), **options)  # type: ignore[arg-type]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_every_file_arrives_and_nothing_else(model: Path, copy: Path) -> None:
    told: list[int] = []
    push(model, copy, on_bytes=told.append)
    assert contents(copy) == contents(model)
    assert sum(told) == 5_003


def test_only_what_differs_is_written_again(model: Path, copy: Path) -> None:
    push(model, copy)
    (copy / "model.safetensors").write_bytes(os.urandom(5_000))
    assert push(model, copy).uploaded == ("model.safetensors",)
    assert contents(copy) == contents(model)


def test_new_files_have_the_permissions_of_new_files(model: Path, copy: Path) -> None:
    push(model, copy)
    (model / "plain").touch()
    assert stat.S_IMODE((copy / "config.json").stat().st_mode) == stat.S_IMODE(
        (model / "plain").stat().st_mode
    )


def test_a_folder_that_is_not_there_is_told(model: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no such folder") as caught:
        push(model, tmp_path / "nowhere")
    assert "--create-bucket" in caught.value.remedy
    assert push(model, tmp_path / "nowhere", create_bucket=True).bucket_created


def test_a_file_where_a_folder_must_be_is_told_and_leaves_nothing_behind(model: Path, copy: Path) -> None:
    (copy / "templates").write_text("a file")
    with pytest.raises(StoreError, match="cannot be written"):
        push(model, copy)
    assert "config.json" not in contents(copy)


def test_a_file_that_is_written_to_meanwhile_is_told_and_the_config_stays_away(
    model: Path, copy: Path
) -> None:
    def overwrite(_count: int) -> None:
        (model / "model.safetensors").write_bytes(b"other")

    with pytest.raises(FileChanged):
        push(model, copy, on_bytes=overwrite)
    assert "config.json" not in contents(copy)


def test_a_file_that_is_gone_when_its_turn_comes_is_told(model: Path, copy: Path) -> None:
    files = find_files(model).files
    (model / "config.json").unlink()
    with pytest.raises(CannotReadFile, match=r"config\.json cannot be read: No such file or directory"):
        upload_files(files, parse_folder_to_be(str(copy)))
    assert not (copy / "config.json").exists()
