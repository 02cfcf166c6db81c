"""The generations of one HTTP request, from checked fields to pieces of text per choice."""

import copy
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET

from headrace.ipc.messages import Generate, SamplingParams
from headrace.server.errors import ApiError
from headrace.server.life.engine_client import EngineClient
from headrace.server.openai.checks import check_bias_count, check_sampling, stop_strings
from headrace.server.openai.choice import ChoiceText, Delta
from headrace.server.openai.choice_plan import ChoicePlan, choice_seed
from headrace.server.openai.prompts import Prompt
from headrace.server.openai.protocol import PromptTokensDetails, SamplingRequest, Usage
from headrace.server.openai.sampling import resolve
from headrace.server.openai.served_model import ServedModel
from headrace.server.openai.token_stream import TokenStream
from headrace.server.openai.token_track import TokenTrack

if TYPE_CHECKING:
    from headrace.text.pieces import PieceTable


@dataclass(frozen=True, slots=True)
class Generation:
    """One request on its way.

    Attributes:
        id: OpenAI's id of the answer; engine's request ids are made from it.
        created: Unix time in whole seconds.
        plan: the choices per prompt.
        pieces: the texts of tokens.
        generates: `plan.best_of` for each prompt, prompt by prompt.
        choices: their texts.
        cache_report: usage tells how many prompt tokens were cached.
        load_until_s: until when it may wait for the load, on the event loop's clock.
    """

    id: str
    created: int
    plan: ChoicePlan
    pieces: "PieceTable"
    generates: tuple[Generate, ...]
    choices: tuple[ChoiceText, ...]
    cache_report: bool
    load_until_s: float

    def usage(self) -> Usage:
        """Tokens so far. A prompt counts once, and so does what its first choice found in the cache."""
        of_prompts = slice(None, None, self.plan.best_of)
        prompt = sum(len(generate.input_ids) for generate in self.generates[of_prompts])
        completion = sum(choice.token_count for choice in self.choices)
        cached = sum(choice.cached_tokens for choice in self.choices[of_prompts])
        return Usage(
            prompt_tokens=prompt,
            total_tokens=prompt + completion,
            completion_tokens=completion,
            prompt_tokens_details=PromptTokensDetails(cached) if self.cache_report else UNSET,
        )

    def best(self) -> list[int]:
        """The choices that are answered, by their place in `choices`: `plan.n` for each prompt.

        All of them in their order, or those with the highest logprob per token, the best first.
        """
        n, best_of = self.plan.n, self.plan.best_of
        places: list[int] = []
        for start in range(0, len(self.choices), best_of):
            of_prompt = list(range(start, start + best_of))
            if best_of > n:
                of_prompt.sort(key=lambda place: self.choices[place].mean_logprob(), reverse=True)
            places += of_prompt[:n]
        return places


async def prepare(
    client: EngineClient,
    request: SamplingRequest,
    plan: ChoicePlan,
    encode: Callable[[ServedModel], Awaitable[Sequence[Prompt]]],
    *,
    id_prefix: str,
    default_max_tokens: int | None,
    cache_report: bool,
) -> Generation:
    """Check the request, encode its prompts, and wait until they may be sent: the load need not have ended.

    `encode` does so off the loop and checks that they fit. `default_max_tokens` None means the rest of the context. Raises ApiError.
    """
    state = client.state
    load_until_s = state.queue_until_s()
    with client.admission.waiting_for_load():
        while True:
            model = await state.loaded_model(load_until_s)
            check_sampling(
                request, model.vocab_size, default_max_tokens=default_max_tokens, can_score=plan.echo
            )
            prompts = await encode(model)
            check_bias_count(request, len(prompts) * plan.best_of)
            pool_tokens = await state.until_accepting(load_until_s)
            if state.model is model:
                break  # else another engine, or another version of the files, came meanwhile
    from headrace.text.detokenizer import Detokenizer
    from headrace.text.stop_matcher import StopMatcher

    answer_id = f"{id_prefix}-{secrets.token_hex(12)}"
    generates: list[Generate] = []
    choices: list[ChoiceText] = []
    stops = StopMatcher(stop_strings(request))
    for prompt in prompts:
        sampling = resolve(
            request,
            model.defaults,
            prompt_tokens=len(prompt.ids),
            room_tokens=min(model.context_length, pool_tokens),
            default_max_tokens=default_max_tokens,
        )
        for index in range(plan.best_of):
            generates.append(
                Generate(
                    rid=f"{answer_id}-{len(generates)}",
                    input_ids=prompt.ids,
                    sampling=_of_choice(sampling, plan, index),
                    priority=request.priority or 0,
                )
            )
            detokenizer = Detokenizer(
                model.tokenizer,
                skip_special_tokens=request.skip_special_tokens is not False,
                prompt_ids=prompt.ids,
            )
            track = None
            if plan.top_logprobs is not None:
                start = len(prompt.echo.text) if prompt.echo is not None else 0
                track = TokenTrack(model.tokenizer.pieces, start=start)
            # A copy has a state of its own and shares the automaton, which may be large.
            choices.append(ChoiceText(detokenizer, copy.copy(stops), track=track, echo=prompt.echo))
    return Generation(
        id=answer_id,
        created=int(time.time()),
        plan=plan,
        pieces=model.tokenizer.pieces,
        generates=tuple(generates),
        choices=tuple(choices),
        cache_report=cache_report,
        load_until_s=load_until_s,
    )


async def deltas(generation: Generation, tokens: TokenStream) -> AsyncIterator[tuple[int, Delta]]:
    """What each output adds, with the index of its choice; the engine is told when a stop string matched.

    An echoed prompt is a delta of its own, before the choice's others. Raises ApiError if the engine fails, or
    aborts a generation by itself.
    """
    index_of = {generate.rid: index for index, generate in enumerate(generation.generates)}
    async for output in tokens:
        index = index_of[output.rid]
        if output.finish_reason == "abort":
            raise ApiError(500, "The engine aborted the generation.", code="engine_aborted")
        choice = generation.choices[index]
        opening = choice.open(output)
        if opening is not None:
            yield index, opening
        delta = choice.push(output)
        if delta.finish_reason is not None:
            tokens.end(output.rid)
        yield index, delta


async def collect(generation: Generation, tokens: TokenStream) -> list[Delta]:
    """The whole answers, each as one delta, in the order of the choices' indices. Raises as `deltas`."""
    parts: list[list[Delta]] = [[] for _ in generation.choices]
    async for place, delta in deltas(generation, tokens):
        parts[place].append(delta)
    return [_joined(parts[place]) for place in generation.best()]


def _joined(parts: Sequence[Delta]) -> Delta:
    end = parts[-1]
    return Delta(
        "".join(part.text for part in parts),
        end.finish_reason,
        end.matched_stop,
        tuple(entry for part in parts for entry in part.tokens),
    )


def _of_choice(sampling: SamplingParams, plan: ChoicePlan, index: int) -> SamplingParams:
    """One choice's own seed, and what must be told of its tokens, to the client or for the choice of the best."""
    logprobs = plan.top_logprobs
    if logprobs is None and plan.best_of > plan.n:
        logprobs = 0
    # An answer of no tokens exists for the sake of the prompt's logprobs only; the engine computes nothing else.
    prompt_logprobs = plan.top_logprobs if plan.echo else None
    if sampling.max_tokens == 0 and prompt_logprobs is None:
        prompt_logprobs = 0
    return msgspec.structs.replace(
        sampling,
        seed=choice_seed(sampling.seed, index),
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
    )
