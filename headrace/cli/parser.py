"""The argument parser that all commands share: whole flag names only, near matches for the others, exit code 2."""

import argparse
import difflib
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import IO, Any, NoReturn, TextIO

from headrace.errors import HeadraceError


class UsageError(HeadraceError):
    """A command line that cannot mean anything, found after argparse is done with it. Exit code 2."""


def paint(text: str, code: str, stream: IO[str]) -> str:
    """The text in a colour (an SGR code such as "1;31") where the stream is a terminal that wants colours."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not stream.isatty():
        return text
    return f"\x1b[{code}m{text}\x1b[0m"


def print_error(message: str, remedy: str = "", *, stream: TextIO | None = None) -> None:
    """`error: <message>` and the remedy on a line of its own, on stderr."""
    stream = stream if stream is not None else sys.stderr
    print(paint("error:", "1;31", stream), message, file=stream)
    if remedy:
        print(remedy, file=stream)


def near_match(flag: str, known: Iterable[str]) -> str | None:
    """The known flag that was probably meant, if one is near enough."""
    matches = difflib.get_close_matches(
        flag, [name for name in known if name.startswith("--")], n=1, cutoff=0.6
    )
    return matches[0] if matches else None


class Parser(argparse.ArgumentParser):
    """argparse with the house's manners: no abbreviations, examples kept as written, unknown flags first.

    Sub-parsers are of this class too (argparse takes the parent's class).
    """

    def __init__(self, **settings: Any) -> None:
        settings.setdefault("allow_abbrev", False)
        settings.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(**settings)
        self._more_flags: Callable[[Parser], None] | None = None

    def add_flags_when_needed(self, add: "Callable[[Parser], None]") -> None:
        """Flags that take long to declare and are seldom given: `add` is called when a flag is not known."""
        self._more_flags = add

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """As argparse, but whatever is not known is an error here, where the parser's flags are known.

        An unknown flag is looked for before anything else: otherwise its value would be taken for an operand,
        or a missing operand would be reported in its place.
        """
        tokens = list(sys.argv[1:] if args is None else args)
        unknown = self._first_unknown(tokens)
        if unknown is not None and self._more_flags is not None:
            self._more_flags(self)
            self._more_flags = None
            unknown = self._first_unknown(tokens)
        if unknown is not None:
            self._unknown(unknown)
        parsed, extras = super().parse_known_args(tokens, namespace)
        if extras:
            self._unknown(extras[0])
        return parsed, extras

    def _first_unknown(self, tokens: list[str]) -> str | None:
        for token in self._own_tokens(tokens):
            name = token.partition("=")[0]
            if token.startswith("--") and " " not in name and name not in self._option_string_actions:
                return name
        return None

    def _own_tokens(self, tokens: list[str]) -> list[str]:
        """The tokens before a bare `--` and, where there are commands, before the command."""
        end = tokens.index("--") if "--" in tokens else len(tokens)
        if self._subparsers is not None:
            end = next((i for i, token in enumerate(tokens[:end]) if not token.startswith("-")), end)
        return tokens[:end]

    def _unknown(self, token: str) -> NoReturn:
        if not token.startswith("-"):
            self.error(f"{token!r} is one operand too many.")
        meant = near_match(token, self._option_string_actions)
        if meant is not None:
            self.error(f"{token} is not a flag of `{self.prog}`; did you mean {meant}?")
        self.error(f"{token} is not a flag of `{self.prog}`.")

    def error(self, message: str) -> NoReturn:
        """Print the message with a pointer to --help; exit code 2."""
        print_error(
            message if message.endswith((".", "?")) else f"{message}.",
            f"`{self.prog} --help` lists what it takes.",
        )
        self.exit(2)
