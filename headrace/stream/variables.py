"""Run:ai Model Streamer's variables, with the meaning that they have there. A bad value is refused by name."""

import math
import operator
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import SupportsFloat, SupportsIndex

from headrace.errors import HeadraceError

CONCURRENCY = "RUNAI_STREAMER_CONCURRENCY"
CHUNK_BYTES = "RUNAI_STREAMER_CHUNK_BYTESIZE"
MEMORY_LIMIT = "RUNAI_STREAMER_MEMORY_LIMIT"
LEAST_CHUNK_BYTES = 4096
_NUMBER = re.compile(r"-?[0-9]{1,18}", re.ASCII)


class BadSetting(HeadraceError):
    """A variable or an argument that cannot be what it is meant to be."""


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """What the variables say; None where they are not set.

    Attributes:
        concurrency: connections that read at once, at the most.
        chunk_bytes: bytes of one read.
        memory_limit: bytes of tensors that are read or wait; -1 no limit, 0 the largest tensor's size.
    """

    concurrency: int | None = None
    chunk_bytes: int | None = None
    memory_limit: int | None = None


def read_settings(environ: Mapping[str, str] = os.environ) -> StreamSettings:
    """The variables' values. Raises BadSetting, naming the variable."""
    return StreamSettings(
        check_least(_number(environ, CONCURRENCY), 1, CONCURRENCY),
        check_least(_number(environ, CHUNK_BYTES), LEAST_CHUNK_BYTES, CHUNK_BYTES),
        check_least(_number(environ, MEMORY_LIMIT), -1, MEMORY_LIMIT),
    )


def check_least(value: SupportsIndex | None, least: int, name: str) -> int | None:
    """The value as Python's own number. Raises BadSetting, with the setting's name, where it is no whole number (numpy's
    are) or less than `least`."""
    if value is None:
        return None
    number = (
        operator.index(value) if isinstance(value, SupportsIndex) and not isinstance(value, bool) else None
    )
    if number is None or number < least:
        raise BadSetting(f"{name} is {value!r:.80}.", remedy=f"Set it to a whole number of at least {least}.")
    return number


def check_positive(value: SupportsFloat | None, name: str) -> float | None:
    """The value as Python's own number; None too for an infinite one, which limits nothing.

    Raises BadSetting, with the setting's name, for what is no number above 0.
    """
    if value is None:
        return None
    number = float(value) if isinstance(value, SupportsFloat) and not isinstance(value, bool) else 0.0
    if not number > 0:
        raise BadSetting(f"{name} is {value!r:.80}.", remedy="Set it to a number above 0.")
    return None if math.isinf(number) else number


def _number(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name, "").strip()
    if not text:
        return None
    if not _NUMBER.fullmatch(text):
        raise BadSetting(f"{name} is {text!r:.80}, which is no whole number.", remedy="Correct or unset it.")
    return int(text)
