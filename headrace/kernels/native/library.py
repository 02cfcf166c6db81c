"""Finds and loads the built kernels, once a process. They are optional: without them torch computes everything."""

import ctypes
import importlib.machinery
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from headrace.errors import HeadraceError

VARIABLE = "HEADRACE_KERNELS"
_FOLDER = Path(__file__).parent


class BadKernels(HeadraceError):
    """HEADRACE_KERNELS has a value that means nothing."""


@dataclass(frozen=True, slots=True)
class Kernels:
    """The library, or why there is none.

    Attributes:
        library: its functions are those of the headers beside this file; a call releases the interpreter's lock.
        why_not: for a log line; empty where there is a library, or none is wanted.
    """

    library: ctypes.CDLL | None
    why_not: str = ""


@cache
def kernels() -> Kernels:
    """What HEADRACE_KERNELS wants: "native" (as when it is unset), or "reference" for torch's own everywhere.

    Raises BadKernels for another value.
    """
    wanted = os.environ.get(VARIABLE) or "native"
    if wanted == "reference":
        return Kernels(None)
    if wanted != "native":
        raise BadKernels(
            f"{VARIABLE}={wanted} is not known.",
            remedy='Leave it unset, or set it to "native" or "reference".',
        )
    return find(_FOLDER)


def find(folder: Path) -> Kernels:
    """The library in a folder."""
    paths = [folder / f"_kernels{suffix}" for suffix in importlib.machinery.EXTENSION_SUFFIXES]
    path = next((path for path in paths if path.exists()), None)
    if path is None:
        return Kernels(None, "they were not built when headrace was installed, as no C++ compiler was found")
    try:
        return Kernels(ctypes.CDLL(str(path)))
    except OSError as error:
        return Kernels(None, str(error))


def library() -> ctypes.CDLL | None:
    """The built kernels, if there are any and they are wanted."""
    return kernels().library
