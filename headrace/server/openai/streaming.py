"""A streamed answer: what comes first, what comes last, and how an error in the middle is told."""

import logging
from collections.abc import AsyncIterator, Callable, Sequence

from msgspec import UNSET
from starlette.types import Send

from headrace.server.errors import ApiError
from headrace.server.openai.choice import Delta
from headrace.server.openai.generation import Generation, deltas
from headrace.server.openai.protocol import ChunkUsage, StreamOptions, Usage
from headrace.server.openai.sse import event, send_events
from headrace.server.openai.token_stream import TokenStream
from headrace.server.seen.request_trace import current, see_log

_log = logging.getLogger(__name__)

# A chunk's own fields are the route's business: (choice index, first of this choice?, delta, usage) → chunks.
MakeChunks = Callable[[int, bool, Delta, ChunkUsage], Sequence[object]]
MakeUsageChunk = Callable[[Usage], object]


async def stream_answer(
    send: Send,
    generation: Generation,
    tokens: TokenStream,
    options: StreamOptions | None,
    make_chunks: MakeChunks,
    make_usage_chunk: MakeUsageChunk,
) -> None:
    """Send the whole stream. Raises ApiError only while nothing has been sent: the status can still tell it."""
    events = _events(generation, tokens, options or StreamOptions(), make_chunks, make_usage_chunk)
    first = await anext(events)
    await send_events(send, first, _telling_errors(events))


async def _events(
    generation: Generation,
    tokens: TokenStream,
    options: StreamOptions,
    make_chunks: MakeChunks,
    make_usage_chunk: MakeUsageChunk,
) -> AsyncIterator[bytes]:
    begun: set[int] = set()
    async for index, delta in deltas(generation, tokens):
        usage: ChunkUsage = UNSET
        if options.continuous_usage_stats:
            usage = generation.usage()
        elif options.include_usage:
            usage = None
        chunks = make_chunks(index, index not in begun, delta, usage)
        begun.add(index)
        if chunks:
            yield b"".join(event(chunk) for chunk in chunks)
    if options.include_usage:
        yield event(make_usage_chunk(generation.usage()))


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
