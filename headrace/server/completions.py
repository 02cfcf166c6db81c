"""POST /v1/completions."""

from collections.abc import Sequence

from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from headrace.server.body import parse, read_json_object
from headrace.server.choice import Delta
from headrace.server.context import ServerContext
from headrace.server.disconnect import WhileConnected
from headrace.server.generation import Generation, deltas, prepare
from headrace.server.prompts import encode_prompts, split_prompts
from headrace.server.protocol import (
    ChunkUsage,
    CompletionChoice,
    CompletionRequest,
    CompletionResponse,
    Usage,
)
from headrace.server.responses import JsonResponse
from headrace.server.sampling import COMPLETION_MAX_TOKENS
from headrace.server.streaming import stream_answer
from headrace.server.token_stream import TokenStream
from headrace.server.unsupported import COMPLETION_OFF_VALUES, refuse_unsupported


async def completions(request: Request) -> Response:
    """Continue one or more prompts; the choice's index is the prompt's."""
    context = ServerContext.of(request)
    body = await read_json_object(request, context.options.max_body_bytes)
    wanted = parse(body, CompletionRequest)
    context.check_model(wanted.model)
    refuse_unsupported(body, COMPLETION_OFF_VALUES)
    prompts = split_prompts(wanted.prompt)

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        with context.client.admit():
            generation = await prepare(
                context.client,
                wanted,
                lambda model: encode_prompts(model, prompts),
                id_prefix="cmpl",
                default_max_tokens=COMPLETION_MAX_TOKENS,
            )
            name = context.options.served_model_name
            with context.client.submit(generation.generates) as tokens:
                if wanted.stream:
                    chunks = _Chunks(generation, name)
                    await stream_answer(
                        send, generation, tokens, wanted.stream_options, chunks.of_delta, chunks.of_usage
                    )
                else:
                    response = await _collect(generation, tokens, name)
                    await JsonResponse(response)(scope, receive, send)

    return WhileConnected(answer)


async def _collect(generation: Generation, tokens: TokenStream, model: str) -> CompletionResponse:
    texts: list[list[str]] = [[] for _ in generation.choices]
    ends = [Delta("")] * len(generation.choices)
    async for index, delta in deltas(generation, tokens):
        texts[index].append(delta.text)
        ends[index] = delta
    return CompletionResponse(
        id=generation.id,
        created=generation.created,
        model=model,
        choices=tuple(_choice(index, "".join(texts[index]), end) for index, end in enumerate(ends)),
        usage=generation.usage(),
    )


def _choice(index: int, text: str, delta: Delta) -> CompletionChoice:
    return CompletionChoice(
        index=index,
        text=text,
        finish_reason=delta.finish_reason,
        matched_stop=UNSET if delta.matched_stop is None else delta.matched_stop,
    )


class _Chunks:
    """Makes the chunks of one stream."""

    def __init__(self, generation: Generation, model: str) -> None:
        self._generation = generation
        self._model = model

    def of_delta(
        self, index: int, _first: bool, delta: Delta, usage: ChunkUsage
    ) -> Sequence[CompletionResponse]:
        if not delta.text and delta.finish_reason is None:
            return ()
        return (self._chunk((_choice(index, delta.text, delta),), usage),)

    def of_usage(self, usage: Usage) -> CompletionResponse:
        return self._chunk((), usage)

    def _chunk(self, choices: tuple[CompletionChoice, ...], usage: ChunkUsage) -> CompletionResponse:
        return CompletionResponse(
            id=self._generation.id,
            created=self._generation.created,
            model=self._model,
            choices=choices,
            usage=usage,
        )
