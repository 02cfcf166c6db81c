"""`headrace check MODEL`: can it be served from here? Without downloading the weights."""

import argparse
import sys
from typing import TYPE_CHECKING, Any

from headrace.cli import values
from headrace.cli.output import say
from headrace.cli.parser import paint
from headrace.cli.table import print_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.engine.check.finding import Finding

DESCRIPTION = """\
Look whether a model can be served from this machine, without downloading its weights: the settings that lead to the
store and where each came from, permissions, files, index, headers against listed sizes, architecture, tensors,
tokenizer, memory, verification, and the time that the weights will take, by a timed read of a few megabytes."""
EXAMPLES = """\
examples:
  headrace check s3://my-bucket/models/qwen
  headrace check s3://my-bucket/models/qwen --dtype float32 --mem-fraction-static 0.5
  headrace check s3://my-bucket/models/qwen --json | jq '.checks[] | select(.status != "ok")'

Exit codes: 0 it can be served (warnings may say what somebody should know), 1 it cannot, 2 a command line that
cannot be understood."""

_COLOURS = {"ok": "32", "warn": "33", "fail": "1;31"}
_ENGINE_FLAGS = (
    "tokenizer_path",
    "device",
    "dtype",
    "context_length",
    "mem_fraction_static",
    "max_total_tokens",
)


def add_parser(subparsers: "argparse._SubParsersAction[Any]") -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "check", help="look whether a model can be served", description=DESCRIPTION, epilog=EXAMPLES
    )
    parser.add_argument("model", metavar="MODEL", type=values.nonempty, help="a bucket's prefix, or a folder")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    group = parser.add_argument_group("as `headrace serve` would be told")
    group.add_argument(
        "--revision", metavar="NAME", type=values.nonempty, help="of a model on the Hugging Face hub"
    )
    group.add_argument(
        "--tokenizer-path", metavar="PATH", type=values.nonempty, help="where the tokenizer is"
    )
    group.add_argument("--device", choices=("auto", "cpu", "cuda"), help="where the model would run")
    group.add_argument(
        "--dtype",
        type=values.dtype,
        choices=("auto", "bfloat16", "float16", "float32"),
        help="number format of weights and KV cache",
    )
    group.add_argument(
        "--context-length", metavar="TOKENS", type=values.integer(1), help="tokens that one request may take"
    )
    group.add_argument(
        "--mem-fraction-static",
        metavar="SHARE",
        type=values.fraction,
        help="share of the memory that weights and KV cache may take",
    )
    group.add_argument(
        "--max-total-tokens", metavar="TOKENS", type=values.integer(1), help="size of the KV pool in tokens"
    )


def run(args: argparse.Namespace) -> int:
    """Check; 0 where nothing fails, else 1."""
    findings: list[Finding] = []
    for finding in _findings(args):
        findings.append(finding)
        if not args.json:
            _tell(finding)
    failed = any(finding.status == "fail" for finding in findings)
    if args.json:
        print_json({"model": args.model, "ok": not failed, "checks": [_facts(each) for each in findings]})
    else:
        _sum_up(findings)
    return 1 if failed else 0


def _findings(args: argparse.Namespace) -> "Iterator[Finding]":
    from headrace.engine.check.finding import tried
    from headrace.engine.check.preflight import preflight
    from headrace.ipc.options import EngineOptions
    from headrace.source.uri import at_revision

    place: str | None = args.model
    if args.revision is not None:
        place = yield from tried("name", lambda: at_revision(args.model, args.revision))
    if place is not None:
        given = {name: getattr(args, name) for name in _ENGINE_FLAGS if getattr(args, name) is not None}
        yield from preflight(EngineOptions(model=place, **given))


def _tell(finding: "Finding") -> None:
    status = paint(f"{finding.status:<4}", _COLOURS[finding.status], sys.stdout)
    say(f"{status}  {finding.check:<12}  {finding.text}", flush=True)
    if finding.remedy:
        say(f"{'':4}  {'':12}  {finding.remedy}", flush=True)


def _sum_up(findings: "list[Finding]") -> None:
    warnings = sum(finding.status == "warn" for finding in findings)
    if any(finding.status == "fail" for finding in findings):
        say("It cannot be served.")
    else:
        say(f"It can be served{f', with {warnings} warning(s)' if warnings else ''}.")


def _facts(finding: "Finding") -> dict[str, Any]:
    return {
        "check": finding.check,
        "status": finding.status,
        "text": finding.text,
        "remedy": finding.remedy,
        **finding.facts,
    }
