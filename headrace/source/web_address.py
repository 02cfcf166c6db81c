"""Taking an http:// or https:// address apart, strictly: what servers and proxies would read in two ways is refused."""

import re
from dataclasses import dataclass, field
from urllib.parse import quote, unquote, urlsplit

_DEFAULT_PORTS = {"http": 80, "https": 443}
_HOST = re.compile(r"[a-z0-9_]([a-z0-9._-]*[a-z0-9_])?\.?", re.ASCII)
_PATH_CHARACTERS = "/%:@!$&'()*+,;=~"


@dataclass(frozen=True, slots=True)
class WebAddress:
    """An address's parts.

    Attributes:
        scheme: "http" or "https".
        host: host name and, unless it is the scheme's own, port: as the Host header has it.
        path: percent-encoded, beginning with a slash.
        query: without its question mark; it may be a secret.
    """

    scheme: str
    host: str
    path: str
    query: str = field(default="", repr=False)

    @property
    def origin(self) -> str:
        """Scheme, host and port: what a credential is bound to."""
        return f"{self.scheme}://{self.host}"

    @property
    def shown(self) -> str:
        """The address for a person, without its query."""
        return f"{self.origin}{self.path}"

    @property
    def target(self) -> str:
        """What a request line asks this host for."""
        return f"{self.path}?{self.query}" if self.query else self.path


def web_address(text: str) -> WebAddress | str:
    """The parts of an absolute address, or in words (which repeat nothing of it) why it cannot be used."""
    # urlsplit() would drop some control characters in silence.
    if not all(character.isprintable() for character in text):
        return "it holds a control character"
    try:
        parts = urlsplit(text)
        port, hostname = parts.port, parts.hostname
    except ValueError:
        return "its host or port is not valid"
    scheme = parts.scheme.lower()
    if scheme not in _DEFAULT_PORTS:
        return "it is neither http:// nor https://"
    if "@" in parts.netloc:
        return "it holds a user name or password"
    if not hostname:
        return "it names no host"
    if parts.fragment:
        return "it holds a #fragment, which no server sees (write %23 for # in a name)"
    host = _host(hostname)
    if host is None or port == 0:
        return "its host or port is not valid"
    if port is not None and port != _DEFAULT_PORTS[scheme]:
        host = f"{host}:{port}"
    path = quote(parts.path or "/", safe=_PATH_CHARACTERS)
    if not {".", ".."}.isdisjoint(unquote(path).split("/")):
        return "it holds . or .. between slashes"
    return WebAddress(scheme, host, path, quote(parts.query, safe=_PATH_CHARACTERS + '?[]{}|^`\\"<>'))


def _host(hostname: str) -> str | None:
    """The host in ASCII, an IPv6 address in brackets; None for what can be none."""
    if ":" in hostname:
        return f"[{hostname}]" if re.fullmatch(r"[0-9a-f:.]+", hostname) else None
    if not hostname.isascii():
        try:
            hostname = hostname.encode("idna").decode("ascii")
        except UnicodeError:
            return None
    return hostname if _HOST.fullmatch(hostname) else None
