"""Who asks a store, as the stores with identities of their own kind have it in common."""

import logging
from dataclasses import dataclass
from typing import Protocol


class Principal(Protocol):
    """Makes what tells a store who asks; each store's own kind says how a request carries it."""

    @property
    def origin(self) -> str:
        """The variable, file or server that it comes from, or what found it."""

    @property
    def shown(self) -> str:
        """Which kind of credentials and whose, in words, without a secret."""

    @property
    def remedy(self) -> str:
        """What to do where the store does not take them."""

    @property
    def is_anonymous(self) -> bool:
        """Whether requests say nothing of who asks."""

    @property
    def asked_for(self) -> bool:
        """Whether a person chose it, rather than that it was found (or that nothing was)."""

    def renew(self, refused: str) -> bool:
        """Look for others after the store refused what a request carried; whether there are others now.

        Raises:
            StoreError: what makes them fails, or is not reached.
        """


def tell_if_not_asked_for(principal: Principal, uri: str, logger: logging.Logger) -> None:
    """Log that a place is read without credentials, where nobody has chosen that."""
    if principal.is_anonymous and not principal.asked_for:
        logger.info("%s is read without credentials: none were found (%s).", uri, principal.origin)


@dataclass(frozen=True)
class Nobody:
    """Asks without credentials.

    Attributes:
        origin: what asks for it; where nothing does, where credentials were looked for.
    """

    origin: str
    asked_for: bool
    remedy: str = ""
    shown: str = "anonymous"
    is_anonymous: bool = True

    def renew(self, refused: str) -> bool:  # noqa: ARG002
        """There are no others."""
        return False
