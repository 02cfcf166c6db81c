"""What a trace tells of a request and of a start-up: spans as plain data, by OpenTelemetry's conventions for generative AI.

No text of a prompt or of an answer, and no address of a client, is ever part of a span.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headrace.ipc.messages import PhaseTime, SamplingParams
from headrace.server.seen.metrics import outcome_of
from headrace.server.seen.request_trace import AnswerFacts, RequestTrace

Value = str | int | float | bool | tuple[str, ...]

PROVIDER = "headrace"
_OPERATIONS = {"/v1/chat/completions": "chat", "/v1/completions": "text_completion"}


@dataclass(frozen=True, slots=True)
class SpanFacts:
    """One span with those below it. Times by the monotonic clock, in seconds.

    Attributes:
        events: (name, time).
        error: why the operation failed, in a word; "" where it did not.
        parent: the request's own trace headers, lower-case names: traceparent and tracestate.
        server: it answers a request from outside.
    """

    name: str
    start_s: float
    end_s: float
    attributes: Mapping[str, Value] = field(default_factory=dict)
    events: tuple[tuple[str, float], ...] = ()
    children: tuple["SpanFacts", ...] = ()
    error: str = ""
    parent: Mapping[str, str] = field(default_factory=dict)
    server: bool = False


def of_request(
    trace: RequestTrace, status: int, ended_s: float, *, model: str, parent: Mapping[str, str]
) -> SpanFacts:
    """The span of a request for text that has ended.

    Args:
        status: of the HTTP answer; 499 where the client left before one.
        model: as requests name it.
        parent: see SpanFacts.
    """
    operation = _OPERATIONS[trace.route]
    outcome = outcome_of(trace, status)
    attributes: dict[str, Value] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.request.model": model,
        "http.request.method": trace.method,
        "http.route": trace.route,
        "http.response.status_code": status,
        "headrace.request_id": trace.request_id,
        "headrace.outcome": outcome,
    }
    error = ""
    if outcome == "aborted":
        error = "client_left"
    elif outcome == "failed" or status >= 400:
        error = "broken_off" if status < 400 else str(status)
    if error:
        attributes["error.type"] = error
    events: list[tuple[str, float]] = []
    children: tuple[SpanFacts, ...] = ()
    if trace.answer is not None:
        attributes |= _of_answer(trace.answer, model)
        if trace.answer.first_token_s is not None:
            events.append(("first token", trace.answer.first_token_s))
        children = _stages(trace, trace.answer, ended_s)
    # A client's own mistake, or that it left, is no failure of the server.
    failed = outcome == "failed" or status == 503
    return SpanFacts(
        f"{operation} {model}",
        trace.arrived_s,
        ended_s,
        attributes,
        tuple(events),
        children,
        error=error if failed else "",
        parent=parent,
        server=True,
    )


def of_startup(
    phases: Sequence[PhaseTime], executed_s: float, *, model_uri: str, bytes_streamed: int
) -> SpanFacts:
    """The span of a start-up, from exec to ready, with one for each phase below it.

    Args:
        phases: in seconds since exec.
        executed_s: when that was.
    """
    children = tuple(
        SpanFacts(phase.name, executed_s + phase.start_s, executed_s + phase.end_s) for phase in phases
    )
    end_s = max((child.end_s for child in children), default=executed_s)
    attributes: dict[str, Value] = {
        "headrace.model_uri": model_uri,
        "headrace.bytes_streamed": bytes_streamed,
    }
    return SpanFacts("start-up", executed_s, end_s, attributes, children=children)


def _of_answer(answer: AnswerFacts, model: str) -> dict[str, Value]:
    facts: dict[str, Value] = {
        "gen_ai.response.id": answer.rids[0].rpartition("-")[0],
        "gen_ai.response.model": model,
        "gen_ai.usage.input_tokens": answer.prompt_tokens,
        "gen_ai.usage.output_tokens": answer.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": answer.cached_tokens,
        "gen_ai.request.choice.count": len(answer.rids),
    }
    reasons = tuple(answer.finish_reasons[rid] for rid in answer.rids if rid in answer.finish_reasons)
    if reasons:
        facts["gen_ai.response.finish_reasons"] = reasons
    return facts | _of_sampling(answer.sampling)


def _of_sampling(sampling: SamplingParams) -> dict[str, Value]:
    """What the answer was sampled with: the request's own values, or the model's and the server's defaults."""
    facts: dict[str, Value] = {
        "gen_ai.request.max_tokens": sampling.max_tokens,
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.top_p": sampling.top_p,
        "gen_ai.request.frequency_penalty": sampling.frequency_penalty,
        "gen_ai.request.presence_penalty": sampling.presence_penalty,
    }
    if sampling.top_k > 0:
        facts["gen_ai.request.top_k"] = sampling.top_k
    if sampling.seed is not None:
        facts["gen_ai.request.seed"] = sampling.seed
    return facts


def _stages(trace: RequestTrace, answer: AnswerFacts, ended_s: float) -> tuple[SpanFacts, ...]:
    """Until the engine was asked, until the first token, until the last; as far as it came."""
    stages = [SpanFacts("prepare", trace.arrived_s, answer.sent_s)]
    first_s = answer.first_token_s
    stages.append(SpanFacts("queue and prefill", answer.sent_s, ended_s if first_s is None else first_s))
    if first_s is not None:
        stages.append(SpanFacts("decode", first_s, answer.last_token_s))
    return tuple(stages)
