"""What may be asked of verification."""

from typing import Literal, get_args

from headrace.errors import HeadraceError

VerifyMode = Literal["auto", "require", "off"]


class BadVerifyMode(HeadraceError):
    """A value of `verify` that means nothing."""


def check_mode(mode: str) -> None:
    """Raise BadVerifyMode for what is none."""
    if mode not in get_args(VerifyMode):
        raise BadVerifyMode(
            f"verify={mode!r} is not known.",
            remedy=f"It is one of {', '.join(map(repr, get_args(VerifyMode)))}.",
        )
