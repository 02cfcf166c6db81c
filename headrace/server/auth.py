"""The API key. Every route asks for it unless it is named here."""

import hmac

from starlette.types import ASGIApp, Receive, Scope, Send

from headrace.server.errors import ApiError
from headrace.server.responses import error_response

# Probes and scrapers have no key. Exact paths only: a prefix would open what is added below it later.
OPEN_PATHS = frozenset({"/health", "/ready", "/ping", "/metrics"})


class ApiKeyMiddleware:
    """Answers 401 to what does not bring `Authorization: Bearer KEY`."""

    def __init__(self, app: ASGIApp, api_key: str) -> None:
        self._app = app
        self._expected = api_key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._may_pass(scope):
            error = ApiError(
                401,
                "The API key is missing or wrong. Send it as `Authorization: Bearer KEY`.",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
            await error_response(error)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _may_pass(self, scope: Scope) -> bool:
        if scope["path"] in OPEN_PATHS or scope["method"] == "OPTIONS":
            return True
        for name, value in scope["headers"]:
            if name == b"authorization":
                scheme, _, key = value.partition(b" ")
                if scheme.lower() != b"bearer":
                    return False
                return hmac.compare_digest(key.strip(), self._expected)
        return False
