"""An engine that loads from a store whose weights come when the test says so, and messages that come in between.

The script goes on each time the engine looks for messages: it does so when it has nothing to compute, and while a step
waits for bytes. So "this request came when layer 1 was there and layer 2 was not" is a fact and no timing.
"""

import json
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from headrace.engine import startup
from headrace.engine.engine import Engine
from headrace.engine.loading import arriving, while_loading
from headrace.engine.loading.while_loading import compute_while_loading
from headrace.engine.startup import start
from headrace.ipc.messages import (
    EngineMessage,
    FrontMessage,
    LoadProgress,
    LogLine,
    Ready,
    RequestFailed,
    StepOutput,
    TokenLogprob,
    TokenOutput,
)
from headrace.ipc.options import EngineOptions, LoadConfig
from headrace.ipc.timeline import Timeline
from tests.faults.opening import environment_of
from tests.faults.server import Exchange, FaultServer, Stored, fault_server, honest

URI = "s3://bucket/model"
# Far beyond what anything here takes: a bound, so that a defect fails a test and does not hang it.
PATIENCE_S = 120
POOL = 2048


@dataclass(frozen=True, slots=True)
class Pass:
    """Let `count` more reads of weights be answered."""

    count: int


@dataclass(frozen=True, slots=True)
class Do:
    """Call something, once the engine looks again."""

    act: Callable[[], object]


@dataclass(frozen=True, slots=True)
class Until:
    """Let the engine go on until something is so."""

    condition: Callable[[], bool]


Event = FrontMessage | Pass | Do | Until


class GatedStore:
    """A fault server whose reads of weights wait for leave, in the order in which they come.

    Attributes:
        server: the store.
        server_asked: notified of each read of weights, before it waits.
        hold: which weight reads wait whatever was let through, by first and last byte.
    """

    def __init__(self, server: FaultServer) -> None:
        self.server = server
        self.hold: Callable[[tuple[int, int]], bool] = lambda span: False
        self._leave: int | None = 0
        self.server_asked = self._news = threading.Condition()
        server.usual = self._behave

    def _behave(self, exchange: Exchange) -> None:
        if is_weight(exchange.asked.path, exchange.span):
            first, end = exchange.span
            with self._news:
                self._news.notify_all()
                assert self._news.wait_for(lambda: self._may_pass((first, end - 1)), PATIENCE_S)
                if self._leave is not None:
                    self._leave -= 1
        honest(exchange)

    def _may_pass(self, span: tuple[int, int]) -> bool:
        return (self._leave is None or self._leave > 0) and not self.hold(span)

    def look_again(self) -> None:
        """`hold` may say something else."""
        with self._news:
            self._news.notify_all()

    def let(self, count: int | None) -> None:
        """Let so many more reads through; None: all that will ever come."""
        with self._news:
            if count is None:
                self._leave = None
            elif self._leave is not None:
                self._leave += count
            self._news.notify_all()

    @property
    def is_open(self) -> bool:
        """Whether nothing is held up any more."""
        return self._leave is None

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """First and last byte of the weight reads, in the order in which they were asked for."""
        return [
            asked.range
            for asked in self.server.log
            if asked.range is not None and is_weight(asked.path, asked.range)
        ]


def is_weight(path: str, span: tuple[int, int]) -> bool:
    """Whether a read is one of weights: those of headers begin with an object's first byte."""
    return path.endswith(".safetensors") and span[0] > 0


class Script:
    """A channel that plays events, and keeps what is sent.

    Attributes:
        at_sending: of each StepOutput, whether anything was held up in the store at that time.
    """

    def __init__(self, events: Sequence[Event], store: GatedStore | None) -> None:
        self.sent: list[EngineMessage] = []
        self.looks = 0
        self.at_sending: list[bool] = []
        self._events = deque(events)
        self._store = store

    def send(self, message: EngineMessage) -> None:
        if isinstance(message, StepOutput):
            self.at_sending.append(self._store is not None and not self._store.is_open)
        self.sent.append(message)

    def receive(self, timeout_s: float | None) -> FrontMessage | None:
        assert timeout_s == 0
        self.looks += 1
        if not self._events:
            if self._store is not None:
                self._store.let(None)
            return None
        first = self._events[0]
        if isinstance(first, Until) and not first.condition():
            return None
        event = self._events.popleft()
        match event:
            case Until():
                pass
            case Pass(count):
                assert self._store is not None
                self._store.let(count)
            case Do(act):
                act()
            case _:
                return event
        return None

    def messages_left(self) -> list[FrontMessage]:
        """Those that the load did not last long enough for."""
        return [event for event in self._events if not isinstance(event, Pass | Do | Until)]


@dataclass(slots=True)
class Answer:
    """What came of a request."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str | None = None

    def add(self, output: TokenOutput) -> None:
        self.tokens += output.token_ids
        self.logprobs += output.logprobs
        self.prompt_logprobs += output.prompt_logprobs
        self.finish_reason = output.finish_reason


@dataclass(frozen=True, slots=True)
class Loaded:
    """An engine that has loaded by a script."""

    engine: Engine
    script: Script

    @property
    def sent(self) -> list[EngineMessage]:
        return self.script.sent

    @property
    def ready(self) -> Ready:
        """Sent once, as the last message."""
        (ready,) = (message for message in self.sent if isinstance(message, Ready))
        assert self.sent[-1] is ready
        return ready

    @property
    def phases(self) -> set[str]:
        return {phase.name for phase in self.ready.phases}

    @property
    def outputs(self) -> list[TokenOutput]:
        """What was sent before Ready."""
        return [
            output for message in self.sent if isinstance(message, StepOutput) for output in message.outputs
        ]

    @property
    def refused(self) -> list[RequestFailed]:
        return [message for message in self.sent if isinstance(message, RequestFailed)]

    @property
    def others(self) -> list[EngineMessage]:
        """All but progress and log lines."""
        return [message for message in self.sent if not isinstance(message, LoadProgress | LogLine)]

    def finish(self) -> dict[str, Answer]:
        """Answer what is left, and what comes too late for the load, as `serve` would; everything that each request
        got. The pool is empty afterwards."""
        answers: dict[str, Answer] = {}
        for late in self.script.messages_left():
            assert self.engine.take(late) is None
        waiting: list[EngineMessage] = [m for m in self.sent if isinstance(m, StepOutput)]
        while True:
            for message in waiting:
                assert isinstance(message, StepOutput)
                for output in message.outputs:
                    answers.setdefault(output.rid, Answer()).add(output)
            if not self.engine.scheduler.has_work:
                break
            waiting = self.engine.step()
        assert self.engine.scheduler.flush_cache()
        assert self.engine.scheduler.pool.free_count == self.engine.scheduler.pool.page_count
        return answers


def load(
    model: str, events: Sequence[Event] | Script, store: GatedStore | None = None, **options: Any
) -> Loaded:
    """Load by a script, in this process. Raises what the load raises."""
    script = events if isinstance(events, Script) else Script(events, store)
    load_config = options.pop("load_config", LoadConfig())
    options = {"device": "cpu", "mem_fraction_static": 0.5, "max_total_tokens": POOL, **options}
    begun = EngineOptions(model=model, load_config=load_config, **options)
    try:
        return Loaded(start(begun, script, Timeline(time.monotonic())), script)
    finally:
        if store is not None:
            store.let(None)


@contextmanager
def gated_store(folder: Path, chunk_bytes: int = 1 << 14) -> Iterator[GatedStore]:
    """A store with the folder's files under URI, of which the environment knows; reads of weights are short."""
    objects = {f"model/{path.name}": path.read_bytes() for path in folder.iterdir()}
    with fault_server(objects) as server, pytest.MonkeyPatch.context() as patch:
        store = GatedStore(server)
        for name, value in environment_of(server).items():
            patch.setenv(name, value)
        patch.setenv("RUNAI_STREAMER_CHUNK_BYTESIZE", str(chunk_bytes))
        patch.setattr(arriving, "LOOK_EVERY_S", 0.002)
        patch.setattr(while_loading, "LOOK_EVERY_S", 0.002)
        try:
            yield store
        finally:
            store.let(None)


def objects_of(folder: Path) -> dict[str, Stored]:
    return {f"model/{path.name}": Stored.of(path.read_bytes()) for path in folder.iterdir()}


def shuffled_in(messages: Sequence[FrontMessage], passes: int, seed: int) -> list[Event]:
    """The messages in their order, with `passes` reads let through in between, in ones and twos."""
    chance = random.Random(seed)
    events: list[Event] = list(messages)
    for _ in range(passes):
        events.insert(chance.randrange(len(events) + 1), Pass(chance.choice([1, 1, 2])))
    return events


@contextmanager
def caught_engine() -> Iterator[list[Engine]]:
    """The engines that are made meanwhile, as soon as they look for messages."""
    engines: list[Engine] = []

    def caught(engine: Engine, *others: Any) -> list[EngineMessage]:
        engines.append(engine)
        return compute_while_loading(engine, *others)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(startup, "compute_while_loading", caught)
        yield engines


def tensor_spans(folder: Path) -> dict[str, tuple[int, int]]:
    """First byte and end of each tensor in the one file."""
    data = (folder / "model.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    return {
        name: (8 + length + entry["data_offsets"][0], 8 + length + entry["data_offsets"][1])
        for name, entry in header.items()
    }
