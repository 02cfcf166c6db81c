"""`headrace pull` as a person and a script see it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from headrace.cli.main import main
from tests.faults import server as faults
from tests.faults.opening import environment_of
from tests.faults.server import FaultServer, fault_server

FILES = {"config.json": b"{}", "model.safetensors": bytes(range(256)) * 4000, "templates/x.jinja": b"x"}
URI = "s3://bucket/model"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultServer]:
    with fault_server({f"model/{name}": data for name, data in FILES.items()}) as running:
        for name, value in environment_of(running).items():
            monkeypatch.setenv(name, value)
        yield running


def files_in(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith(".")
    }


def test_all_that_lies_below_is_brought_and_summed_up(
    server: FaultServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pull", URI, str(tmp_path / "dst")]) == 0
    assert files_in(tmp_path / "dst") == FILES
    assert "3 fetched (1.0 MB), 0 of them verified, 0 there already (0 B)" in capsys.readouterr().out
    assert main(["pull", URI, str(tmp_path / "dst")]) == 0
    assert "0 fetched (0 B), 0 of them verified, 3 there already (1.0 MB)" in capsys.readouterr().out


def test_patterns_choose(server: FaultServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = [
        "pull",
        URI,
        str(tmp_path),
        "--include",
        "*.json",
        "--include",
        "templates/*",
        "--exclude",
        "*.jinja",
    ]
    assert main([*line, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["fetched"] == ["config.json"]
    assert facts["bytes_fetched"] == 2


def test_quiet_says_nothing(server: FaultServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pull", URI, str(tmp_path), "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")


def test_a_pull_that_failed_goes_on_where_it_stopped(
    server: FaultServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.objects = {key: value for key, value in server.objects.items() if key.endswith(".safetensors")}
    server.play(faults.short_body(1000), faults.error(403, "AccessDenied"))
    assert main(["pull", URI, str(tmp_path)]) == 1
    assert "model.safetensors" in capsys.readouterr().err
    before = len(server.ranges)
    assert main(["pull", URI, str(tmp_path), "--quiet"]) == 0
    assert server.ranges[before][0] == 1000
    assert files_in(tmp_path) == {"model.safetensors": FILES["model.safetensors"]}


def test_a_folder_that_cannot_be_written_is_told(
    server: FaultServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert main(["pull", URI, str(tmp_path / "file")]) == 1
    said = capsys.readouterr().err
    assert f"{tmp_path / 'file'} cannot be written" in said


def test_a_key_that_is_no_path_is_refused_before_anything_is_written(
    server: FaultServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.objects["model/../../etc/x"] = server.objects["model/config.json"]
    assert main(["pull", URI, str(tmp_path / "dst")]) == 1
    assert "cannot be a file's path" in capsys.readouterr().err
    assert not (tmp_path / "dst").exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_and_leaves_what_came(
    server: FaultServer, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    server.objects = {key: value for key, value in server.objects.items() if key.endswith(".safetensors")}
    server.play(faults.stall(1000))
    child = subprocess.Popen(
        [sys.executable, "-m", "headrace", "pull", URI, str(tmp_path)],
        stderr=subprocess.PIPE,
        env=dict(os.environ),
        text=True,
    )
    server.stalled.get(timeout=60)
    child.send_signal(number)
    said = child.communicate(timeout=60)[1]
    assert child.returncode == code, said
    assert "Traceback" not in said


def test_patterns_that_fit_nothing_are_an_error(
    server: FaultServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pull", "s3://bucket/model", str(tmp_path / "copy"), "--include", "*.jsno"]) == 1
    assert "fits --include and --exclude" in capsys.readouterr().err


@pytest.mark.parametrize("below", ["", "copy", "deep/copy"])
def test_a_folder_is_not_pulled_into_itself(
    below: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "deep").mkdir()
    assert main(["pull", str(tmp_path), str(tmp_path / below)]) == 1
    assert "lies in what is pulled" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "deep"]


def test_a_disk_that_is_too_small_is_told_before_it_is_full(
    server: FaultServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "shutil.disk_usage", lambda _path: SimpleNamespace(free=3)
    )  # no small disk is at hand
    assert main(["pull", "s3://bucket/model", str(tmp_path / "copy"), "--json"]) == 0
    said = capsys.readouterr().err
    assert said.startswith("warning: ")
    assert f"{tmp_path / 'copy'} has room for 3 B" in said
