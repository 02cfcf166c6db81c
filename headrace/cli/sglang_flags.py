"""The flags of SGLang's server that are not Headrace's: known by name, taken with their values, never in silence.

Those that have no effect here give a line that says so; those that ask for what is not there are an error,
unless their value is the one that asks for nothing (--tp-size 1). The names are in the two data files.
"""

import argparse
from collections.abc import Iterator, Sequence
from typing import Any

from headrace.cli.parser import UsageError
from headrace.cli.sglang_ignored import NO_EFFECT
from headrace.cli.sglang_unsupported import UNSUPPORTED

Given = tuple[str, tuple[str, ...]]  # a flag and its values as they were given


class _Remember(argparse.Action):
    """Appends (flag, values) to the namespace's list of foreign flags, in the order of the command line."""

    def __call__(
        self,
        _parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        assert option_string is not None
        found = (values,) if isinstance(values, str) else tuple(values or ())
        setattr(namespace, self.dest, [*getattr(namespace, self.dest), (option_string, found)])


def add_foreign_flags(parser: argparse.ArgumentParser) -> None:
    """Make a parser take SGLang's other flags with the right number of values; they are not in its help.

    They are gathered in the namespace's `foreign`, whose default, an empty list, the caller sets.
    """
    for flag, nargs in _arities():
        parser.add_argument(
            flag,
            dest="foreign",
            action=_Remember,
            nargs=nargs,
            default=argparse.SUPPRESS,
            help=argparse.SUPPRESS,
        )


def notes_on_foreign_flags(given: Sequence[Given]) -> tuple[str, ...]:
    """One line for each given flag that has no effect. Raises UsageError for the first that is not supported."""
    missing = {
        flag: group for group in UNSUPPORTED for flag in _flags(group.switches, group.lists, group.optional)
    }
    missing_values = {flag: group for group in UNSUPPORTED for flag in group.values}
    for flag, values in given:
        if flag in missing:
            raise _unsupported(flag, missing[flag].what, None)
        if flag in missing_values:
            harmless = missing_values[flag].values[flag]
            if harmless is None or values != (harmless,):
                raise _unsupported(flag, missing_values[flag].what, harmless)
    reasons = {
        flag: group.reason
        for group in NO_EFFECT
        for flag in _flags(group.switches, group.values, group.lists)
    }
    names = dict.fromkeys(flag for flag, _ in given if flag in reasons)
    return tuple(f"{flag} has no effect here: {reasons[flag]}." for flag in names)


def _unsupported(flag: str, what: str, harmless: str | None) -> UsageError:
    remedy = f"Leave {flag} out" if not harmless else f"Leave {flag} out or give it {harmless}"
    return UsageError(f"{what} not supported yet, and {flag} asks for it.", remedy=f"{remedy}.")


def _flags(*parts: Sequence[str]) -> Iterator[str]:
    for part in parts:
        yield from part


def _arities() -> Iterator[tuple[str, int | str | None]]:
    """Every foreign flag with argparse's `nargs`."""
    for ignored in NO_EFFECT:
        yield from ((flag, 0) for flag in ignored.switches)
        yield from ((flag, None) for flag in ignored.values)
        yield from ((flag, "+") for flag in ignored.lists)
    for missing in UNSUPPORTED:
        yield from ((flag, 0) for flag in missing.switches)
        yield from ((flag, None) for flag in missing.values)
        yield from ((flag, "+") for flag in missing.lists)
        yield from ((flag, "?") for flag in missing.optional)
