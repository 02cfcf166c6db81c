"""Who asks a plain web server, and whose certificates are believed: one resolver for all reads."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.store.errors import NoCredentials
from headrace.store.http.trust import Trust, resolve_trust

TOKEN_VARIABLE = "HEADRACE_HTTP_TOKEN"


@dataclass(frozen=True, slots=True)
class WebSettings:
    """How plain web servers are asked.

    Attributes:
        token: a bearer token, "" to ask without one.
    """

    trust: Trust
    token: str = field(default="", repr=False)


def resolve_web_settings(environ: Mapping[str, str] = os.environ) -> WebSettings:
    """The settings that the environment asks for.

    Raises:
        BadEndpoint: a certificate's file does not exist.
        NoCredentials: the token holds what no request can carry.
    """
    token = environ.get(TOKEN_VARIABLE, "").strip()
    if not all("!" <= character <= "~" for character in token):
        raise NoCredentials(
            TOKEN_VARIABLE,
            "It holds a character that no request can carry.",
            remedy="Use the bearer token alone: visible ASCII characters without spaces.",
        )
    return WebSettings(resolve_trust(environ), token)
