"""`headrace inspect MODEL`: what is in a checkpoint, by its headers; the numbers of one tensor."""

import argparse
import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from headrace.cli import values
from headrace.cli.output import say
from headrace.cli.table import print_json, table

if TYPE_CHECKING:
    from headrace.stream.checkpoint.inventory import TensorRow, Total
    from headrace.stream.library.lazy_checkpoint import LazyTensor
    from headrace.stream.library.tensor_statistics import Statistics

DESCRIPTION = """\
Show a checkpoint's tensors, and what they add up to by dtype and by layer. Only the headers of its safetensors
objects are read. With --tensor, the numbers of one tensor: least, most, mean, standard deviation, zeros, NaN and
infinities; just that tensor is read, block by block."""
EXAMPLES = """\
examples:
  headrace inspect s3://my-bucket/models/qwen
  headrace inspect s3://my-bucket/models/qwen --tensor model.norm.weight
  headrace inspect ./qwen/model.safetensors --json | jq '.tensors[] | select(.dtype == "F32") | .name'

MODEL may name one safetensors object too."""


def add_parser(subparsers: "argparse._SubParsersAction[Any]") -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "inspect", help="show a checkpoint's tensors", description=DESCRIPTION, epilog=EXAMPLES
    )
    parser.add_argument(
        "model", metavar="MODEL", type=values.nonempty, help="a model, or one .safetensors object"
    )
    parser.add_argument("--tensor", metavar="NAME", help="show the numbers of this tensor")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Show it; the exit code. Raises HeadraceError."""
    if args.tensor is not None:
        return _run_tensor(args)
    from headrace.stream.checkpoint.inventory import list_tensors, total_by_dtype, total_by_layer, total_of
    from headrace.stream.library.opening import open_model

    opened = open_model(args.model, None)
    opened.close()
    rows = list_tensors(opened.shards)
    by_dtype, by_layer = total_by_dtype(rows), total_by_layer(rows)
    if args.json:
        print_json(
            {
                "model": args.model,
                "objects": [
                    {"name": shard.item.name, "size_bytes": shard.item.size_bytes} for shard in opened.shards
                ],
                "tensors": [_row_facts(row) for row in rows],
                "by_dtype": [_total_facts(total) for total in by_dtype],
                "by_layer": [_total_facts(total) for total in by_layer],
                "total": _total_facts(total_of(rows)),
            }
        )
        return 0
    from headrace.cli.progress import decimal_size

    say(
        table(
            ("NAME", "DTYPE", "SHAPE", "SIZE", "OBJECT"),
            [
                (
                    _shown(row.name),
                    row.dtype,
                    str(list(row.shape)),
                    decimal_size(row.size_bytes),
                    _shown(row.object),
                )
                for row in rows
            ],
            right="   r",
        )
    )
    say()
    say(_totals_table("DTYPE", by_dtype))
    say()
    say(_totals_table("LAYER", by_layer))
    say()
    total = total_of(rows)
    count = len(opened.shards)
    say(
        f"{total.tensors:,} tensors, {total.elements:,} parameters, {decimal_size(total.size_bytes)} in "
        f"{count} object{'s' if count != 1 else ''}."
    )
    return 0


def _run_tensor(args: argparse.Namespace) -> int:
    from headrace.stream.library.lazy_checkpoint import open_checkpoint
    from headrace.stream.library.tensor_statistics import read_statistics

    with open_checkpoint(args.model, framework="numpy") as checkpoint:
        if args.tensor not in checkpoint:
            raise _no_such_tensor(args.tensor, list(checkpoint))
        tensor = checkpoint[args.tensor]
        show = not args.json and sys.stderr.isatty()
        with _progress(tensor.size_bytes) if show else nullcontext(lambda _count: None) as on_bytes:
            found = read_statistics(tensor, on_bytes)
    if args.json:
        print_json({"model": args.model, **_tensor_facts(tensor, found)})
        return 0
    say(_tensor_text(tensor, found))
    return 0


def _progress(total_bytes: int) -> Any:
    from headrace.cli.progress import transfer_progress

    return transfer_progress(total_bytes, "reading", sys.stderr)


def _no_such_tensor(name: str, known: list[str]) -> Exception:
    import difflib

    from headrace.errors import HeadraceError

    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    return HeadraceError(
        f"There is no tensor {name!r} among the {len(known):,} of the checkpoint.",
        remedy=f"Did you mean {', '.join(near)}?" if near else "`headrace inspect MODEL` lists them.",
    )


def _totals_table(title: str, totals: "tuple[Total, ...]") -> str:
    from headrace.cli.progress import decimal_size

    return table(
        (title, "TENSORS", "PARAMETERS", "SIZE"),
        [
            (_shown(total.label), f"{total.tensors:,}", f"{total.elements:,}", decimal_size(total.size_bytes))
            for total in totals
        ],
        right=" rrr",
    )


def _shown(name: str) -> str:
    """A name from a file, which may be anything, for a terminal."""
    return name if name.isprintable() else ascii(name)[1:-1]


def _row_facts(row: "TensorRow") -> dict[str, Any]:
    return {
        "name": row.name,
        "dtype": row.dtype,
        "shape": list(row.shape),
        "elements": row.elements,
        "size_bytes": row.size_bytes,
        "object": row.object,
    }


def _total_facts(total: "Total") -> dict[str, Any]:
    return {
        "label": total.label,
        "tensors": total.tensors,
        "elements": total.elements,
        "size_bytes": total.size_bytes,
    }


def _tensor_facts(tensor: "LazyTensor", found: "Statistics") -> dict[str, Any]:
    return {
        "name": tensor.name,
        "dtype": tensor.dtype,
        "shape": list(tensor.shape),
        "size_bytes": tensor.size_bytes,
        "object": tensor.object,
        "elements": found.elements,
        "min": found.least,
        "max": found.most,
        "mean": found.mean,
        "std": found.std,
        "zeros": found.zeros,
        "nan": found.nans,
        "inf": found.infinities,
    }


def _tensor_text(tensor: "LazyTensor", found: "Statistics") -> str:
    from headrace.cli.progress import decimal_size

    def number(value: float | None) -> str:
        return "-" if value is None else f"{value:.9g}"

    def share(count: int) -> str:
        return f"{count:,} ({100 * count / found.elements:.3g} %)" if count else "0"

    lines = [
        ("name", _shown(tensor.name)),
        ("dtype", tensor.dtype),
        ("shape", str(list(tensor.shape))),
        ("size", f"{decimal_size(tensor.size_bytes)} ({tensor.size_bytes:,} bytes)"),
        ("object", _shown(tensor.object)),
        ("elements", f"{found.elements:,}"),
        ("min", number(found.least)),
        ("max", number(found.most)),
        ("mean", number(found.mean)),
        ("std", number(found.std)),
        ("zeros", share(found.zeros)),
        ("NaN", share(found.nans)),
        ("inf", share(found.infinities)),
    ]
    return "\n".join(f"{name:<9} {text}" for name, text in lines)
