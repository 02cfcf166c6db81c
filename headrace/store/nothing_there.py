"""The error of a bucket's prefix under which nothing lies: with what lies around it, if that may be seen."""

from collections.abc import Callable
from dataclasses import replace

from headrace.errors import printable
from headrace.source.objects import Listing
from headrace.source.uri import ModelSource
from headrace.store.errors import NotFound, StoreError

_SHOWN = 10


def nothing_there(source: ModelSource, list_around: Callable[[str], Listing]) -> NotFound:
    """The error to raise.

    Args:
        list_around: the first page of what lies directly under a key prefix ("" or ending in a slash).
    """
    parent, _, last = source.prefix.rpartition("/")
    place = replace(source, prefix=parent).uri
    remedy = "Correct the prefix, or upload the model with `headrace push`."
    try:
        around = list_around(parent + "/" if parent else "")
    except StoreError:
        # Who may list a model's prefix need not have the right to list what lies around it.
        return NotFound(source.uri, "Nothing lies under this prefix.", remedy=remedy)
    if last and around.find(last) is not None:
        return NotFound(source.uri, "This is one object, not a folder.", remedy=f"Give the folder: {place}.")
    names = [folder + "/" for folder in around.folders] + [item.name for item in around.objects]
    shown = ", ".join(printable(name, keep="") for name in names[:_SHOWN]) + (
        " …" if len(names) > _SHOWN else ""
    )
    there = f"In {place} there is: {shown}." if names else f"{place} is empty."
    return NotFound(source.uri, f"Nothing lies under this prefix. {there}", remedy=remedy)
