"""`headrace ls URI`: the models below a place."""

import argparse
import sys
from typing import TYPE_CHECKING, Any

from headrace.cli import values
from headrace.cli.output import say
from headrace.cli.table import print_json, table

if TYPE_CHECKING:
    from headrace.source.models_below import FoundModel
    from headrace.source.uri import ModelSource
    from headrace.store.errors import StoreError

DESCRIPTION = """\
List the models below a prefix or in a folder, in all depths: name, size of all files, number of files, format of the
weights, and when the youngest file was written. Nothing is read but the listing, so what a file holds is not known:
`headrace check` looks into one model."""
EXAMPLES = """\
examples:
  headrace ls s3://my-bucket
  headrace ls s3://my-bucket/models --json | jq -r '.models[] | select(.format == "safetensors") | .uri'
  headrace ls ./models"""


def add_parser(subparsers: "argparse._SubParsersAction[Any]") -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "ls", help="list the models below a prefix", description=DESCRIPTION, epilog=EXAMPLES
    )
    parser.add_argument("uri", metavar="URI", type=values.nonempty, help="a bucket, a prefix or a folder")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """List; the exit code. Raises HeadraceError."""
    from headrace.cli.progress import counting
    from headrace.source.models_below import models_below
    from headrace.source.uri import parse_source
    from headrace.store.base import Store, open_store
    from headrace.store.local.store import LocalStore
    from headrace.stream.checkpoint.headers import list_model
    from headrace.stream.checkpoint.model_listing import list_all_below

    source = parse_source(args.uri)
    store: Store = LocalStore(source, _leave_out) if source.scheme == "file" else open_store(source)
    with counting("objects", sys.stderr) as on_count:
        items = list_all_below(store, on_count=on_count)
    if not items:
        list_model(store)  # says what is there instead, as an error
    models = models_below(items)
    if args.json:
        print_json({"uri": source.uri, "models": [_facts(source, model) for model in models]})
    elif models:
        say(_table(models))
    else:
        say(f"No models lie below {source.uri} ({len(items):,} other files).")
    return 0


def _leave_out(error: "StoreError") -> None:
    """A disk's lost+found, or another user's folder, hides nobody else's models."""
    print(f"Left out: {error.message}", file=sys.stderr)


def _uri(source: "ModelSource", model: "FoundModel") -> str:
    return source.uri_of(model.path) if model.path else source.uri


def _facts(source: "ModelSource", model: "FoundModel") -> dict[str, Any]:
    from headrace.store.versions import utc_text

    return {
        "name": model.path,
        "uri": _uri(source, model),
        "size_bytes": model.size_bytes,
        "files": model.files,
        "format": model.format,
        "changed": None if model.changed_s is None else utc_text(model.changed_s),
    }


def _table(models: "tuple[FoundModel, ...]") -> str:
    from headrace.cli.progress import decimal_size
    from headrace.store.versions import utc_text

    return table(
        ("NAME", "SIZE", "FILES", "FORMAT", "CHANGED"),
        [
            (
                model.path if model.path.isprintable() and model.path else ascii(model.path)[1:-1] or ".",
                decimal_size(model.size_bytes),
                f"{model.files:,}",
                model.format,
                "-" if model.changed_s is None else utc_text(model.changed_s),
            )
            for model in models
        ],
        right=" rr",
    )
