"""Loading anew when the objects change under a load: from a new listing, once the place is quiet."""

import gc
import logging
import time
from collections.abc import Callable
from typing import TypeVar

from headrace.store.errors import Changed, NotFound, Truncated

TRIES = 3
# How long two looks must agree: longer after each try, as a large object says nothing while it is uploaded.
QUIET_S = (5.0, 20.0)
LONGEST_WAIT_S = 900.0
_logger = logging.getLogger(__name__)

Result = TypeVar("Result")


def load_through_changes(
    load: Callable[[], Result],
    look: Callable[[], object],
    *,
    let_go: Callable[[], None] = lambda: None,
    wait: Callable[[float], object] = time.sleep,
) -> Result:
    """Load, and load again from the beginning while what is loaded is being replaced: TRIES times in all.

    Args:
        load: a whole load, from its listing on.
        look: what is there now, to be compared: a listing.
        let_go: drops what a failed load has left behind.
        wait: waits that many seconds; what it raises ends it all.

    Raises:
        Changed, Truncated: the last load failed by a change too, or the place does not come to rest.
        HeadraceError: whatever else a load or a look raises.
    """
    for failed_before in range(TRIES):
        try:
            return load()
        except (Changed, Truncated) as error:
            if failed_before == TRIES - 1:
                error.remedy = f"Loaded {TRIES} times, and it changed each time. {error.remedy}"
                raise
            uri, told = error.uri, error.message
        # The error is gone, and with it what its traceback held: nothing of the failed load stays in memory.
        let_go()
        gc.collect()
        _logger.warning("%s The load begins anew when the place has come to rest.", told)
        _wait_for_rest(look, QUIET_S[failed_before], wait, uri)
    raise AssertionError("unreachable")


def _wait_for_rest(
    look: Callable[[], object], quiet_s: float, wait: Callable[[float], object], uri: str
) -> None:
    seen = _seen(look)
    for _ in range(int(LONGEST_WAIT_S / quiet_s)):
        wait(quiet_s)
        now = _seen(look)
        if now == seen:
            return
        seen = now
    raise Changed(
        uri,
        f"The objects are still being changed after {LONGEST_WAIT_S:.0f} s.",
        remedy="Start again once the upload is complete.",
    )


def _seen(look: Callable[[], object]) -> object:
    """What is there; a place that is empty for a while, as an upload may begin, is a thing to see too."""
    try:
        return look()
    except NotFound:
        return None
