"""Why an engine is of no use any more."""

from dataclasses import dataclass

from headrace.errors import HeadraceError


class EngineFailed(HeadraceError):
    """The engine cannot serve (any more). The text is for the operator."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Why an engine is of no use any more.

    Attributes:
        passing: another engine may do better, even if none has ever been ready.
    """

    error: HeadraceError
    passing: bool
