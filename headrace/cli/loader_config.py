"""--model-loader-extra-config: a JSON object with a few known keys, checked so that the error names the key."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.cli.parser import UsageError

if TYPE_CHECKING:
    from headrace.ipc.options import LoadConfig

_FLAG = "--model-loader-extra-config"
_VERIFY = ("manifest", "auto", "require", "off")


@dataclass(frozen=True, slots=True)
class _Key:
    """The words for a key's values, and whether a value is one."""

    words: str
    is_right: Callable[[Any], bool]


def _at_least(least: int) -> Callable[[Any], bool]:
    # To Python a bool is an int too.
    return lambda value: type(value) is int and value >= least


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


_KEYS = {
    "distributed": _Key("true or false", _is_bool),
    "concurrency": _Key("a whole number of at least 1", _at_least(1)),
    "memory_limit": _Key("a whole number of at least -1", _at_least(-1)),
    "verify": _Key(
        '"manifest", "auto", "require" or "off"', lambda value: isinstance(value, str) and value in _VERIFY
    ),
    "restart_on_change": _Key("true or false", _is_bool),
}
_REMEDY = "Its keys: " + "; ".join(f"{name} ({key.words})" for name, key in _KEYS.items()) + "."


def parse_load_config(text: str) -> "LoadConfig":
    """The loader's settings. Raises UsageError for anything but an object of known keys and right types."""
    from headrace.ipc.options import LoadConfig

    try:
        value = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{_FLAG} is not JSON: {error}.", remedy=_REMEDY) from None
    if not isinstance(value, dict):
        raise UsageError(f"{_FLAG} must be a JSON object, not {_shown(value)}.", remedy=_REMEDY)
    for name, item in value.items():
        if name not in _KEYS:
            raise UsageError(f"{_FLAG} has the unknown key {json.dumps(name)}.", remedy=_REMEDY)
        if not _KEYS[name].is_right(item):
            raise UsageError(
                f'{_FLAG}: "{name}" must be {_KEYS[name].words}, not {_shown(item)}.', remedy=_REMEDY
            )
    return LoadConfig(**value)


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "..."
