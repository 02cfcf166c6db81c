"""Where an answer leads on to, if it may."""

from urllib.parse import urldefrag, urljoin

from headrace.source.web_address import WebAddress, web_address
from headrace.store.errors import Unsupported
from headrace.store.http.connection import Head

MAX_REDIRECTS = 5
_STATUSES = (301, 302, 303, 307, 308)


def is_redirect(head: Head) -> bool:
    """Whether the answer is found elsewhere."""
    return head.status in _STATUSES


def next_address(current: WebAddress, head: Head, uri: str) -> WebAddress:
    """The address that a redirect leads to. Raises Unsupported, without its path and query, for one that may not be.

    Args:
        uri: what was asked for, for the message.
    """
    location = head.headers.get("location", "")
    if not location:
        raise Unsupported(
            uri, "The server redirects without saying where to.", remedy="Ask its owner.", status=head.status
        )
    found: WebAddress | str
    try:
        found = web_address(urldefrag(urljoin(f"{current.origin}{current.target}", location)).url)
    except ValueError:
        found = "it is no address"
    if isinstance(found, str):
        raise Unsupported(
            uri,
            f"The server redirects to an address that cannot be used: {found}.",
            remedy="Name the address of the objects themselves.",
            status=head.status,
        )
    if current.scheme == "https" and found.scheme == "http":
        raise Unsupported(
            uri,
            f"The server redirects from https:// to {found.origin}, which anyone on the way could read and change.",
            remedy="Name an https:// address that stays one, or the http:// one if that is meant.",
            status=head.status,
        )
    return found
