"""`headrace pull URI DIR`: copy what lies below a prefix to a folder, resumably and verified."""

import argparse
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.cli import values
from headrace.cli.output import say
from headrace.cli.table import print_json
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.stream.pulling.pull import FoundFile, Pulled

DESCRIPTION = """\
Copy what lies below a prefix, in all depths, to a folder. A file that was pulled before and has not changed is not
fetched again, one that was cut off goes on where it stopped, and each appears under its name only when it is whole and
proved. Nothing is deleted from the folder. To serve a model nothing need be pulled: `headrace serve URI` streams it."""
EXAMPLES = """\
examples:
  headrace pull s3://my-bucket/models/qwen ./qwen
  headrace pull s3://my-bucket/models/qwen ./qwen --include '*.json' --include 'tokenizer*'
  headrace pull s3://my-bucket/models/qwen ./qwen --verify require --json

--verify auto compares each file with headrace.manifest.json where one lies beside it, else with the CRC that the store
keeps; `manifest` asks the store for nothing, `require` fails where there is neither, `off` compares sizes only."""


class NothingFits(HeadraceError):
    """The patterns leave nothing to pull."""


def add_parser(subparsers: "argparse._SubParsersAction[Any]") -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "pull", help="copy a model to a folder", description=DESCRIPTION, epilog=EXAMPLES
    )
    parser.add_argument(
        "uri", metavar="URI", type=values.nonempty, help="what is copied: a prefix or a folder"
    )
    parser.add_argument(
        "folder", metavar="DIR", type=values.nonempty, help="where it goes; made if it does not exist"
    )
    parser.add_argument(
        "--include",
        metavar="PATTERN",
        action="append",
        help="only paths that fit it (several may be given); * matches slashes too",
    )
    parser.add_argument(
        "--exclude", metavar="PATTERN", action="append", help="no path that fits it (several may be given)"
    )
    parser.add_argument(
        "--verify",
        choices=("auto", "manifest", "require", "off"),
        default="auto",
        help="what files are compared with (default: auto)",
    )
    parser.add_argument("--quiet", action="store_true", help="say nothing but errors")
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object about what was done, and no progress"
    )


def run(args: argparse.Namespace) -> int:
    """Pull; the exit code. Raises HeadraceError."""
    from headrace.cli.interrupts import sigterm_as_interrupt
    from headrace.cli.progress import transfer_progress
    from headrace.stream.pulling.proof import FileProver
    from headrace.stream.pulling.pull import Watch, find_files, pull_found
    from headrace.stream.pulling.writing import destination

    started = time.monotonic()
    folder = destination(args.folder)
    found = find_files(args.uri, None)
    prover = FileProver(args.verify, found)
    show = not (args.quiet or args.json)
    with sigterm_as_interrupt(), ExitStack() as stack:
        stack.callback(prover.close)
        advance: Callable[[int], None] = lambda _count: None  # noqa: E731

        def begin(files: "Sequence[FoundFile]") -> None:
            nonlocal advance
            prover.begin(files)
            total = sum(file.item.size_bytes for file in files)
            if not args.quiet:
                _warn_of_little_room(folder, total)
            if show and total:
                advance = stack.enter_context(transfer_progress(total, "pulling", sys.stderr))

        watch = Watch(begin, lambda count: advance(count), prover.prove)
        pulled = pull_found(found, folder, args.include, args.exclude, watch)
    if found and not (pulled.fetched or pulled.current):
        raise NothingFits(
            f"None of the {len(found):,} files of {args.uri} fits --include and --exclude.",
            remedy="A pattern is compared with the path below the prefix: *.json, original/*.",
        )
    seconds = time.monotonic() - started
    sizes = {file.path: file.item.size_bytes for file in found}
    if args.json:
        print_json(
            {
                "uri": args.uri,
                "folder": str(args.folder),
                "fetched": pulled.fetched,
                "current": pulled.current,
                "verified": sorted(prover.proved),
                "bytes_fetched": sum(sizes[path] for path in pulled.fetched),
                "bytes_current": sum(sizes[path] for path in pulled.current),
                "seconds": round(seconds, 3),
            }
        )
    elif not args.quiet:
        _tell(args, pulled, sizes, len(prover.proved), seconds)
    return 0


def _warn_of_little_room(folder: Path, total_bytes: int) -> None:
    """Say beforehand what may come to a stop after hours. No error: a file system may compress, or grow."""
    from headrace.cli.progress import decimal_size

    free = shutil.disk_usage(folder).free
    if total_bytes > free:
        print(
            f"warning: {decimal_size(total_bytes)} are to come, and {folder} has room for {decimal_size(free)}.",
            file=sys.stderr,
        )


def _tell(
    args: argparse.Namespace, pulled: "Pulled", sizes: dict[str, int], verified: int, seconds: float
) -> None:
    from headrace.cli.progress import decimal_size

    def size(paths: Sequence[str]) -> str:
        return decimal_size(sum(sizes[path] for path in paths))

    say(
        f"{args.folder}: {len(pulled.fetched)} fetched ({size(pulled.fetched)}), {verified} of them verified, "
        f"{len(pulled.current)} there already ({size(pulled.current)}), {seconds:.1f} s."
    )
