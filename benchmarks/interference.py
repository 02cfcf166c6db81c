"""A long prompt beside chatters: how their text stutters while it is computed, and what they cost it.

Ten clients stream answers; a prompt of 6,000 tokens comes when all of them have begun. What counts of the chatters
is the time between two of their tokens from the prompt's arrival to its own first token; what counts of the prompt
is its speed then, beside its speed when nobody else is there. Each run does both, one after the other.

    python benchmarks/interference.py                       # median of 3, SmolLM2 in a store of our own
    python benchmarks/interference.py s3://bucket/model -n 5 -- --dtype float32
    python benchmarks/interference.py --json

What follows `--` are flags of the server.
"""

import contextlib
import http.client
import json
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from common import end, free_port, load_average, model_parser, place_of

VOCABULARY = range(1000, 30_000)  # ids that any model has
_BEFORE_S = 2.0  # the chatters have the server to themselves
STORIES = tuple(f"Once upon a time there was {who}" for who in ("a miller", "a king", "a fox", "a river"))


@dataclass(frozen=True)
class Run:
    """One long prompt beside the chatters, and one alone.

    Attributes:
        before_ms: between two tokens of a chatter before the prompt comes, the median.
        p50_ms, p99_ms, max_ms: the same while the prompt is computed.
        gaps: how many such times there were.
        beside_tokens_per_s, alone_tokens_per_s: of the prompt, from its sending to its first token.
    """

    before_ms: float
    p50_ms: float
    p99_ms: float
    max_ms: float
    gaps: int
    beside_tokens_per_s: float
    alone_tokens_per_s: float
    ratio: float


def main() -> int:
    """Run and report."""
    parser = model_parser(__doc__)
    parser.add_argument("flags", nargs="*", help="flags of the server, after --")
    parser.add_argument("-n", type=int, default=3, help="runs (default 3)")
    parser.add_argument("--prompt", type=int, default=6000, help="tokens of the long prompt (default 6000)")
    parser.add_argument("--chatters", type=int, default=10, help="clients beside it (default 10)")
    arguments = parser.parse_args()
    with (
        place_of(arguments.model) as (model, environ),
        _server(model, arguments.flags, environ) as port,
    ):
        _prefill_s(port, 512)  # not counted: the server learns what a prompt token costs
        runs = []
        for number in range(arguments.n):
            runs.append(_run(port, arguments.prompt, arguments.chatters))
            print(f"{number + 1:3d}  {_line(runs[-1])}", flush=True)
    median = Run(
        **{name: statistics.median(asdict(run)[name] for run in runs) for name in Run.__annotations__}
    )
    print(f"medians of {arguments.n}, load average {load_average():.1f}: {_line(median)}")
    if arguments.json:
        report = {"model": model, "prompt_tokens": arguments.prompt, "chatters": arguments.chatters}
        report |= {"load_average": load_average(), "medians": asdict(median)}
        print(json.dumps(report | {"runs": [asdict(run) for run in runs]}))
    return 0


def _line(run: Run) -> str:
    return (
        f"between tokens {run.before_ms:.0f} ms before, then p50 {run.p50_ms:.0f} ms, p99 {run.p99_ms:.0f} ms, most {run.max_ms:.0f} ms; prefill "
        f"{run.beside_tokens_per_s:.0f} tokens/s beside, {run.alone_tokens_per_s:.0f} alone, ratio {run.ratio:.2f}"
    )


def _run(port: int, prompt_tokens: int, chatter_count: int) -> Run:
    alone_s = _prefill_s(port, prompt_tokens)
    chatters = [_Chatter(port) for _ in range(chatter_count)]
    for chatter in chatters:
        chatter.begun.wait()
    quiet = time.monotonic()
    time.sleep(_BEFORE_S)
    begin = time.monotonic()
    beside_s = _prefill_s(port, prompt_tokens)
    end = begin + beside_s
    for chatter in chatters:
        chatter.leave()
    gaps = sorted(gap for chatter in chatters for gap in chatter.gaps_ms(begin, end))
    before = [gap for chatter in chatters for gap in chatter.gaps_ms(quiet, begin)]
    return Run(
        before_ms=statistics.median(before),
        p50_ms=gaps[len(gaps) // 2],
        p99_ms=gaps[min(len(gaps) - 1, int(len(gaps) * 0.99))],
        max_ms=gaps[-1],
        gaps=len(gaps),
        beside_tokens_per_s=prompt_tokens / beside_s,
        alone_tokens_per_s=prompt_tokens / alone_s,
        ratio=alone_s / beside_s,
    )


class _Chatter:
    """A client that streams an answer until it leaves, and notes when each token came."""

    def __init__(self, port: int) -> None:
        self.begun = threading.Event()
        self._leaving = False
        self._times: list[float] = []
        self._thread = threading.Thread(target=self._stream, args=(port,), daemon=True)
        self._thread.start()

    def _stream(self, port: int) -> None:
        # A text goes on as text: each token is a chunk, as none is a part of a character.
        for _ in _tokens(port, random.choice(STORIES), 7000):
            self._times.append(time.monotonic())
            if len(self._times) == 5:
                self.begun.set()
            if self._leaving:
                return

    def leave(self) -> None:
        self._leaving = True
        self._thread.join()

    def gaps_ms(self, begin: float, end: float) -> Iterator[float]:
        """Times between two tokens, of which the second came while the prompt was computed."""
        for before, after in zip(self._times, self._times[1:], strict=False):
            if begin <= after <= end:
                yield (after - before) * 1000


def _prefill_s(port: int, tokens: int) -> float:
    """Seconds from sending a new prompt to its first token."""
    begun = time.monotonic()
    for _ in _tokens(port, _prompt(tokens), 1):
        break
    return time.monotonic() - begun


def _prompt(tokens: int) -> list[int]:
    """No prompt is like another: none is found in the prefix cache."""
    return random.choices(VOCABULARY, k=tokens)


def _tokens(port: int, prompt: str | list[int], max_tokens: int) -> Iterator[bytes]:
    """Yields once for each chunk of a streamed answer; closing it leaves."""
    body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "stream": True}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    with contextlib.closing(connection):
        content = json.dumps(body | {"ignore_eos": True})
        connection.request("POST", "/v1/completions", content, {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise RuntimeError(response.read().decode())
        while line := response.readline():
            if line.startswith(b"data: {"):
                yield line


@contextlib.contextmanager
def _server(model: str, flags: list[str], environ: dict[str, str]) -> Iterator[int]:
    """A ready server; its port."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as cache:
        process = subprocess.Popen(
            [sys.executable, "-m", "headrace", "serve", model, "--port", str(port),
             "--log-level", "warning", *flags],
            env=environ | {"HEADRACE_CACHE": cache},
            start_new_session=True,
        )  # fmt: skip
        try:
            while not _is_ready(port):
                if process.poll() is not None:
                    raise RuntimeError(f"the server ended with {process.returncode}")
                time.sleep(0.1)
            yield port
        finally:
            end(process, 40)


def _is_ready(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
        connection.request("GET", "/ready")
        return connection.getresponse().status == 200
    return False


if __name__ == "__main__":
    sys.exit(main())
