"""The proxies that the environment names: HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY in either case."""

import os
from base64 import b64encode
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from headrace.store.errors import BadEndpoint


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy that is asked in plain HTTP.

    Attributes:
        variable: the environment variable that names it.
        authorization: the value of Proxy-Authorization, "" without credentials.
    """

    host: str
    port: int
    variable: str
    authorization: str = field(default="", repr=False)

    @property
    def url(self) -> str:
        """Its address without credentials, for messages."""
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    @property
    def remedy(self) -> str:
        """What to check where it does not work."""
        return f"Check {self.variable}, or name the host in NO_PROXY."


def is_loopback(host: str) -> bool:
    """Whether a host is this machine itself, which no proxy can reach for us."""
    return host in ("localhost", "::1") or host.startswith("127.")


def proxy_url_for(scheme: str, host: str, port: int) -> tuple[str, str] | None:
    """The variable and its value, with any credentials, that count for an origin; None to go there directly.

    By the rules of Python's standard library: the lower-case variable wins; HTTP_PROXY does not count in a CGI
    script; NO_PROXY lists hosts, domains, host:port or *. It may also list networks (10.0.0.0/8).
    """
    if is_loopback(host) or not any(name[-6:].lower() == "_proxy" for name in os.environ):
        return None
    from urllib.request import getproxies_environment, proxy_bypass_environment  # type: ignore[attr-defined]

    proxies = getproxies_environment()
    chosen = scheme if proxies.get(scheme) else "all"
    value = proxies.get(chosen)
    if not value:
        return None
    shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if proxy_bypass_environment(shown, proxies) or _in_network(host, proxies.get("no", "")):
        return None
    lower = f"{chosen}_proxy"
    return (lower if os.environ.get(lower) else lower.upper()), value


def _in_network(host: str, no_proxy: str) -> bool:
    from ipaddress import ip_address, ip_network

    try:
        address = ip_address(host)
    except ValueError:
        return False
    for name in no_proxy.split(","):
        try:
            if address in ip_network(name.strip(), strict=False):
                return True
        except ValueError:  # a host's name
            continue
    return False


def proxy_for(scheme: str, host: str, port: int) -> Proxy | None:
    """The proxy for an origin; None to go there directly. Raises BadEndpoint, without repeating the value."""
    found = proxy_url_for(scheme, host, port)
    if found is None:
        return None
    variable, value = found
    try:
        parts = urlsplit(value if "://" in value else f"http://{value}")
        proxy_host, proxy_port = parts.hostname, parts.port or 80
    except ValueError:
        proxy_host, proxy_port = None, 0
    if not proxy_host or not all("!" <= character <= "~" for character in proxy_host):
        raise BadEndpoint(
            variable, "It holds no proxy's address.", remedy="Write http://HOST:PORT, or unset it."
        )
    if parts.scheme.lower() != "http":
        raise BadEndpoint(
            variable,
            f"It names a proxy of the kind {parts.scheme:.20}://; only proxies that are asked in plain HTTP can be "
            "used (https:// goes through them encrypted from end to end).",
            remedy="Write http://HOST:PORT, or name the host in NO_PROXY.",
        )
    return Proxy(proxy_host, proxy_port, variable, _authorization(parts.username, parts.password))


def _authorization(username: str | None, password: str | None) -> str:
    if username is None:
        return ""
    pair = f"{unquote(username)}:{unquote(password or '')}"
    return f"Basic {b64encode(pair.encode()).decode()}"
