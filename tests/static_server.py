"""A static web server on loopback as people run them: ranges, strong ETags, conditions, perhaps TLS and a token.

Python's own http.server knows no ranges. Misbehaviour lives in tests/faults/server.py, not here.
"""

import mimetypes
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

from headrace.demo.identity import Tls


class StaticServer(ThreadingHTTPServer):
    """Serves the files below a folder, without listings.

    Attributes:
        asked: the paths that were asked for, percent-encoded, with the status of each answer.
        token: the bearer token that every request must bring, "" for none.
        hidden_status: what is answered for files that are not there: 404, or 403 as some object stores do.
        ranges: whether it knows ranges.
    """

    daemon_threads = True

    def __init__(self, folder: Path, tls: Tls | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder = folder
        self.asked: list[tuple[str, int]] = []
        self.token = ""
        self.hidden_status = 404
        self.ranges = True
        self.bytes_sent = 0
        if tls is not None:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(tls.certificate, tls.key)
            # The handshake is the connection's own thread's: a client that does not finish it holds up nobody.
            self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients may go away."""


class _Handler(BaseHTTPRequestHandler):
    server: StaticServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        server = self.server
        path = server.folder / unquote(urlsplit(self.path).path).lstrip("/")
        if server.token and self.headers.get("Authorization") != f"Bearer {server.token}":
            self._answer(401, b"", {"WWW-Authenticate": "Bearer"})
            return
        if not path.is_file() or ".." in path.parts:
            self._answer(server.hidden_status, b"Not here.", {"Content-Type": "text/plain"})
            return
        facts = path.stat()
        etag = f'"{facts.st_mtime_ns:x}-{facts.st_size:x}"'
        headers = {
            "ETag": etag,
            "Last-Modified": formatdate(facts.st_mtime, usegmt=True),
            "Content-Type": mimetypes.guess_type(path.name)[0] or "application/octet-stream",
        }
        if self.headers.get("If-Match", etag) != etag:
            self._answer(412, b"", {})
            return
        wanted = self.headers.get("Range", "") if server.ranges else ""
        if not wanted:
            self._answer(200, path.read_bytes(), headers)
            return
        first_text, _, last_text = wanted.removeprefix("bytes=").partition("-")
        first, last = int(first_text), min(int(last_text or facts.st_size), facts.st_size - 1)
        if first >= facts.st_size:
            self._answer(416, b"", {"Content-Range": f"bytes */{facts.st_size}"})
            return
        with path.open("rb") as file:
            file.seek(first)
            body = file.read(last + 1 - first)
        self._answer(206, body, {**headers, "Content-Range": f"bytes {first}-{last}/{facts.st_size}"})

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.server.asked.append((self.path, status))
        self.server.bytes_sent += len(body)
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """`asked` is the log."""


@contextmanager
def static_server(folder: Path, tls: Tls | None = None) -> Iterator[StaticServer]:
    """A running server of a folder's files."""
    with StaticServer(folder, tls) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
