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

import contextlib
import http.client
import json
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass

from common import end, free_port, load_average, model_parser, place_of, summary

OURS = "{python} -m headrace serve {model} --served-model-name m --port {port} --log-level warning"


@dataclass(frozen=True)
class Start:
    """One cold start, in seconds from exec."""

    first_token_s: float
    answer: str


def main() -> int:
    """Run and report."""
    parser = model_parser(__doc__)
    parser.add_argument("-n", type=int, default=5, help="counted starts of each (default 5)")
    parser.add_argument("--peer", help="command of a peer, timed in turn with ours")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds that one start may take")
    arguments = parser.parse_args()
    commands = {"headrace": OURS} | ({"peer": arguments.peer} if arguments.peer else {})
    with place_of(arguments.model) as (model, environ):
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
    result = {name: summary([run.first_token_s for run in runs], "s") for name, runs in starts.items()}
    for name, facts in result.items():
        print(
            f"{name}: exec to first token, median {facts['median_s']:.2f} s "
            f"(min {facts['min_s']:.2f}, max {facts['max_s']:.2f}, n = {arguments.n})"
        )
    report: dict[str, object] = {"model": model, "load_average": load_average(), **result}
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


def _start(command: str, model: str, environ: dict[str, str], timeout_s: float) -> Start:
    """One start from exec to the first token, and the end of all its processes."""
    port = free_port()
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
            end(process, 20)


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


if __name__ == "__main__":
    sys.exit(main())
