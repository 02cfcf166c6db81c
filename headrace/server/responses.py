"""Responses that msgspec encodes."""

import msgspec
from starlette.responses import Response

from headrace.server.errors import ApiError

_encoder = msgspec.json.Encoder()


class JsonResponse(Response):
    """Any msgspec-encodable object as JSON."""

    media_type = "application/json"

    def render(self, content: object) -> bytes:
        """The body."""
        return _encoder.encode(content)


def error_response(error: ApiError) -> JsonResponse:
    """An error in OpenAI's shape."""
    return JsonResponse(error.body(), status_code=error.status, headers=error.headers)
