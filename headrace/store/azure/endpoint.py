"""Where an account's blob service is: the URI, a connection string, a variable or the account's name says it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from headrace.store.azure.connection_string import CONNECTION_STRING_VARIABLE, ConnectionString
from headrace.store.errors import BadEndpoint

ACCOUNT_VARIABLES = ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT")
ENDPOINT_VARIABLES = ("AZURE_STORAGE_ENDPOINT", "AZURE_STORAGE_SERVICE_ENDPOINT")
_ACCOUNT = re.compile(r"[a-z0-9]{1,63}", re.ASCII)
_ADDRESS = re.compile(r"[0-9.]+|.*:.*")
# Microsoft's clouds → who signs in there. To other hosts credentials go only where a setting names them.
_CLOUDS = {
    "core.windows.net": "",
    "storage.azure.net": "",
    "fabric.microsoft.com": "",
    "core.chinacloudapi.cn": "login.chinacloudapi.cn",
    "storage.azure.cn": "login.chinacloudapi.cn",
    "core.usgovcloudapi.net": "login.microsoftonline.us",
    "storage.azure.us": "login.microsoftonline.us",
}


@dataclass(frozen=True, slots=True)
class BlobEndpoint:
    """The blob service of one account.

    Attributes:
        url: scheme, host and port.
        path: what goes before the container, "" or "/account" (an emulator, an address without a name).
        account: its name, "" where nothing says it.
        named_by: what a person corrects if it is wrong.
        account_from: what says the account, "" where that is `named_by` too.
    """

    url: str
    path: str
    account: str
    named_by: str
    account_from: str = ""

    @property
    def authority_host(self) -> str:
        """Who signs in to this cloud; "" for the usual one."""
        host = urlsplit(self.url).hostname or ""
        return next((who for suffix, who in _CLOUDS.items() if host.endswith("." + suffix)), "")


def find_blob_endpoint(
    host: str, connection: ConnectionString | None, environ: Mapping[str, str], uri: str
) -> BlobEndpoint:
    """The endpoint; what names it more closely wins: the URI, the connection string, the endpoint, the account.

    Args:
        host: of the account's blob service as the URI names it, "" where it does not.

    Raises BadEndpoint.
    """
    name_from, name = _first(environ, *ACCOUNT_VARIABLES)
    if name and not _ACCOUNT.fullmatch(name):
        raise BadEndpoint(
            name_from,
            f"{name!r:.80} is no account's name: small letters and digits.",
            remedy="Write the name alone, without a host.",
        )
    endpoint_from, given = _first(environ, *ENDPOINT_VARIABLES)
    if host:
        return _of_host(host, [given, connection.endpoint if connection else ""], uri)
    if connection is not None:
        return _checked(connection.endpoint, CONNECTION_STRING_VARIABLE, connection.account)
    if given:
        return replace(_checked(given, endpoint_from, name), account_from=name_from)
    if name:
        return BlobEndpoint(f"https://{name}.blob.core.windows.net", "", name, name_from)
    raise BadEndpoint(
        uri,
        "No storage account is named.",
        remedy="Set AZURE_STORAGE_ACCOUNT_NAME, or write az://account.blob.core.windows.net/container/prefix.",
    )


def account_of(connection: ConnectionString | None, environ: Mapping[str, str]) -> str:
    """The account that the environment is about, whatever the URI names; "" where it says none. Raises BadEndpoint."""
    names = (*ENDPOINT_VARIABLES, *ACCOUNT_VARIABLES)
    if connection is None and not any(environ.get(name, "").strip() for name in names):
        return ""
    return find_blob_endpoint("", connection, environ, "").account


def _of_host(host: str, named: list[str], uri: str) -> BlobEndpoint:
    account = _account_of(host)
    for endpoint in named:  # it says scheme and port too
        if _host_of(endpoint) == host:
            return _checked(endpoint, "the URI", account)
    if not any(host.endswith("." + cloud) for cloud in _CLOUDS):
        raise BadEndpoint(
            uri,
            f"{host} belongs to none of the clouds that are known, so nothing is sent there.",
            remedy=f"If it is right, set AZURE_STORAGE_ENDPOINT=https://{host}.",
        )
    return BlobEndpoint(f"https://{host}", "", account, "the URI")


def _host_of(endpoint: str) -> str:
    try:
        return urlsplit(endpoint).hostname or ""
    except ValueError:
        return ""


def _account_of(host: str) -> str:
    return host.partition(".")[0].removesuffix("-secondary")


def _checked(endpoint: str, origin: str, account: str) -> BlobEndpoint:
    remedy = f"Correct {origin}: https://HOST[:PORT], with /ACCOUNT behind it for an emulator."
    if origin == CONNECTION_STRING_VARIABLE:
        remedy = f"Correct the BlobEndpoint in {origin}."
    if "@" in endpoint:
        raise BadEndpoint(origin, "The endpoint holds a user name or password.", remedy=remedy)
    # Without path and query, which may hold a signature.
    shown = re.match(r"([^/?#]*://)?[^/?#]*", endpoint).group()  # type: ignore[union-attr]
    try:
        parts = urlsplit(endpoint)
        port = parts.port
    except ValueError:
        raise BadEndpoint(shown, f"The endpoint from {origin} is not a URL.", remedy=remedy) from None
    if parts.scheme not in ("http", "https"):
        raise BadEndpoint(
            shown, f"The endpoint from {origin} has no scheme (http:// or https://).", remedy=remedy
        )
    path = parts.path.strip("/")
    if (
        not parts.hostname
        or parts.query
        or parts.fragment
        or port == 0
        or (path and not _ACCOUNT.fullmatch(path))
    ):
        raise BadEndpoint(
            shown,
            f"The endpoint from {origin} must be a scheme, a host and perhaps a port, and an account at most.",
            remedy=remedy + " The container belongs in the az:// URI.",
        )
    has_no_name = bool(_ADDRESS.fullmatch(parts.hostname)) or parts.hostname == "localhost"
    path = path or (account if has_no_name else "")
    account = (
        account or path.removesuffix("-secondary") or ("" if has_no_name else _account_of(parts.hostname))
    )
    netloc = parts.netloc.replace(".dfs.", ".blob.", 1)  # the other address of the same objects
    return BlobEndpoint(f"{parts.scheme}://{netloc}", f"/{path}" if path else "", account, origin)


def _first(environ: Mapping[str, str], *names: str) -> tuple[str, str]:
    for name in names:
        if value := environ.get(name, "").strip():
            return name, value
    return "", ""
