"""POST /v1/chat/completions."""

from collections.abc import Sequence

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from headrace.server.body import parse, read_json_object
from headrace.server.context import ServerContext
from headrace.server.errors import invalid
from headrace.server.openai.answer_shape import AnswerShape, told_stop
from headrace.server.openai.answering import answering
from headrace.server.openai.choice import Delta
from headrace.server.openai.choice_plan import chat_plan
from headrace.server.openai.generation import Generation
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
)
from headrace.server.openai.served_model import ServedModel
from headrace.server.openai.unsupported import CHAT_OFF_VALUES, refuse_unsupported


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

    return answering(context, wanted, plan, encode, _SHAPE)


def _newer_limit_wins(request: ChatRequest) -> ChatRequest:
    limit = request.max_completion_tokens
    if limit is None:
        return request
    if limit < 1:
        raise invalid(f"`max_completion_tokens` must be at least 1, not {limit}.", "max_completion_tokens")
    return msgspec.structs.replace(request, max_tokens=limit)


def _choice(generation: Generation, index: int, answer: Delta) -> ChatChoice:
    return ChatChoice(
        index=index,
        message=AnswerMessage(content=answer.text),
        logprobs=_logprobs(generation, answer),
        finish_reason=answer.finish_reason,
        matched_stop=told_stop(answer),
    )


def _pieces(generation: Generation, index: int, first: bool, delta: Delta) -> Sequence[ChatChunkChoice]:
    """The role, then text, then the end, each by itself."""
    pieces = []
    if first:
        pieces.append(ChatChunkChoice(index=index, delta=ChatDelta(role="assistant", content="")))
    logprobs = _logprobs(generation, delta)
    if delta.text or (logprobs and logprobs.content):
        pieces.append(ChatChunkChoice(index=index, delta=ChatDelta(content=delta.text), logprobs=logprobs))
    if delta.finish_reason is not None:
        pieces.append(
            ChatChunkChoice(
                index=index,
                delta=ChatDelta(),
                finish_reason=delta.finish_reason,
                matched_stop=told_stop(delta),
            )
        )
    return pieces


def _logprobs(generation: Generation, delta: Delta) -> ChatLogprobs | None:
    if generation.plan.top_logprobs is None:
        return None
    return chat_logprobs(delta.tokens, generation.pieces)


_SHAPE = AnswerShape(
    id_prefix="chatcmpl",
    default_max_tokens=None,
    of_choice=_choice,
    answer=ChatResponse,
    of_delta=_pieces,
    chunk=ChatChunk,
)
