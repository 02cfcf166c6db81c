"""From a request's checked sampling fields to the engine's SamplingParams: defaults, nothing else."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.errors import HeadraceError
from headrace.ipc.messages import SamplingParams
from headrace.server.errors import ApiError
from headrace.server.openai.checks import check_distribution, logit_bias
from headrace.server.openai.protocol import SamplingRequest

COMPLETION_MAX_TOKENS = 16  # OpenAI's default for /v1/completions


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """Values where a request gives none; these are OpenAI's."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    repetition_penalty: float = 1.0


def model_defaults(generation_config: Mapping[str, Any]) -> SamplingDefaults:
    """The model's own values, where generation_config.json has them.

    As in SGLang, `do_sample` plays no part. A top_k of 0 means the whole vocabulary, as in transformers.
    Raises HeadraceError for a value that no request might give either.
    """

    def number(name: str, default: float) -> float:
        value = generation_config.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _bad_default(name, value, "It must be a number.")
        return value

    top_k = number("top_k", -1)
    if top_k != int(top_k):
        raise _bad_default("top_k", top_k, "It must be a whole number.")
    defaults = SamplingDefaults(
        temperature=number("temperature", 1.0),
        top_p=number("top_p", 1.0),
        top_k=int(top_k) or -1,
        min_p=number("min_p", 0.0),
        repetition_penalty=number("repetition_penalty", 1.0),
    )
    try:
        check_distribution(
            defaults.temperature,
            defaults.top_p,
            defaults.top_k,
            defaults.min_p,
            defaults.repetition_penalty,
        )
    except ApiError as error:
        name = error.param or ""
        raise _bad_default(name, generation_config.get(name), error.message) from None
    return defaults


def resolve(
    request: SamplingRequest,
    defaults: SamplingDefaults,
    *,
    prompt_tokens: int,
    room_tokens: int,
    default_max_tokens: int | None,
) -> SamplingParams:
    """The engine's parameters for one checked prompt; what is told of tokens is not among them.

    `room_tokens` is the context length, or the KV pool where that is smaller: a default stays within it (but for
    `min_tokens`, so that the engine refuses what it cannot hold); `default_max_tokens` None means all of the room
    that the prompt leaves.
    """
    left = max(1, room_tokens - prompt_tokens)
    min_tokens = request.min_tokens or 0
    max_tokens = request.max_tokens
    if max_tokens is None:
        max_tokens = left if default_max_tokens is None else min(default_max_tokens, left)
        max_tokens = max(max_tokens, min_tokens)
    return SamplingParams(
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        temperature=_first(request.temperature, defaults.temperature),
        top_p=_first(request.top_p, defaults.top_p),
        top_k=defaults.top_k if request.top_k is None else request.top_k,
        min_p=_first(request.min_p, defaults.min_p),
        repetition_penalty=_first(request.repetition_penalty, defaults.repetition_penalty),
        presence_penalty=_first(request.presence_penalty, 0.0),
        frequency_penalty=_first(request.frequency_penalty, 0.0),
        logit_bias=logit_bias(request),
        seed=request.seed,
        stop_token_ids=tuple(request.stop_token_ids or ()),
        ignore_eos=bool(request.ignore_eos),
    )


def _first(given: float | None, default: float) -> float:
    return default if given is None else given


def _bad_default(name: str, value: object, why: str) -> HeadraceError:
    return HeadraceError(
        f"generation_config.json has {name}={value!r}. {why}",
        remedy="Correct the file, or start with --sampling-defaults openai to leave it aside.",
    )
