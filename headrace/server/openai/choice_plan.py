"""How many choices a request gets, and what is told of their tokens."""

import hashlib
from dataclasses import dataclass

from headrace.server.errors import invalid
from headrace.server.openai.protocol import ChatRequest, CompletionRequest

CHOICES_AT_MOST = 128  # per prompt, OpenAI's limit for n
GENERATIONS_AT_MOST = 1024  # per request, over all its prompts
TOP_LOGPROBS_AT_MOST = 20


@dataclass(frozen=True, slots=True)
class ChoicePlan:
    """Attributes:
    n: choices that are answered for each prompt.
    best_of: choices that are generated for each prompt; the n with the highest logprob per token are answered.
    top_logprobs: how many of the likeliest tokens are told beside each token; None tells no logprobs at all.
    echo: the prompt begins the text.
    """

    n: int = 1
    best_of: int = 1
    top_logprobs: int | None = None
    echo: bool = False


def completion_plan(request: CompletionRequest, prompt_count: int) -> ChoicePlan:
    """The plan of a completion. Raises ApiError 400."""
    n = _choices(request.n, "n")
    best_of = n if request.best_of is None else _choices(request.best_of, "best_of")
    if best_of < n:
        raise invalid(f"`best_of` must be at least `n`, {best_of} is less than {n}.", "best_of")
    if best_of > n and request.stream:
        raise invalid(
            f"`best_of` {best_of} cannot be streamed: the best are known at the end only.", "best_of"
        )
    if prompt_count * best_of > GENERATIONS_AT_MOST:
        raise invalid(
            f"The request asks for {prompt_count * best_of} generations ({prompt_count} prompts, {best_of} choices "
            f"each); {GENERATIONS_AT_MOST} are the most.",
            "best_of" if request.best_of is not None else "n" if n > 1 else "prompt",
        )
    top = request.logprobs
    if isinstance(top, bool):
        top = 1 if top else None
    return ChoicePlan(n, best_of, _top_logprobs(top, "logprobs"), bool(request.echo))


def chat_plan(request: ChatRequest) -> ChoicePlan:
    """The plan of a chat. Raises ApiError 400."""
    n = _choices(request.n, "n")
    top = _top_logprobs(request.top_logprobs, "top_logprobs")
    if top and not request.logprobs:
        raise invalid("`top_logprobs` needs `logprobs`: true.", "top_logprobs")
    return ChoicePlan(n, n, (top or 0) if request.logprobs else None)


def choice_seed(seed: int | None, index: int) -> int | None:
    """The seed of a prompt's choice (a signed 64-bit number): the request's own for the first, so that it is what
    the same request with one choice gets; a number made of seed and index for the others.
    """
    if seed is None or index == 0:
        return seed
    digest = hashlib.blake2b(f"{seed}/{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def _choices(count: int | None, param: str) -> int:
    if count is None:
        return 1
    if not 1 <= count <= CHOICES_AT_MOST:
        raise invalid(f"`{param}` must be from 1 to {CHOICES_AT_MOST}, not {count}.", param)
    return count


def _top_logprobs(count: int | None, param: str) -> int | None:
    if count is not None and not 0 <= count <= TOP_LOGPROBS_AT_MOST:
        raise invalid(f"`{param}` must be from 0 to {TOP_LOGPROBS_AT_MOST}, not {count}.", param)
    return count
