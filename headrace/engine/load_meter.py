"""Tells the front now and then how busy the engine is."""

import time
from collections.abc import Callable

from headrace.engine.scheduling.scheduler import Scheduler
from headrace.ipc.messages import EngineLoad

_EVERY_S = 0.2


def load_of(scheduler: Scheduler) -> EngineLoad:
    """The scheduler's queue and pool, as they are now."""
    pool = scheduler.pool
    evictable = scheduler.evictable_page_count
    return EngineLoad(
        running=scheduler.running_count,
        waiting=scheduler.waiting_count,
        kv_used_tokens=(pool.page_count - pool.free_count - evictable) * pool.page_size,
        kv_cached_tokens=evictable * pool.page_size,
        retractions=scheduler.retraction_count,
        steps=scheduler.step_count,
    )


class LoadMeter:
    """Decides when it is worth a message: a few times a second at work, and once at the end of it."""

    def __init__(self, scheduler: Scheduler, clock: Callable[[], float] = time.monotonic) -> None:
        self._scheduler = scheduler
        self._clock = clock
        self._told = load_of(scheduler)
        self._told_s = float("-inf")

    def news(self) -> EngineLoad | None:
        """What to send now, if anything. Call it after a step and before waiting for work."""
        now_s = self._clock()
        if self._scheduler.has_work and now_s - self._told_s < _EVERY_S:
            return None
        load = load_of(self._scheduler)
        if load == self._told:
            return None
        self._told, self._told_s = load, now_s
        return load
