"""`headrace cache`: what lies in the metadata cache, and removing it."""

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.cli import values
from headrace.cli.output import say
from headrace.cli.table import print_json, table

if TYPE_CHECKING:
    from headrace.source.cache_entries import CacheEntry

DESCRIPTION = """\
Show or empty the metadata cache ($HEADRACE_CACHE, else headrace in the platform's cache folder): the small files of
models (config, tokenizer), never weights. Each start looks whether they are still those in the bucket. The cache keeps
itself below 2 GiB; removing anything is safe at any time, beside running servers too."""
EXAMPLES = """\
examples:
  headrace cache ls
  headrace cache prune                           remove what was not used for 30 days
  headrace cache prune --older-than 7            ... for 7 days
  headrace cache prune --max-size 100M           the least recently used until the rest fits
  headrace cache prune --all"""
_DAY_S = 86_400.0
_DEFAULT_DAYS = 30.0


def add_parser(subparsers: "argparse._SubParsersAction[Any]") -> None:
    """Declare the command and what it does."""
    parser = subparsers.add_parser(
        "cache", help="show or empty the metadata cache", description=DESCRIPTION, epilog=EXAMPLES
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", title="actions", required=True)
    listing = actions.add_parser("ls", help="show the entries", description="Show the entries.")
    listing.add_argument("--json", action="store_true", help="print one JSON object")
    prune = actions.add_parser(
        "prune",
        help="remove entries",
        description="Remove entries that were not used for long.",
        epilog=EXAMPLES,
    )
    prune.add_argument(
        "--older-than",
        metavar="DAYS",
        type=values.number_from_0,
        help="remove what was not used for so many days (default: 30, where --max-size is not given)",
    )
    prune.add_argument(
        "--max-size",
        metavar="BYTES",
        type=values.size_bytes,
        help="remove the least recently used until the rest is no larger; K, M and G are understood",
    )
    prune.add_argument("--all", action="store_true", help="remove every entry")
    prune.add_argument("--dry-run", action="store_true", help="only say what would be removed")
    prune.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Show or remove; the exit code. Raises HeadraceError."""
    return _list(args) if args.action == "ls" else _prune(args)


@contextmanager
def _at(root: Path) -> Iterator[None]:
    """Raises HeadraceError for what the system says of the cache's folder."""
    from headrace.errors import HeadraceError

    try:
        yield
    except OSError as error:
        raise HeadraceError(
            f"{error.filename or root}: {error.strerror}.",
            remedy="Check who owns the folder, or name another one in HEADRACE_CACHE.",
        ) from None


def _list(args: argparse.Namespace) -> int:
    from headrace.source.cache import metadata_root
    from headrace.source.cache_entries import list_entries

    root = metadata_root()
    with _at(root):
        entries = list_entries(root)
    total = sum(entry.size_bytes for entry in entries)
    if args.json:
        print_json(
            {"folder": str(root), "size_bytes": total, "entries": [_facts(entry) for entry in entries]}
        )
        return 0
    if entries:
        say(_table(entries))
    say(_summary(len(entries), total, f"in {root}"))
    return 0


def _prune(args: argparse.Namespace) -> int:
    from headrace.source.cache import metadata_root
    from headrace.source.cache_entries import choose_to_remove, list_entries, remove_abandoned, remove_entry

    root, now_s = metadata_root(), time.time()
    days = args.older_than
    if days is None and args.max_size is None:
        days = _DEFAULT_DAYS
    with _at(root):
        going = choose_to_remove(
            list_entries(root),
            now_s=now_s,
            older_than_s=0 if args.all else None if days is None else days * _DAY_S,
            most_bytes=args.max_size,
        )
        if not args.dry_run:
            going = tuple(entry for entry in going if remove_entry(entry))
            remove_abandoned(root, now_s=now_s)
    total = sum(entry.size_bytes for entry in going)
    if args.json:
        facts = [_facts(entry) for entry in going]
        print_json({"folder": str(root), "dry_run": args.dry_run, "size_bytes": total, "removed": facts})
        return 0
    if going:
        say(_table(going))
    say(_summary(len(going), total, "would be removed" if args.dry_run else "removed"))
    return 0


def _summary(count: int, size_bytes: int, what: str) -> str:
    from headrace.cli.progress import decimal_size

    return f"{count:,} {'entry' if count == 1 else 'entries'}, {decimal_size(size_bytes)}, {what}."


def _facts(entry: "CacheEntry") -> dict[str, Any]:
    from headrace.store.versions import utc_text

    return {
        "name": entry.folder.name,
        "place": entry.place,
        "files": entry.files,
        "size_bytes": entry.size_bytes,
        "used": utc_text(entry.used_s),
    }


def _table(entries: "tuple[CacheEntry, ...]") -> str:
    from headrace.cli.progress import decimal_size
    from headrace.store.versions import utc_text

    return table(
        ("PLACE", "FILES", "SIZE", "LAST USED"),
        [
            (
                entry.place if entry.place.isprintable() and entry.place else "?",
                f"{entry.files:,}",
                decimal_size(entry.size_bytes),
                utc_text(entry.used_s),
            )
            for entry in entries
        ],
        right=" rr",
    )
