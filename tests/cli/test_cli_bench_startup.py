"""`headrace bench startup`, as a user runs it: on a real model in a bucket, beside another server, and interrupted."""

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from headrace.cli.main import main
from headrace.demo.store import SeaweedStore
from headrace.server.seen.startup_table import UNNAMED
from tests.e2e.serving import until
from tests.faults import server as faults
from tests.faults.opening import environment_of
from tests.faults.server import fault_server

PEER = shlex.join([sys.executable, str(Path(__file__).parents[1] / "bench" / "small_server.py")])


BENCH = (sys.executable, "-m", "headrace", "bench", "startup")
OBJECTS = {
    "model/config.json": json.dumps({"architectures": ["LlamaForCausalLM"]}).encode(),
    "model/model.safetensors": bytes(1 << 20),
}


@pytest.fixture(scope="module")
def measured(
    smollm2_uri: str, seaweed: SeaweedStore, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, dict[str, Any], Path]:
    """What one counted round beside a peer says: for a person, as JSON, and as a picture."""
    picture = tmp_path_factory.mktemp("bench") / "start.png"
    done = subprocess.run(
        [
            *BENCH,
            smollm2_uri,
            "-n",
            "1",
            "--json",
            "--plot",
            str(picture),
            "--vs",
            f"small={PEER} {{port}} tells",
        ],
        capture_output=True,
        text=True,
        env={**os.environ, **seaweed.environment()},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *lines, last = done.stdout.splitlines()
    return "\n".join(lines), json.loads(last), picture


def test_a_start_is_measured_from_exec_to_the_first_token(measured: tuple[str, dict[str, Any], Path]) -> None:
    _, report, _ = measured
    (start,) = report["starts"]["headrace"]
    ours = report["servers"]["headrace"]
    order = [
        ours[figure]["median"] for figure in ("health_s", "first_byte_s", "last_byte_s", "first_token_s")
    ]
    assert all(value > 0 for value in order)
    assert order[1:] == sorted(order[1:])
    assert ours["ready_s"]["median"] > ours["last_byte_s"]["median"]
    assert start["text"] == start["text_again"]
    assert ours["same_text"] is True


def test_the_whole_of_a_start_has_names(measured: tuple[str, dict[str, Any], Path]) -> None:
    _, report, _ = measured
    phases = report["servers"]["headrace"]["phases"]
    names = {phase["name"] for phase in phases}
    assert {
        "front: until the engine is started",
        "front: imports",
        "front: tokenizer",
        "import torch",
        "transfer",
    } <= names
    silent_s = sum(phase["end_s"] - phase["start_s"] for phase in phases if phase["name"] == UNNAMED)
    assert silent_s < 0.1 * report["servers"]["headrace"]["ready_s"]["median"]
    torch = next(phase for phase in phases if phase["name"] == "import torch")
    assert torch["hidden_share"] > 0


def test_a_peer_is_measured_in_the_same_rounds(measured: tuple[str, dict[str, Any], Path]) -> None:
    text, report, _ = measured
    ours, theirs = report["starts"]["headrace"][0], report["starts"]["small"][0]
    ratio = theirs["first_token_s"] / ours["first_token_s"]
    assert report["ratios"] == {"small": pytest.approx({"median": ratio, "min": ratio, "max": ratio})}
    assert "small / headrace, round by round: " in text
    assert set(report["command_s"]) == {"--version", "--help"}


def test_the_start_is_told_to_a_person_and_drawn(measured: tuple[str, dict[str, Any], Path]) -> None:
    text, _, picture = measured
    assert text.startswith("server    first token")
    assert "\nimport torch " in text
    assert "headrace: its first answer is the one that it gives later" in text
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_ctrl_c_ends_the_server_that_is_starting_and_everything_of_it() -> None:
    with fault_server(OBJECTS) as server:
        server.usual = faults.stall(0)
        bench = subprocess.Popen(
            [*BENCH, "s3://bucket/model"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **environment_of(server)},
            text=True,
        )
        server.stalled.get(timeout=120)
        started = psutil.Process(bench.pid).children(recursive=True)
        assert len(started) == 2  # the server and its engine
        bench.send_signal(signal.SIGINT)
        _, said = bench.communicate(timeout=120)
    assert bench.returncode == 130, said
    assert "Traceback" not in said
    until(lambda: not any(process.is_running() for process in started), "an end of every process")


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--vs", "serve {port}"], "'serve {port}' is not NAME=COMMAND"),
        (["--vs", "peer=serve 8000"], "The command of peer does not say where the port goes."),
        (["--vs", "peer=serve '{port}"], "The command of peer cannot be split into words"),
        (["--vs", "headrace=serve {port}"], "--vs has two servers named headrace."),
        (["-n", "0"], "0 is not a whole number of at least 1"),
    ],
)
def test_a_command_line_that_cannot_be_meant_is_refused(
    flags: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "startup", "s3://bucket/model", *flags]) == 2
    assert sentence in capsys.readouterr().err


def test_a_picture_that_could_not_be_written_is_told_before_anything_starts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["bench", "startup", "s3://bucket/model", "--plot", "start.doc"]) == 1
    assert "has no ending that names a kind of picture" in capsys.readouterr().err
