"""A server of access tokens as machines of Azure have one: App Service's, which azure-identity takes from the environment.

https://learn.microsoft.com/azure/app-service/overview-managed-identity#rest-endpoint-reference
"""

import base64
import json
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from headrace.demo.identity import Tls


class TokenServer(ThreadingHTTPServer):
    """Gives a new token to whoever asks.

    Attributes:
        lasts_s: for how long they hold.
        given: tokens, in order.
        asked: how often it was asked.
        fails: whether it answers with an error instead.
    """

    daemon_threads = True

    def __init__(self, tls: Tls | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.scheme = "https" if tls else "http"
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(tls.certificate, tls.key)
            self.socket = context.wrap_socket(self.socket, server_side=True)
        self.asked = 0
        self.lasts_s = 3600.0
        self.given: list[str] = []
        self.fails = False

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which azure-identity finds it."""
        return {
            "AZURE_TOKEN_CREDENTIALS": "ManagedIdentityCredential",
            "IDENTITY_ENDPOINT": f"{self.scheme}://127.0.0.1:{self.server_address[1]}/token",
            "IDENTITY_HEADER": "secret-header",
        }

    def make(self) -> tuple[str, int]:
        """A token with the claims that Azurite looks at, and when it expires."""
        now = int(time.time())
        ends = int(now + self.lasts_s)
        claims = {
            "aud": "https://storage.azure.com",
            "iss": "https://sts.windows.net/00000000-0000-0000-0000-000000000000/",
            "iat": now - 60,
            "nbf": now - 60,
            "exp": ends,
            "jti": str(len(self.given)),
        }
        parts = [{"alg": "HS256", "typ": "JWT"}, claims]
        text = ".".join(_base64(json.dumps(part).encode()) for part in parts)
        token = f"{text}.{_base64(b'signature')}"
        self.given.append(token)
        return token, ends


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


class _Handler(BaseHTTPRequestHandler):
    server: TokenServer

    def do_GET(self) -> None:
        assert self.headers["X-IDENTITY-HEADER"] == "secret-header"
        self.server.asked += 1
        status, answer = 400, {"error": "unavailable", "error_description": "Scripted."}
        if not self.server.fails:
            token, ends = self.server.make()
            resource = "https://storage.azure.com"
            status, answer = (
                200,
                {
                    "access_token": token,
                    "expires_on": str(ends),
                    "resource": resource,
                    "token_type": "Bearer",
                },
            )
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Quiet."""


@contextmanager
def token_server(tls: Tls | None = None) -> Iterator[TokenServer]:
    """A running server, over https with a certificate."""
    with TokenServer(tls) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
