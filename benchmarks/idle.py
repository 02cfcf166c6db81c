"""What a ready server costs while nobody asks: CPU time of front and engine, and which of their threads wake up.

The goal is below 1 % of a core over a minute. Some requests are answered first, so that everything that a server
starts when it is first used is there; then it is left alone. Without MODEL the script starts its own SeaweedFS with
SmolLM2-135M-Instruct in it.

    python benchmarks/idle.py
    python benchmarks/idle.py s3://bucket/model --seconds 300 --json
    python benchmarks/idle.py --probes      # with /health and /ready asked as Kubernetes would, once a second
"""

import http.client
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from common import end, free_port, load_average, model_parser, place_of

from headrace.server.seen.process_usage import process_usage

GOAL = 0.01
_REQUESTS = 4


@dataclass(frozen=True)
class ThreadUse:
    """What one thread did: times that it gave up its core to wait, and nanoseconds that it ran."""

    name: str
    waits: int
    run_ns: int


@dataclass(frozen=True)
class Idle:
    """One process's part. `threads`: those that woke, the busiest first."""

    process: str
    cpu_s: float
    share_of_a_core: float
    resident_mib: float
    anonymous_mib: float
    threads: list[ThreadUse]


def main() -> int:
    """Run and report; 1 where the goal is missed."""
    parser = model_parser(__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to look (default 60)")
    parser.add_argument(
        "--probes", action="store_true", help="ask /health and /ready once a second meanwhile"
    )
    arguments = parser.parse_args()
    with place_of(arguments.model) as (model, environ):
        found = _measure(model, environ, arguments.seconds, probes=arguments.probes)
    for idle in found:
        print(
            f"{idle.process:6s} {idle.cpu_s:6.3f} s of CPU = {idle.share_of_a_core:.3%} of a core; resident "
            f"{idle.resident_mib:.0f} MiB, of it anonymous {idle.anonymous_mib:.0f} MiB"
        )
        for thread in idle.threads:
            print(f"         {thread.name:16s} {thread.waits:6d} wake-ups  {thread.run_ns / 1e6:8.2f} ms")
    total = sum(idle.share_of_a_core for idle in found)
    print(f"together {total:.3%} of a core over {arguments.seconds:.0f} s (goal: below {GOAL:.0%})")
    if arguments.json:
        report = {"model": model, "load_average": load_average(), "share_of_a_core": total}
        print(json.dumps(report | {"processes": [asdict(idle) for idle in found]}))
    return 0 if total < GOAL else 1


def _measure(model: str, environ: Mapping[str, str], seconds: float, *, probes: bool) -> list[Idle]:
    port = free_port()
    command = ["-m", "headrace", "serve", model, "--served-model-name", "m", "--port", str(port)]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [sys.executable, *command, "--log-level", "warning"],
            env=dict(environ),
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            _until_ready(port, process)
            for _ in range(_REQUESTS):
                _complete(port)
            time.sleep(3.0)  # connections close, allocators settle
            pids = {"front": process.pid, "engine": _engine_of(process.pid)}
            before = {name: (process_usage(pid), _threads(pid)) for name, pid in pids.items()}
            _wait(port, seconds, probes=probes)
            return [_idle(name, pid, before[name], seconds) for name, pid in pids.items()]
        finally:
            end(process, 20)


def _idle(name: str, pid: int, before: tuple[object, dict[int, ThreadUse]], seconds: float) -> Idle:
    now, then = process_usage(pid), before[0]
    assert now is not None and then is not None
    old = before[1]
    threads = []
    for tid, use in _threads(pid).items():
        first = old.get(tid, ThreadUse(use.name, 0, 0))
        threads.append(ThreadUse(use.name, use.waits - first.waits, use.run_ns - first.run_ns))
    threads.sort(key=lambda thread: thread.run_ns, reverse=True)
    run_s = sum(thread.run_ns for thread in threads) / 1e9  # finer than the kernel's ticks of 10 ms
    return Idle(
        process=name,
        cpu_s=run_s,
        share_of_a_core=run_s / seconds,
        resident_mib=now.resident_bytes / (1 << 20),
        anonymous_mib=_anonymous_bytes(pid) / (1 << 20),
        threads=[thread for thread in threads if thread.waits],
    )


def _threads(pid: int) -> dict[int, ThreadUse]:
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            status = dict(line.split(":", 1) for line in (task / "status").read_text().splitlines())
            run_ns = int((task / "schedstat").read_text().split()[0])
        except FileNotFoundError:
            continue  # ended meanwhile
        found[int(task.name)] = ThreadUse(
            status["Name"].strip(), int(status["voluntary_ctxt_switches"]), run_ns
        )
    return found


def _anonymous_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    return 0


def _engine_of(front: int) -> int:
    children = Path(f"/proc/{front}/task/{front}/children").read_text().split()
    (engine,) = [
        int(pid)
        for pid in children
        if b"headrace.engine" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    ]
    return engine


def _wait(port: int, seconds: float, *, probes: bool) -> None:
    if not probes:
        time.sleep(seconds)
        return
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for path in ("/health", "/ready"):
            _status(port, path)
        time.sleep(1.0)


def _until_ready(port: int, process: subprocess.Popen[bytes]) -> None:
    while process.poll() is None:
        try:
            if _status(port, "/ready") == 200:
                return
        except OSError:
            pass  # the port is not open yet
        time.sleep(0.05)
    raise RuntimeError(f"the server ended with {process.returncode}")


def _status(port: int, path: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()


def _complete(port: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    body = json.dumps({"model": "m", "prompt": "The capital of France is", "max_tokens": 16})
    connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    assert answer.status == 200, answer.read()
    answer.read()
    connection.close()


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(main())
