"""POST /v1/chat/completions."""

from collections.abc import Sequence

import msgspec
from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from headrace.server.body import parse, read_json_object
from headrace.server.context import ServerContext
from headrace.server.disconnect import WhileConnected
from headrace.server.errors import invalid
from headrace.server.openai.choice import Delta
from headrace.server.openai.choice_plan import chat_plan
from headrace.server.openai.generation import Generation, collect, prepare
from headrace.server.openai.logprobs import chat_logprobs
from headrace.server.openai.prompts import Prompt, check_chat, encode_chat, render_chat
from headrace.server.openai.protocol import (
    AnswerMessage,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatDelta,
    ChatLogprobs,
    ChatRequest,
    ChatResponse,
    ChunkUsage,
    Usage,
)
from headrace.server.openai.served_model import ServedModel
from headrace.server.openai.streaming import stream_answer
from headrace.server.openai.token_stream import TokenStream
from headrace.server.openai.unsupported import CHAT_OFF_VALUES, refuse_unsupported
from headrace.server.responses import JsonResponse


async def chat_completions(request: Request) -> Response:
    """Answer a conversation, which the model's own template turns into a prompt."""
    context = ServerContext.of(request)
    body = await read_json_object(request, context.options.max_body_bytes)
    wanted = _newer_limit_wins(parse(body, ChatRequest))
    context.check_model(wanted.model)
    refuse_unsupported(body, CHAT_OFF_VALUES)
    context.check_priority(wanted.priority)
    check_chat(wanted)
    plan = chat_plan(wanted)

    async def encode(model: ServedModel) -> Sequence[Prompt]:
        texts = context.client.texts
        text = await texts.render(lambda: render_chat(model, wanted))
        return [await texts.encode(lambda: encode_chat(model, wanted, text), characters=len(text))]

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        with context.client.admission.admit():
            generation = await prepare(
                context.client,
                wanted,
                plan,
                encode,
                id_prefix="chatcmpl",
                default_max_tokens=None,
                cache_report=context.options.enable_cache_report,
            )
            name = context.options.served_model_name
            meter = context.metrics.of_answer(generation.generates, plan.best_of)
            with context.client.submit(
                generation.generates, meter, load_until_s=generation.load_until_s
            ) as tokens:
                if wanted.stream:
                    chunks = _Chunks(generation, name)
                    await stream_answer(
                        send, generation, tokens, wanted.stream_options, chunks.of_delta, chunks.of_usage
                    )
                else:
                    response = await _collect(generation, tokens, name)
                    await JsonResponse(response)(scope, receive, send)

    return WhileConnected(answer)


def _newer_limit_wins(request: ChatRequest) -> ChatRequest:
    limit = request.max_completion_tokens
    if limit is None:
        return request
    if limit < 1:
        raise invalid(f"`max_completion_tokens` must be at least 1, not {limit}.", "max_completion_tokens")
    return msgspec.structs.replace(request, max_tokens=limit)


async def _collect(generation: Generation, tokens: TokenStream, model: str) -> ChatResponse:
    answers = await collect(generation, tokens)
    choices = tuple(
        ChatChoice(
            index=index,
            message=AnswerMessage(content=answer.text),
            logprobs=_logprobs(generation, answer),
            finish_reason=answer.finish_reason,
            matched_stop=UNSET if answer.matched_stop is None else answer.matched_stop,
        )
        for index, answer in enumerate(answers)
    )
    return ChatResponse(
        id=generation.id,
        created=generation.created,
        model=model,
        choices=choices,
        usage=generation.usage(),
    )


def _logprobs(generation: Generation, delta: Delta) -> ChatLogprobs | None:
    if generation.plan.top_logprobs is None:
        return None
    return chat_logprobs(delta.tokens, generation.pieces)


class _Chunks:
    """Makes the chunks of one stream: the role, then text, then the end, each in a chunk of its own."""

    def __init__(self, generation: Generation, model: str) -> None:
        self._generation = generation
        self._model = model

    def of_delta(self, index: int, first: bool, delta: Delta, usage: ChunkUsage) -> Sequence[ChatChunk]:
        choices = []
        if first:
            choices.append(ChatChunkChoice(index=index, delta=ChatDelta(role="assistant", content="")))
        logprobs = _logprobs(self._generation, delta)
        if delta.text or (logprobs and logprobs.content):
            content = ChatDelta(content=delta.text)
            choices.append(ChatChunkChoice(index=index, delta=content, logprobs=logprobs))
        if delta.finish_reason is not None:
            choices.append(
                ChatChunkChoice(
                    index=index,
                    delta=ChatDelta(),
                    finish_reason=delta.finish_reason,
                    matched_stop=UNSET if delta.matched_stop is None else delta.matched_stop,
                )
            )
        return [self._chunk((choice,), usage) for choice in choices]

    def of_usage(self, usage: Usage) -> ChatChunk:
        return self._chunk((), usage)

    def _chunk(self, choices: tuple[ChatChunkChoice, ...], usage: ChunkUsage) -> ChatChunk:
        return ChatChunk(
            id=self._generation.id,
            created=self._generation.created,
            model=self._model,
            choices=choices,
            usage=usage,
        )
