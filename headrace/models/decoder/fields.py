"""Typed reading of config.json fields: the value, or an InvalidConfig that names the field. No torch.

A field that is null counts as absent, as in transformers' own files.
"""

import json
import sys
from collections.abc import Mapping
from typing import Any

from headrace.models.errors import InvalidConfig

# Far above any model, and far below what would make a size computed from two fields lose its meaning.
LARGEST_INTEGER = 1 << 31


def read_integer(
    config: Mapping[str, Any],
    name: str,
    default: int | None = None,
    *,
    smallest: int = 1,
    largest: int = LARGEST_INTEGER,
) -> int:
    """A whole number in [smallest, largest]; `default` where it is absent. Raises InvalidConfig."""
    value = config.get(name)
    if value is None:
        if default is None:
            raise missing_field(name)
        return default
    # bool is a subclass of int.
    if isinstance(value, bool) or not isinstance(value, int) or not smallest <= value <= largest:
        raise wrong_field(name, value, f"a whole number from {smallest} to {largest}")
    return value


def read_number(
    config: Mapping[str, Any], name: str, default: float | None = None, *, zero: bool = False
) -> float:
    """A positive, finite number (or 0, where `zero` allows it); `default` where it is absent. Raises InvalidConfig."""
    value = config.get(name)
    if value is None:
        if default is None:
            raise missing_field(name)
        return default
    if not (_is_positive(value) or (zero and value == 0 and not isinstance(value, bool))):
        raise wrong_field(name, value, "a number, 0 or above" if zero else "a positive number")
    return float(value)


def read_numbers(config: Mapping[str, Any], name: str, count: int) -> tuple[float, ...]:
    """A list of `count` positive, finite numbers. Raises InvalidConfig."""
    value = config.get(name)
    if value is None:
        raise missing_field(name)
    if not isinstance(value, list | tuple) or len(value) != count or not all(map(_is_positive, value)):
        raise wrong_field(name, value, f"a list of {count} positive numbers")
    return tuple(map(float, value))


def _is_positive(value: object) -> bool:
    # bool is a subclass of int.
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= sys.float_info.max


def read_flag(config: Mapping[str, Any], name: str, default: bool) -> bool:
    """true or false; `default` where it is absent. Raises InvalidConfig."""
    value = config.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise wrong_field(name, value, "true or false")
    return value


def read_text(config: Mapping[str, Any], name: str) -> str | None:
    """A string, or None where it is absent. Raises InvalidConfig."""
    value = config.get(name)
    if value is not None and not isinstance(value, str):
        raise wrong_field(name, value, "a string")
    return value


def read_texts(config: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """A list of strings as a tuple, empty where it is absent. Raises InvalidConfig."""
    value = config.get(name)
    if value is None:
        return ()
    if not isinstance(value, list | tuple) or not all(isinstance(entry, str) for entry in value):
        raise wrong_field(name, value, "a list of strings")
    return tuple(value)


def read_object(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A JSON object, empty where it is absent. Raises InvalidConfig."""
    value = config.get(name)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise wrong_field(name, value, "an object")
    return value


def read_token_ids(config: Mapping[str, Any], name: str, *, file: str = "config.json") -> tuple[int, ...]:
    """A token id or a list of them (lists within it count too), as a tuple without repetitions, empty where absent.

    Raises InvalidConfig, which names the field and the `file`.
    """
    value = config.get(name)
    found: dict[int, None] = {}
    waiting = [value]
    while waiting:
        entry = waiting.pop(0)
        if isinstance(entry, list | tuple):
            waiting = [*entry, *waiting]
        elif isinstance(entry, int) and not isinstance(entry, bool) and 0 <= entry < LARGEST_INTEGER:
            found[entry] = None
        elif entry is not None:
            raise wrong_field(name, value, "a token id or a list of token ids", file)
    return tuple(found)


def missing_field(name: str) -> InvalidConfig:
    """The error for a field that must be there."""
    return InvalidConfig(
        f"config.json has no field {name!r}.",
        remedy="Take the complete config.json that belongs to these weights.",
    )


def wrong_field(name: str, value: object, wanted: str, file: str = "config.json") -> InvalidConfig:
    """The error for a field whose value is not what is wanted, e.g. "a positive number"."""
    shown = json.dumps(value, default=str)
    if len(shown) > 80:
        shown = shown[:77] + "..."
    return InvalidConfig(
        f"{file} gives {name!r} the value {shown}, but it must be {wanted}.",
        remedy=f"Take the {file.rpartition('/')[2]} that belongs to these weights.",
    )
