"""A hub on loopback, as far as its HTTP API is asked, with a second server that its large files lie on.

Shaped after what the hub answers: files in LFS lead to signed addresses of another host, others to a relative address;
huggingface_hub itself reads from it in tests/store/hub/test_store_hub_reference.py.
"""

import hashlib
import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote, urlsplit

from headrace.demo.identity import Tls

# What must arrive as it was given, as the hub's own have it.
QUERY = (
    "response-content-disposition=inline%3B+filename*%3DUTF-8%27%27m&Policy=eyJ~-_,/=;:@!&Key-Pair-Id=K|^%7C"
)
_LFS = (".safetensors", ".model", ".bin")


def is_lfs(path: str) -> bool:
    return path.endswith(_LFS)


def oid_of(path: str, data: bytes) -> str:
    """What git calls the file, or LFS the large one."""
    if is_lfs(path):
        return hashlib.sha256(data).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@dataclass(slots=True)
class Repository:
    """Attributes:
    commits: commit → its files.
    branches: branch or tag → commit.
    readers: the tokens that may read it, None for everybody.
    gated: whether others are told that it is gated, rather than that there is nothing.
    """

    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    readers: frozenset[str] | None = None
    gated: bool = False

    def commit(self, files: dict[str, bytes], branch: str = "main") -> str:
        """Put files into a new commit upon the branch's last one; its id."""
        whole = {**self.commits.get(self.branches.get(branch, ""), {}), **files}
        digest = hashlib.sha1(branch.encode())
        for path, data in sorted(whole.items()):
            digest.update(f"{path}\0{oid_of(path, data)}\0".encode())
        self.commits[digest.hexdigest()] = whole
        self.branches[branch] = digest.hexdigest()
        return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class Asked:
    """A request: "hub" or "cdn", its target, its headers in lower case, and the status of the answer."""

    where: str
    target: str
    headers: dict[str, str]
    status: int


class Hub:
    """The state that both servers share.

    Attributes:
        moved: old name of a repository → its name now.
        sizes_told: whether the answer about a model tells the sizes of its files when it is asked to.
        page_size: files in a page of the tree.
        versions_told: whether that answer tells what git calls the files; some mirrors do not know.
        answers, cdn_answers: statuses (with headers) that are answered first to any request to the hub, or the CDN.
        spoil, cdn_spoil: headers that replace those of answers about files.
        next_link: the address of the tree's next page, where it is not the right one.
        connections: how many were made to the hub.
        signature: of addresses that are given from now on; the CDN takes no other.
    """

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.moved: dict[str, str] = {}
        self.tokens: set[str] = set()
        self.sizes_told = True
        self.versions_told = True
        self.page_size = 1_000
        self.answers: list[tuple[int, dict[str, str]]] = []
        self.cdn_answers: list[tuple[int, dict[str, str]]] = []
        self.spoil: dict[str, str] = {}
        self.cdn_spoil: dict[str, str] = {}
        self.next_link = ""
        self.connections = 0
        self.signature = "first"
        self.cdn_refuses = False
        self.asked: list[Asked] = []
        self.hub_url = self.cdn_url = ""

    def repository(self, name: str) -> Repository:
        return self.repositories.setdefault(name, Repository())

    def put(self, folder: Path, name: str, below: str = "") -> str:
        """A folder's files in a new commit of a repository; its id."""
        prefix = f"{below}/" if below else ""
        files = {
            prefix + path.relative_to(folder).as_posix(): path.read_bytes()
            for path in folder.rglob("*")
            if path.is_file()
        }
        return self.repository(name).commit(files)

    def targets(self, where: str) -> list[str]:
        """What was asked for, without queries."""
        return [asked.target.partition("?")[0] for asked in self.asked if asked.where == where]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    hub: Hub

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients may go away."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    where = ""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        raise NotImplementedError

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        hub = self.server.hub
        hub.asked.append(
            Asked(
                self.where, self.path, {name.lower(): value for name, value in self.headers.items()}, status
            )
        )
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _send_range(self, data: bytes, headers: dict[str, str]) -> None:
        wanted = self.headers.get("Range", "")
        if not wanted:
            self._answer(200, data, headers)
            return
        first_text, _, last_text = wanted.removeprefix("bytes=").partition("-")
        first, last = int(first_text), min(int(last_text or len(data)), len(data) - 1)
        if first >= len(data):
            self._answer(416, b"", {"Content-Range": f"bytes */{len(data)}"})
            return
        ranged = {"Content-Range": f"bytes {first}-{last}/{len(data)}"}
        spoiled = self.server.hub.cdn_spoil if self.where == "cdn" else {}
        self._answer(206, data[first : last + 1], {**headers, **ranged, **spoiled})

    def log_message(self, format: str, *arguments: object) -> None:
        """`asked` is the log."""


class _CdnHandler(_Handler):
    """Content by its SHA-256, for whoever has a signed address that still holds."""

    where = "cdn"

    def do_GET(self) -> None:
        hub, parts = self.server.hub, urlsplit(self.path)
        digest = parts.path.rpartition("/")[2]
        if hub.cdn_answers:
            status, headers = hub.cdn_answers.pop(0)
            self._answer(status, b"", headers)
            return
        if hub.cdn_refuses or parse_qs(parts.query).get("Signature") != [hub.signature]:
            self._answer(
                403, b"<Error><Code>AccessDenied</Code></Error>", {"Content-Type": "application/xml"}
            )
            return
        for repository in hub.repositories.values():
            for files in repository.commits.values():
                for path, data in files.items():
                    if is_lfs(path) and oid_of(path, data) == digest:
                        self._send_range(data, {"ETag": f'"cdn-{digest[:12]}"'})
                        return
        self._answer(404, b"", {})


class _HubHandler(_Handler):
    where = "hub"

    def setup(self) -> None:
        self.server.hub.connections += 1
        super().setup()

    def do_GET(self) -> None:
        hub = self.server.hub
        if hub.answers:
            status, headers = hub.answers.pop(0)
            self._answer(status, b"", headers)
            return
        parts = urlsplit(self.path)
        words = [unquote(word) for word in parts.path.strip("/").split("/")]
        query = parse_qs(parts.query)
        if words[:2] == ["api", "models"] and len(words) >= 4:
            self._model("/".join(words[2:4]), words[4:], query)
        elif words[:2] == ["api", "resolve-cache"]:
            self._file("/".join(words[3:5]), words[5], "/".join(words[6:]), cached=True)
        elif len(words) >= 5 and words[2] == "resolve":
            self._file("/".join(words[:2]), words[3], "/".join(words[4:]))
        else:
            self._refuse(404, "", "Sorry, we can't find the page you are looking for.")

    def _refuse(self, status: int, code: str, message: str) -> None:
        headers = {"X-Error-Message": message, "X-Request-Id": "Root=1-imitation"}
        if code:
            headers["X-Error-Code"] = code
        self._answer(status, json.dumps({"error": message}).encode(), headers)

    def _admitted(self, name: str) -> Repository | None:
        """The repository, or None when the refusal has been sent."""
        hub = self.server.hub
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        repository = hub.repositories.get(name)
        if token and token not in hub.tokens:
            self._refuse(401, "", "Invalid credentials in Authorization header")
        elif name in hub.moved:
            self._answer(307, b"", {"Location": self.path.replace(name, hub.moved[name], 1)})
        elif repository is None:
            self._refuse(404 if token else 401, "RepoNotFound", "Repository not found")
        elif repository.readers is None or token in repository.readers:
            return repository
        elif repository.gated:
            message = f"Access to model {name} is restricted."
            self._refuse(403 if token else 401, "GatedRepo", message)
        else:
            self._refuse(404 if token else 401, "RepoNotFound", "Repository not found")
        return None

    def _model(self, name: str, words: list[str], query: dict[str, list[str]]) -> None:
        repository = self._admitted(name)
        if repository is None:
            return
        kind, revision = (words[0], words[1]) if len(words) > 1 else ("revision", "main")
        commit = revision if revision in repository.commits else repository.branches.get(revision)
        if commit is None:
            self._refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        elif kind == "tree":
            self._tree(name, commit, "/".join(words[2:]), query)
        else:
            sizes = self.server.hub.sizes_told and "blobs" in query
            siblings = [
                _sibling(path, data, sizes) for path, data in sorted(repository.commits[commit].items())
            ]
            for sibling in siblings if not self.server.hub.versions_told else ():
                sibling.pop("blobId")
            facts = {"id": name, "modelId": name, "sha": commit, "private": False, "tags": [], "downloads": 0}
            self._json({**facts, "likes": 0, "siblings": siblings}, {})

    def _tree(self, name: str, commit: str, below: str, query: dict[str, list[str]]) -> None:
        hub = self.server.hub
        files = hub.repositories[name].commits[commit]
        prefix = f"{below}/" if below else ""
        paths = sorted(path for path in files if path.startswith(prefix))
        if below and not paths:
            self._refuse(404, "EntryNotFound", f"{below} does not exist on {commit}")
            return
        entries: list[dict[str, object]] = [
            {"type": "directory", "oid": "0" * 40, "size": 0, "path": folder}
            for folder in sorted({path.rpartition("/")[0] for path in paths} - {"", below})
        ]
        entries += [_entry(path, files[path]) for path in paths]
        start = int(query.get("cursor", ["0"])[0])
        page, end = entries[start : start + hub.page_size], start + hub.page_size
        headers = {}
        if end < len(entries):
            target = f"{hub.hub_url}/api/models/{name}/tree/{commit}/{quote(below)}".rstrip("/")
            target = hub.next_link or target
            headers["Link"] = f'<{target}?recursive=true&cursor={end}>; rel="next"'
        self._json(page, headers)

    def _file(self, name: str, revision: str, path: str, *, cached: bool = False) -> None:
        hub, repository = self.server.hub, self._admitted(name)
        if repository is None:
            return
        commit = revision if revision in repository.commits else repository.branches.get(revision)
        if commit is None:
            self._refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
            return
        data = repository.commits[commit].get(path)
        if data is None:
            self._refuse(404, "EntryNotFound", "Entry not found")
            return
        oid = oid_of(path, data)
        linked = {"X-Linked-Size": str(len(data)), "X-Linked-ETag": f'"{oid}"'}
        headers = {"X-Repo-Commit": commit, "Accept-Ranges": "bytes", **linked, **hub.spoil}
        if is_lfs(path):
            where = f"{hub.cdn_url}/xet/{oid}?{QUERY}&Signature={hub.signature}"
            self._answer(302, f"Found. Redirecting to {where}".encode(), {**headers, "Location": where})
        elif not cached:
            where = f"/api/resolve-cache/models/{name}/{commit}/{quote(path)}"
            self._answer(307, b"", {**headers, "Location": where})
        else:
            etag = hub.spoil.get("X-Linked-ETag", f'"{oid}"')
            self._send_range(data, {"X-Repo-Commit": commit, "ETag": etag, "Content-Type": "text/plain"})

    def _json(self, value: object, headers: dict[str, str]) -> None:
        kind = {"Content-Type": "application/json; charset=utf-8"}
        self._answer(200, json.dumps(value).encode(), {**kind, **headers})


def _sibling(path: str, data: bytes, sizes: bool) -> dict[str, object]:
    if not sizes:
        return {"rfilename": path}
    git_oid = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
    facts: dict[str, object] = {"rfilename": path, "size": len(data), "blobId": git_oid}
    if is_lfs(path):
        facts["lfs"] = {"sha256": oid_of(path, data), "size": len(data), "pointerSize": 135}
    return facts


def _entry(path: str, data: bytes) -> dict[str, object]:
    facts: dict[str, object] = {"type": "file", "oid": "1" * 40, "size": len(data), "path": path}
    if is_lfs(path):
        return {**facts, "lfs": {"oid": oid_of(path, data), "size": len(data), "pointerSize": 135}}
    return {**facts, "oid": oid_of(path, data)}


@contextmanager
def hub_imitation(tls: Tls | None = None) -> Iterator[Hub]:
    """A running hub without repositories."""
    hub = Hub()
    with _serving(_HubHandler, hub, tls) as hub.hub_url, _serving(_CdnHandler, hub, tls) as hub.cdn_url:
        yield hub


@contextmanager
def _serving(handler: type[_Handler], hub: Hub, tls: Tls | None) -> Iterator[str]:
    with _Server(("127.0.0.1", 0), handler) as server:
        server.hub = hub
        if tls is not None:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(tls.certificate, tls.key)
            server.socket = context.wrap_socket(
                server.socket, server_side=True, do_handshake_on_connect=False
            )
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield f"{'https' if tls else 'http'}://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
