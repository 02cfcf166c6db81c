"""What a repository of the hub holds at one commit: by one request, or page by page where that does not tell sizes.

API: https://huggingface.co/docs/hub/api (`/api/models/{repo}/revision/{revision}` and `/api/models/{repo}/tree/...`).
"""

import re
from dataclasses import dataclass, replace
from typing import TypeVar
from urllib.parse import quote

import msgspec

from headrace.source.objects import Listing, ObjectInfo
from headrace.source.uri import ModelSource
from headrace.source.web_address import WebAddress
from headrace.store.errors import BadEndpoint, Unsupported
from headrace.store.http.redirects import next_address
from headrace.store.hub.connection import HubConnection
from headrace.store.hub.errors import HubRefusal, error_of_hub_answer

T = TypeVar("T")
_MAX_ANSWER_BYTES = 256 << 20
_MAX_PAGES = 1_000
# The hub does not promise to name more files than this in the answer about a model.
_RELIABLE_FILES = 10_000
_COMMIT = re.compile(r"[0-9a-f]{40,64}", re.ASCII)
_NEXT = re.compile(r'<([^<>]+)>\s*;\s*rel="?next"?', re.IGNORECASE)


class _Lfs(msgspec.Struct):
    size: int
    sha256: str = ""  # so the answer about a model calls it
    oid: str = ""  # and so the tree


class _Sibling(msgspec.Struct):
    rfilename: str
    size: int | None = None
    blobId: str = ""  # noqa: N815 - the API's name
    lfs: _Lfs | None = None


class _Model(msgspec.Struct):
    sha: str
    siblings: list[_Sibling] = []


class _Entry(msgspec.Struct):
    type: str
    path: str
    size: int = 0
    oid: str = ""
    lfs: _Lfs | None = None


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a commit.

    Attributes:
        path: from the repository's top.
        version: the SHA-256 of a large file, the git object of another one; the commit where a mirror tells neither.
    """

    path: str
    size_bytes: int
    version: str


@dataclass(frozen=True, slots=True)
class HubTree:
    """All files of one commit, sorted by path."""

    commit: str
    files: tuple[HubFile, ...]

    def below(self, prefix: str) -> "list[ObjectInfo]":
        """The files under a key prefix ("" or ending in a slash), named relative to it, in all depths."""
        return [
            ObjectInfo(
                f"{self.commit}/{file.path}", file.path.removeprefix(prefix), file.size_bytes, file.version
            )
            for file in self.files
            if file.path.startswith(prefix)
        ]

    def directly(self, prefix: str) -> Listing:
        """What lies directly under a key prefix ("" or ending in a slash)."""
        items = self.below(prefix)
        folders = {item.name.partition("/")[0] for item in items if "/" in item.name}
        return Listing(tuple(item for item in items if "/" not in item.name), tuple(sorted(folders)))


def fetch_tree(connection: HubConnection, source: ModelSource) -> HubTree:
    """The commit that the revision is now, and its files.

    Raises:
        NotFound, NoCredentials, AccessDenied: as error_of_hub_answer says.
        BadEndpoint: what answers is no hub.
        StoreError: as the taxonomy says.
    """
    repository = f"/api/models/{source.bucket}"
    revision = quote(source.revision or "main", safe="")
    address = connection.settings.address(f"{repository}/revision/{revision}", "blobs=true")
    body, _ = _ask(connection, address, source)
    model = _decoded(body, _Model, connection, source)
    if not _COMMIT.fullmatch(model.sha):
        raise _no_hub(connection, source, "it names no commit")
    whole = len(model.siblings) < _RELIABLE_FILES
    if whole and all(file.lfs is not None or file.size is not None for file in model.siblings):
        found = [
            HubFile(
                file.rfilename,
                file.lfs.size if file.lfs else file.size or 0,
                (file.lfs.sha256 or file.lfs.oid) if file.lfs else file.blobId,
            )
            for file in model.siblings
        ]
    else:
        found = _fetch_pages(connection, source, model.sha)
    for file in found:
        if not {"", ".", ".."}.isdisjoint(file.path.split("/")) or file.size_bytes < 0:
            raise _no_hub(connection, source, f"it lists {file.path!r:.100}, which no commit can hold")
    told = (file if file.version else replace(file, version=model.sha) for file in found)
    return HubTree(model.sha, tuple(sorted(told, key=lambda file: file.path)))


def _fetch_pages(connection: HubConnection, source: ModelSource, commit: str) -> list[HubFile]:
    path = f"/api/models/{source.bucket}/tree/{commit}"
    if source.prefix:
        path += f"/{quote(source.prefix)}"
    address: WebAddress | None = connection.settings.address(path, "recursive=true")
    found: list[HubFile] = []
    for _ in range(_MAX_PAGES):
        assert address is not None
        body, address = _ask(connection, address, source)
        for entry in _decoded(body, list[_Entry], connection, source):
            if entry.type == "file":
                size, version = entry.size, entry.oid
                if entry.lfs is not None:
                    size, version = entry.lfs.size, entry.lfs.oid or entry.lfs.sha256
                found.append(HubFile(entry.path, size, version))
        if address is None:
            return found
    raise Unsupported(
        source.uri,
        f"The repository's listing has more than {_MAX_PAGES:,} pages.",
        remedy="Name the folder of it that holds the model.",
    )


def _ask(
    connection: HubConnection, address: WebAddress, source: ModelSource
) -> tuple[bytes, WebAddress | None]:
    """An answer's body, and the address of the page after it."""
    answer = connection.get(address, {"Accept": "application/json"}, source.uri)
    at_hub = connection.is_hub(answer.address)
    if answer.head.status != 200:
        answer.http.read_body()
        raise error_of_hub_answer(HubRefusal(source.uri, answer.head, at_hub), source, connection.settings)
    body = answer.http.read_body(_MAX_ANSWER_BYTES)
    link = _NEXT.search(answer.head.headers.get("link", ""))
    if link is None:
        return body, None
    # Read as a redirect is: it may be relative, and must not lead from https to http.
    head = type(answer.head)(answer.head.status, {"location": link.group(1)})
    following = next_address(answer.address, head, source.uri)
    if following.origin != answer.address.origin:
        raise _no_hub(connection, source, "its next page is another host's")
    return body, following


def _decoded(body: bytes, kind: type[T], connection: HubConnection, source: ModelSource) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _no_hub(connection, source, f"{error!s:.200}") from None


def _no_hub(connection: HubConnection, source: ModelSource, why: str) -> BadEndpoint:
    settings = connection.settings
    return BadEndpoint(
        source.uri,
        f"{settings.url} does not answer as the hub's API does: {why}.",
        remedy=f"Check {settings.named_by}.",
    )
