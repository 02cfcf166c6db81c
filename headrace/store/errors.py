"""What can go wrong with a store, one class per cause, the same for all stores."""

from headrace.errors import HeadraceError, printable

OPEN_FILES_REMEDY = "Raise the limit of open files (`ulimit -n`), or read with a lower concurrency."


class StoreError(HeadraceError):
    """A store did not do what was asked.

    Attributes:
        uri: the object, prefix or endpoint that was asked for.
        status: the HTTP status, or None where there was no answer.
        code: the store's own error code, or "".
        request_id: the store's id of the request, or "".
    """

    def __init__(
        self,
        uri: str,
        cause: str,
        *,
        remedy: str = "",
        status: int | None = None,
        code: str = "",
        request_id: str = "",
    ) -> None:
        facts = [f"HTTP {status}" if status is not None else "", code]
        facts.append(f"request id {request_id}" if request_id else "")
        shown = ", ".join(fact for fact in facts if fact)
        super().__init__(f"{printable(uri, keep='')}: {cause}{f' ({shown})' if shown else ''}", remedy=remedy)
        self.uri, self.cause, self.status, self.code, self.request_id = uri, cause, status, code, request_id


class NotFound(StoreError):
    """No such bucket, prefix or object."""


class AccessDenied(StoreError):
    """The principal may not do this."""


class BadSignature(StoreError):
    """The key id is unknown, the secret is wrong or the clock is off."""


class ExpiredCredentials(StoreError):
    """The session token is no longer valid."""


class NoCredentials(StoreError):
    """No credentials were found anywhere."""


class WrongRegion(StoreError):
    """The bucket lives in another region than was asked, or no region can have this name.

    Attributes:
        region: where the store says that it lives, or "".
    """

    region: str = ""


class BadEndpoint(StoreError):
    """The endpoint's address does not parse, resolve, answer, or is not a store."""


class Unreachable(BadEndpoint):
    """No connection to the endpoint: final when it is first asked, worth trying again in the middle of a load."""


class TlsError(StoreError):
    """The TLS handshake failed."""


class Truncated(StoreError):
    """Sizes disagree: the object is shorter (or longer) than the listing or its own header says."""


class Changed(StoreError):
    """The object was replaced, or vanished, since it was listed."""


class Corrupt(StoreError):
    """Bytes are not those that the manifest, or the store's own checksum of the whole object, was made of."""


class Unsupported(StoreError):
    """The store answered in a way that Headrace cannot use."""


class TransientError(StoreError):
    """Worth trying again: reset, time-out, stall, short body, 5xx, 429.

    Attributes:
        retry_after_s: how long the store asked to wait, or None.
    """

    retry_after_s: float | None = None


class TimedOut(TransientError):
    """A connection was silent for longer than is borne."""


class Throttled(TransientError):
    """The store asked to slow down: 429, 503."""
