"""Why a request is not answered: what a client is told while there is no engine, and when it may ask again."""

import math

from headrace.errors import HeadraceError
from headrace.server.errors import ApiError, unavailable
from headrace.server.life.restarts import Restart
from headrace.server.seen.progress import ProgressMeter

RETRY_AFTER_S = 5
RETRY_AFTER_AT_MOST_S = 60
BUSY_STATUSES = frozenset({429, 503})  # of refusals that a later try may not meet


def why_not_ready(progress: ProgressMeter, restart: Restart | None) -> str:
    """A sentence or two."""
    if restart is None:
        return f"The model is still loading ({progress.words()})."
    return (
        f"The engine has failed and is started again (attempt {restart.attempt}; {progress.words()}). "
        f"The reason: {restart.reason}"
    )


def retry_after_s(progress: ProgressMeter, restart: Restart | None, now_s: float) -> int:
    """When it is worth asking again, as far as that is known; whole seconds, 1 to 60.

    Args:
        now_s: on the event loop's clock.
    """
    eta_s = progress.eta_s()
    if restart is not None and restart.next_try_s is not None:
        wait_s = restart.next_try_s - now_s + RETRY_AFTER_S
    else:
        wait_s = RETRY_AFTER_S if eta_s is None else eta_s
    return min(max(math.ceil(wait_s), 1), RETRY_AFTER_AT_MOST_S)


def shutting_down() -> ApiError:
    """No new request is admitted any more."""
    return unavailable("The server is shutting down and admits no new requests.", "shutting_down", close=True)


def refusal(status: int, code: str, text: str) -> ApiError:
    """What the engine refuses, as its client is told."""
    headers = {"Retry-After": str(RETRY_AFTER_S)} if status in BUSY_STATUSES else {}
    return ApiError(status, text, code=code, headers=headers)


def engine_failed(error: HeadraceError, *, was_ready: bool) -> ApiError:
    """The engine's failure, as its clients are told."""
    if isinstance(error, ApiError):
        return error
    what = "The engine failed" if was_ready else "The model could not be loaded"
    return ApiError(500, f"{what}: {error.message}", code="engine_failed")


def engine_gone() -> ApiError:
    """The engine has ended in this very moment: what was asked has not been sent to anyone."""
    return unavailable("The engine has just ended. Ask again.", "engine_failed", retry_after_s=RETRY_AFTER_S)
