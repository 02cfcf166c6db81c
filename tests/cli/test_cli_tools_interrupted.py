"""Ctrl-C in the middle of a tool's work: no traceback, no waiting for the store, exit code 130."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults import server as faults
from tests.faults.opening import environment_of
from tests.faults.server import fault_server

OBJECTS = {
    "model/config.json": json.dumps({"architectures": ["LlamaForCausalLM"]}).encode(),
    "model/model.safetensors": bytes(1 << 20),
}


def interrupted(child: "subprocess.Popen[str]") -> str:
    """What it says on stderr after Ctrl-C.

    Once more, as a person would, where nothing happens: Python drops an exception that a signal's handler raises while
    a destructor or a callback runs.
    """
    for _ in range(3):
        child.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return child.communicate(timeout=30)[1]
    child.kill()
    raise AssertionError(f"Ctrl-C is passed over: {child.communicate()}")


@pytest.mark.parametrize("line", [["check"], ["inspect"], ["inspect", "--tensor", "w"]], ids=" ".join)
def test_ctrl_c_ends_a_tool_that_waits_for_a_store(line: list[str], tmp_path: Path) -> None:
    with fault_server(OBJECTS) as server:
        server.usual = faults.stall(0)
        child = subprocess.Popen(
            [sys.executable, "-m", "headrace", *line, "s3://bucket/model"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **environment_of(server), "HEADRACE_CACHE": str(tmp_path)},
            text=True,
        )
        server.stalled.get(timeout=60)
        said = interrupted(child)
    assert child.returncode == 130, said
    assert said == ""
