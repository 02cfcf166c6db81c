"""Requests for one bucket of an S3 store: signed anew each time, and asked again where the bucket really is."""

import threading
from collections.abc import Callable
from typing import TypeVar
from urllib.parse import quote

from headrace.store.errors import AccessDenied, BadSignature, ExpiredCredentials, NoCredentials, WrongRegion
from headrace.store.http.connect import endpoint_of
from headrace.store.http.connection import STALL_TIMEOUT_S, Head, HttpConnection
from headrace.store.s3.address import S3Address
from headrace.store.s3.settings import S3Settings

Answer = TypeVar("Answer")


class S3Connection:
    """GET and HEAD requests for one bucket. Belongs to one thread; only `abort` may come from another.

    Attributes:
        http: the connection that the last request went over.
    """

    def __init__(self, settings: S3Settings, bucket: str, stall_timeout_s: float = STALL_TIMEOUT_S) -> None:
        """Raises Unsupported for a bucket that cannot be read."""
        self._settings, self._bucket = settings, bucket
        self._stall_timeout_s = stall_timeout_s
        self._lock = threading.Lock()
        self._aborted = False
        self._address = settings.address_of(bucket)
        self.http = self._connect(self._address)

    def be_patient(self, stall_timeout_s: float) -> None:
        """Bear silences of this length from now on."""
        self._stall_timeout_s = stall_timeout_s
        self.http.be_patient(stall_timeout_s)

    def get(self, key: str, query: dict[str, str], headers: dict[str, str]) -> Head:
        """Send a GET and read the head; the body is to be read from `http`."""
        return self._send("GET", key, query, headers)

    def head(self, key: str, headers: dict[str, str]) -> Head:
        """What a GET of the object would begin with."""
        return self._send("HEAD", key, {}, headers)

    def fetch(self, key: str, query: dict[str, str], *, limit_bytes: int) -> tuple[Head, bytes]:
        """A GET with its whole body."""
        head = self.get(key, query, {})
        return head, self.http.read_body(limit_bytes)

    def asked_again(self, request: Callable[[], Answer]) -> Answer:
        """Make a request that raises what the store answers; again where that can help.

        Once in the region that the store names, and once with other credentials, if there are others now: they may
        have expired or been rotated since the last request.
        """
        moved = renewed = False
        while True:
            used, address = self._settings.signer(), self._settings.address_of(self._bucket)
            try:
                return request()
            except WrongRegion as error:
                if moved or not self._settings.move(self._bucket, error.region, address):
                    raise
                moved = True
            except (ExpiredCredentials, AccessDenied, BadSignature, NoCredentials):
                if renewed or not self._settings.renew_credentials(used):
                    raise
                renewed = True

    def _send(self, method: str, key: str, query: dict[str, str], headers: dict[str, str]) -> Head:
        address = self._settings.address_of(self._bucket)
        if address.origin != self._address.origin:
            self._reconnect(address)
        self._address = address
        target = address.path + quote(key, safe="/-._~")
        if query:
            target += "?" + "&".join(
                f"{quote(name, safe='-._~')}={quote(value, safe='-._~')}"
                for name, value in sorted(query.items())
            )
        # Host is given, so that what is signed is what is sent whatever the port and the letters' case.
        headers = {"Host": address.netloc, **headers}
        if self._settings.request_payer:
            headers["x-amz-request-payer"] = self._settings.request_payer
        sent = [
            *self._signed(method, target, headers),
            ("Accept-Encoding", "identity"),
            ("User-Agent", "headrace"),
        ]
        return self.http.request(target, sent, method=method)

    def _signed(self, method: str, target: str, headers: dict[str, str]) -> list[tuple[str, str]]:
        # Credentials are asked for anew each time: they may expire during a long load.
        signer = self._settings.signer()
        if signer is None:
            return list(headers.items())
        from botocore.auth import S3SigV4Auth
        from botocore.awsrequest import AWSRequest

        request = AWSRequest(method, self._address.origin + target, headers=headers)
        S3SigV4Auth(signer, "s3", self._address.region).add_auth(request)
        signed = [(name, str(value)) for name, value in request.headers.items()]
        if not all(value.isascii() and value.isprintable() for _, value in signed):
            keys = self._settings.key_names
            raise NoCredentials(
                self._address.origin,
                "The access key, the session token or the region holds a character that no request can carry.",
                remedy=f"Check {keys.access_key}, {keys.token} and {self._settings.region_name} for stray characters.",
            )
        return signed

    def _connect(self, address: S3Address) -> HttpConnection:
        endpoint = endpoint_of(address.origin, self._settings.trust, named_by=self._settings.endpoint_name)
        return HttpConnection(endpoint, stall_timeout_s=self._stall_timeout_s)

    def _reconnect(self, address: S3Address) -> None:
        with self._lock:
            self.http.close()
            self.http = self._connect(address)
            if self._aborted:
                self.http.abort()

    def abort(self) -> None:
        """End what is under way in another thread; later requests fail."""
        with self._lock:
            self._aborted = True
            self.http.abort()

    def close(self) -> None:
        """Close the connection."""
        self.http.close()
