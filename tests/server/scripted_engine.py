"""An engine that computes nothing: real messages over the real channel, with answers from a script.

As a thread it is steered by a test; as a process (`python scripted_engine.py`) by the model's name.
"""

import ctypes
import faulthandler
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

sys.path.insert(0, str(Path(__file__).parent))

from byte_model import CONTEXT_LENGTH, EOS_ID, VOCAB_SIZE, ids_of, model_info

from headrace.ipc.channel import EngineChannel
from headrace.ipc.messages import (
    Abort,
    Accepting,
    CacheFlushed,
    EngineMessage,
    FlushCache,
    FrontMessage,
    Generate,
    LoadFailed,
    LoadProgress,
    ModelInfo,
    PhaseTime,
    Ready,
    RequestFailed,
    StepOutput,
    Stop,
    TokenLogprob,
    TokenOutput,
)
from headrace.ipc.options import EngineStart

Script = Callable[[Generate], Iterator[TokenOutput | RequestFailed]]
M = TypeVar("M", bound=FrontMessage)

READY = Ready(
    max_total_tokens=4 * CONTEXT_LENGTH,
    bytes_streamed=1_000_000,
    phases=(PhaseTime("transfer", 0.1, 0.4), PhaseTime("warm up", 0.3, 0.5)),
    summary=("KV cache: 8192 tokens",),
    weights_bytes=3 << 30,
    kv_cache_bytes=1 << 29,
)
WAIT_S = 30.0


def logprob_of(token_id: int, top: int) -> TokenLogprob:
    """What `say` tells of a token: a number that only its id decides, and `top` ids from itself downwards."""
    ids = [(token_id - i) % VOCAB_SIZE for i in range(top)]
    return TokenLogprob(-token_id / 1000, tuple((i, -token_id / 1000 - n) for n, i in enumerate(ids)))


def prompt_logprobs_of(generate: Generate) -> tuple[TokenLogprob, ...]:
    """What the first output tells of the prompt."""
    top = generate.sampling.prompt_logprobs
    return () if top is None else tuple(logprob_of(token_id, top) for token_id in generate.input_ids[1:])


def say(text: str, *, ids_per_step: int = 1, cached_tokens: int = 0) -> Script:
    """Answers `text` and the end-of-sequence id, or as much as max_tokens allows, with logprobs if asked."""

    def script(generate: Generate) -> Iterator[TokenOutput | RequestFailed]:
        ids = ids_of(text) if generate.sampling.ignore_eos else [*ids_of(text), EOS_ID]
        if generate.sampling.ignore_eos:
            ids = (ids * generate.sampling.max_tokens)[: generate.sampling.max_tokens]
        cut = ids[: generate.sampling.max_tokens]
        top = generate.sampling.logprobs
        prompt_logprobs = prompt_logprobs_of(generate)
        if not cut:
            yield TokenOutput(generate.rid, (), "length", prompt_logprobs=prompt_logprobs)
        for start in range(0, len(cut), ids_per_step):
            piece = tuple(cut[start : start + ids_per_step])
            last = start + ids_per_step >= len(cut)
            eos = last and piece[-1] == EOS_ID
            yield TokenOutput(
                generate.rid,
                piece,
                finish_reason=("stop" if eos else "length") if last else None,
                matched_stop=EOS_ID if eos else None,
                cached_tokens=cached_tokens if start == 0 else 0,
                logprobs=() if top is None else tuple(logprob_of(token_id, top) for token_id in piece),
                prompt_logprobs=prompt_logprobs if start == 0 else (),
            )

    return script


ENOUGH = threading.Event()


def endless(generate: Generate) -> Iterator[TokenOutput | RequestFailed]:
    """One "a" per step until it is aborted, or ENOUGH is set."""
    while not ENOUGH.is_set():
        yield TokenOutput(generate.rid, tuple(ids_of("a")))
    yield TokenOutput(generate.rid, (EOS_ID,), "stop", EOS_ID)


def flood(generate: Generate) -> Iterator[TokenOutput | RequestFailed]:
    """Endless, and says on stderr when it has given its hundredth token."""
    for step, output in enumerate(endless(generate)):
        if step == 100 and generate.rid.endswith("-0"):
            print("flooded", file=sys.stderr, flush=True)
        yield output


def hang(generate: Generate) -> Iterator[TokenOutput | RequestFailed]:
    """One token, and then the whole engine does nothing any more: the interpreter's lock is never given back."""
    yield TokenOutput(generate.rid, tuple(ids_of("a")))
    ctypes.PyDLL(None).sleep(3600)


def silent(generate: Generate) -> Iterator[TokenOutput | RequestFailed]:
    """Never a token."""
    while True:
        yield TokenOutput(generate.rid, ())


def refuse(status: int, code: str, message: str, *, after: str = "") -> Script:
    """Some text, then a refusal."""

    def script(generate: Generate) -> Iterator[TokenOutput | RequestFailed]:
        for token_id in ids_of(after):
            yield TokenOutput(generate.rid, (token_id,))
        yield RequestFailed(generate.rid, status, code, message)

    return script


class ScriptedEngine:
    """Owns the engine's end of a channel on a thread of its own.

    Attributes:
        received: every message from the front, in order.
        script: what the next Generate is answered with.
    """

    def __init__(self, address: str, script: Script) -> None:
        self.script = script
        self.received: list[FrontMessage] = []
        self._arrived = threading.Condition()
        self._outbox: queue.SimpleQueue[EngineMessage] = queue.SimpleQueue()
        self._running: dict[str, Iterator[TokenOutput | RequestFailed]] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(address,), daemon=True)
        self._thread.start()

    def send(self, *messages: EngineMessage) -> None:
        """Have the messages sent in this order."""
        for message in messages:
            self._outbox.put(message)

    def load(self, info: ModelInfo | None = None) -> None:
        """Everything that a good start-up sends."""
        self.send(
            LoadProgress("streaming weights", 0, 1_000_000),
            info or model_info(),
            Accepting(READY.max_total_tokens),
            READY,
        )

    def wait_for(self, kind: type[M], count: int = 1) -> M:
        """The `count`-th message of this kind; AssertionError if it does not come."""
        with self._arrived:
            assert self._arrived.wait_for(lambda: len(self.of(kind)) >= count, WAIT_S), (
                f"{len(self.of(kind))} of {count} {kind.__name__} came"
            )
        return self.of(kind)[count - 1]

    def of(self, kind: type[M]) -> list[M]:
        """The messages of one kind so far."""
        return [message for message in self.received if isinstance(message, kind)]

    def stop(self) -> None:
        """End the thread as a process would end."""
        self._stopped.set()
        self._thread.join()

    def join(self) -> None:
        """Wait for a Stop from the front."""
        self._thread.join()

    def _run(self, address: str) -> None:
        channel = EngineChannel(address)
        while not self._stopped.is_set():
            self._empty_outbox(channel)
            message = channel.receive(0.002)
            while message is not None:
                if not self._take(message):
                    channel.close()
                    return
                message = channel.receive(0)
            self._step(channel)
        self._empty_outbox(channel)
        channel.close()

    def _empty_outbox(self, channel: EngineChannel) -> None:
        while not self._outbox.empty():
            channel.send(self._outbox.get())

    def _take(self, message: FrontMessage) -> bool:
        match message:
            case Generate():
                self._running[message.rid] = self.script(message)
            case Abort(rid):
                self._running.pop(rid, None)
            case FlushCache() if self._running:
                self.send(CacheFlushed(False, f"{len(self._running)} requests are running."))
            case FlushCache():
                self.send(CacheFlushed(True, "The prefix cache is empty."))
        with self._arrived:
            self.received.append(message)
            self._arrived.notify_all()
        return not isinstance(message, Stop)

    def _step(self, channel: EngineChannel) -> None:
        outputs = []
        for rid, answers in list(self._running.items()):
            answer = next(answers)
            if isinstance(answer, RequestFailed):
                del self._running[rid]
                channel.send(answer)
                continue
            if answer.finish_reason is not None:
                del self._running[rid]
            if answer.token_ids or answer.finish_reason is not None:
                outputs.append(answer)
        if outputs:
            channel.send(StepOutput(tuple(outputs)))


def _end_with_stdin() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


def _this_life(model: str) -> str:
    """The model's name, or the next line of the file that it names: one line for each engine, the last one for all more."""
    if not model.startswith("lives:"):
        return model
    path = Path(model.removeprefix("lives:"))
    life, *more = path.read_text().split()
    if more:
        path.write_text("\n".join(more))
    return life


def main() -> None:
    """A process; the model's name says what it does. SIGUSR1 ends endless answers."""
    faulthandler.enable()
    signal.signal(signal.SIGUSR1, lambda *_: ENOUGH.set())
    start = msgspec.json.decode(sys.stdin.buffer.readline(), type=EngineStart)
    model = _this_life(start.options.model)
    if model != "deaf":
        threading.Thread(target=_end_with_stdin, daemon=True).start()
    scripts: dict[str, Script] = {
        "endless": endless,
        "deaf": endless,
        "flood": flood,
        "hang": hang,
        "accepts": silent,
    }
    engine = ScriptedEngine(start.address, scripts.get(model, say("Hello, world.")))
    if model == "exits":
        os._exit(7)
    if model == "fails":
        engine.send(LoadFailed("NoSuchBucket", "The bucket 'nowhere' does not exist.", "Check the name."))
        engine.stop()
        os._exit(1)
    if model == "store-away":
        engine.send(LoadFailed("Unreachable", "No connection to the store.", "Check AWS_ENDPOINT_URL."))
        engine.stop()
        os._exit(1)
    if model == "halfway":
        engine.send(LoadProgress("streaming weights", 5_000_000_000, 10_000_000_000))
    elif model == "accepts":
        engine.send(
            LoadProgress("streaming weights", 0, 1_000_000), model_info(), Accepting(READY.max_total_tokens)
        )
    elif model == "warms-up":
        engine.send(model_info(), LoadProgress("warming up", 1_000_000, 1_000_000))
    elif model != "loading":
        engine.load()
    if model == "deaf":
        threading.Event().wait()
    engine.join()
    os._exit(0)


if __name__ == "__main__":
    main()
