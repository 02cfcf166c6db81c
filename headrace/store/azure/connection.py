"""Requests to Azure's blob service over one connection, each authorized by credentials that are valid now.

https://learn.microsoft.com/rest/api/storageservices/blob-service-rest-api
"""

from collections.abc import Callable, Mapping
from typing import TypeVar
from urllib.parse import quote, urlsplit

from headrace.store.azure.errors import error_of_azure_response
from headrace.store.azure.request import BlobRequest
from headrace.store.azure.settings import AzureSettings
from headrace.store.errors import ExpiredCredentials, StoreError
from headrace.store.http.connect import endpoint_of
from headrace.store.http.connection import STALL_TIMEOUT_S, Head, HttpConnection

# Old enough for emulators and private clouds; listings tell directories and odd names since 2021-02-12.
API_VERSION = "2021-12-02"

Result = TypeVar("Result")


class AzureConnection:
    """For one container. Belongs to one thread; only `http.abort` may come from another."""

    def __init__(
        self, settings: AzureSettings, container: str, *, uri: str, stall_timeout_s: float = STALL_TIMEOUT_S
    ) -> None:
        """Args: uri: the container or prefix that is used, for messages."""
        self.settings, self.uri = settings, uri
        endpoint = settings.endpoint
        self._path = f"{endpoint.path}/{quote(container, safe='')}"
        self._host = urlsplit(endpoint.url).netloc
        self._authorization = ""
        self.http = HttpConnection(
            endpoint_of(endpoint.url, settings.trust, named_by=endpoint.named_by),
            stall_timeout_s=stall_timeout_s,
        )

    def send(
        self,
        method: str,
        key: str,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        body: bytes | memoryview | None = None,
    ) -> Head:
        """Send one request and read the answer's head; the body is to be read from `http`.

        Args:
            key: of a blob, "" for the container.

        Raises StoreError.
        """
        path = f"{self._path}/{quote(key, safe='/')}" if key else self._path
        own = {**headers, "x-ms-version": API_VERSION}
        request = BlobRequest(method, path, query, own, len(body) if body is not None else 0)
        self.settings.principal.authorize(request)
        self._authorization = request.headers.get("Authorization", "")
        sent = {
            "Host": self._host,
            **request.headers,
            "Accept-Encoding": "identity",
            "User-Agent": "headrace",
        }
        return self.http.request(request.target, list(sent.items()), method=method, body=body)

    def error(self, uri: str, head: Head, body: bytes) -> StoreError:
        """The typed error for an answer that is not a success."""
        return error_of_azure_response(uri, head, body, self.settings)

    def with_renewal(self, request: Callable[[], Result]) -> Result:
        """Make a request; once more with a new token where the store does not take the one there was."""
        try:
            return request()
        except ExpiredCredentials:
            if not self.settings.principal.renew(self._authorization):
                raise
            return request()
