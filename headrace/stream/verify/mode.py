"""What may be asked of verification.

"manifest" compares what arrives with a manifest where there is one; "auto" with the CRC that the store keeps where
there is none; "require" fails where there is neither; "off" compares nothing.
"""

from typing import Literal, get_args

from headrace.errors import HeadraceError

VerifyMode = Literal["manifest", "auto", "require", "off"]


class BadVerifyMode(HeadraceError):
    """A value of `verify` that means nothing."""


def check_mode(mode: str) -> None:
    """Raise BadVerifyMode for what is none."""
    if mode not in get_args(VerifyMode):
        raise BadVerifyMode(
            f"verify={mode!r} is not known.",
            remedy=f"It is one of {', '.join(map(repr, get_args(VerifyMode)))}.",
        )
