"""A real engine process and the front's end of its channel, read one message after another."""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import zmq

from headrace.ipc.channel import decode_engine_message, encode
from headrace.ipc.front_channel import private_address
from headrace.ipc.messages import (
    EngineMessage,
    FrontMessage,
    Generate,
    Ready,
    StepOutput,
    TokenOutput,
)
from headrace.ipc.options import EngineOptions, EngineStart
from tests.engine.harness import greedy

# Far beyond what anything here takes: a bound, so that a lost message fails a test and does not hang it.
PATIENCE_S = 90

Kind = TypeVar("Kind")


class EngineProcess:
    """What a test does with an engine. Made by `running_engine`."""

    def __init__(self, process: "subprocess.Popen[bytes]", socket: "zmq.Socket[bytes]", errors: Path) -> None:
        self.process = process
        self._socket = socket
        self._errors = errors

    def send(self, message: FrontMessage) -> None:
        self._socket.send(encode(message))

    def generate(self, rid: str, prompt: Sequence[int], answer: int) -> None:
        """Ask for `answer` greedy tokens."""
        self.send(Generate(rid, list(prompt), greedy(answer)))

    def receive(self, timeout_s: float = PATIENCE_S) -> EngineMessage | None:
        """The next message, or None if none comes."""
        if not self._socket.poll(int(timeout_s * 1000)):
            return None
        return decode_engine_message(self._socket.recv())

    def receive_until(self, kind: type[Kind]) -> tuple[list[EngineMessage], Kind]:
        """What comes before the first message of a kind, and that message."""
        before: list[EngineMessage] = []
        while True:
            message = self.receive()
            assert message is not None, f"no {kind.__name__} after {before}; stderr: {self.errors()}"
            if isinstance(message, kind):
                return before, message
            before.append(message)

    def tokens_until(self, rid: str, count: int | None = None) -> dict[str, list[TokenOutput]]:
        """The outputs of all requests until `rid` has ended, or has `count` tokens."""
        outputs: dict[str, list[TokenOutput]] = {rid: []}
        while True:
            _, step = self.receive_until(StepOutput)
            for output in step.outputs:
                outputs.setdefault(output.rid, []).append(output)
            mine = outputs[rid]
            if (mine and mine[-1].finish_reason is not None) or (count is not None and len(mine) >= count):
                return outputs

    def wait(self) -> int:
        """The exit status."""
        return self.process.wait(PATIENCE_S)

    def errors(self) -> str:
        """What the process wrote to stderr."""
        return self._errors.read_text()


@contextmanager
def running_engine(tmp_path: Path, model: str, **options: Any) -> Iterator[EngineProcess]:
    """A started engine, not waited for; it is ended and its end awaited in every case."""
    options = {"device": "cpu", "mem_fraction_static": 0.5, "max_running_requests": 8, **options}
    errors = tmp_path / "stderr"
    with private_address() as address, zmq.Context() as context, context.socket(zmq.PAIR) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.bind(address)
        with open(errors, "wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "headrace.engine"],
                stdin=subprocess.PIPE,
                stderr=log,
                stdout=log,
                env={**os.environ, "OMP_WAIT_POLICY": "PASSIVE"},  # as the front starts it
            )
        try:
            assert process.stdin is not None
            start = EngineStart(address, EngineOptions(model=model, **options))
            process.stdin.write(msgspec.json.encode(start) + b"\n")
            process.stdin.flush()
            yield EngineProcess(process, socket, errors)
        finally:
            process.kill()
            process.wait()
            if process.stdin is not None:
                process.stdin.close()


def tokens(outputs: Sequence[TokenOutput]) -> list[int]:
    return [token for output in outputs for token in output.token_ids]


def until_ready(engine: EngineProcess) -> tuple[list[EngineMessage], Ready]:
    """What comes before Ready, and Ready."""
    return engine.receive_until(Ready)
