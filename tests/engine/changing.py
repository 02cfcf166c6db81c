"""Changes of weights in an engine of this process: two models of one shape, and the engine's loop step by step."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from headrace.engine.engine import Engine
from headrace.ipc.messages import (
    EngineLoad,
    EngineMessage,
    FrontMessage,
    Generate,
    LogLine,
    RequestFailed,
    StepOutput,
    WeightsAnswer,
)
from tests.engine.harness import ask, greedy, start_engine
from tests.faults.server import Asked, FaultServer, Stored

PROMPT = [5, 6, 7, 8]
ANSWER = 24
# Far beyond what anything here takes on a busy machine.
PATIENCE_S = 120.0


def answer_of(model: str, prompt: Sequence[int] = PROMPT, answer: int = ANSWER) -> list[int]:
    """What a fresh engine on this model says."""
    engine, _ = start_engine(model, max_total_tokens=2048)
    return ask(engine, prompt, answer)


@dataclass(slots=True)
class Loop:
    """The engine's loop, turned by a test.

    Attributes:
        tokens: of each request.
        ended: requests with all of their tokens.
        failed: requests that the engine ended.
        answers: to changes, in order.
        log: lines for the front.
        signs: EngineLoad messages.
    """

    engine: Engine
    tokens: dict[str, list[int]] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    failed: dict[str, RequestFailed] = field(default_factory=dict)
    answers: list[WeightsAnswer] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    signs: int = 0

    def send(self, message: FrontMessage) -> None:
        answer = self.engine.take(message)
        if answer is not None:
            self._take(answer)

    def generate(self, rid: str, answer: int = ANSWER, prompt: Sequence[int] = PROMPT) -> None:
        self.send(Generate(rid, list(prompt), greedy(answer)))

    def turn(self, *, compute: bool = True) -> None:
        """One turn of the loop; a moment's rest where there is nothing to compute."""
        for message in self.engine.advance():
            self._take(message)
        if not compute or not self.engine.scheduler.has_work:
            time.sleep(0.001)
            return
        for message in self.engine.step():
            self._take(message)

    def until(self, condition: Callable[[], bool], what: str, *, compute: bool = True) -> None:
        """Turn the loop until the condition holds; without `compute` no request gets on meanwhile."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, f"waited in vain: {what}; {self.log}"
            self.turn(compute=compute)

    def change(self, message: FrontMessage) -> WeightsAnswer:
        """Ask for a change, and turn the loop until it is answered."""
        count = len(self.answers)
        self.send(message)
        self.until(lambda: len(self.answers) > count, f"an answer to {message}")
        return self.answers[-1]

    def finish(self, *rids: str) -> None:
        """Turn the loop until these requests have ended."""
        self.until(lambda: all(rid in self.ended or rid in self.failed for rid in rids), f"an end of {rids}")

    def _take(self, message: EngineMessage) -> None:
        match message:
            case StepOutput(outputs):
                for output in outputs:
                    self.tokens.setdefault(output.rid, []).extend(output.token_ids)
                    if output.finish_reason is not None:
                        self.ended.add(output.rid)
            case RequestFailed(rid):
                self.failed[rid] = message
            case WeightsAnswer():
                self.answers.append(message)
            case EngineLoad():
                self.signs += 1
            case LogLine(_, text):
                self.log.append(text)


def objects_of(folder: Path, prefix: str) -> dict[str, Stored]:
    """A folder's files as objects."""
    return {f"{prefix}/{path.name}": Stored.of(path.read_bytes()) for path in folder.iterdir()}


@dataclass(slots=True)
class Gate:
    """Holds reads of weights (not of headers) below a prefix back.

    Attributes:
        reached: a read waits.
    """

    prefix: str
    reached: threading.Event = field(default_factory=threading.Event)
    opened: threading.Event = field(default_factory=threading.Event)

    def open(self) -> None:
        """Let all reads pass."""
        self.opened.set()

    def look(self, asked: Asked) -> None:
        """Wait, where this is such a read."""
        is_weight = asked.path.endswith(".safetensors") and asked.range is not None and asked.range[0] > 0
        if is_weight and asked.path.startswith(f"/bucket/{self.prefix}/"):
            self.reached.set()
            assert self.opened.wait(PATIENCE_S)


@contextmanager
def gate(server: FaultServer, prefix: str) -> Iterator[Gate]:
    """The server holds the weights of one model back; they are let go at the end."""
    held = Gate(prefix)

    def look(asked: Asked) -> bytes | None:
        held.look(asked)
        return None

    before, server.refuse = server.refuse, look
    try:
        yield held
    finally:
        held.open()
        server.refuse = before
