"""Starting over a slow link: how long after the last byte does the first token come, and is it the right one?

A request waits from the beginning on. The model lies on nginx at the far end of a link of 1 Gbit/s, or of 200 Mbit/s,
in a network namespace; `headrace bench startup` measures. As root, with iproute2 and nginx (Debian: nginx-light).

    python benchmarks/startup_links.py                              # both links, both models, median of 7
    python benchmarks/startup_links.py -n 3 --links 1gbit --models smollm2-135m-instruct
    python benchmarks/startup_links.py --json links.json
    python benchmarks/startup_links.py --table links.json           # the rows of docs/benchmarks.md, without measuring

The models are made once in --folder and kept: SmolLM2-135M-Instruct (0.27 GB), and a Llama of 0.62 GB with random
weights and the same tokenizer.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from checkpoint import warm
from common import load_average
from links import link
from llama_checkpoint import LARGE, SMALL, large_model, small_model
from servers import nginx

from headrace.cli.interrupts import sigterm_as_interrupt
from headrace.cli.main import guarded
from headrace.demo.child import end_child, start_child
from headrace.errors import HeadraceError
from headrace.source.cache import cache_root

MODELS = {SMALL: small_model, LARGE: large_model}
LINKS = ("1gbit", "200mbit")


def main() -> int:
    """Run and report; the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-n", type=int, default=7, help="counted starts of each (default 7)")
    parser.add_argument(
        "--links", default=",".join(LINKS), help="rates in tc's words (default 1gbit,200mbit)"
    )
    parser.add_argument("--models", default=",".join(MODELS), help=f"of {', '.join(MODELS)} (default all)")
    parser.add_argument("--serve-flags", default="", help="more flags for `headrace serve`, as one word")
    parser.add_argument("--folder", type=Path, default=cache_root() / "bench", help="for the models")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything that was measured there")
    parser.add_argument("--table", type=Path, metavar="FILE", help="measure nothing: print what FILE holds")
    arguments = parser.parse_args()
    if arguments.table:
        print("\n".join(table(json.loads(arguments.table.read_text()))))
        return 0
    names = arguments.models.split(",")
    if unknown := [name for name in names if name not in MODELS]:
        parser.error(f"no model {', '.join(unknown)}; there are {', '.join(MODELS)}")
    results: list[dict[str, Any]] = []
    with sigterm_as_interrupt():
        for name in names:
            size_bytes = warm(MODELS[name](arguments.folder))
            for rate in arguments.links.split(","):
                print(f"\n{name} over {rate}: load average {load_average():.1f}", flush=True)
                report = _measure(arguments, name, rate)
                results.append({"link": rate, "name": name, "bytes": size_bytes, "report": report})
                if arguments.json:
                    arguments.json.write_text(json.dumps(results, indent=1))
    print("", *table(results), sep="\n")
    return 0


def _measure(arguments: argparse.Namespace, name: str, rate: str) -> dict[str, Any]:
    """What `headrace bench startup --json` says of one model at the far end of one link."""
    with link(rate) as far, nginx(arguments.folder, address=far.address, within=far.within) as serving:
        command = [sys.executable, "-m", "headrace", "bench", "startup", f"{serving.url}/{name}"]
        command += ["-n", str(arguments.n), "--json", "--serve-flags", arguments.serve_flags]
        # Its progress goes to stderr, which is ours.
        process = start_child(command, environment=os.environ, stdout=subprocess.PIPE)
        try:
            output, _ = process.communicate()
        finally:
            end_child(process, timeout_s=30.0)
    *lines, last = output.decode().splitlines() or [""]
    print("\n".join(lines), flush=True)
    if process.returncode != 0:
        raise HeadraceError(f"`headrace bench startup` ended with status {process.returncode}.")
    report: dict[str, Any] = json.loads(last)
    return report


def table(results: list[dict[str, Any]]) -> list[str]:
    """Markdown rows: medians, and the ends of what counts."""
    lines = [
        "| Link | Model | last byte | first token | first token after the last byte | text as after the load |",
        "|---|---|---|---|---|---|",
    ]
    for result in results:
        ours = result["report"]["servers"]["headrace"]
        after = ours["after_last_byte_s"]
        lines.append(
            f"| {result['link']} | {result['name']}, {result['bytes'] / 1e9:.2f} GB "
            f"| {ours['last_byte_s']['median']:.2f} s | {ours['first_token_s']['median']:.2f} s "
            f"| **{_seconds(after['median'])} s** ({_seconds(after['min'])} – {_seconds(after['max'])}) "
            f"| {'yes' if ours['same_text'] else 'NO'} |"
        )
    return lines


def _seconds(value: float) -> str:
    return f"{round(value, 2) + 0.0:.2f}"  # never "-0.00"


if __name__ == "__main__":
    sys.exit(guarded(main))
