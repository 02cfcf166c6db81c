"""What a request's fields may be; every refusal names the field. Nothing here needs the load to have ended."""

import math
from collections.abc import Sequence

from headrace.server.errors import ApiError, invalid
from headrace.server.openai.protocol import SamplingRequest

STOP_STRINGS_AT_MOST = 32
STOP_LENGTH_AT_MOST = 1024
STOP_TOKEN_IDS_AT_MOST = 1024
LOGIT_BIASES_AT_MOST = 1 << 20  # over all generations of a request, each of which carries its own
_INT64 = 1 << 63


def check_sampling(
    request: SamplingRequest, vocab_size: int, *, default_max_tokens: int | None, can_score: bool
) -> None:
    """Every check that needs no prompt. Raises ApiError 400.

    `can_score`: max_tokens may be 0. `default_max_tokens` None means the rest of the context.
    """
    check_distribution(
        1.0 if request.temperature is None else request.temperature,
        1.0 if request.top_p is None else request.top_p,
        -1 if request.top_k is None else request.top_k,
        0.0 if request.min_p is None else request.min_p,
        1.0 if request.repetition_penalty is None else request.repetition_penalty,
    )
    for param in ("presence_penalty", "frequency_penalty"):
        penalty = getattr(request, param)
        if penalty is not None and not -2 <= penalty <= 2:
            raise invalid(f"`{param}` must be from -2 to 2, not {penalty}.", param)
    _check_lengths(request, default_max_tokens, least=0 if can_score else 1)
    for param in ("seed", "priority"):
        number = getattr(request, param)
        if number is not None and not -_INT64 <= number < _INT64:
            raise invalid(f"`{param}` must fit in 64 bits, {number} does not.", param)
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
    check_token_ids([token_id for token_id, _ in logit_bias(request)], vocab_size, "logit_bias")
    stop_strings(request)


def check_distribution(
    temperature: float, top_p: float, top_k: int, min_p: float, repetition_penalty: float
) -> None:
    """What shapes the distribution, from a request or from a model's files. Raises ApiError 400."""
    if not (temperature >= 0 and math.isfinite(temperature)):
        raise invalid(f"`temperature` must be 0 or more, not {temperature}.", "temperature")
    if not 0 < top_p <= 1:
        raise invalid(f"`top_p` must be above 0 and at most 1, not {top_p}.", "top_p")
    if top_k != -1 and not 1 <= top_k < _INT64:
        raise invalid(f"`top_k` must be at least 1, or -1 for the whole vocabulary, not {top_k}.", "top_k")
    if not 0 <= min_p <= 1:
        raise invalid(f"`min_p` must be from 0 to 1, not {min_p}.", "min_p")
    if not 0 < repetition_penalty <= 2:
        raise invalid(
            f"`repetition_penalty` must be above 0 and at most 2, not {repetition_penalty}.",
            "repetition_penalty",
        )


def check_token_ids(ids: Sequence[int], vocab_size: int, param: str) -> None:
    """Raises ApiError 400 for an id outside the vocabulary."""
    if ids and not (min(ids) >= 0 and max(ids) < vocab_size):
        bad = next(token for token in ids if not 0 <= token < vocab_size)
        raise invalid(
            f"`{param}` has the token id {bad}; this model's ids go from 0 to {vocab_size - 1}.",
            param,
            "invalid_token_id",
        )


def logit_bias(request: SamplingRequest) -> tuple[tuple[int, float], ...]:
    """(token id, what is added to its logit). Raises ApiError 400 for what is no id, or a bias out of range."""
    biases: dict[int, float] = {}
    for key, bias in (request.logit_bias or {}).items():
        if not (key.isascii() and key.isdigit() and len(key) < 20):
            raise invalid(f"`logit_bias` has the key {key[:40]!r}, which is no token id.", "logit_bias")
        if not -100 <= bias <= 100:
            raise invalid(
                f"`logit_bias` has {bias} for the token id {key}; from -100 to 100 is possible.", "logit_bias"
            )
        biases[int(key)] = bias
    return tuple(biases.items())


def check_bias_count(request: SamplingRequest, generations: int) -> None:
    """Raises ApiError 400 for a `logit_bias` that is too large for so many generations."""
    total = len(request.logit_bias or ()) * generations
    if total > LOGIT_BIASES_AT_MOST:
        raise invalid(
            f"`logit_bias` has {len(request.logit_bias or ())} ids for each of {generations} generations; "
            f"{LOGIT_BIASES_AT_MOST} in all are the most.",
            "logit_bias",
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


def check_prompt_length(
    prompt_tokens: int, request: SamplingRequest, context_length: int, param: str, *, at_least: bool = False
) -> None:
    """Raises ApiError 400 for a prompt that leaves no room for an answer.

    `param` is the field that holds the prompt; `at_least`: it may have more tokens than these.
    """
    if prompt_tokens + (request.max_tokens != 0) > context_length:
        raise _too_long(
            f"The prompt has {'at least ' if at_least else ''}{prompt_tokens} tokens; this model's context length is "
            f"{context_length} tokens and at least one must be left for the answer. Shorten `{param}`.",
            param,
        )


def check_context(prompt_tokens: int, request: SamplingRequest, context_length: int, param: str) -> None:
    """Raises ApiError 400, with the true numbers, for a prompt that leaves no room for what was asked."""
    check_prompt_length(prompt_tokens, request, context_length, param)
    max_tokens, min_tokens = request.max_tokens, request.min_tokens or 0
    wanted, limit = (min_tokens, "min_tokens") if max_tokens is None else (max_tokens, "max_tokens")
    if prompt_tokens + wanted > context_length:
        raise _too_long(
            f"The request needs {prompt_tokens + wanted} tokens ({prompt_tokens} in the prompt, {wanted} in "
            f"`{limit}`); this model's context length is {context_length} tokens. Shorten the prompt or lower "
            f"`{limit}` to {context_length - prompt_tokens}.",
            limit,
        )


def _check_lengths(request: SamplingRequest, default_max_tokens: int | None, *, least: int) -> None:
    if request.max_tokens is not None and request.max_tokens < least:
        raise invalid(
            f"`max_tokens` must be at least {least}, not {request.max_tokens}"
            + (" (0 is for scoring a prompt: with `echo` in /v1/completions)." if least else "."),
            "max_tokens",
        )
    if request.min_tokens is None:
        return
    most, note = request.max_tokens, ""
    if most is None:
        most, note = default_max_tokens, " by default"
    if request.min_tokens < 0 or (most is not None and request.min_tokens > most):
        limit = "`max_tokens`" if most is None else f"`max_tokens` ({most}{note})"
        raise invalid(f"`min_tokens` must be from 0 to {limit}, not {request.min_tokens}.", "min_tokens")


def _too_long(message: str, param: str) -> ApiError:
    return invalid(message, param, "context_length_exceeded")
