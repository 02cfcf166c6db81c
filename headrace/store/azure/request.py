"""A request to Azure's blob service before it is sent, and its signature by an account key.

The signer is ours, by https://learn.microsoft.com/rest/api/storageservices/authorize-with-shared-key: Microsoft's own is
private to azure-storage-blob and bound to that package's pipeline. The tests compare the two.
"""

import base64
import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import quote, urlencode

# Of these the values are signed, in this order; everything else that is signed has a name that begins with x-ms-.
_SIGNED = (
    "Content-Encoding",
    "Content-Language",
    "Content-Length",
    "Content-MD5",
    "Content-Type",
    "Date",
    "If-Modified-Since",
    "If-Match",
    "If-None-Match",
    "If-Unmodified-Since",
    "Range",
)


@dataclass(slots=True)
class BlobRequest:
    """What is asked for; whoever asks adds what says so.

    Attributes:
        path: percent-encoded, with a slash before it.
        query: not encoded.
        headers: all but Host, Content-Length and what says nothing to the store.
        content_length: bytes of the body.
        signature: a shared access signature as it was given, without a question mark: sent, never shown.
    """

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    content_length: int = 0
    signature: str = field(default="", repr=False)

    @property
    def target(self) -> str:
        """What the request line says."""
        parts = [urlencode(self.query, quote_via=quote, safe="")] if self.query else []
        parts += [self.signature] if self.signature else []
        return self.path + ("?" + "&".join(parts) if parts else "")


def string_to_sign(request: BlobRequest, account: str) -> str:
    """What a signature by an account key is of."""
    length = str(request.content_length) if request.content_length else ""
    values = {**request.headers, "Content-Length": length}
    lines = [request.method, *(values.get(name, "") for name in _SIGNED)]
    # The service sorts by rules of a language, in which a dash counts for nothing; with the names in use it is the same.
    lines += [
        f"{name}:{value}" for name, value in sorted(request.headers.items()) if name.startswith("x-ms-")
    ]
    lines.append(f"/{account}{request.path}")
    lines += [f"{name.lower()}:{value}" for name, value in sorted(request.query.items())]
    return "\n".join(lines)


def shared_key_authorization(request: BlobRequest, account: str, key: bytes) -> str:
    """The value of Authorization for a request that is complete but for it."""
    digest = hmac.new(key, string_to_sign(request, account).encode(), hashlib.sha256).digest()
    return f"SharedKey {account}:{base64.b64encode(digest).decode()}"
