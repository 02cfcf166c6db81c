"""From a flag's text to its value: argparse types whose errors say what is allowed."""

import math
from argparse import ArgumentTypeError
from collections.abc import Callable
from urllib.parse import urlsplit, urlunsplit

_BINARY_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def integer(low: int, high: int | None = None) -> Callable[[str], int]:
    """Whole numbers from `low` to `high`, both included."""
    allowed = f"a whole number of at least {low}" if high is None else f"a whole number from {low} to {high}"

    def convert(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise ArgumentTypeError(f"{text!r} is not {allowed}") from None
        if value < low or (high is not None and value > high):
            raise ArgumentTypeError(f"{text} is not {allowed}")
        return value

    return convert


def chunk_size(text: str) -> int:
    """Tokens of at least 1, or SGLang's -1."""
    value = integer(-1)(text)
    if value == 0:
        raise ArgumentTypeError("0 is neither a number of tokens (at least 1) nor -1")
    return value


def fraction(text: str) -> float:
    """A share: above 0, at most 1."""
    value = _number(text)
    if not 0 < value <= 1:
        raise ArgumentTypeError(f"{text} is not a share above 0 and up to 1, such as 0.85")
    return value


def seconds(text: str) -> float:
    """A duration: 0 or more, finite."""
    value = _number(text)
    if not 0 <= value < math.inf:
        raise ArgumentTypeError(f"{text} is not a number of seconds, 0 or more")
    return value


def number_from_0(text: str) -> float:
    """A number of 0 or more, finite."""
    value = _number(text)
    if not 0 <= value < math.inf:
        raise ArgumentTypeError(f"{text} is not a number of 0 or more")
    return value


def size_bytes(text: str) -> int:
    """Bytes of at least 1, with K, M or G (also KiB, MiB, GiB) for powers of 1024."""
    digits = text.strip().removesuffix("iB")
    unit = digits[-1:].upper()
    value = digits[:-1] if unit in _BINARY_UNITS else digits
    if not (value.isascii() and value.isdigit()) or int(value) == 0:
        raise ArgumentTypeError(f"{text!r} is not a size in bytes, such as 1048576 or 16M")
    return int(value) * _BINARY_UNITS.get(unit, 1)


def traces_endpoint(text: str) -> str:
    """The URL that takes traces over OTLP/HTTP: a whole one, or HOST:PORT with the usual path."""
    try:
        url = urlsplit(text if "://" in text else f"http://{text}")
        usable = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:  # a port or an IPv6 address that is none
        usable = False
    if not usable:
        raise ArgumentTypeError(f"{text!r} is neither HOST:PORT nor an http:// or https:// URL")
    return urlunsplit(url if url.path not in ("", "/") else url._replace(path="/v1/traces"))


def nonempty(text: str) -> str:
    """Any text but none."""
    if not text.strip():
        raise ArgumentTypeError("the value is empty")
    return text


def dtype(text: str) -> str:
    """A dtype's name; SGLang's short forms are spelled out."""
    return {"half": "float16", "float": "float32"}.get(text, text)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not a number") from None
