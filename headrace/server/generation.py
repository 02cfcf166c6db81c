"""The generations of one HTTP request, from checked fields to pieces of text per choice."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from headrace.ipc.messages import Generate
from headrace.server.choice import ChoiceText, Delta
from headrace.server.engine_client import EngineClient
from headrace.server.errors import ApiError
from headrace.server.protocol import SamplingRequest, Usage
from headrace.server.sampling import check_context, check_sampling, resolve, stop_strings
from headrace.server.served_model import ServedModel
from headrace.server.token_stream import TokenStream


@dataclass(frozen=True, slots=True)
class Generation:
    """One request on its way.

    Attributes:
        id: OpenAI's id of the answer; engine's request ids are made from it.
        created: Unix time in whole seconds.
        generates: one for each choice, in the order of the choices' indices.
        choices: their texts.
    """

    id: str
    created: int
    generates: tuple[Generate, ...]
    choices: tuple[ChoiceText, ...]

    def usage(self) -> Usage:
        """Tokens so far."""
        prompt = sum(len(generate.input_ids) for generate in self.generates)
        completion = sum(choice.token_count for choice in self.choices)
        return Usage(prompt_tokens=prompt, total_tokens=prompt + completion, completion_tokens=completion)


async def prepare(
    client: EngineClient,
    request: SamplingRequest,
    encode: Callable[[ServedModel], Sequence[list[int]]],
    *,
    id_prefix: str,
    default_max_tokens: int | None,
) -> Generation:
    """Check the request, encode its prompts off the loop, and wait for the end of the load.

    `default_max_tokens` None means the rest of the context. Raises ApiError.
    """
    model = await client.loaded_model()
    check_sampling(request, model.vocab_size)
    prompts = await asyncio.get_running_loop().run_in_executor(client.text_pool, encode, model)
    for prompt in prompts:
        check_context(len(prompt), request.max_tokens, model.context_length)
    ready = await client.until_serving()
    from headrace.text.detokenizer import Detokenizer
    from headrace.text.stop_matcher import StopMatcher

    answer_id = f"{id_prefix}-{secrets.token_hex(12)}"
    generates = []
    choices = []
    for index, prompt in enumerate(prompts):
        sampling = resolve(
            request,
            model.defaults,
            prompt_tokens=len(prompt),
            room_tokens=min(model.context_length, ready.max_total_tokens),
            default_max_tokens=default_max_tokens,
        )
        generates.append(Generate(rid=f"{answer_id}-{index}", input_ids=prompt, sampling=sampling))
        detokenizer = Detokenizer(
            model.tokenizer, skip_special_tokens=request.skip_special_tokens is not False, prompt_ids=prompt
        )
        choices.append(ChoiceText(detokenizer, StopMatcher(stop_strings(request))))
    return Generation(answer_id, int(time.time()), tuple(generates), tuple(choices))


async def deltas(generation: Generation, tokens: TokenStream) -> AsyncIterator[tuple[int, Delta]]:
    """What each output adds, with the index of its choice; the engine is told when a stop string matched.

    Raises ApiError if the engine fails, or aborts a generation by itself.
    """
    index_of = {generate.rid: index for index, generate in enumerate(generation.generates)}
    async for output in tokens:
        index = index_of[output.rid]
        if output.finish_reason == "abort":
            raise ApiError(500, "The engine aborted the generation.", code="engine_aborted")
        delta = generation.choices[index].push(output)
        if delta.finish_reason is not None:
            tokens.end(output.rid)
        yield index, delta
