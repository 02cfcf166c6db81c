"""What uvicorn answers by itself to what is not HTTP, in the shape of every other error."""

import h11
import msgspec
from uvicorn.protocols.http.h11_impl import H11Protocol

from headrace.server.errors import invalid
from headrace.server.seen.request_trace import REQUEST_ID_HEADER, request_id

_MESSAGE = (
    "The request is not valid HTTP/1.1: its first line or a header is malformed, or they are too long together. "
    "Send large values in the body."
)


class HttpProtocol(H11Protocol):
    """uvicorn's h11 protocol, whose 400 is OpenAI's error object instead of plain text."""

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 (uvicorn's own words, which say less)
        """Answer and close."""
        body = msgspec.json.encode(invalid(_MESSAGE, code="invalid_http").body())
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
            (REQUEST_ID_HEADER, request_id().encode()),
        ]
        for event in (
            h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
