"""Around the whole application: every request gets an id, which its answer bears, and is counted by its end."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.server.seen.metrics import ServerMetrics
from headrace.server.seen.request_trace import REQUEST_ID_HEADER, RequestTrace, begin, request_id

if TYPE_CHECKING:
    from headrace.server.seen.tracing import Tracing

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
# What a client that left before its answer began is counted as; nothing with this status is ever sent.
_CLIENT_LEFT = 499


class HttpMeter:
    """An ASGI application around another one. `paths`: of its routes, which metrics name. `tracing` is told, too.

    It stands outside of what answers a defect with a 500, so that this answer has an id too.
    """

    def __init__(
        self, app: ASGIApp, metrics: ServerMetrics, paths: Iterable[str], tracing: "Tracing | None" = None
    ) -> None:
        self._app = app
        self._metrics = metrics
        self._paths = frozenset(paths)
        self._tracing = tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        method = scope["method"]
        trace = RequestTrace(
            request_id(_given_id(scope)),
            route_of(scope["path"], self._paths),
            method if method in _METHODS else "other",
            self._metrics.clock(),
        )
        begin(trace)
        id_header = (REQUEST_ID_HEADER, trace.request_id.encode("ascii"))

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                trace.status = message["status"]
                message = {**message, "headers": [*message.get("headers", ()), id_header]}
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                trace.complete = True
                self._end(
                    trace, scope
                )  # before it leaves: a scrape by whoever has read the answer finds it counted
            await send(message)

        self._metrics.http_requests_active += 1
        try:
            await self._app(scope, receive, send_with_id)
        finally:
            if not trace.complete:
                self._end(trace, scope)

    def _end(self, trace: RequestTrace, scope: Scope) -> None:
        status, now_s = trace.status or _CLIENT_LEFT, self._metrics.clock()
        self._metrics.http_requests_active -= 1
        self._metrics.count_response(trace, status, now_s)
        if self._tracing is not None:
            self._tracing.request_ended(trace, status, now_s, scope["headers"])


def route_of(path: str, paths: frozenset[str]) -> str:
    """The route's own path, or "other": clients must not be able to make new label values."""
    if path in paths:
        return path
    for pattern in paths:
        start, brace, _ = pattern.partition("{")
        if brace and path.startswith(start) and len(path) > len(start):
            return start + "{id}"
    return "other"


def _given_id(scope: Scope) -> bytes | None:
    for name, value in scope["headers"]:
        if name == REQUEST_ID_HEADER:
            assert isinstance(value, bytes)
            return value
    return None
