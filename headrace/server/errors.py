"""Errors of a request, in OpenAI's nested shape."""

import msgspec

from headrace.errors import HeadraceError


class ErrorBody(msgspec.Struct, frozen=True):
    """OpenAI's error object. `param` is the request field at fault, `code` a word for programs."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorResponse(msgspec.Struct, frozen=True):
    """What an error answers, and what an error inside a stream sends."""

    error: ErrorBody


class ApiError(HeadraceError):
    """A request that is answered with an error. `status` is HTTP's; the message is for the client."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.headers = headers or {}

    def body(self) -> ErrorResponse:
        """The error as it is sent."""
        return ErrorResponse(ErrorBody(self.message, error_type(self.status), self.param, self.code))


def error_type(status: int) -> str:
    """OpenAI's `type` for a status."""
    if status == 401:
        return "authentication_error"
    if status == 429:
        return "rate_limit_error"
    return "invalid_request_error" if status < 500 else "server_error"


def invalid(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """A 400: the request cannot be answered as it is."""
    return ApiError(400, message, param=param, code=code)


def not_supported_yet(param: str, wanted: str) -> ApiError:
    """A 400 for a field that peers know and that this server does not honour; never passed over in silence."""
    return invalid(
        f"`{param}` is not supported yet (the request has {wanted}). Leave it out.",
        param,
        "unsupported_parameter",
    )


def unavailable(
    message: str, code: str, *, retry_after_s: int | None = None, close: bool = False
) -> ApiError:
    """A 503: the same request may succeed later, or elsewhere."""
    headers = {}
    if retry_after_s is not None:
        headers["Retry-After"] = str(retry_after_s)
    if close:
        headers["Connection"] = "close"
    return ApiError(503, message, code=code, headers=headers)
