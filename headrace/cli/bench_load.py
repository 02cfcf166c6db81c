"""`headrace bench load URI`: how fast weights come from a place, beside the bare wire and beside other loaders."""

import argparse
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.cli import values
from headrace.cli.parser import UsageError
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.bench.process import Contestant
    from headrace.bench.runs import Absent
    from headrace.bench.scene import Measurement
    from headrace.bench.target import Target

BARE, OURS = "wire", "headrace"
PEERS_VARIABLE = "HEADRACE_PEERS_PYTHON"
PEERS_PYTHON = Path(".venv-peers/bin/python")
PEERS = {
    "runai": ("runai", "pip install torch 'runai-model-streamer[s3]'"),
    "obstore": ("obstore", "pip install obstore"),
    "aws": ("aws", "pip install torch safetensors awscli"),
    "safetensors": ("safetensors", "pip install torch safetensors"),
}

DESCRIPTION = f"""\
Load safetensors again and again, each time in a fresh process, and tell rate, CPU seconds, memory, time to the
first tensor and requests: medians and spread. A bare loop reads the same bytes over the same connections (or by
plain reads of the file) in the same round: the limit that a loader can come near to. A first round of each is not
counted. URI is a folder or one object that ends in {".safetensors"}: s3://, http(s):// or a path.

Peers (--vs) live in a Python of their own: --peers-python, or ${PEERS_VARIABLE}, or {PEERS_PYTHON},
which `make peers` builds in a clone; else they are looked for in Headrace's own. Those that are not there are
named, with what installs them."""
EXAMPLES = """\
examples:
  headrace bench load s3://my-bucket/qwen
  headrace bench load ./qwen --vs runai,safetensors
  headrace bench load http://127.0.0.1:8080/m/model.safetensors --vs all --runs 7
  headrace bench load s3://my-bucket/qwen --json | tail -1 | jq .ratios

A plain web server is shown to peers that know S3 alone (runai, aws) as an S3 endpoint without signatures: the
first folder of the path is their bucket."""


def add_parser(subparsers: "argparse._SubParsersAction[Any]") -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "load", help="how fast weights come from a place", description=DESCRIPTION, epilog=EXAMPLES
    )
    parser.add_argument("uri", metavar="URI", help="a folder, or one .safetensors object")
    parser.add_argument(
        "--vs",
        metavar="PEERS",
        type=_peers,
        default=(),
        help=f"loaders to measure beside, separated by commas, or all: {', '.join(PEERS)}",
    )
    parser.add_argument(
        "--runs", metavar="N", type=values.integer(1), default=5, help="counted rounds (default 5)"
    )
    parser.add_argument(
        "--json", action="store_true", help="print everything as one JSON object, the last line of stdout"
    )
    parser.add_argument("--peers-python", metavar="PATH", type=Path, help="the Python that has the peers")
    parser.add_argument(
        "--wire-connections",
        metavar="N",
        type=values.integer(1, 256),
        help="connections of the bare loop (default: 2, 4 or 8, whichever is fastest before)",
    )
    parser.add_argument(
        "--access-log",
        metavar="FILE",
        type=Path,
        help="the server's access log, one line per request: counts the requests of every loader",
    )
    parser.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=values.seconds,
        default=600.0,
        help="how long one load may take (default 600)",
    )


def run(args: argparse.Namespace) -> int:
    """Measure; the exit code. Raises HeadraceError."""
    from headrace.bench.target import find_target
    from headrace.cli.interrupts import sigterm_as_interrupt

    python = peers_python(args.peers_python)
    if args.access_log is not None and not args.access_log.is_file():
        raise HeadraceError(f"There is no file {args.access_log}.", remedy="Check --access-log.")
    with sigterm_as_interrupt():  # the loader that runs is ended too
        target = find_target(args.uri)
        contestants, versions, absent = _gather(target, args, python)
        for missing in absent:
            _say(f"{missing.name} is not measured: {missing.why}.")
        measured = _measure(contestants, target, args)
    report = _report(args.uri, target, contestants, measured, versions, absent)
    for line in _lines(report, measured, target.scene.size_bytes):
        print(line)
    if args.json:
        print(json.dumps(report))
    return 0


def peers_python(given: Path | None) -> str | None:
    """The interpreter that has the peers; None for our own.

    Raises UsageError for one that was named and is not there.
    """
    named = given or (Path(os.environ[PEERS_VARIABLE]) if os.environ.get(PEERS_VARIABLE) else None)
    if named is None:
        return str(PEERS_PYTHON.absolute()) if PEERS_PYTHON.exists() else None
    if not named.is_file():
        raise UsageError(f"There is no Python {named}.", remedy=f"Check --peers-python and {PEERS_VARIABLE}.")
    return str(named.absolute())


def _peers(text: str) -> tuple[str, ...]:
    if text == "all":
        return tuple(PEERS)
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    unknown = [name for name in names if name not in PEERS]
    if unknown or not names:
        raise argparse.ArgumentTypeError(
            f"{', '.join(unknown) or 'nothing'} is no peer; there are {', '.join(PEERS)}, and all"
        )
    return names


def _gather(
    target: "Target", args: argparse.Namespace, python: str | None
) -> "tuple[list[Contestant], dict[str, dict[str, str]], list[Absent]]":
    """Who takes part, with the versions of their packages; and who does not."""
    from headrace.bench.process import Contestant
    from headrace.bench.runs import Absent, probe
    from headrace.bench.target import scene_for

    own = dict(os.environ)
    found = [
        Contestant(BARE, scene_for(target, "bare", args.wire_connections), None, own),
        Contestant(OURS, scene_for(target, "ours"), None, own),
    ]
    versions = {contestant.name: _present(probe(contestant)) for contestant in found}
    absent = []
    for name in args.vs:
        loader, installed_by = PEERS[name]
        unfit = _unfit(name, target)
        if unfit:
            absent.append(Absent(name, unfit))
            continue
        peer = Contestant(name, scene_for(target, loader), python, own | dict(target.peer_environ))
        answer = probe(peer)
        if isinstance(answer, Absent):
            remedy = f"`make peers` in a clone builds an environment that has it, or `{installed_by}` into one of yours"
            absent.append(Absent(name, f"{answer.why}; {remedy}, named by --peers-python"))
        else:
            found.append(peer)
            versions[name] = answer
    return found, versions, absent


def _unfit(name: str, target: "Target") -> str:
    """Why a peer cannot read from this place; "" if it can."""
    if name == "safetensors" and target.kind != "file":
        return "it reads local files only"
    if name == "aws" and target.kind == "file":
        return "it reads buckets only"
    if name in ("aws", "runai") and target.kind == "web" and not all(o.s3_uri for o in target.scene.objects):
        return "it reads buckets only, and the URL has no folder that could be taken for one"
    return ""


def _present(answer: "dict[str, str] | Absent") -> dict[str, str]:
    assert isinstance(answer, dict)  # what we run on is there
    return answer


def _measure(
    contestants: "list[Contestant]", target: "Target", args: argparse.Namespace
) -> "dict[str, list[Measurement]]":
    from headrace.bench.runs import available_bytes, calibrated, run_rounds
    from headrace.bench.warm import WarmMemory
    from headrace.cli.bench_progress import BenchProgress

    size_bytes, available = target.scene.size_bytes, available_bytes()
    if size_bytes > 0.9 * available:
        raise HeadraceError(
            f"{args.uri} has {size_bytes / 1e9:.1f} GB, and {available / 1e9:.1f} GB of memory are free.",
            remedy="Name one of its objects instead.",
        )
    bare, *others = contestants
    # Some peers take half as much again as the tensors need.
    with WarmMemory(min(size_bytes * 3 // 2 + (128 << 20), available * 7 // 10)) as warm:
        if args.wire_connections is None:
            bare = calibrated(bare, args.timeout, warm)
        with BenchProgress((args.runs + 1) * len(contestants), args.runs, sys.stderr) as progress:
            return run_rounds([bare, *others], args.runs, args.timeout, progress, warm, args.access_log)


def _report(
    uri: str,
    target: "Target",
    contestants: "list[Contestant]",
    measured: "dict[str, list[Measurement]]",
    versions: dict[str, dict[str, str]],
    absent: "list[Absent]",
) -> dict[str, Any]:
    """Everything that is known, as data for JSON."""
    from headrace.bench.report import ratios, summarize

    size_bytes = target.scene.size_bytes
    compared: dict[str, Any] = {}
    for contestant in contestants:
        if contestant.name != OURS:
            own, other = measured[OURS], measured[contestant.name]
            rate = ratios(other, own, lambda run: run.wall_s)
            cpu = ratios(own, other, lambda run: run.cpu_s)
            compared[contestant.name] = {
                "gb_per_s": asdict(rate) if rate else None,
                "cpu_s": asdict(cpu) if cpu else None,
            }
    return {
        # A query may be a signature.
        "uri": uri.partition("?")[0],
        "objects": len(target.scene.objects),
        "bytes": size_bytes,
        "runs": len(measured[OURS]),
        "cpus": os.cpu_count(),
        "load_average": os.getloadavg()[0],
        "loaders": {name: asdict(summarize(runs, size_bytes)) for name, runs in measured.items()},
        "ratios": compared,
        "versions": versions,
        "absent": {missing.name: missing.why for missing in absent},
        "measurements": {name: [run.to_dict() for run in runs] for name, runs in measured.items()},
    }


def _lines(report: dict[str, Any], measured: "dict[str, list[Measurement]]", size_bytes: int) -> list[str]:
    """The report for a person."""
    from headrace.bench.report import summarize, table

    lines = table({name: summarize(runs, size_bytes) for name, runs in measured.items()}, BARE)
    for name, compared in report["ratios"].items():
        rate, cpu = compared["gb_per_s"], compared["cpu_s"]
        text = f"{OURS} / {name}, round by round: rate {_ratio(rate)}"
        lines.append(text + (f"; CPU seconds {_ratio(cpu)}" if cpu else ""))
    lines.append(
        f"{report['objects']} objects, {size_bytes / 1e9:.3f} GB; medians of {report['runs']} rounds (min – max); "
        f"{report['cpus']} CPUs, load average {report['load_average']:.1f}"
    )
    return lines


def _ratio(spread: dict[str, float]) -> str:
    return f"{spread['median']:.2f} ({spread['min']:.2f} – {spread['max']:.2f})"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
