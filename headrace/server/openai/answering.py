"""A checked request's way to its answer, whole or streamed: the same for both routes."""

from collections.abc import Awaitable, Callable, Sequence

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from headrace.server.context import ServerContext
from headrace.server.disconnect import WhileConnected
from headrace.server.openai.answer_shape import AnswerShape, Piece, Whole
from headrace.server.openai.choice_plan import ChoicePlan
from headrace.server.openai.generation import Generation, collect, prepare
from headrace.server.openai.prompts import Prompt
from headrace.server.openai.protocol import SamplingRequest
from headrace.server.openai.served_model import ServedModel
from headrace.server.openai.streaming import stream_answer
from headrace.server.openai.token_stream import TokenStream
from headrace.server.responses import JsonResponse


def answering(
    context: ServerContext,
    wanted: SamplingRequest,
    plan: ChoicePlan,
    encode: Callable[[ServedModel], Awaitable[Sequence[Prompt]]],
    shape: AnswerShape[Whole, Piece],
) -> Response:
    """The response that generates when it is sent, and stops when its client goes away; `encode` as for `prepare`."""
    model = context.options.served_model_name

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        with context.client.admission.admit():
            generation = await prepare(
                context.client,
                wanted,
                plan,
                encode,
                id_prefix=shape.id_prefix,
                default_max_tokens=shape.default_max_tokens,
                cache_report=context.options.enable_cache_report,
            )
            meter = context.metrics.of_answer(generation.generates, plan.best_of)
            with context.client.submit(
                generation.generates, meter, load_until_s=generation.load_until_s
            ) as tokens:
                if wanted.stream:
                    await stream_answer(send, generation, tokens, wanted.stream_options, shape, model)
                else:
                    whole = await _whole(generation, tokens, shape, model)
                    await JsonResponse(whole)(scope, receive, send)

    return WhileConnected(answer)


async def _whole(
    generation: Generation, tokens: TokenStream, shape: AnswerShape[Whole, Piece], model: str
) -> object:
    answers = await collect(generation, tokens)
    return shape.answer(
        id=generation.id,
        created=generation.created,
        model=model,
        choices=tuple(shape.of_choice(generation, index, answer) for index, answer in enumerate(answers)),
        usage=generation.usage(),
    )
