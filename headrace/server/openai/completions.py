"""POST /v1/completions."""

from collections.abc import Sequence

from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from headrace.server.body import parse, read_json_object
from headrace.server.context import ServerContext
from headrace.server.disconnect import WhileConnected
from headrace.server.openai.choice import Delta
from headrace.server.openai.choice_plan import completion_plan
from headrace.server.openai.generation import Generation, collect, prepare
from headrace.server.openai.logprobs import completion_logprobs
from headrace.server.openai.prompts import Prompt, encode_prompts, split_prompts
from headrace.server.openai.protocol import (
    ChunkUsage,
    CompletionChoice,
    CompletionRequest,
    CompletionResponse,
    Usage,
)
from headrace.server.openai.sampling import COMPLETION_MAX_TOKENS
from headrace.server.openai.served_model import ServedModel
from headrace.server.openai.streaming import stream_answer
from headrace.server.openai.token_stream import TokenStream
from headrace.server.openai.unsupported import COMPLETION_OFF_VALUES, refuse_unsupported
from headrace.server.responses import JsonResponse


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

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        with context.client.admission.admit():
            generation = await prepare(
                context.client,
                wanted,
                plan,
                encode,
                id_prefix="cmpl",
                default_max_tokens=COMPLETION_MAX_TOKENS,
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


async def _collect(generation: Generation, tokens: TokenStream, model: str) -> CompletionResponse:
    answers = await collect(generation, tokens)
    return CompletionResponse(
        id=generation.id,
        created=generation.created,
        model=model,
        choices=tuple(_choice(generation, index, answer) for index, answer in enumerate(answers)),
        usage=generation.usage(),
    )


def _choice(generation: Generation, index: int, delta: Delta) -> CompletionChoice:
    told = generation.plan.top_logprobs is not None
    return CompletionChoice(
        index=index,
        text=delta.text,
        logprobs=completion_logprobs(delta.tokens, generation.pieces) if told else None,
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
        if not delta.text and not delta.tokens and delta.finish_reason is None:
            return ()
        return (self._chunk((_choice(self._generation, index, delta),), usage),)

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
