"""What a command prints on stdout, which may be a full disk, a reader that has gone, or closed."""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from headrace.errors import HeadraceError


class CannotPrint(HeadraceError):
    """What was asked for cannot be written to where it should go."""


def prepare_output() -> None:
    """Let a character that the terminal's encoding does not have be shown as an escape, as on stderr."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def say(text: str = "", *, flush: bool = False) -> None:
    """A line on stdout. Raises CannotPrint; BrokenPipeError where the reader has gone."""
    with _printing():
        print(text, flush=flush)


def flush_output() -> None:
    """Bring what was printed to where it goes. Raises as `say`."""
    if sys.stdout is not None:  # None: it was closed by whoever started us, so that prints went nowhere
        with _printing():
            sys.stdout.flush()


def abandon_output() -> None:
    """What is still buffered must not be written at exit, where it would fail once more."""
    if sys.stdout is not None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


@contextmanager
def _printing() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise CannotPrint(
            f"The output cannot be written: {error.strerror or error}.",
            remedy="Make room where it goes, or send it elsewhere.",
        ) from None
