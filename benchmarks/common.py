"""What the benchmarks share: a store of their own, a free port, and how figures are told."""

import argparse
import contextlib
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

SMOLLM2_URI = "s3://models/smollm2-135m-instruct"


def model_parser(doc: str | None) -> argparse.ArgumentParser:
    """A parser for a benchmark of a served model: MODEL and --json."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "model", nargs="?", help="s3:// URI or folder (default: SmolLM2 in a store of our own)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    return parser


@contextlib.contextmanager
def place_of(model: str | None) -> Iterator[tuple[str, dict[str, str]]]:
    """The model that was named, or SmolLM2 in a store of our own; with the environment that leads there."""
    if model is not None:
        yield model, dict(os.environ)
        return
    with own_store() as (uri, variables):
        yield uri, dict(os.environ) | variables


@contextlib.contextmanager
def own_store() -> Iterator[tuple[str, dict[str, str]]]:
    """SmolLM2-135M-Instruct in a SeaweedFS that ends with the block: its URI, and the variables that lead there."""
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
             str(Path(folder) / "model"), SMOLLM2_URI],
            env=dict(os.environ) | variables,
            check=True,
        )  # fmt: skip
        yield SMOLLM2_URI, variables


def free_port() -> int:
    """A port of 127.0.0.1 on which nothing listens now."""
    from headrace.demo.ports import free_ports

    return free_ports(1)[0]


def end(process: subprocess.Popen[bytes], timeout_s: float) -> None:
    """SIGTERM; after `timeout_s` SIGKILL to the process's whole group, which it must lead."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def summary(values: Sequence[float], unit: str) -> dict[str, float]:
    """Median and ends of some values, by names that end in the unit: "median_s"."""
    return {
        f"median_{unit}": statistics.median(values),
        f"min_{unit}": min(values),
        f"max_{unit}": max(values),
    }


def load_average() -> float:
    """Of the last minute: what else the machine did."""
    return os.getloadavg()[0]
