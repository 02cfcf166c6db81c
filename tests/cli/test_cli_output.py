"""Where the tools print to: a full disk, a reader that has gone, a closed stdout, an encoding that lacks a letter."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.stream.safetensors_files import content, file_of

COMMANDS = (("inspect", "MODEL"), ("inspect", "MODEL", "--json"), ("ls", "MODEL"), ("cache", "ls"))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("printed") / "modèle-😀"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(file_of({"a": content("F32", (2,))}))
    (folder / "config.json").write_text("{}")
    return folder


def run(
    arguments: tuple[str, ...],
    model: Path,
    redirect: str = "",
    *,
    buffered: bool = True,
    pass_fds: tuple[int, ...] = (),
    **more: str,
) -> subprocess.CompletedProcess[bytes]:
    """A command whose stdout the shell leads elsewhere."""
    words = [str(model) if word == "MODEL" else word for word in arguments]
    environment = {**os.environ, "HEADRACE_CACHE": str(model.parent / "cache"), **more}
    environment["PYTHONUNBUFFERED"] = "" if buffered else "1"
    command = [sys.executable, "-m", "headrace", *words]
    return subprocess.run(
        ["bash", "-c", f'"$@" {redirect}', "bash", *command],
        capture_output=True,
        env=environment,
        check=False,
        pass_fds=pass_fds,
    )


@pytest.mark.parametrize("buffered", [True, False])
@pytest.mark.parametrize("arguments", COMMANDS)
def test_a_full_disk_is_an_error_in_a_sentence(
    arguments: tuple[str, ...], model: Path, buffered: bool
) -> None:
    done = run(arguments, model, ">/dev/full", buffered=buffered)
    assert done.returncode == 1
    assert done.stderr.decode().splitlines() == [
        "error: The output cannot be written: No space left on device.",
        "Make room where it goes, or send it elsewhere.",
    ]


@pytest.mark.parametrize("buffered", [True, False])
@pytest.mark.parametrize("arguments", COMMANDS)
def test_a_reader_that_has_gone_ends_it_without_a_word(
    arguments: tuple[str, ...], model: Path, buffered: bool
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = run(arguments, model, f">&{writing}", buffered=buffered, pass_fds=(writing,))
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize("arguments", COMMANDS)
def test_a_closed_stdout_hides_the_output_and_nothing_else(arguments: tuple[str, ...], model: Path) -> None:
    done = run(arguments, model, ">&-")
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_letter_that_the_terminal_does_not_have_becomes_an_escape(model: Path) -> None:
    done = run(("ls", "MODEL"), model.parent, PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert rb"mod\xe8le-\U0001f600" in done.stdout


@pytest.mark.parametrize("arguments", [("ls", "MODEL/nope", "--json"), ("inspect", "MODEL/nope", "--json")])
def test_an_error_leaves_the_json_away_and_says_why_on_stderr(
    arguments: tuple[str, ...], model: Path
) -> None:
    done = run(tuple(word.replace("MODEL", str(model)) for word in arguments), model)
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.startswith(b"error: There is no folder")


def test_json_is_one_document(model: Path) -> None:
    done = run(("ls", "MODEL", "--json"), model.parent)
    assert [each["name"] for each in json.loads(done.stdout)["models"]] == [model.name]
