"""--model-loader-extra-config: a JSON object with three known keys, checked so that the error names the key."""

import json
from typing import TYPE_CHECKING, Any

from headrace.cli.parser import UsageError

if TYPE_CHECKING:
    from headrace.ipc.options import LoadConfig

_FLAG = "--model-loader-extra-config"
# key → the words for its type, whether it is a bool, the least value of an int
_KEYS: dict[str, tuple[str, bool, int]] = {
    "distributed": ("true or false", True, 0),
    "concurrency": ("a whole number of at least 1", False, 1),
    "memory_limit": ("a whole number of at least -1", False, -1),
}
_REMEDY = "Its keys: " + "; ".join(f"{key} ({words})" for key, (words, _, _) in _KEYS.items()) + "."


def parse_load_config(text: str) -> "LoadConfig":
    """The loader's settings. Raises UsageError for anything but an object of known keys and right types."""
    from headrace.ipc.options import LoadConfig

    try:
        value = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{_FLAG} is not JSON: {error}.", remedy=_REMEDY) from None
    if not isinstance(value, dict):
        raise UsageError(f"{_FLAG} must be a JSON object, not {_shown(value)}.", remedy=_REMEDY)
    for key, item in value.items():
        if key not in _KEYS:
            raise UsageError(f"{_FLAG} has the unknown key {json.dumps(key)}.", remedy=_REMEDY)
        words, is_bool, least = _KEYS[key]
        # To Python a bool is an int too.
        right = isinstance(item, bool) if is_bool else type(item) is int and item >= least
        if not right:
            raise UsageError(f'{_FLAG}: "{key}" must be {words}, not {_shown(item)}.', remedy=_REMEDY)
    return LoadConfig(**value)


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "..."
