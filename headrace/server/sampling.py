"""From a request's sampling fields to the engine's SamplingParams: checks and defaults, nothing else."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.errors import HeadraceError
from headrace.ipc.messages import SamplingParams
from headrace.server.errors import ApiError, invalid
from headrace.server.protocol import SamplingRequest

STOP_STRINGS_AT_MOST = 32
STOP_LENGTH_AT_MOST = 1024
STOP_TOKEN_IDS_AT_MOST = 1024
COMPLETION_MAX_TOKENS = 16  # OpenAI's default for /v1/completions
_INT64 = 1 << 63

# Keys of generation_config.json that change the distribution, are not applied yet and mean "off" at this value.
_NOT_APPLIED = {"repetition_penalty": 1.0, "min_p": 0.0}


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """Values where a request gives none; these are OpenAI's. `ignored` tells what the model asks for in vain."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    ignored: tuple[str, ...] = ()


def model_defaults(generation_config: Mapping[str, Any]) -> SamplingDefaults:
    """The model's own temperature, top_p and top_k, where generation_config.json has them.

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
        ignored=tuple(
            f"{name}={generation_config[name]}"
            for name, off in _NOT_APPLIED.items()
            if generation_config.get(name) not in (None, off)
        ),
    )
    try:
        _check_distribution(defaults.temperature, defaults.top_p, defaults.top_k)
    except ApiError as error:
        name = error.param or ""
        raise _bad_default(name, generation_config.get(name), error.message) from None
    return defaults


def check_sampling(request: SamplingRequest, vocab_size: int) -> None:
    """Every check that needs neither the prompt nor the load. Raises ApiError 400 naming the field."""
    _check_distribution(
        1.0 if request.temperature is None else request.temperature,
        1.0 if request.top_p is None else request.top_p,
        -1 if request.top_k is None else request.top_k,
    )
    if request.max_tokens is not None and request.max_tokens < 1:
        raise invalid(f"`max_tokens` must be at least 1, not {request.max_tokens}.", "max_tokens")
    if request.seed is not None and not -_INT64 <= request.seed < _INT64:
        raise invalid(f"`seed` must fit in 64 bits, {request.seed} does not.", "seed")
    if request.stream_options is not None and not request.stream:
        raise invalid(
            "`stream_options` is for streamed answers only; set `stream` to true.", "stream_options"
        )
    ids = request.stop_token_ids or []
    if len(ids) > STOP_TOKEN_IDS_AT_MOST:
        raise invalid(
            f"`stop_token_ids` has {len(ids)} ids; {STOP_TOKEN_IDS_AT_MOST} are the most.", "stop_token_ids"
        )
    check_token_ids(ids, vocab_size, "stop_token_ids")
    stop_strings(request)


def check_token_ids(ids: Sequence[int], vocab_size: int, param: str) -> None:
    """Raises ApiError 400 for an id outside the vocabulary."""
    if ids and not (min(ids) >= 0 and max(ids) < vocab_size):
        bad = next(token for token in ids if not 0 <= token < vocab_size)
        raise invalid(
            f"`{param}` has the token id {bad}; this model's ids go from 0 to {vocab_size - 1}.",
            param,
            "invalid_token_id",
        )


def stop_strings(request: SamplingRequest) -> list[str]:
    """The request's stop strings. Raises ApiError 400."""
    stops = [request.stop] if isinstance(request.stop, str) else list(request.stop or ())
    if len(stops) > STOP_STRINGS_AT_MOST:
        raise invalid(f"`stop` has {len(stops)} strings; {STOP_STRINGS_AT_MOST} are the most.", "stop")
    for stop in stops:
        if not stop:
            raise invalid("`stop` has an empty string, which would stop everywhere. Leave it out.", "stop")
        if len(stop) > STOP_LENGTH_AT_MOST:
            raise invalid(
                f"`stop` has a string of {len(stop)} characters; {STOP_LENGTH_AT_MOST} are the most.", "stop"
            )
    return stops


def check_context(prompt_tokens: int, max_tokens: int | None, context_length: int) -> None:
    """Raises ApiError 400, with the true numbers, for a prompt that leaves no room for what was asked."""
    if prompt_tokens >= context_length:
        raise _too_long(
            f"The prompt has {prompt_tokens} tokens; this model's context length is {context_length} tokens and "
            "at least one must be left for the answer. Shorten the prompt.",
            "prompt",
        )
    if max_tokens is not None and prompt_tokens + max_tokens > context_length:
        raise _too_long(
            f"The request needs {prompt_tokens + max_tokens} tokens ({prompt_tokens} in the prompt, {max_tokens} "
            f"in `max_tokens`); this model's context length is {context_length} tokens. Shorten the prompt or "
            f"lower `max_tokens` to {context_length - prompt_tokens}.",
            "max_tokens",
        )


def resolve(
    request: SamplingRequest,
    defaults: SamplingDefaults,
    *,
    prompt_tokens: int,
    room_tokens: int,
    default_max_tokens: int | None,
) -> SamplingParams:
    """The engine's parameters for one checked prompt.

    `room_tokens` is the context length, or the KV pool where that is smaller: a default stays within it;
    `default_max_tokens` None means all of the room that the prompt leaves.
    """
    left = max(1, room_tokens - prompt_tokens)
    max_tokens = request.max_tokens
    if max_tokens is None:
        max_tokens = left if default_max_tokens is None else min(default_max_tokens, left)
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=defaults.temperature if request.temperature is None else request.temperature,
        top_p=defaults.top_p if request.top_p is None else request.top_p,
        top_k=defaults.top_k if request.top_k is None else request.top_k,
        seed=request.seed,
        stop_token_ids=tuple(request.stop_token_ids or ()),
        ignore_eos=bool(request.ignore_eos),
    )


def _check_distribution(temperature: float, top_p: float, top_k: int) -> None:
    if not (temperature >= 0 and math.isfinite(temperature)):
        raise invalid(f"`temperature` must be 0 or more, not {temperature}.", "temperature")
    if not 0 < top_p <= 1:
        raise invalid(f"`top_p` must be above 0 and at most 1, not {top_p}.", "top_p")
    if top_k != -1 and not 1 <= top_k < _INT64:
        raise invalid(f"`top_k` must be at least 1, or -1 for the whole vocabulary, not {top_k}.", "top_k")


def _too_long(message: str, param: str) -> ApiError:
    return invalid(message, param, "context_length_exceeded")


def _bad_default(name: str, value: object, why: str) -> HeadraceError:
    return HeadraceError(
        f"generation_config.json has {name}={value!r}. {why}",
        remedy="Correct the file, or start with --sampling-defaults openai to leave it aside.",
    )
