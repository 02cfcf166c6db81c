"""A streamed answer: what comes first, what comes last, and how an error in the middle is told."""

import logging
from collections.abc import AsyncIterator

from msgspec import UNSET
from starlette.types import Send

from headrace.server.errors import ApiError
from headrace.server.openai.answer_shape import AnswerShape, Piece, Whole
from headrace.server.openai.generation import Generation, deltas
from headrace.server.openai.protocol import ChunkUsage, StreamOptions
from headrace.server.openai.sse import event, send_events
from headrace.server.openai.token_stream import TokenStream
from headrace.server.seen.request_trace import current, see_log

_log = logging.getLogger(__name__)


async def stream_answer(
    send: Send,
    generation: Generation,
    tokens: TokenStream,
    options: StreamOptions | None,
    shape: AnswerShape[Whole, Piece],
    model: str,
) -> None:
    """Send the whole stream, as the model of this name. Raises ApiError only while nothing has been sent: the status can still tell it."""
    events = _events(generation, tokens, options or StreamOptions(), shape, model)
    first = await anext(events)
    await send_events(send, first, _telling_errors(events))


async def _events(
    generation: Generation,
    tokens: TokenStream,
    options: StreamOptions,
    shape: AnswerShape[Whole, Piece],
    model: str,
) -> AsyncIterator[bytes]:
    def chunk(pieces: tuple[Piece, ...], usage: ChunkUsage) -> object:
        return shape.chunk(
            id=generation.id, created=generation.created, model=model, choices=pieces, usage=usage
        )

    begun: set[int] = set()
    async for index, delta in deltas(generation, tokens):
        usage: ChunkUsage = UNSET
        if options.continuous_usage_stats:
            usage = generation.usage()
        elif options.include_usage:
            usage = None
        pieces = shape.of_delta(generation, index, index not in begun, delta)
        begun.add(index)
        if pieces:
            yield b"".join(event(chunk((piece,), usage)) for piece in pieces)
    if options.include_usage:
        yield event(chunk((), generation.usage()))


async def _telling_errors(events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    try:
        async for data in events:
            yield data
    except ApiError as error:
        _note_failure()
        yield event(error.body())
    except Exception:
        _log.exception("A streamed answer failed.")
        _note_failure()
        yield event(ApiError(500, f"The server failed; {see_log()}.", code="internal_error").body())


def _note_failure() -> None:
    if trace := current():
        trace.failed = True
