"""How the engine is started: by this Python, and without what lies in the working directory."""

import subprocess
import sys
from pathlib import Path

SHOW = "from headrace.server.life.engine_process import ENGINE_COMMAND; print(*ENGINE_COMMAND, sep='\\n')"


def command_of(folder: Path, *flags: str) -> list[str]:
    """The command of a front that was started in a folder."""
    done = subprocess.run(
        [sys.executable, *flags, "-c", SHOW], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout.split()


def test_a_file_in_the_working_directory_is_not_taken_for_a_module(tmp_path: Path) -> None:
    # -P: as the console script, which has its own folder in this place.
    command = command_of(tmp_path, "-P")
    (tmp_path / "msgspec.py").write_text("raise SystemExit('taken from the working directory')")
    done = subprocess.run(
        command, cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert "taken from the working directory" not in done.stderr
    assert done.returncode != 0  # it was told nothing


def test_a_front_that_looks_there_itself_has_its_engine_look_there(tmp_path: Path) -> None:
    assert command_of(tmp_path)[1:] == ["-m", "headrace.engine"]
