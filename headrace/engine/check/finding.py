"""What a check says: one line with a status, and what to do about it."""

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from headrace.errors import HeadraceError

Status = Literal["ok", "warn", "fail"]
Result = TypeVar("Result")
Findings = Generator["Finding", None, Result]


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one check.

    Attributes:
        check: what was looked at, in a word.
        text: what was found, in a sentence.
        remedy: what to do; "" where nothing need be done.
        facts: the same for a program, as plain JSON values.
    """

    check: str
    status: Status
    text: str
    remedy: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)


def ok(check: str, text: str, **facts: Any) -> Finding:
    """All is well."""
    return Finding(check, "ok", text, "", facts)


def warn(check: str, text: str, remedy: str, **facts: Any) -> Finding:
    """It can be served, but somebody should know."""
    return Finding(check, "warn", text, remedy, facts)


def fail(check: str, error: HeadraceError) -> Finding:
    """It cannot be served."""
    return Finding(check, "fail", error.message, error.remedy, {"error": type(error).__name__})


def tried(check: str, work: Callable[[], Result]) -> Findings[Result | None]:
    """The result of `work`; where it fails, the finding of that and None."""
    try:
        return work()
    except HeadraceError as error:
        yield fail(check, error)
        return None
