"""Plain objects of a web server: pinned, ranged reads over http:// and https://, and a folder without a listing."""

import logging
from collections.abc import Mapping, MutableMapping
from urllib.parse import quote, urlsplit

from headrace.source.objects import Listing, ObjectInfo
from headrace.source.uri import ModelSource
from headrace.source.web_address import WebAddress
from headrace.store.base import Found, Target, refuse_odd_name
from headrace.store.described import Setting
from headrace.store.errors import NotFound, StoreError
from headrace.store.http.answer import check_answer, removed_error, replaced_error
from headrace.store.http.connection import FIRST_STALL_TIMEOUT_S, STALL_TIMEOUT_S, Head
from headrace.store.http.proxy import is_loopback
from headrace.store.http.receive import receive_found, receive_into
from headrace.store.http.spares import Spares
from headrace.store.versions import is_weak, warn_of_weak_versions
from headrace.store.web.connection import Answer, WebConnection, carries_token
from headrace.store.web.errors import error_of_web_response
from headrace.store.web.listing import list_by_looking_up
from headrace.store.web.settings import TOKEN_VARIABLE, WebSettings

# Answers that a redirect's old target may give, while the object is still where it always was.
_LED_ASTRAY = (401, 403, 404, 410)
_logger = logging.getLogger(__name__)


class HttpStore:
    """One folder (or one object) of a web server."""

    def __init__(
        self, source: ModelSource, settings: WebSettings, *, stall_timeout_s: float = STALL_TIMEOUT_S
    ) -> None:
        self.source = source
        self.settings = settings
        self.stall_timeout_s = stall_timeout_s
        self._spares: Spares[HttpReader] = Spares()
        self._prefixes: dict[str, Found] = {}
        if settings.token and source.scheme == "http" and not is_loopback(_host_of(source)):
            _logger.warning("%s: the token in %s is sent unencrypted.", source.uri, TOKEN_VARIABLE)

    @property
    def identity(self) -> str:
        """The address without its query."""
        return self.source.uri

    def list(self) -> Listing:
        """The files that a model's folder is known to hold, each looked up: a web server has no listing.

        Raises:
            NotFound: none of them is there.
            StoreError: as the taxonomy says.
        """
        found = list_by_looking_up(self)
        self._prefixes.update({each.item.key: each for each in found})
        listing = Listing(tuple(sorted((each.item for each in found), key=lambda item: item.name)))
        warn_of_weak_versions(self.source.uri, listing)
        return listing

    def describe(self) -> tuple[Setting, ...]:
        """See Described.describe."""
        token = self.settings.token
        return (
            Setting("endpoint", f"{self.source.scheme}://{self.source.bucket}", "the model's address"),
            Setting("principal", "a token" if token else "anonymous", TOKEN_VARIABLE if token else "default"),
        )

    def look_up(self, name: str, first_bytes: int) -> Found:
        """See Store.look_up."""
        refuse_odd_name(name, self.source.uri)
        with self._spares.lent(self.open_reader()) as reader:
            return reader.look_up(name, first_bytes)

    def open_reader(self) -> "HttpReader":
        """A connection of its own for one thread; one that a look-up has left open, if there is one."""
        return self._spares.take() or HttpReader(
            self.source, self.settings, self.stall_timeout_s, self._prefixes
        )


class HttpReader:
    """Ranged reads of objects that were looked up, each pinned to that version."""

    def __init__(
        self,
        source: ModelSource,
        settings: WebSettings,
        stall_timeout_s: float,
        prefixes: MutableMapping[str, Found],
    ) -> None:
        """Args: prefixes: by key, first bytes that are known already, each to be taken once."""
        self._source, self._settings, self._prefixes = source, settings, prefixes
        self._stall_timeout_s = stall_timeout_s
        self._home = f"{source.scheme}://{source.bucket}"
        self._connection = WebConnection(settings, self._home, stall_timeout_s)
        self._moved: dict[str, WebAddress] = {}  # where redirects led to

    def look_up(self, name: str, first_bytes: int) -> Found:
        """See Store.look_up."""
        folder = f"/{self._source.prefix}/" if self._source.prefix else "/"
        key = folder + quote(name)
        self._connection.be_patient(min(self._stall_timeout_s, FIRST_STALL_TIMEOUT_S))
        try:
            return self._look_up(key, name, first_bytes)
        finally:
            self._connection.be_patient(self._stall_timeout_s)

    def _look_up(self, key: str, name: str, first_bytes: int) -> Found:
        uri = self._source.uri_of(name)
        answer = self._get(key, {"Range": f"bytes=0-{first_bytes - 1}"}, uri)
        if answer.head.status == 416:  # an empty object has no first byte
            answer.http.read_body()
            answer = self._get(key, {}, uri)
        if answer.head.status not in (200, 206):
            raise self._error(answer, uri)
        _refuse_page(answer, name, uri)
        return receive_found(answer.http, answer.head, key, name, first_bytes, uri)

    def read_into(self, item: ObjectInfo, start: int, target: Target) -> None:
        """See Reader.read_into."""
        self._take_known(item, start, target)
        if target.received == target.size:
            return
        first, last = start + target.received, start + target.size - 1
        headers = {"Range": f"bytes={first}-{last}"}
        if item.version and not is_weak(item.version):
            headers["If-Match"] = f'"{item.version}"'
        uri = self._source.uri_of(item.name)
        answer = self._get(item.key, headers, uri)
        if answer.head.status not in (200, 206):
            error = self._error(answer, uri)
            if answer.head.status == 412:
                raise replaced_error(error, item, self._look(item))
            raise removed_error(error, item)
        check_answer(answer.head, item, first, last, uri)
        receive_into(answer.http, target, uri)

    def _look(self, item: ObjectInfo) -> Head | None:
        """The head of what is there now; None where it does not come: it is only asked for a message."""
        try:
            now = self.look_up(item.name, 1).item
        except NotFound:
            return Head(404, {})
        except StoreError:
            return None
        return Head(200, {"etag": now.version, "content-length": str(now.size_bytes)})

    def _take_known(self, item: ObjectInfo, start: int, target: Target) -> None:
        """Take a range that lies within the first bytes, which the look-up has brought already.

        What only begins there is read anew: a server without ranges sends all of an object or nothing.
        """
        known = self._prefixes.get(item.key)
        if known is None or known.item != item or start + target.size > len(known.prefix):
            return
        while len(view := target.next_view()):
            at = start + target.received
            view[:] = known.prefix[at : at + len(view)]
            target.received += len(view)
        self._prefixes.pop(item.key, None)  # once is enough: they would add up with the shards

    def _get(self, key: str, headers: Mapping[str, str], uri: str) -> Answer:
        own = WebAddress(self._source.scheme, self._source.bucket, key, self._source.query)
        moved = self._moved.pop(key, None)  # kept only where it leads to an answer
        answer = self._connection.get(moved or own, list(headers.items()), uri)
        if moved is not None and answer.head.status in _LED_ASTRAY:
            # Signed addresses, as redirects often give, hold for a while only.
            answer.http.read_body()
            answer = self._connection.get(own, list(headers.items()), uri)
        if answer.address != own and answer.head.status in (200, 206):
            self._moved[key] = answer.address
        return answer

    def _error(self, answer: Answer, uri: str) -> StoreError:
        token = carries_token(self._settings, self._home, answer.address)
        body = answer.http.read_body()
        return error_of_web_response(uri, answer.head, body, token=token, query=bool(answer.address.query))

    def abort(self) -> None:
        """See Reader.abort."""
        self._connection.abort()

    def close(self) -> None:
        """See Reader.close."""
        self._connection.close()


def _host_of(source: ModelSource) -> str:
    return urlsplit(source.uri).hostname or ""


def _refuse_page(answer: Answer, name: str, uri: str) -> None:
    """Some servers answer for what they do not have with a page, and some with a form to sign in."""
    kind = answer.head.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind in ("text/html", "application/xhtml+xml") and not name.endswith((".html", ".htm")):
        raise NotFound(
            uri,
            f"The server answers with a web page ({kind}) instead of the object.",
            remedy=f"Check the address, and whether one has to sign in ({TOKEN_VARIABLE}).",
            status=answer.head.status,
        )
