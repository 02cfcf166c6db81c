"""`headrace bench`: what measures. One file per thing that is measured."""

import argparse
from typing import Any

from headrace.cli import bench_load, bench_startup

DESCRIPTION = "Measure this machine, this store and this network, with Headrace and with its peers."
EXAMPLES = """\
examples:
  headrace bench load s3://my-bucket/qwen                     how fast its weights come, beside the bare wire
  headrace bench load ./qwen --vs runai,safetensors --json    beside peers, as JSON
  headrace bench startup s3://my-bucket/qwen                  from exec to the first token

`headrace bench load --help` tells more."""


def add_parser(subparsers: "argparse._SubParsersAction[Any]") -> None:
    """Declare the command and what it measures."""
    parser = subparsers.add_parser(
        "bench", help="measure loading and starting, beside peers", description=DESCRIPTION, epilog=EXAMPLES
    )
    below = parser.add_subparsers(dest="measured", metavar="WHAT", title="what", required=True)
    bench_load.add_parser(below)
    bench_startup.add_parser(below)


def run(args: argparse.Namespace) -> int:
    """Measure; the exit code. Raises HeadraceError."""
    return bench_startup.run(args) if args.measured == "startup" else bench_load.run(args)
