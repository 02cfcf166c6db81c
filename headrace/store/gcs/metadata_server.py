"""Whether this machine or pod has a metadata server of Google's, which gives tokens of its service account.

https://cloud.google.com/compute/docs/metadata/querying-metadata
"""

import contextlib
from collections.abc import Mapping
from urllib.parse import urlsplit

from headrace.store.errors import BadEndpoint, StoreError
from headrace.store.http.connect import Endpoint
from headrace.store.http.connection import HttpConnection

_DEFAULT_ADDRESS = "169.254.169.254"
_PRODUCT_NAME = "/sys/class/dmi/id/product_name"
_NO = ("", "0", "false", "no", "off")
_STALL_TIMEOUT_S = 1.0
_TRIES_ON_GOOGLE = 5  # in a pod that has just been made it may take a moment to answer


def is_metadata_server_ruled_out(environ: Mapping[str, str]) -> bool:
    """Whether NO_GCE_CHECK says that there is none."""
    return environ.get("NO_GCE_CHECK", "").strip().lower() not in _NO


def metadata_host(environ: Mapping[str, str]) -> str:
    """Host and perhaps port of the metadata server, by the variables that Google's libraries read."""
    names = ("GCE_METADATA_HOST", "GCE_METADATA_ROOT", "GCE_METADATA_IP")
    return next((environ[name].strip() for name in names if environ.get(name, "").strip()), _DEFAULT_ADDRESS)


def finds_metadata_server(environ: Mapping[str, str]) -> bool:
    """Ask for it: once, for a moment, unless the machine says that it is Google's. Raises BadEndpoint."""
    try:
        parts = urlsplit(f"//{metadata_host(environ)}")
        endpoint = Endpoint("http", parts.hostname or "", parts.port or 80)
    except ValueError:
        raise BadEndpoint(
            "GCE_METADATA_HOST", "It holds no HOST[:PORT].", remedy="Correct it, or unset it."
        ) from None
    tries = _TRIES_ON_GOOGLE if _is_google_machine() else 1
    return any(_answers(endpoint) for _ in range(tries))


def _answers(endpoint: Endpoint) -> bool:
    """Whether who answers there is Google's; other clouds have something else at the same address."""
    # Without a proxy, which would answer for its own machine.
    connection = HttpConnection(endpoint, stall_timeout_s=_STALL_TIMEOUT_S)
    try:
        with contextlib.suppress(StoreError):  # nobody there
            head = connection.request("/", [("Host", endpoint.host), ("Metadata-Flavor", "Google")])
            return head.headers.get("metadata-flavor") == "Google"
        return False
    finally:
        connection.close()


def _is_google_machine() -> bool:
    try:
        with open(_PRODUCT_NAME, encoding="ascii", errors="replace") as file:
            return file.read(40).startswith("Google")
    except OSError:
        return False
