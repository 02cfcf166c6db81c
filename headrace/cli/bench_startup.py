"""`headrace bench startup MODEL`: from exec to the first token, again and again, beside other servers."""

import argparse
import json
import os
import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.cli import values
from headrace.cli.parser import UsageError
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.bench.cold_start import ColdStart, Contender, Launcher

OURS = "headrace"
_END_S = 10.0

DESCRIPTION = """\
Start the server again and again, each time in new processes with an empty metadata cache, and tell how long it
takes from exec to the first token of a streaming request, with the first and the last byte of the weights between:
medians and spread. The request is sent as soon as the port answers, and again where the server says 503. A first
round of each is not counted: it warms the store and the page cache. The server's own start-up table follows, in
medians, with the share of each phase that hid behind the transfer.

--vs NAME=COMMAND starts another server in the same rounds, and can be given more than once. {model} and {port} in
the command are filled in; it has to listen on 127.0.0.1 and to call its model "m"."""
EXAMPLES = """\
examples:
  headrace bench startup s3://my-bucket/qwen
  headrace bench startup s3://my-bucket/qwen -n 11 --plot start.png --json
  headrace bench startup ./qwen --ask when-ready
  headrace bench startup s3://my-bucket/qwen --serve-flags '--dtype float32'
  headrace bench startup s3://my-bucket/qwen \\
    --vs 'vllm=vllm serve {model} --served-model-name m --port {port}'"""


def add_parser(subparsers: "argparse._SubParsersAction[Any]") -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "startup", help="from exec to the first token", description=DESCRIPTION, epilog=EXAMPLES
    )
    parser.add_argument("model", metavar="MODEL", help="URI or folder, as for `headrace serve`")
    parser.add_argument(
        "-n", metavar="N", dest="runs", type=values.integer(1), default=7, help="counted rounds (default 7)"
    )
    parser.add_argument(
        "--vs",
        metavar="NAME=COMMAND",
        action="append",
        type=_named_command,
        default=[],
        help="another server's command, with {model} and {port} in it; can be given more than once",
    )
    parser.add_argument(
        "--ask",
        choices=("at-once", "when-ready"),
        default="at-once",
        help="when the request is sent: from the beginning on, so that it waits for the load (default), or when /ready, "
        "or /health where there is none, answers 200",
    )
    parser.add_argument(
        "--serve-flags",
        metavar="FLAGS",
        type=shlex.split,
        default=[],
        help="more flags for `headrace serve`, as one word",
    )
    parser.add_argument(
        "--plot", metavar="FILE", type=Path, help="draw the start of median length there (.png, .svg, .pdf)"
    )
    parser.add_argument(
        "--json", action="store_true", help="print everything as one JSON object, the last line of stdout"
    )
    parser.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=values.seconds,
        default=300.0,
        help="how long one start may take (default 300)",
    )


def run(args: argparse.Namespace) -> int:
    """Measure; the exit code. Raises HeadraceError."""
    from headrace.bench.startup_rounds import command_seconds, run_starts
    from headrace.cli.bench_progress import BenchProgress
    from headrace.cli.interrupts import sigterm_as_interrupt

    contenders = _contenders(args)
    if args.plot is not None:
        from headrace.bench.startup_plot import check_plot

        check_plot(args.plot)
    with sigterm_as_interrupt():  # the server that runs is ended too
        command_s = {
            flag: command_seconds([sys.executable, "-m", "headrace", flag], args.runs)
            for flag in ("--version", "--help")
        }
        loads = (args.runs + 1) * len(contenders)
        with BenchProgress(loads, args.runs, sys.stderr, unit="start", figure="s") as progress:
            starts = run_starts(
                contenders,
                args.model,
                os.environ,
                _launcher(),
                args.runs,
                progress,
                ask=args.ask,
                timeout_s=args.timeout,
            )
    report = _report(args, contenders, starts, command_s)
    for line in _lines(report, starts):
        print(line)
    if args.plot is not None:
        _draw(args, starts)
    if args.json:
        print(json.dumps(report))
    return 0


def _named_command(text: str) -> tuple[str, str]:
    name, separator, command = text.partition("=")
    if not separator or not name.strip() or not command.strip():
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=COMMAND")
    return name.strip(), command


def _contenders(args: argparse.Namespace) -> "list[Contender]":
    """Ours first. Raises UsageError for commands that cannot be meant."""
    from headrace.bench.asking import SERVED_NAME
    from headrace.bench.cold_start import Contender

    own = [sys.executable, "-m", "headrace", "serve", "{model}", "--served-model-name", SERVED_NAME]
    own += ["--port", "{port}", "--log-level", "warning", *args.serve_flags]
    found = [Contender(OURS, tuple(own))]
    for name, command in args.vs:
        if name in [contender.name for contender in found]:
            raise UsageError(f"--vs has two servers named {name}.", remedy="Give each a name of its own.")
        try:
            words = tuple(shlex.split(command))
        except ValueError as error:
            raise UsageError(f"The command of {name} cannot be split into words: {error}.") from None
        if not any("{port}" in word for word in words):
            raise UsageError(
                f"The command of {name} does not say where the port goes.",
                remedy="Put {port} in its place, and {model} in that of the model.",
            )
        found.append(Contender(name, words))
    return found


def _launcher() -> "Launcher":
    from headrace.bench.cold_start import Launcher
    from headrace.demo.child import end_child, start_child
    from headrace.demo.ports import free_ports

    return Launcher(
        start=lambda command, environ, output: start_child(
            command, environment=environ, stdout=output, stderr=output
        ),
        end=lambda process: end_child(process, timeout_s=_END_S),
        free_port=lambda: free_ports(1)[0],
    )


def _report(
    args: argparse.Namespace,
    contenders: "list[Contender]",
    starts: "dict[str, list[ColdStart]]",
    command_s: dict[str, float],
) -> dict[str, Any]:
    """Everything that is known, as data for JSON."""
    from headrace.bench.startup_report import ratios_to, summarize_starts

    return {
        # A query may be a signature.
        "model": args.model.partition("?")[0],
        "runs": args.runs,
        "ask": args.ask,
        "cpus": os.cpu_count(),
        "load_average": os.getloadavg()[0],
        "command_s": command_s,
        "commands": {contender.name: shlex.join(contender.command) for contender in contenders},
        "servers": {name: asdict(summarize_starts(runs)) for name, runs in starts.items()},
        "ratios": {
            name: asdict(ratios_to(starts[OURS], runs)) for name, runs in starts.items() if name != OURS
        },
        "starts": {name: [asdict(start) for start in runs] for name, runs in starts.items()},
    }


def _lines(report: dict[str, Any], starts: "dict[str, list[ColdStart]]") -> list[str]:
    """The report for a person."""
    from headrace.bench.startup_report import phases_table, starts_table, summarize_starts

    summaries = {name: summarize_starts(runs) for name, runs in starts.items()}
    lines = starts_table(summaries)
    for name, ratio in report["ratios"].items():
        lines.append(
            f"{name} / {OURS}, round by round: {ratio['median']:.2f} ({ratio['min']:.2f} – {ratio['max']:.2f})"
        )
    lines += ["", *phases_table(summaries[OURS].phases), ""]
    lines += [
        f"{name}: its first answer is {'' if summary.same_text else 'NOT '}the one that it gives later"
        for name, summary in summaries.items()
    ]
    shown = ", ".join(f"`headrace {flag}` {taken_s:.3f} s" for flag, taken_s in report["command_s"].items())
    lines.append(shown)
    lines.append(
        f"Seconds from exec; medians of {report['runs']} rounds (min – max); {report['cpus']} CPUs, "
        f"load average {report['load_average']:.1f}"
    )
    return lines


def _draw(args: argparse.Namespace, starts: "dict[str, list[ColdStart]]") -> None:
    from headrace.bench.startup_plot import draw_start
    from headrace.bench.startup_report import middle_start, summarize_starts

    first_tokens_s = {name: summarize_starts(runs).first_token_s.median for name, runs in starts.items()}
    title = f"headrace serve {args.model.partition('?')[0]} (the start of median length of {args.runs})"
    try:
        draw_start(args.plot, title, middle_start(starts[OURS]), first_tokens_s)
    except OSError as error:
        raise HeadraceError(
            f"The picture cannot be written to {args.plot}: {error.strerror}.", remedy="Check --plot."
        ) from None
    print(f"The picture is in {args.plot}.")
