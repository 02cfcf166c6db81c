"""Arguments that are easily mistaken: one name where several are meant, bytes for text, an ordinal for a device."""

import os
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from headrace.stream.variables import BadSetting

if TYPE_CHECKING:
    import torch


def path_text(path: str | os.PathLike[str]) -> str:
    """A path or URI as text. Raises BadSetting for what is neither text nor a path of text."""
    text = path.__fspath__() if isinstance(path, os.PathLike) else path
    if not isinstance(text, str):
        raise BadSetting(
            f"A path or URI is meant, and {_shown(text)} was given.", remedy="Give a str or a pathlib.Path."
        )
    return text


def path_texts(paths: Iterable[str | os.PathLike[str]]) -> list[str]:
    """Several paths as text. Raises BadSetting for a single one, whose letters would be taken for paths."""
    if isinstance(paths, str | bytes | os.PathLike):
        raise BadSetting(
            f"Several paths are meant, and one was given: {_shown(paths)}.",
            remedy="Put it into a list, or use stream_file.",
        )
    if not isinstance(paths, Iterable):
        raise BadSetting(f"Several paths are meant, and {_shown(paths)} was given.", remedy="Give a list.")
    return [path_text(path) for path in paths]


def texts(values: Iterable[str], name: str) -> list[str]:
    """The words of an argument. Raises BadSetting for a single one, whose letters would be taken for words."""
    if isinstance(values, str | bytes):
        raise BadSetting(
            f"{name} is one text, {_shown(values)}.", remedy=f"Put it into a list: {name}=[...]."
        )
    if not isinstance(values, Iterable):
        raise BadSetting(f"{name} is {_shown(values)}, which is no list of texts.", remedy="Give a list.")
    found = list(values)
    for value in found:
        if not isinstance(value, str):
            raise BadSetting(f"{name} holds {_shown(value)}, which is no text.", remedy="Give texts only.")
    return found


def device_text(device: "str | int | torch.device | None") -> str:
    """torch's name of a device: a number is a GPU's, None is "cpu", and "cpu:0" is "cpu" too."""
    if isinstance(device, int) and not isinstance(device, bool):
        return f"cuda:{device}"
    text = "cpu" if device is None else str(device)
    return "cpu" if text == "cpu:0" else text


def check_options(call: str, given: Iterable[str], known: Collection[str]) -> None:
    """Raise TypeError, in Python's words and of the call that was made, for a keyword that it does not know."""
    for name in given:
        if name not in known:
            import difflib

            near = difflib.get_close_matches(name, known, n=1)
            meant = f". Did you mean {near[0]!r}?" if near else ""
            raise TypeError(f"{call}() got an unexpected keyword argument {name!r}{meant}")


def _shown(value: object) -> str:
    return f"{value!r:.120}"
