"""Rows for a person: columns of equal width, numbers to the right; and rows for a program, as JSON."""

import json
from collections.abc import Sequence
from typing import Any

from headrace.cli.output import say


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, right: str = "") -> str:
    """The rows under their head, as text without a line break at its end.

    Args:
        right: for each column, "r" where its text stands to the right; what is missing stands to the left.
    """
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    sides = right.ljust(len(head))
    return "\n".join(
        "  ".join(
            text.rjust(width) if side == "r" else text.ljust(width)
            for text, width, side in zip(row, widths, sides, strict=True)
        ).rstrip()
        for row in (head, *rows)
    )


def print_json(value: Any) -> None:
    """One line of JSON on stdout. What is no JSON number (NaN, infinity) is refused."""
    say(json.dumps(value, allow_nan=False))
