"""An S3 endpoint as it is written in a setting: what of it is taken, and what is refused before any library sees it."""

import re
from urllib.parse import urlsplit

from headrace.store.errors import BadEndpoint
from headrace.store.s3.names import PROFILE


def check_endpoint(endpoint: str, origin: str) -> str:
    """Scheme, host and port.

    Args: origin: what said it, for messages.

    Raises BadEndpoint for what has no scheme or host, or has a path, a query or a user.
    """
    remedy = (
        f"Set {'endpoint_url' if origin == PROFILE else origin} to http://HOST:PORT or https://HOST[:PORT]."
    )
    if "@" in endpoint:
        raise BadEndpoint(
            origin,
            "The endpoint holds a user name or password.",
            remedy="Write it without: keys have settings of their own.",
        )
    # Without path and query, which may hold a token.
    shown = re.match(r"([^/?#]*://)?[^/?#]*", endpoint).group()  # type: ignore[union-attr]
    try:
        parts = urlsplit(endpoint)
        port = parts.port
    except ValueError:
        raise BadEndpoint(shown, f"The endpoint from {origin} is not a URL.", remedy=remedy) from None
    if parts.scheme not in ("http", "https") or "://" not in endpoint:
        raise BadEndpoint(
            shown,
            f"The endpoint from {origin} has no scheme (http:// or https://).",
            remedy=remedy,
        )
    if not parts.hostname or parts.path.strip("/") or parts.query or parts.fragment or port == 0:
        raise BadEndpoint(
            shown,
            f"The endpoint from {origin} must be a scheme, a host and perhaps a port, without a path or a query.",
            remedy=remedy + " The bucket belongs in the s3:// URI.",
        )
    return f"{parts.scheme}://{parts.netloc}"
