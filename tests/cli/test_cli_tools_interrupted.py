"""Ctrl-C in the middle of a tool's work: no traceback, no waiting for the store, exit code 130."""

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
        child.send_signal(signal.SIGINT)
        said = child.communicate(timeout=60)[1]
    assert child.returncode == 130, said
    assert said == ""
