"""Exec to first answer: cold starts of `headrace serve` from a bucket, beside a peer in the same run.

Cold means: new processes and an empty metadata cache; store and page cache are warm. A start is timed from
just before exec to the first token that a streaming client gets; the client asks again until the port answers.
Without MODEL the script starts its own SeaweedFS with SmolLM2-135M-Instruct in it.

    python benchmarks/startup.py                       # median of 5, our own store
    python benchmarks/startup.py s3://bucket/model -n 7
    python benchmarks/startup.py --peer 'vllm serve {model} --served-model-name m --port {port} ...'
    python benchmarks/startup.py --json

The peer's command is split as a shell splits words; {model} and {port} are filled in. It must serve the name
"m" on 127.0.0.1.
"""

import argparse
import contextlib
import http.client
import json
import os
import shlex
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

OURS = "{python} -m headrace serve {model} --served-model-name m --port {port} --log-level warning"


@dataclass(frozen=True)
class Start:
    """One cold start, in seconds from exec."""

    first_token_s: float
    answer: str


def main() -> int:
    """Run and report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "model", nargs="?", help="s3:// URI or folder (default: SmolLM2 in a store of our own)"
    )
    parser.add_argument("-n", type=int, default=5, help="counted starts of each (default 5)")
    parser.add_argument("--peer", help="command of a peer, timed in turn with ours")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds that one start may take")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    arguments = parser.parse_args()
    commands = {"headrace": OURS} | ({"peer": arguments.peer} if arguments.peer else {})
    with contextlib.ExitStack() as stack:
        environ = dict(os.environ)
        model = arguments.model
        if model is None:
            model, variables = stack.enter_context(own_store())
            environ |= variables
        for command in commands.values():  # not counted: warms the store and the page cache
            _start(command, model, environ, arguments.timeout)
        starts: dict[str, list[Start]] = {name: [] for name in commands}
        for number in range(arguments.n):
            for name, command in commands.items():
                start = _start(command, model, environ, arguments.timeout)
                starts[name].append(start)
                print(
                    f"{number + 1:3d}  {name:9s} {start.first_token_s:7.2f} s  {start.answer!r}", flush=True
                )
    result = {name: _summary(runs) for name, runs in starts.items()}
    for name, summary in result.items():
        print(
            f"{name}: exec to first token, median {summary['median_s']:.2f} s "
            f"(min {summary['min_s']:.2f}, max {summary['max_s']:.2f}, n = {arguments.n})"
        )
    report: dict[str, object] = {"model": model, "load_average": os.getloadavg()[0], **result}
    if "peer" in starts:
        ratios = [
            theirs.first_token_s / ours.first_token_s
            for ours, theirs in zip(starts["headrace"], starts["peer"], strict=True)
        ]
        report["ratio_peer_to_headrace"] = statistics.median(ratios)
        print(
            f"peer / headrace, pair by pair: median {statistics.median(ratios):.1f} "
            f"(min {min(ratios):.1f}, max {max(ratios):.1f})"
        )
    if arguments.json:
        print(
            json.dumps(
                report | {"starts": {name: [asdict(run) for run in runs] for name, runs in starts.items()}}
            )
        )
    return 0


@contextlib.contextmanager
def own_store() -> Iterator[tuple[str, dict[str, str]]]:
    from headrace.demo.model import prepare_smollm2
    from headrace.demo.store import start_store

    with (
        tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder,
        start_store(Path(folder) / "data") as store,
    ):
        variables = store.environment()
        prepare_smollm2(Path(folder) / "model")
        subprocess.run(
            [sys.executable, "-m", "headrace", "push", "--create-bucket", "--quiet",
             str(Path(folder) / "model"), "s3://models/smollm2-135m-instruct"],
            env=dict(os.environ) | variables,
            check=True,
        )  # fmt: skip
        yield "s3://models/smollm2-135m-instruct", variables


def _start(command: str, model: str, environ: dict[str, str], timeout_s: float) -> Start:
    """One start from exec to the first token, and the end of all its processes."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = [word.format(python=sys.executable, model=model, port=port) for word in shlex.split(command)]
    with tempfile.TemporaryDirectory(prefix="headrace-cold-") as cache, tempfile.TemporaryFile() as log:
        begun = time.monotonic()
        process = subprocess.Popen(
            words,
            env=environ | {"HEADRACE_CACHE": cache, "VLLM_ASSETS_CACHE": cache},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            answer = _first_token(port, process, begun + timeout_s)
            return Start(time.monotonic() - begun, answer)
        except RuntimeError:
            log.seek(0)
            sys.stderr.write(log.read().decode(errors="replace")[-4000:])
            raise
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _first_token(port: int, process: subprocess.Popen[bytes], deadline: float) -> str:
    body = json.dumps(
        {
            "model": "m",
            "prompt": "The capital of France is",
            "max_tokens": 8,
            "temperature": 0,
            "stream": True,
        }
    )
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with {process.returncode}")
        connection = http.client.HTTPConnection(
            "127.0.0.1", port, timeout=max(1.0, deadline - time.monotonic())
        )
        with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
            connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            if response.status == 200:
                while line := response.readline():
                    if line.startswith(b"data: {"):
                        text = json.loads(line[6:])["choices"][0]["text"]
                        if text:
                            return str(text)
        time.sleep(0.01)
    raise RuntimeError("no token within the time")


def _summary(runs: list[Start]) -> dict[str, float]:
    times = [run.first_token_s for run in runs]
    return {"median_s": statistics.median(times), "min_s": min(times), "max_s": max(times)}


if __name__ == "__main__":
    sys.exit(main())
