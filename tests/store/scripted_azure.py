"""What azurite cannot produce: a server of the blob service's API that follows a script."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, unquote, urlsplit
from xml.sax.saxutils import escape

ACCOUNT = "acct"
REQUEST_ID = "11111111-2222-3333-4444-555555555555"
MODIFIED = "Fri, 02 Jan 2026 03:04:05 GMT"


@dataclass(frozen=True, slots=True)
class Asked:
    """One request; header names in lower case. `path` is below the container, "" for itself."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Answer:
    """What is sent back; headers replace the usual ones, None leaves one out."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Stored:
    """A blob and its ETag, without quotes."""

    data: bytes
    etag: str = "0x1"


def error(
    status: int, code: str = "", message: str = "Scripted.", detail: str = "", **headers: str
) -> Answer:
    """An error as the service sends it."""
    more = f"<AuthenticationErrorDetail>{escape(detail)}</AuthenticationErrorDetail>" if detail else ""
    text = f"{message}\nRequestId:{REQUEST_ID}\nTime:2026-01-01T00:00:00.0000000Z"
    body = f'﻿<?xml version="1.0" encoding="utf-8"?><Error><Code>{code}</Code><Message>{escape(text)}</Message>{more}</Error>'
    fields = {"x-ms-error-code": code, "Content-Type": "application/xml"} if code else {}
    return Answer(
        status,
        body.encode() if code else b"",
        {**fields, **{n.replace("_", "-"): v for n, v in headers.items()}},
    )


class ScriptedAzure(ThreadingHTTPServer):
    """Honest about its one container "models", but where `refuse` gives another answer. Signatures are not checked.

    Attributes:
        blobs: key → what lies there.
        refuse: asked of every request; what it returns is the answer instead.
        log: every request, in order of arrival.
        ignores_conditions: whether it takes no notice of If-Match.
        page_size: entries of one page of a listing.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.blobs: dict[str, Stored] = {}
        self.blocks: dict[str, bytes] = {}
        self.refuse: Callable[[Asked], Answer | None] = lambda asked: None
        self.log: list[Asked] = []
        self.ignores_conditions = False
        self.page_size = 1000
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    @property
    def environment(self) -> dict[str, str]:
        """The variables that lead there with a key."""
        return {"AZURE_STORAGE_ENDPOINT": f"{self.url}/{ACCOUNT}", "AZURE_STORAGE_ACCOUNT_KEY": "a2V5"}

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients may go away."""

    def answer(self, asked: Asked) -> Answer:
        """The honest answer."""
        if not asked.path:
            return self._listing(asked.query)
        if asked.method == "PUT":
            return self._put(asked)
        stored = self.blobs.get(asked.path)
        if stored is None:
            return error(404, "BlobNotFound")
        if (
            not self.ignores_conditions
            and asked.headers.get("if-match", f'"{stored.etag}"') != f'"{stored.etag}"'
        ):
            return error(412, "ConditionNotMet")
        headers = {"ETag": f'"{stored.etag}"', "Last-Modified": MODIFIED}
        if "x-ms-range" not in asked.headers:
            return Answer(200, stored.data, headers)
        first_text, _, last_text = asked.headers["x-ms-range"].removeprefix("bytes=").partition("-")
        first, last = int(first_text), min(int(last_text), len(stored.data) - 1)
        if first > last:
            return error(416, "InvalidRange")
        content_range = f"bytes {first}-{last}/{len(stored.data)}"
        return Answer(206, stored.data[first : last + 1], {**headers, "Content-Range": content_range})

    def _put(self, asked: Asked) -> Answer:
        if asked.query.get("comp") == "block":
            self.blocks[asked.query["blockid"]] = asked.body
        elif asked.query.get("comp") == "blocklist":
            names = [part.partition("<")[0] for part in asked.body.decode().split("<Latest>")[1:]]
            self.blobs[asked.path] = Stored(b"".join(self.blocks[name] for name in names))
        else:
            self.blobs[asked.path] = Stored(asked.body)
        return Answer(201)

    def _listing(self, query: Mapping[str, str]) -> Answer:
        prefix = query.get("prefix", "")
        entries: dict[str, str] = {}
        for key in sorted(self.blobs):
            if not key.startswith(prefix):
                continue
            head, slash, _ = key[len(prefix) :].partition("/")
            if slash and "delimiter" in query:
                folder = prefix + head + "/"
                entries[folder] = f"<BlobPrefix><Name>{escape(folder)}</Name></BlobPrefix>"
            else:
                entries[key] = blob_entry(key, self.blobs[key])
        names = [name for name in entries if name > query.get("marker", "")]
        shown, marker = names[: self.page_size], ""
        if len(names) > self.page_size:
            marker = shown[-1]
        return Answer(200, page_of("".join(entries[name] for name in shown), marker))


def blob_entry(key: str, stored: Stored, more: str = "", metadata: str = "") -> str:
    """A blob in a listing."""
    return (
        f"<Blob><Name>{escape(key)}</Name><Properties><Last-Modified>{MODIFIED}</Last-Modified>"
        f"<Etag>{stored.etag}</Etag><Content-Length>{len(stored.data)}</Content-Length>{more}</Properties>"
        f"<Metadata>{metadata}</Metadata></Blob>"
    )


def page_of(entries: str, marker: str = "") -> bytes:
    """A page of a listing, with the mark before it that the service sends."""
    return (
        '﻿<?xml version="1.0" encoding="utf-8"?><EnumerationResults ContainerName="models">'
        f"<Blobs>{entries}</Blobs><NextMarker>{escape(marker)}</NextMarker></EnumerationResults>"
    ).encode()


class _Handler(BaseHTTPRequestHandler):
    server: ScriptedAzure
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def _serve(self) -> None:
        parts = urlsplit(self.path)
        path = unquote(parts.path).removeprefix(f"/{ACCOUNT}/models").removeprefix("/")
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        asked = Asked(self.command, path, dict(parse_qsl(parts.query)), headers, body)
        self.server.log.append(asked)
        answer = self.server.refuse(asked) or self.server.answer(asked)
        usual = {
            "Content-Length": str(len(answer.body)),
            "x-ms-request-id": REQUEST_ID,
            "Date": formatdate(usegmt=True),
        }
        self.send_response_only(answer.status)
        for name, value in {**usual, **answer.headers}.items():
            if value is not None:
                self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    do_GET = do_HEAD = do_PUT = _serve  # noqa: N815

    def log_message(self, format: str, *arguments: object) -> None:
        """`log` is the log."""


@contextmanager
def scripted_azure() -> Iterator[ScriptedAzure]:
    """A running server."""
    with ScriptedAzure() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
