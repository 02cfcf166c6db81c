"""The Hugging Face hub: one commit of a repository, its files read by ranges from where the hub leads to.

Large files lie behind signed addresses of another host, which hold for a while: each is asked for once, shared by all
readers, and again when it is refused. What a commit holds never changes, so reads are pinned by the commit's id.
"""

import logging
import re
import threading
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import replace
from urllib.parse import quote

from headrace.source.objects import Listing, ObjectInfo
from headrace.source.uri import ModelSource
from headrace.source.web_address import WebAddress
from headrace.store.base import Found, Target, refuse_odd_name
from headrace.store.described import Setting
from headrace.store.errors import Changed, NotFound
from headrace.store.http.answer import AGAIN, check_encoding, check_range, removed_error
from headrace.store.http.connection import FIRST_STALL_TIMEOUT_S, STALL_TIMEOUT_S, Head
from headrace.store.http.proxy import is_loopback
from headrace.store.http.receive import receive_into
from headrace.store.http.spares import Spares
from headrace.store.hub.connection import HubAnswer, HubConnection
from headrace.store.hub.errors import HubRefusal, error_of_hub_answer
from headrace.store.hub.listing import HubTree, fetch_tree
from headrace.store.hub.settings import HubSettings
from headrace.store.nothing_there import nothing_there
from headrace.store.stored_digest import StoredDigest
from headrace.store.versions import normal_etag

# What an address says that held for a while only.
_EXPIRED = (400, 401, 403, 404, 410)
_SHA256 = re.compile("[0-9a-f]{64}")
_GIT_ID = re.compile("[0-9a-f]{40}")
_logger = logging.getLogger(__name__)

Moved = MutableMapping[str, WebAddress]  # by key: where the hub has led to


class HubStore:
    """One repository, or a folder of it, at the commit that its revision was when it was first listed."""

    def __init__(
        self, source: ModelSource, settings: HubSettings, *, stall_timeout_s: float = STALL_TIMEOUT_S
    ) -> None:
        self.source = source
        self.settings = settings
        self.stall_timeout_s = stall_timeout_s
        self._spares: Spares[HubReader] = Spares()
        self._moved: Moved = {}
        self._tree: HubTree | None = None
        self._lock = threading.Lock()
        host = settings.endpoint.host.rpartition(":")[0] or settings.endpoint.host
        if (
            settings.endpoint.scheme == "http"
            and not settings.principal.is_anonymous
            and not is_loopback(host)
        ):
            _logger.warning(
                "%s: the token in %s is sent unencrypted.", settings.url, settings.principal.origin
            )

    @property
    def identity(self) -> str:
        """Endpoint, repository and folder; versions are told by their content."""
        return f"{self.settings.url}/{self.source.bucket}/{self.source.prefix}"

    def list(self) -> Listing:
        """What lies directly under the folder, in the commit that the revision is now.

        Raises:
            NotFound: there is no such repository, revision or folder, or it is private.
            StoreError: as the taxonomy says.
        """
        with self._lock:
            self._tree = tree = self._fetch()
        listing = tree.directly(self._prefix)
        if not listing.objects and not listing.folders:
            error = nothing_there(self.source, tree.directly)
            raise NotFound(error.uri, error.cause, remedy="Correct the path after the repository's name.")
        return listing

    def list_below(self, folder: str = "") -> Iterator[ObjectInfo]:
        """See ListsBelow.list_below: of the commit that was listed, if one was."""
        below = f"{folder}/" if folder else ""
        for item in self._known_tree().below(self._prefix + below):
            yield replace(item, name=below + item.name)

    def look_up(self, name: str, first_bytes: int) -> Found:
        """See Store.look_up. The first asks for the repository's files too."""
        refuse_odd_name(name, self.source.uri)
        path = self._prefix + name
        file = next((file for file in self._known_tree().files if file.path == path), None)
        if file is None:
            raise NotFound(
                self.source.uri_of(name),
                "The model has no such file at this revision.",
                remedy="Check the name.",
            )
        item = ObjectInfo(f"{self._known_tree().commit}/{path}", name, file.size_bytes, file.version)
        buffer = bytearray(min(first_bytes, item.size_bytes))
        with self._spares.lent(self.open_reader()) as reader:
            reader.read_first(item, Target([memoryview(buffer)]))
        return Found(item, bytes(buffer))

    def describe(self) -> tuple[Setting, ...]:
        """See Described.describe."""
        settings, revision = self.settings, self.source.revision
        found = [
            Setting("endpoint", settings.url, settings.endpoint_from),
            Setting("principal", settings.principal.shown, settings.principal.origin),
            Setting("revision", revision or "main", "the model's name" if revision else "default"),
        ]
        if self._tree is not None:
            found.append(Setting("commit", self._tree.commit, "found out"))
        return tuple(found)

    def open_reader(self) -> "HubReader":
        """A connection of its own for one thread; one that a listing has left open, if there is one."""
        return self._spares.take() or HubReader(self.source, self.settings, self.stall_timeout_s, self._moved)

    @property
    def _prefix(self) -> str:
        return self.source.prefix + "/" if self.source.prefix else ""

    def _known_tree(self) -> HubTree:
        with self._lock:
            if self._tree is None:
                self._tree = self._fetch()
            return self._tree

    def _fetch(self) -> HubTree:
        with self._spares.lent(self.open_reader()) as reader:
            tree = reader.fetch_tree()
        source = self.source
        plain = "" if source.text.lower().startswith("hf:") else f"{source.text} is no folder here. "
        _logger.info("%s%s is read from %s at commit %s.", plain, source.uri, self.settings.url, tree.commit)
        return tree


class HubReader:
    """Ranged reads of a commit's files."""

    def __init__(
        self, source: ModelSource, settings: HubSettings, stall_timeout_s: float, moved: Moved
    ) -> None:
        """Args: moved: where the hub has led other readers to; this one adds to it."""
        self._source, self._settings, self._moved = source, settings, moved
        self._stall_timeout_s = stall_timeout_s
        self._connection = HubConnection(settings, stall_timeout_s)

    def fetch_tree(self) -> HubTree:
        """See headrace.store.hub.listing.fetch_tree."""
        self._connection.be_patient(min(self._stall_timeout_s, FIRST_STALL_TIMEOUT_S))
        try:
            return fetch_tree(self._connection, self._source)
        finally:
            self._connection.be_patient(self._stall_timeout_s)

    def read_first(self, item: ObjectInfo, target: Target) -> None:
        """As read_into from the object's start, for whoever waits at a terminal."""
        self._connection.be_patient(min(self._stall_timeout_s, FIRST_STALL_TIMEOUT_S))
        try:
            self.read_into(item, 0, target)
        finally:
            self._connection.be_patient(self._stall_timeout_s)

    def stored_digest(self, item: ObjectInfo) -> StoredDigest | None:
        """See KeepsDigests: the listing calls large files by their SHA-256, others as git does, and asks nobody."""
        if _SHA256.fullmatch(item.version):
            return StoredDigest("SHA-256", item.version, "the hub")
        if _GIT_ID.fullmatch(item.version) and not item.key.startswith(
            f"{item.version}/"
        ):  # not the commit's own
            return StoredDigest("git object id", item.version, "the hub")
        return None

    def read_into(self, item: ObjectInfo, start: int, target: Target) -> None:
        """See Reader.read_into."""
        if target.received == target.size:
            return
        first, last = start + target.received, start + target.size - 1
        uri = self._source.uri_of(item.name)
        answer = self._get(item, {"Range": f"bytes={first}-{last}"}, uri)
        if answer.head.status not in (200, 206):
            answer.http.read_body()
            refusal = HubRefusal(uri, answer.head, self._connection.is_hub(answer.address))
            raise removed_error(error_of_hub_answer(refusal, self._source, self._settings), item)
        check_encoding(answer.head, uri)
        check_range(answer.head, item, first, last, uri)
        receive_into(answer.http, target, uri)

    def _get(self, item: ObjectInfo, headers: Mapping[str, str], uri: str) -> HubAnswer:
        moved = self._moved.get(item.key)
        if moved is not None:
            answer = self._connection.get(moved, headers, uri)
            if answer.head.status not in _EXPIRED:
                return answer
            answer.http.read_body()
            # Another reader may have put a new one in its place by now.
            if self._moved.get(item.key) == moved:
                self._moved.pop(item.key, None)
        answer = self._connection.get(self._address(item.key), headers, uri)
        for head in answer.from_hub:
            _check_version(head, item, uri)
        if answer.head.status in (200, 206) and not self._connection.is_hub(answer.address):
            self._moved[item.key] = answer.address
        return answer

    def _address(self, key: str) -> WebAddress:
        commit, _, path = key.partition("/")
        return self._settings.address(f"/{self._source.bucket}/resolve/{commit}/{quote(path)}")

    def abort(self) -> None:
        """See Reader.abort."""
        self._connection.abort()

    def close(self) -> None:
        """See Reader.close."""
        self._connection.close()


def _check_version(head: Head, item: ObjectInfo, uri: str) -> None:
    """Prove that an answer of the hub is about the listed version of the file. Raises Changed.

    The hub names it in X-Linked-ETag where it leads on to another host, which has entity tags of its own, and else in
    the ETag; some mirrors put tags of another kind there, or the commit.
    """
    headers = head.headers
    if head.status >= 400:
        return
    commit = item.key.partition("/")[0]
    said_commit = headers.get("x-repo-commit", commit)
    tag = normal_etag(headers.get("x-linked-etag") or headers.get("etag", "")).removeprefix("W/")
    size = headers.get("x-linked-size", str(item.size_bytes))
    if said_commit != commit:
        found = f"of commit {said_commit:.64}"
    elif item.version != commit and len(tag) == len(item.version) and tag not in (item.version, commit):
        found = f"ETag {tag:.80}"
    elif size != str(item.size_bytes):
        found = f"{size:.20} bytes"
    else:
        return
    listed = f"{item.size_bytes:,} bytes, ETag {item.version}, of commit {commit}"
    raise Changed(
        uri,
        f"The hub has another file than it listed. Listed: {listed}; now {found}.",
        remedy=AGAIN,
        status=head.status,
    )
