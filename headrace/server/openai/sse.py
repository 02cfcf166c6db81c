"""Server-sent events as OpenAI's clients read them."""

from collections.abc import AsyncIterator

import msgspec
from starlette.types import Send

_encoder = msgspec.json.Encoder()

DONE = b"data: [DONE]\n\n"


def event(content: object) -> bytes:
    """One event with `content` as JSON (which never holds a bare line break)."""
    return b"data: " + _encoder.encode(content) + b"\n\n"


async def send_events(send: Send, first: bytes, rest: AsyncIterator[bytes]) -> None:
    """Answer 200 with `first` and what follows, each as soon as it is there, then DONE.

    `rest` turns its own errors into events: the status has been sent when they happen.
    """
    headers = [
        (b"content-type", b"text/event-stream; charset=utf-8"),
        (b"cache-control", b"no-cache"),
        (b"x-accel-buffering", b"no"),  # nginx would hold the stream back
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": first, "more_body": True})
    async for data in rest:
        await send({"type": "http.response.body", "body": data, "more_body": True})
    await send({"type": "http.response.body", "body": DONE, "more_body": False})
