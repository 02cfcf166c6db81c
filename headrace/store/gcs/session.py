"""One resumable upload: a session, then the file in pieces, each of which the store says that it has.

https://cloud.google.com/storage/docs/performing-resumable-uploads. A session's address is as good as a signature: it
is never shown, and only its path is used, at the endpoint that the settings name.
"""

import json
import os
import re
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

import msgspec

from headrace.store.errors import TransientError, Truncated, Unsupported
from headrace.store.gcs.connection import GcsConnection, upload_target
from headrace.store.http.connection import Head

PIECE_BYTES = 16 << 20  # a multiple of 256 KiB, as pieces must be
_DONE = (200, 201)
_INCOMPLETE = 308
_GONE = (404, 410)
_PERSISTED = re.compile(r"(?:bytes=)?0-(\d{1,19})", re.ASCII)
_MAX_ANSWER_BYTES = 1 << 20


class StoredObject(msgspec.Struct):
    """What the store says of an object.

    Attributes:
        size, crc32c: as it writes them.
        metadata: what was said of it when it was uploaded.
    """

    size: str
    crc32c: str = ""
    metadata: dict[str, str] = msgspec.field(default_factory=dict)


class SessionLost(TransientError):
    """The store knows nothing of the session any more: the upload begins anew."""


def parse_object(body: bytes, uri: str) -> StoredObject:
    """The facts in an object's resource. Raises Unsupported."""
    try:
        return msgspec.json.decode(body, type=StoredObject)
    except msgspec.MsgspecError:
        raise Unsupported(
            uri, "The store does not tell the object's facts as JSON.", remedy="Check the endpoint."
        ) from None


class Session:
    """An upload that has begun. Belongs to one thread."""

    def __init__(
        self,
        connection: GcsConnection,
        bucket: str,
        resource: Mapping[str, object],
        size_bytes: int,
        uri: str,
    ) -> None:
        """Begin one.

        Args:
            resource: name, checksum and metadata of the object to be.

        Raises StoreError.
        """
        self._connection, self._size, self._uri = connection, size_bytes, uri
        target = upload_target(bucket, {"uploadType": "resumable", "name": str(resource["name"])})
        headers = {
            "Content-Type": "application/json; charset=UTF-8",
            "X-Upload-Content-Type": "application/octet-stream",
            "X-Upload-Content-Length": str(size_bytes),
        }
        body = json.dumps(resource).encode()
        head = connection.with_renewal(lambda: self._begin(target, headers, body))
        parts = urlsplit(head.headers.get("location", ""))
        if not parts.path.startswith("/"):
            raise Unsupported(
                uri,
                "The store begins an upload without saying where its bytes go.",
                remedy="Check that no proxy on the way drops the Location header.",
                status=head.status,
            )
        self._target = f"{parts.path}?{parts.query}"

    def _begin(self, target: str, headers: Mapping[str, str], body: bytes) -> Head:
        head = self._connection.send("POST", target, headers, body)
        answer = self._connection.http.read_body(_MAX_ANSWER_BYTES)
        if head.status not in _DONE:
            raise self._connection.error(self._uri, head, answer, names_object=False)
        return head

    def send(self, descriptor: int, start: int) -> int | StoredObject:
        """Send one piece of a file; how many bytes from its beginning on the store has, or the object when it is all.

        Raises:
            SessionLost: begin anew.
            StoreError: as the taxonomy says; `progress` tells how much has arrived all the same.
        """
        wanted = min(PIECE_BYTES, self._size - start)
        piece = os.pread(descriptor, wanted, start)
        if len(piece) < wanted:
            raise Truncated(self._uri, "The file became shorter while it was uploaded.", remedy="Push again.")
        last = start + len(piece) - 1
        return self._put(
            f"bytes {start}-{last}/{self._size}" if piece else f"bytes */{self._size}", piece, start
        )

    def progress(self) -> int | StoredObject:
        """How much the store has; as `send`."""
        return self._put(f"bytes */{self._size}", b"", 0)

    def _put(self, content_range: str, piece: bytes, start: int) -> int | StoredObject:
        def request() -> tuple[Head, bytes]:
            head = self._connection.send("PUT", self._target, {"Content-Range": content_range}, piece)
            body = self._connection.http.read_body(_MAX_ANSWER_BYTES)
            if head.status not in (*_DONE, _INCOMPLETE):
                raise (
                    self._lost(head)
                    if head.status in _GONE
                    else self._connection.error(self._uri, head, body)
                )
            return head, body

        head, body = self._connection.with_renewal(request)
        if head.status in _DONE:
            return parse_object(body, self._uri)
        persisted = _PERSISTED.fullmatch(head.headers.get("range", ""))
        has = min(int(persisted.group(1)) + 1, self._size) if persisted else 0
        if piece and has <= start:
            raise TransientError(self._uri, "The store took none of the bytes that were sent.")
        return has

    def _lost(self, head: Head) -> SessionLost:
        return SessionLost(
            self._uri, "The store has dropped the upload that was under way.", status=head.status
        )

    def cancel(self, connection: GcsConnection) -> None:
        """Have the store drop what it has of it, on a connection that still works. Raises StoreError."""
        connection.send("DELETE", self._target, {}, b"")
        connection.http.read_body(_MAX_ANSWER_BYTES)


def upload_session(
    begin: Callable[[], Session],
    descriptor: int,
    size_bytes: int,
    *,
    on_bytes: Callable[[int], None],
    retry: Callable[[TransientError, bool], None],
    began: Callable[[Session], None],
) -> StoredObject:
    """Send a whole file, resuming where the store says that it was broken off.

    Args:
        on_bytes: told of bytes that the store has; negative when some are sent again.
        retry: raises the error when there were enough, else waits; told whether anything had arrived since the last.
        began: is given each session.

    Raises StoreError.
    """
    told = 0
    session: Session | None = None
    known: int | None = 0  # None: to be asked for
    moved = True
    while True:
        try:
            if session is None:
                session, known = begin(), 0
                began(session)
            done = session.progress() if known is None else session.send(descriptor, known)
        except TransientError as error:
            retry(error, moved)
            known, moved = None, False
            if isinstance(error, SessionLost):
                session = None
            continue
        now = size_bytes if isinstance(done, StoredObject) else done
        if now != told:
            on_bytes(now - told)
            moved = moved or now > told
        told = now
        if isinstance(done, StoredObject):
            return done
        known = done
