"""What fake-gcs-server cannot produce: a server of Cloud Storage's API, of tokens and of metadata that follows a script."""

import base64
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from headrace.store.crc import CRC32C

MODIFIED = "2026-01-02T03:04:05.678Z"
UPLOAD_ID = "ABgVH8-upload-id"


@dataclass(frozen=True, slots=True)
class Asked:
    """One request; header names in lower case."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Answer:
    """What is sent back. Without a Content-Length of its own it gets the body's."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Stored:
    """An object's live generation."""

    data: bytes
    generation: int = 1
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Upload:
    """A session: what the object is to be, and what has come of it."""

    resource: dict[str, Any]
    data: bytearray = field(default_factory=bytearray)


def error(status: int, reason: str = "", message: str = "Scripted.", **headers: str) -> Answer:
    """An error as the JSON API sends it."""
    details = [{"domain": "global", "reason": reason, "message": message}] if reason else []
    body = json.dumps({"error": {"code": status, "message": message, "errors": details}}).encode()
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer(
        status, body, {"Content-Type": "application/json", "X-GUploader-UploadID": UPLOAD_ID, **fields}
    )


class ScriptedGcs(ThreadingHTTPServer):
    """Honest about its one bucket "bucket" (`bucket_exists`), but where `refuse` gives another answer.

    Attributes:
        objects: key → what lies there.
        refuse: asked of every request; what it returns is the answer instead.
        log: every request, in order of arrival.
        ignores_generation: whether it takes no notice of the generation that is asked for.
        page_size: entries of one page of a listing.
        uploads: by their number, the sessions that are under way.
        cancelled: how many sessions were given up by the client.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: dict[str, Stored] = {}
        self.refuse: Callable[[Asked], Answer | None] = lambda asked: None
        self.log: list[Asked] = []
        self.ignores_generation = False
        self.page_size = 1000
        self.bucket_exists = True
        self.uploads: dict[str, Upload] = {}
        self.cancelled = 0
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients may go away."""

    @property
    def tokens(self) -> list[str]:
        """What the requests said of who asks, in order."""
        return [asked.headers.get("authorization", "") for asked in self.log]

    def answer(self, asked: Asked) -> Answer:
        """The honest answer."""
        if asked.path == "/upload/storage/v1/b/bucket/o":
            return self._upload(asked)
        if asked.method == "POST" and asked.path == "/storage/v1/b":
            self.bucket_exists = True
            return Answer(200, b"{}")
        bucket, _, rest = asked.path.removeprefix("/storage/v1/b/").partition("/o")
        if bucket != "bucket" or not self.bucket_exists:
            return error(404, "notFound", "The specified bucket does not exist.")
        if not rest:
            return self._listing(asked.query)
        return self._object(unquote(rest[1:]), asked)

    def _upload(self, asked: Asked) -> Answer:
        if asked.method == "POST":
            number = str(len(self.uploads) + 1)
            self.uploads[number] = Upload(json.loads(asked.body))
            location = f"http://elsewhere.invalid{asked.path}?uploadType=resumable&upload_id={number}"
            return Answer(200, b"", {"Location": location})
        upload = self.uploads.get(asked.query["upload_id"])
        if upload is None:
            return error(404, "notFound")
        if asked.method == "DELETE":
            self.cancelled += 1
            del self.uploads[asked.query["upload_id"]]
            return Answer(499)
        return self.take(asked, len(asked.body))

    def take(self, asked: Asked, count: int) -> Answer:
        """Take the first bytes of a piece, and say honestly what there is now."""
        upload = self.uploads[asked.query["upload_id"]]
        span, _, total = asked.headers["content-range"].removeprefix("bytes ").partition("/")
        if span != "*":
            assert int(span.partition("-")[0]) == len(upload.data), "a piece begins where the last one ended"
            upload.data += asked.body[:count]
        if len(upload.data) < int(total):
            has = {"Range": f"bytes=0-{len(upload.data) - 1}"} if upload.data else {}
            return Answer(308, b"", has)
        stored = Stored(bytes(upload.data), len(self.log), upload.resource.get("metadata", {}))
        if upload.resource["crc32c"] != crc_of(stored.data):
            return error(400, "invalid", "Provided CRC32C does not match the content.")
        self.objects[upload.resource["name"]] = stored
        return Answer(200, json.dumps(facts_of(upload.resource["name"], stored)).encode())

    def _listing(self, query: Mapping[str, str]) -> Answer:
        prefix, token = query.get("prefix", ""), query.get("pageToken", "")
        entries: dict[str, dict[str, Any] | None] = {}
        for key in sorted(self.objects):
            if not key.startswith(prefix):
                continue
            head, slash, _ = key[len(prefix) :].partition("/")
            if slash and "delimiter" in query:
                entries[prefix + head + "/"] = None
            else:
                entries[key] = facts_of(key, self.objects[key])
        names = [name for name in entries if name > token]
        page = {
            "kind": "storage#objects",
            "items": [entries[name] for name in names[: self.page_size] if entries[name]],
            "prefixes": [name for name in names[: self.page_size] if not entries[name]],
        }
        if len(names) > self.page_size:
            page["nextPageToken"] = names[self.page_size - 1]  # type: ignore[assignment]
        return Answer(200, json.dumps(page).encode(), {"Content-Type": "application/json"})

    def _object(self, key: str, asked: Asked) -> Answer:
        stored, media = self.objects.get(key), asked.query.get("alt") == "media"
        wanted = "" if self.ignores_generation else asked.query.get("generation", "")
        if stored is None or wanted not in ("", str(stored.generation)):
            if media:
                return Answer(
                    404,
                    b"No such object",
                    {"Content-Type": "text/html; charset=UTF-8", "X-GUploader-UploadID": UPLOAD_ID},
                )
            return error(404, "notFound")
        if not media:
            return Answer(200, json.dumps(facts_of(key, stored)).encode())
        headers = {
            "ETag": "CJ+of-metadata",
            "x-goog-generation": str(stored.generation),
            "x-goog-hash": f"md5=nothing,crc32c={crc_of(stored.data)}",
            "Last-Modified": "Fri, 02 Jan 2026 03:04:05 GMT",
        }
        if "range" not in asked.headers:
            return Answer(200, stored.data, headers)
        first_text, _, last_text = asked.headers["range"].removeprefix("bytes=").partition("-")
        first, last = int(first_text), min(int(last_text), len(stored.data) - 1)
        if first > last:
            return Answer(416, b"", headers)
        body = stored.data[first : last + 1]
        return Answer(206, body, {**headers, "Content-Range": f"bytes {first}-{last}/{len(stored.data)}"})


def crc_of(data: bytes) -> str:
    """A CRC-32C as the store writes it."""
    return base64.b64encode(CRC32C.of([data]).to_bytes(4, "big")).decode()


def facts_of(key: str, stored: Stored) -> dict[str, Any]:
    """An object's resource, the fields that are read."""
    return {
        "name": key,
        "size": str(len(stored.data)),
        "generation": str(stored.generation),
        "updated": MODIFIED,
        "crc32c": crc_of(stored.data),
        "metadata": dict(stored.metadata),
    }


class _Handler(BaseHTTPRequestHandler):
    server: ScriptedGcs
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def _serve(self) -> None:
        parts = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        asked = Asked(self.command, parts.path, dict(parse_qsl(parts.query)), headers, body)
        self.server.log.append(asked)
        answer = self.server.refuse(asked) or self.server.answer(asked)
        self.send_response(answer.status)
        for name, value in {"Content-Length": str(len(answer.body)), **answer.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(answer.body)

    def do_GET(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def do_PUT(self) -> None:
        self._serve()

    def do_DELETE(self) -> None:
        self._serve()

    def log_message(self, format: str, *arguments: object) -> None:
        """`log` is the log."""


@contextmanager
def scripted_gcs() -> Iterator[ScriptedGcs]:
    """A running server."""
    with ScriptedGcs() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
