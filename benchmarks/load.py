"""Loading, row by row: sets up a server and a link, and has `headrace bench load` measure there beside the peers.

    make peers                                              # once: the peers' environment, and nanio
    python benchmarks/load.py --all --json load.json        # every row; about a quarter of an hour
    python benchmarks/load.py http https --runs 7           # some rows
    python benchmarks/load.py --table load.json             # the rows of docs/benchmarks.md from an earlier run

Checkpoints of random weights are made once in --folder and kept. Rows with a slow link need root, ip and tc; those
over http need nginx (Debian: nginx-light).
"""

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from checkpoint import checkpoint, layers_of, small_tensors, warm
from common import load_average
from delay_proxy import delay_proxy
from links import link
from load_table import table
from servers import Serving, nanio, nginx

from headrace.cli.interrupts import sigterm_as_interrupt
from headrace.cli.main import guarded
from headrace.demo.child import end_child, start_child
from headrace.errors import HeadraceError
from headrace.source.cache import cache_root

ROOT = Path(__file__).resolve().parent.parent
PEERS = ROOT / ".venv-peers" / "bin"
DELAY_S = 0.05
SMALL_TENSORS = 100_000


@dataclass(frozen=True, slots=True)
class Place:
    """Where a row's checkpoint is, and the environment that leads there."""

    uri: str
    environ: dict[str, str]
    access_log: Path | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One row.

    Attributes:
        name: on the command line.
        peers: for --vs.
        size_bytes: of the checkpoint; None is that of --size-mb, 0 the many small tensors.
        place: sets the scene for a folder of checkpoints and one of them.
    """

    name: str
    peers: tuple[str, ...]
    size_bytes: int | None
    place: Callable[[Path, str], "contextlib.AbstractContextManager[Place]"]


def main() -> int:
    """Run and report; the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [row.name for row in ROWS]
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"of {', '.join(names)}")
    parser.add_argument("--all", action="store_true", help="every row")
    parser.add_argument("--runs", type=int, default=5, help="counted rounds of each row (default 5)")
    parser.add_argument(
        "--size-mb", type=int, default=2400, help="size of the large checkpoint (default 2400)"
    )
    parser.add_argument(
        "--scale", type=float, default=1.0, help="of all other checkpoints' sizes: 0.1 for a quick look"
    )
    parser.add_argument("--folder", type=Path, default=cache_root() / "bench", help="for the checkpoints")
    parser.add_argument("--peers-python", type=Path, default=PEERS / "python", help="the Python of the peers")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything that was measured there")
    parser.add_argument("--table", type=Path, metavar="FILE", help="measure nothing: print what FILE holds")
    arguments = parser.parse_args()
    if arguments.table:
        print("\n".join(table(json.loads(arguments.table.read_text()))))
        return 0
    unknown = [name for name in arguments.rows if name not in names]
    if unknown or not (arguments.rows or arguments.all):
        parser.error(f"{', '.join(unknown) or 'nothing'}: give --all or some of {', '.join(names)}")
    rows = [row for row in ROWS if arguments.all or row.name in arguments.rows]
    results: dict[str, Any] = {}
    failed = False
    with sigterm_as_interrupt():
        for row in rows:
            print(f"\n{row.name}: load average {load_average():.1f}", flush=True)
            try:
                results[row.name] = _measure(row, arguments)
            except HeadraceError as error:  # the other rows can be measured
                print(f"{row.name} is left out: {error}", file=sys.stderr)
                failed = True
            if arguments.json:
                arguments.json.write_text(json.dumps(results, indent=1))
    print("", *table(results), sep="\n")
    return 1 if failed else 0


def _measure(row: Row, arguments: argparse.Namespace) -> dict[str, Any]:
    """One row's report, as `headrace bench load --json` gives it."""
    name = _make(row, arguments)
    with row.place(arguments.folder, name) as place:
        command = [sys.executable, "-m", "headrace", "bench", "load", place.uri, "--json"]
        command += ["--runs", str(arguments.runs)]
        if row.peers:
            command += ["--vs", ",".join(row.peers)]
        if arguments.peers_python.exists():
            command += ["--peers-python", str(arguments.peers_python)]
        if place.access_log is not None:
            command += ["--access-log", str(place.access_log)]
        # Its progress goes to stderr, which is ours.
        process = start_child(command, environment=place.environ, stdout=subprocess.PIPE)
        try:
            output, _ = process.communicate()
        finally:
            end_child(process)
    *lines, last = output.decode().splitlines() or [""]
    print("\n".join(lines), flush=True)
    if process.returncode != 0:
        raise HeadraceError(f"`headrace bench load` ended with status {process.returncode}.")
    report: dict[str, Any] = json.loads(last)
    return report


def _make(row: Row, arguments: argparse.Namespace) -> str:
    """The checkpoint's name in the folder; it is made unless it is there, and lies in the page cache."""
    if row.size_bytes == 0:
        count = round(SMALL_TENSORS * arguments.scale)
        name, tensors = f"small-{count}", small_tensors(count)
    else:
        size_bytes = (
            arguments.size_mb * 1_000_000
            if row.size_bytes is None
            else round(row.size_bytes * arguments.scale)
        )
        name, tensors = f"random-{size_bytes // 1_000_000}mb", layers_of(size_bytes)
    warm(checkpoint(arguments.folder / name, tensors))
    return name


@contextlib.contextmanager
def _local(folder: Path, name: str) -> Iterator[Place]:
    yield Place(str(folder / name), dict(os.environ))


@contextlib.contextmanager
def _http(folder: Path, name: str) -> Iterator[Place]:
    with nginx(folder) as serving:
        yield _on(serving, folder / name)


@contextlib.contextmanager
def _https(folder: Path, name: str) -> Iterator[Place]:
    with nginx(folder, tls=True) as serving:
        yield _on(serving, folder / name)


@contextlib.contextmanager
def _signed(folder: Path, name: str) -> Iterator[Place]:
    """nanio's buckets are folders: the checkpoint's files are linked there."""
    data = folder / "nanio"
    bucket = data / "bench" / name
    shutil.rmtree(data, ignore_errors=True)
    bucket.mkdir(parents=True)
    for path in (folder / name).iterdir():
        os.link(path, bucket / path.name)
    try:
        with nanio(PEERS / "nanio", data) as serving:
            yield Place(f"s3://bench/{name}", dict(os.environ) | dict(serving.environ))
    finally:
        shutil.rmtree(data)


@contextlib.contextmanager
def _gigabit(folder: Path, name: str) -> Iterator[Place]:
    with link("1gbit") as far, nginx(folder, address=far.address, within=far.within) as serving:
        yield _on(serving, folder / name)


@contextlib.contextmanager
def _far_away(folder: Path, name: str) -> Iterator[Place]:
    with link("100mbit") as far, nginx(folder, address=far.address, within=far.within) as serving:
        port = urlsplit(serving.url).port
        assert port is not None
        with delay_proxy(far.address, port, DELAY_S) as (host, near_port):
            near = Serving(f"http://{host}:{near_port}", serving.access_log, serving.environ)
            yield _on(near, folder / name)


def _on(serving: Serving, folder: Path) -> Place:
    files = sorted(folder.glob("*.safetensors"))
    last = f"/{files[0].name}" if len(files) == 1 else ""
    environ = dict(os.environ) | dict(serving.environ)
    return Place(f"{serving.url}/{folder.name}{last}", environ, serving.access_log)


ROWS = (
    Row("http", ("runai", "obstore", "aws"), None, _http),
    Row("signed", ("runai", "obstore"), None, _signed),
    Row("https", ("runai", "obstore"), None, _https),
    Row("local", ("runai", "safetensors"), None, _local),
    Row("1gbit", (), 1_000_000_000, _gigabit),
    Row("100mbit-50ms", (), 100_000_000, _far_away),
    Row("small", ("runai",), 0, _http),
)


if __name__ == "__main__":
    sys.exit(guarded(main))
