"""The `headrace` command: exit codes, help, and what it imports to give it."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace import __version__
from headrace.cli.interrupts import Terminated
from headrace.cli.main import COMMANDS, guarded, main
from headrace.cli.parser import UsageError, paint
from headrace.errors import HeadraceError

HEAVY = (
    "torch",
    "numpy",
    "zmq",
    "msgspec",
    "starlette",
    "uvicorn",
    "botocore",
    "tokenizers",
    "jinja2",
    "tqdm",
)


class Terminal:
    """As much of a text stream as painting asks for."""

    def isatty(self) -> bool:
        return True


def failing(error: BaseException) -> Callable[[], int]:
    def command() -> int:
        raise error

    return command


def headrace(*args: str, **environ: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "headrace", *args],
        capture_output=True,
        text=True,
        env={**os.environ, **environ},
    )


def test_the_version_is_the_package_s(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"headrace {__version__}\n"


def test_the_help_names_the_commands_and_gives_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    said = capsys.readouterr().out
    assert "headrace serve s3://my-bucket/qwen" in said
    for command in COMMANDS:
        assert f"\n    {command} " in said


@pytest.mark.parametrize("line", [["--help"], *([command, "--help"] for command in COMMANDS)])
def test_help_imports_nothing_heavy(line: list[str]) -> None:
    program = (
        "import sys; from headrace.cli.main import main; code = main(sys.argv[1:]);"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", program, *line], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "[]\n")


def test_without_a_command_the_help_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "commands:" in capsys.readouterr().err


def test_an_unknown_command_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sreve"]) == 2
    assert "'sreve'" in capsys.readouterr().err


def test_an_unknown_flag_of_the_command_itself_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--verison"]) == 2
    assert "did you mean --version?" in capsys.readouterr().err


def test_an_error_is_a_sentence_and_its_remedy_on_a_line_of_its_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert guarded(failing(HeadraceError("It broke.", remedy="Mend it."))) == 1
    assert capsys.readouterr().err == "error: It broke.\nMend it.\n"


def test_an_error_without_a_remedy_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert guarded(failing(HeadraceError("It broke."))) == 1
    assert capsys.readouterr().err == "error: It broke.\n"


def test_a_usage_error_has_its_own_exit_code() -> None:
    assert guarded(failing(UsageError("No."))) == 2


def test_an_interrupt_is_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    assert guarded(failing(KeyboardInterrupt())) == 130
    assert capsys.readouterr().err == ""


def test_a_termination_is_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    assert guarded(failing(Terminated())) == 143
    assert capsys.readouterr().err == ""


def test_a_defect_is_not_dressed_up_as_a_user_s_error() -> None:
    with pytest.raises(ZeroDivisionError):
        guarded(failing(ZeroDivisionError()))


def test_the_traceback_is_shown_when_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_DEBUG", "1")
    assert guarded(failing(HeadraceError("It broke."))) == 1
    said = capsys.readouterr().err
    assert said.startswith("Traceback")
    assert said.endswith("error: It broke.\n")


def test_a_reader_that_goes_away_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    # Unbuffered, argparse itself would notice and say nothing.
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with os.fdopen(writer, "w") as gone:
        done = subprocess.run(
            [sys.executable, "-m", "headrace", "--help"],
            stdout=gone,
            stderr=subprocess.PIPE,
            text=True,
            env=environ,
        )
    assert (done.returncode, done.stderr) == (141, "")


def test_colours_are_for_terminals(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert paint("error:", "31", Terminal()) == "\x1b[31merror:\x1b[0m"
    with (tmp_path / "log").open("w") as log:
        assert paint("error:", "31", log) == "error:"


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_colours_can_be_declined(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv(name, value)
    assert paint("error:", "31", Terminal()) == "error:"


def test_a_wrong_model_ends_with_a_sentence_and_code_1() -> None:
    done = headrace("serve", "ftp://bucket/model")
    assert done.returncode == 1
    assert done.stderr.startswith("error: ftp:// ")
    assert "Traceback" not in done.stderr


def test_a_template_that_is_not_there_is_an_error_before_anything_starts() -> None:
    done = headrace("serve", "s3://b/m", "--chat-template", "/no/such.jinja")
    assert done.returncode == 1
    assert "/no/such.jinja cannot be read: No such file or directory" in done.stderr


def test_launch_server_is_serve_under_another_name() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "headrace.launch_server", "--model-path", "ftp://bucket/model"],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (1, headrace("serve", "ftp://bucket/model").stderr)


def test_launch_server_names_itself_in_its_usage_errors() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "headrace.launch_server", "--prot", "1"], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "`python -m headrace.launch_server`; did you mean --port?" in done.stderr
