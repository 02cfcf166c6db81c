"""`headrace ls` as a person and a script see it."""

import io
import json
from pathlib import Path

import pytest

from headrace.cli.main import main
from headrace.cli.progress import counting


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for name in (
        "team/qwen/config.json",
        "team/qwen/model.safetensors",
        "old/pytorch_model.bin",
        "README.md",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x" * 1000)
    return tmp_path


def test_models_are_a_table(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", str(place)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["NAME", "SIZE", "FILES", "FORMAT", "CHANGED"]
    assert [line.split()[0] for line in lines[1:]] == ["old", "team/qwen"]
    assert lines[2].split()[1:5] == ["2.0", "kB", "2", "safetensors"]


def test_json_gives_names_to_go_on_with(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", str(place), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert [model["uri"] for model in facts["models"]] == [f"{place}/old", f"{place}/team/qwen"]
    assert facts["models"][1]["changed"].endswith("Z")
    assert facts["models"][1]["size_bytes"] == 2000


def test_the_place_itself_is_a_dot(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", str(place / "old")]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith(".  ")


def test_no_models_are_no_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.txt").touch()
    assert main(["ls", str(tmp_path)]) == 0
    assert "No models lie below" in capsys.readouterr().out


def test_a_long_listing_counts_on_a_terminal_and_leaves_nothing_there() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal, log = Terminal(), io.StringIO()
    for stream in (terminal, log):
        with counting("objects", stream) as on_count:
            on_count(1_000)
    assert terminal.getvalue() == "\r1,000 objects\r\x1b[K"
    assert log.getvalue() == ""


def test_a_web_server_says_that_it_has_no_listing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", "https://127.0.0.1:1/models/"]) == 1
    assert "no listing" in capsys.readouterr().err
