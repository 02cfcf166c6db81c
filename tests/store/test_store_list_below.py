"""Listings in all depths: what lies in folders below a prefix."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.cli.main import main
from headrace.source.uri import parse_source
from headrace.store.base import list_below, open_store
from headrace.store.errors import AccessDenied, NotFound, StoreError, Unsupported
from headrace.store.local.store import LocalStore
from tests.faults.opening import store_of
from tests.faults.server import FaultServer, Stored, error_answer, fault_server

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with fault_server(
        {"model/a": b"1", "model/sub/b": b"22", "model/sub/deep/c": b"333", "other/d": b""}
    ) as running:
        yield running


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, data in {"a": b"1", "sub/b": b"22", "sub/deep/c": b"333"}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
    return tmp_path


@pytest.fixture
def guarded_folder() -> Iterator[Path]:
    """A folder with one below that a user who is not root may not read, and that user."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "lost+found").mkdir(mode=0o000)
        (folder / "models").mkdir()
        (folder / "models" / "a").write_bytes(b"1")
        folder.chmod(0o755)
        was = os.geteuid()
        if was == 0:
            os.seteuid(65534)
        try:
            yield folder
        finally:
            os.seteuid(was)
            (folder / "lost+found").chmod(0o700)


def test_a_folder_that_may_not_be_read_is_an_error(guarded_folder: Path) -> None:
    with pytest.raises(AccessDenied, match=r"lost\+found"):
        list(local(guarded_folder).list_below())


def test_a_folder_that_may_not_be_read_is_left_out_and_told_where_that_is_asked_for(
    guarded_folder: Path,
) -> None:
    told: list[StoreError] = []
    store = LocalStore(parse_source(str(guarded_folder)), told.append)
    assert [item.name for item in store.list_below()] == ["models/a"]
    assert [error.uri for error in told] == [str(guarded_folder / "lost+found")]
    (top,) = [LocalStore(parse_source(error.uri), told.append) for error in told]
    with pytest.raises(AccessDenied):  # what was named itself
        list(top.list_below())


def test_ls_leaves_out_what_may_not_be_read(guarded_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", str(guarded_folder), "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["models"] == []
    assert printed.err.startswith(f"Left out: {guarded_folder / 'lost+found'}: ")


def local(folder: Path) -> LocalStore:
    return LocalStore(parse_source(str(folder)))


def test_a_bucket_is_listed_in_all_depths(server: FaultServer) -> None:
    found = list(list_below(store_of(server)))
    assert [(item.key, item.name, item.size_bytes) for item in found] == [
        ("model/a", "a", 1),
        ("model/sub/b", "sub/b", 2),
        ("model/sub/deep/c", "sub/deep/c", 3),
    ]
    assert f'"{found[1].version}"' == server.objects["model/sub/b"].etag


def test_a_folder_of_a_bucket_is_listed_alone(server: FaultServer) -> None:
    assert [item.name for item in list_below(store_of(server), "sub")] == ["sub/b", "sub/deep/c"]


def test_all_pages_are_read_in_all_depths(server: FaultServer) -> None:
    server.objects = {f"model/{number % 7}/{number:04d}": Stored.of(b"x") for number in range(2_500)}
    assert len({item.name for item in list_below(store_of(server))}) == 2_500
    assert len(server.log) == 3


def test_a_page_is_asked_for_when_it_is_wanted(server: FaultServer) -> None:
    server.objects = {f"model/{number:04d}": Stored.of(b"x") for number in range(2_500)}
    pages = list_below(store_of(server))
    next(pages)
    assert len(server.log) == 1
    pages.close()  # type: ignore[attr-defined]


def test_a_whole_bucket_is_listed(server: FaultServer) -> None:
    names = [item.name for item in list_below(store_of(server, "s3://bucket"))]
    assert names == ["model/a", "model/sub/b", "model/sub/deep/c", "other/d"]


def test_what_stands_for_a_folder_is_left_out(server: FaultServer) -> None:
    server.objects["model/sub/"] = Stored.of(b"")
    server.objects["model/odd/"] = Stored.of(b"bytes")
    names = [item.name for item in list_below(store_of(server))]
    assert "sub/" not in names
    assert "odd/" in names


def test_nothing_below_yields_nothing(server: FaultServer) -> None:
    assert list(list_below(store_of(server, "s3://bucket/nowhere"))) == []
    assert list(list_below(store_of(server), "nowhere")) == []


def test_a_bucket_that_is_not_there_is_an_error(server: FaultServer) -> None:
    server.list_script.append(error_answer(404, "NoSuchBucket"))
    with pytest.raises(NotFound):
        next(list_below(store_of(server)))


def test_a_folder_is_listed_in_all_depths(folder: Path) -> None:
    found = list(list_below(local(folder)))
    assert [(item.key, item.name, item.size_bytes) for item in found] == [
        (str(folder / "a"), "a", 1),
        (str(folder / "sub/b"), "sub/b", 2),
        (str(folder / "sub/deep/c"), "sub/deep/c", 3),
    ]
    assert found[0].version == local(folder).list().objects[0].version


def test_a_folder_of_a_folder_is_listed_alone(folder: Path) -> None:
    assert [item.name for item in list_below(local(folder), "sub")] == ["sub/b", "sub/deep/c"]
    assert list(list_below(local(folder), "nowhere")) == []
    assert list(list_below(local(folder), "a")) == []


def test_links_are_followed_but_not_in_circles(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "x").write_bytes(b"x")
    (folder / "linked").symlink_to(elsewhere)
    (folder / "sub/up").symlink_to(folder)
    (folder / "sub/nothing").symlink_to(folder / "not-there")
    names = [item.name for item in list_below(local(folder))]
    assert names == ["a", "linked/x", "sub/b", "sub/deep/c"]


def test_a_pipe_is_no_file(folder: Path) -> None:
    os.mkfifo(folder / "sub/pipe")
    assert "sub/pipe" not in [item.name for item in list_below(local(folder))]


def test_a_web_server_says_that_it_has_no_listing() -> None:
    with pytest.raises(Unsupported, match="no listing"):
        list_below(open_store(parse_source("https://127.0.0.1/model/")))


def test_what_goes_away_while_a_folder_is_listed_is_not_there(tmp_path: Path) -> None:
    for name in ("a", "b.part", "c/d", "e"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"1")
    found = local(tmp_path).list_below()
    names = [next(found).name]  # the folder has been read by now
    (tmp_path / "b.part").unlink()
    shutil.rmtree(tmp_path / "c")
    assert names + [item.name for item in found] == ["a", "e"]
