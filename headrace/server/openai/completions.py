"""POST /v1/completions."""

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from headrace.server.body import parse, read_json_object
from headrace.server.context import ServerContext
from headrace.server.openai.answer_shape import AnswerShape, told_stop
from headrace.server.openai.answering import answering
from headrace.server.openai.choice import Delta
from headrace.server.openai.choice_plan import completion_plan
from headrace.server.openai.generation import Generation
from headrace.server.openai.logprobs import completion_logprobs
from headrace.server.openai.prompts import Prompt, encode_prompts, split_prompts
from headrace.server.openai.protocol import CompletionChoice, CompletionRequest, CompletionResponse
from headrace.server.openai.sampling import COMPLETION_MAX_TOKENS
from headrace.server.openai.served_model import ServedModel
from headrace.server.openai.unsupported import COMPLETION_OFF_VALUES, refuse_unsupported


async def completions(request: Request) -> Response:
    """Continue one or more prompts; the i-th choice of a prompt has the index prompt × n + i."""
    context = ServerContext.of(request)
    body = await read_json_object(request, context.options.max_body_bytes)
    wanted = parse(body, CompletionRequest)
    context.check_model(wanted.model)
    refuse_unsupported(body, COMPLETION_OFF_VALUES)
    context.check_priority(wanted.priority)
    prompts = split_prompts(wanted.prompt)
    plan = completion_plan(wanted, len(prompts))

    async def encode(model: ServedModel) -> Sequence[Prompt]:
        return await context.client.texts.encode(
            lambda: encode_prompts(model, wanted, prompts, echo=plan.echo),
            characters=sum(map(len, prompts)),
        )

    return answering(context, wanted, plan, encode, _SHAPE)


def _choice(generation: Generation, index: int, delta: Delta) -> CompletionChoice:
    told = generation.plan.top_logprobs is not None
    return CompletionChoice(
        index=index,
        text=delta.text,
        logprobs=completion_logprobs(delta.tokens, generation.pieces) if told else None,
        finish_reason=delta.finish_reason,
        matched_stop=told_stop(delta),
    )


def _piece(generation: Generation, index: int, _first: bool, delta: Delta) -> Sequence[CompletionChoice]:
    if not delta.text and not delta.tokens and delta.finish_reason is None:
        return ()
    return (_choice(generation, index, delta),)


_SHAPE = AnswerShape(
    id_prefix="cmpl",
    default_max_tokens=COMPLETION_MAX_TOKENS,
    of_choice=_choice,
    answer=CompletionResponse,
    of_delta=_piece,
    chunk=CompletionResponse,
)
