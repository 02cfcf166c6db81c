"""Requests to the JSON API of Google Cloud Storage over one connection, each with a token that is valid now.

https://cloud.google.com/storage/docs/json_api/v1
"""

from collections.abc import Callable, Mapping
from typing import TypeVar
from urllib.parse import quote, urlencode, urlsplit

from headrace.store.errors import ExpiredCredentials, StoreError
from headrace.store.gcs.errors import error_of_gcs_response
from headrace.store.gcs.settings import GcsSettings
from headrace.store.http.connect import endpoint_of
from headrace.store.http.connection import STALL_TIMEOUT_S, Head, HttpConnection

_MAX_ANSWER_BYTES = 16 << 20

Result = TypeVar("Result")


def objects_target(bucket: str, query: Mapping[str, str]) -> str:
    """What a request line asks for: the objects of a bucket."""
    return f"/storage/v1/b/{quote(bucket, safe='')}/o{_query(query)}"


def object_target(bucket: str, key: str, query: Mapping[str, str]) -> str:
    """What a request line asks for: one object. Its key is one segment of the path."""
    return f"/storage/v1/b/{quote(bucket, safe='')}/o/{quote(key, safe='')}{_query(query)}"


def upload_target(bucket: str, query: Mapping[str, str]) -> str:
    """What a request line asks for: a new object in a bucket."""
    return f"/upload/storage/v1/b/{quote(bucket, safe='')}/o{_query(query)}"


def _query(query: Mapping[str, str]) -> str:
    return f"?{urlencode(query, quote_via=quote)}" if query else ""


class GcsConnection:
    """Belongs to one thread; only `abort` may come from another."""

    def __init__(self, settings: GcsSettings, *, uri: str, stall_timeout_s: float = STALL_TIMEOUT_S) -> None:
        """Args: uri: the bucket or prefix that is used, for messages."""
        self.settings = settings
        self.uri = uri
        self._host = urlsplit(settings.endpoint_url).netloc
        endpoint = endpoint_of(settings.endpoint_url, settings.trust, named_by=settings.named_by)
        self.http = HttpConnection(endpoint, stall_timeout_s=stall_timeout_s)

    def send(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes | memoryview | None = None,
    ) -> Head:
        """Send one request and read the answer's head; the body is to be read from `http`. Raises StoreError."""
        token = self.settings.principal.token()
        own = {"Host": self._host, **headers, "Accept-Encoding": "identity", "User-Agent": "headrace"}
        if token:
            own["Authorization"] = f"Bearer {token}"
        if self.settings.user_project:
            own["x-goog-user-project"] = self.settings.user_project
        return self.http.request(target, list(own.items()), method=method, body=body)

    def ask(
        self, method: str, target: str, headers: Mapping[str, str] | None = None, body: bytes | None = None
    ) -> bytes:
        """Send one request; the body of an answer of success. Raises StoreError."""

        def request() -> bytes:
            head = self.send(method, target, headers or {}, body)
            answer = self.http.read_body(_MAX_ANSWER_BYTES)
            if head.status != 200:
                raise self.error(self.uri, head, answer, names_object=False)
            return answer

        return self.with_renewal(request)

    def error(self, uri: str, head: Head, body: bytes, *, names_object: bool = True) -> StoreError:
        """The typed error for an answer that is not a success."""
        return error_of_gcs_response(uri, head, body, self.settings, names_object=names_object)

    def with_renewal(self, request: Callable[[], Result]) -> Result:
        """Make a request; once more with a new token where the store does not take the one there was."""
        principal = self.settings.principal
        used = principal.token()
        try:
            return request()
        except ExpiredCredentials:
            if not principal.renew(used):
                raise
            return request()
