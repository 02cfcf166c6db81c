"""The typed messages between the front process and an engine process."""

from typing import Literal

import msgspec

FinishReason = Literal["stop", "length", "abort"]


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How one request's tokens are chosen. All values are already checked and defaults resolved.

    Attributes:
        max_tokens: tokens to generate at the most, ≥ 1; prompt and answer fit the context length. 0 only with
            `prompt_logprobs`: the prompt is scored and nothing is generated.
        min_tokens: until so many are generated, neither end-of-sequence ids nor `stop_token_ids` can be chosen.
        temperature: ≥ 0; 0 is greedy.
        top_p: in (0, 1].
        top_k: ≥ 1, or -1 for the whole vocabulary.
        min_p: in [0, 1]; ids less likely than min_p × the likeliest are left out.
        repetition_penalty: > 0; divides positive and multiplies negative logits of ids in prompt or answer.
        presence_penalty, frequency_penalty: taken from the logits of ids in the answer, once and per occurrence.
        logit_bias: (id, what is added to its logit).
        seed: makes the request's samples repeatable; None draws from the engine's own stream.
        stop_token_ids: ids that end the answer, beside the model's own end-of-sequence ids.
        ignore_eos: go on over the model's own end-of-sequence ids.
        logprobs: report each chosen token's logprob and this many of the likeliest; None reports nothing.
        prompt_logprobs: the same for the prompt's tokens from the second on.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    seed: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    min_tokens: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None


class TokenLogprob(msgspec.Struct, frozen=True):
    """How likely a token was: natural logarithms under the model's own distribution (float32 log-softmax of its
    logits, before temperature, penalties and bias).

    Attributes:
        logprob: of the token that stands there.
        top: the likeliest (id, logprob), in descending order; as many as were asked for.
    """

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


# ---- front → engine


class Generate(msgspec.Struct, frozen=True, tag=True):
    """Answer one prompt.

    Attributes:
        rid: unique for the life of the front.
        input_ids: at least one, within the vocabulary.
        priority: the higher is served first with --enable-priority-scheduling.
    """

    rid: str
    input_ids: list[int]
    sampling: SamplingParams
    priority: int = 0


class Abort(msgspec.Struct, frozen=True, tag=True):
    """Forget a request in whatever state it is. No message with its rid need be awaited."""

    rid: str


class FlushCache(msgspec.Struct, frozen=True, tag=True):
    """Empty the prefix cache; answered by one CacheFlushed, in the order asked."""


Occupation = Literal["weights", "kv_cache"]
EVERYTHING: tuple[Occupation, ...] = ("weights", "kv_cache")


class UpdateWeights(msgspec.Struct, frozen=True, tag=True):
    """Serve another checkpoint of the same architecture; answered by one WeightsAnswer.

    Running requests end on the old weights, later ones wait for the new. What a failure leaves is told by the answer.

    Attributes:
        model: a URI or a folder, as the user wrote it.
        abort_requests: end running and waiting requests instead of waiting for them.
        in_place: overwrite the old weights where there is no room for both; a failure then ends the engine.
        flush_cache: forget the prefixes that the old weights computed.
    """

    model: str
    abort_requests: bool = False
    in_place: bool = False
    flush_cache: bool = True


class ReleaseMemory(msgspec.Struct, frozen=True, tag=True):
    """Give memory back to the system; answered by one WeightsAnswer. Refused while there are requests."""

    occupations: tuple[Occupation, ...]


class ResumeMemory(msgspec.Struct, frozen=True, tag=True):
    """Take it again, and stream the weights again; answered by one WeightsAnswer."""

    occupations: tuple[Occupation, ...]


class Stop(msgspec.Struct, frozen=True, tag=True):
    """End the engine process now; running requests are dropped."""


FrontMessage = Generate | Abort | FlushCache | UpdateWeights | ReleaseMemory | ResumeMemory | Stop


# ---- engine → front


class PhaseTime(msgspec.Struct, frozen=True):
    """One row of the start-up table: seconds since the engine process was started."""

    name: str
    start_s: float
    end_s: float


class LoadProgress(msgspec.Struct, frozen=True, tag=True):
    """Where the start-up stands; sent when the phase changes and a few times a second while bytes move.

    Attributes:
        phase: a word or two for a person: "listing", "streaming weights", "warming up".
        bytes_total: 0 until the read plan is known.
        retries: reads that failed and were tried again.
        hedges: slow reads that a second connection was put to.
        concurrency: connections that read at this moment.
    """

    phase: str
    bytes_done: int = 0
    bytes_total: int = 0
    retries: int = 0
    hedges: int = 0
    concurrency: int = 0


class ModelInfo(msgspec.Struct, frozen=True, tag=True):
    """Everything the front needs to speak for the model, sent long before the weights are there.

    Attributes:
        config: config.json as text.
        generation_config: generation_config.json as text, or "".
        tokenizer_files: base name → content: tokenizer.json, tokenizer_config.json, chat_template.jinja, ...
        context_length: tokens that one request may take, prompt and answer.
        vocab_size: rows of the embedding; a prompt's token ids must be below it.
        eos_token_ids: every end-of-sequence id that config.json and generation_config.json name.
    """

    config: str
    generation_config: str
    tokenizer_files: dict[str, bytes]
    context_length: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]


class Accepting(msgspec.Struct, frozen=True, tag=True):
    """From here on requests may be sent: the engine computes them while weights arrive. Sent after ModelInfo, once a load.

    Tokens come only when every byte is in place and proved. A second one, after a load that began anew, changes nothing
    for requests that were sent before.

    Attributes:
        max_total_tokens: as in Ready.
    """

    max_total_tokens: int


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The engine is warm: it has computed a request, or a warm-up where there was none.

    Attributes:
        max_total_tokens: size of the KV pool; a request with more prompt + max_tokens is refused by the engine.
        bytes_streamed: weight bytes that were read from the store.
        phases: the start-up table.
        summary: lines for the log: device, dtype, threads.
        memory: the memory plan, which the log has told before the load.
        weights_bytes: what the parameters take as they lie in memory.
        kv_cache_bytes: what the KV pool takes when every page of it has been used.
    """

    max_total_tokens: int
    bytes_streamed: int
    phases: tuple[PhaseTime, ...]
    summary: tuple[str, ...] = ()
    memory: str = ""
    weights_bytes: int = 0
    kv_cache_bytes: int = 0


class TokenOutput(msgspec.Struct, frozen=True):
    """What one step gave one request.

    Attributes:
        token_ids: new ids, in order; with finish_reason "stop" the last is the id that ended the answer.
        finish_reason: None while the request goes on.
        matched_stop: the id that ended it, where an id did.
        cached_tokens: prompt tokens that were found in the prefix cache; told with the first output.
        logprobs: one for each of `token_ids`, where they were asked for.
        prompt_logprobs: with the first output, where they were asked for: one for each prompt token from the
            second on (the first has none).
    """

    rid: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None
    matched_stop: int | None = None
    cached_tokens: int = 0
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()


class StepOutput(msgspec.Struct, frozen=True, tag=True):
    """The tokens of one step of the engine, for all requests that got one."""

    outputs: tuple[TokenOutput, ...]


class EngineLoad(msgspec.Struct, frozen=True, tag=True):
    """How busy the engine is. Sent a few times a second while it computes, and when it has nothing left to do.

    Attributes:
        running: requests that are computed.
        waiting: requests that wait for a place among them.
        kv_used_tokens: places in the KV pool that running requests hold.
        kv_cached_tokens: places that the prefix cache alone holds, and gives up when they are needed.
        retractions: requests that lost their places again and had to wait, so far.
        steps: steps that were computed so far: while there is work, a sign of life.
    """

    running: int = 0
    waiting: int = 0
    kv_used_tokens: int = 0
    kv_cached_tokens: int = 0
    retractions: int = 0
    steps: int = 0


class RequestFailed(msgspec.Struct, frozen=True, tag=True):
    """The engine will not (go on to) answer this request. `status` is the HTTP status that fits."""

    rid: str
    status: int
    code: str
    message: str


class CacheFlushed(msgspec.Struct, frozen=True, tag=True):
    """The answer to FlushCache.

    Attributes:
        flushed: False while requests run or wait: nothing was touched.
        message: a sentence for whoever asked.
    """

    flushed: bool
    message: str


class WeightsAnswer(msgspec.Struct, frozen=True, tag=True):
    """The answer to UpdateWeights, ReleaseMemory and ResumeMemory, in the order asked.

    Attributes:
        success: False: nothing was changed, or the weights are lost (`occupied` lacks them) and the engine ends.
        message: a sentence for whoever asked.
        model: what is served now.
        occupied: what is in memory now.
        paused_requests: requests that waited for the change, or were ended by it.
    """

    success: bool
    message: str
    model: str
    occupied: tuple[Occupation, ...] = EVERYTHING
    paused_requests: int = 0


class LoadFailed(msgspec.Struct, frozen=True, tag=True):
    """The model cannot be served; the engine process ends after this. The text is for the user."""

    error: str
    message: str
    remedy: str = ""


class LogLine(msgspec.Struct, frozen=True, tag=True):
    """A line for the front's log, so that one process writes it. `level` is logging's name, lower case."""

    level: str
    text: str


EngineMessage = (
    LoadProgress
    | ModelInfo
    | Accepting
    | Ready
    | StepOutput
    | EngineLoad
    | RequestFailed
    | CacheFlushed
    | WeightsAnswer
    | LoadFailed
    | LogLine
)
