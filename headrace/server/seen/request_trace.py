"""What is known of the HTTP request that is being answered: its id, and what became of it."""

import re
import secrets
from contextvars import ContextVar
from dataclasses import dataclass, field

from headrace.ipc.messages import SamplingParams

REQUEST_ID_HEADER = b"x-request-id"

# Visible ASCII: nothing that would break a line of a log, or a header.
_SANE_ID = re.compile(rb"[!-~]{1,128}")


@dataclass(slots=True)
class AnswerFacts:
    """What became of a request for text once the engine was asked. Times by the metrics' clock.

    Attributes:
        rids: the engine's ids of the choices, in the order of their indices.
        sampling: what the first choice is sampled with.
        sent_s: when the engine was asked.
        prompt_tokens: a prompt counts once, however many choices.
        cached_tokens: those of them that the prefix cache held.
        finish_reasons: by rid.
    """

    rids: tuple[str, ...]
    sampling: SamplingParams
    sent_s: float
    prompt_tokens: int
    cached_tokens: int = 0
    completion_tokens: int = 0
    first_token_s: float | None = None
    last_token_s: float = 0.0
    finish_reasons: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class RequestTrace:
    """One request on its way.

    Attributes:
        request_id: the client's own, or made here.
        route: a path of this server, as metrics name it; see `http_meter.route_of`.
        method: HTTP's.
        arrived_s: by the metrics' clock.
        status: of the answer; None until its head is sent.
        complete: the last byte of the answer is on its way.
        failed: the answer was broken off by an error after its head had been sent.
        answer: None until the engine was asked.
    """

    request_id: str
    route: str
    method: str
    arrived_s: float
    status: int | None = None
    complete: bool = False
    failed: bool = False
    answer: AnswerFacts | None = None


# Tasks that are started for a request inherit it.
_current: ContextVar[RequestTrace | None] = ContextVar("request", default=None)


def begin(trace: RequestTrace) -> None:
    """Make this the request of the running task, to its end."""
    _current.set(trace)


def current() -> RequestTrace | None:
    """The request that the running task answers; None outside of one."""
    return _current.get()


def request_id(given: bytes | None = None) -> str:
    """The id that a client gave, if it is 1 to 128 visible ASCII characters; else a new one."""
    if given is not None and _SANE_ID.fullmatch(given):
        return given.decode("ascii")
    return secrets.token_hex(16)


def see_log() -> str:
    """Where a client's complaint leads to: a sentence for the answer to a defect."""
    trace = current()
    return "its log says more" + (f" under the request id {trace.request_id}" if trace else "")
