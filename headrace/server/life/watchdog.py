"""Whether the engine is stuck: it has work, and for long nothing has come from it. No clock of its own."""


class Watchdog:
    """Is told again and again what there is to see.

    Only time in which it was asked counts, at most `step_s` from one look to the next: a front that was itself stopped
    (a paused container, a debugger) does not accuse its engine when it goes on.
    """

    def __init__(self, timeout_s: float) -> None:
        """`timeout_s`: how long an engine with work may be silent."""
        self.timeout_s = timeout_s
        self._signs = -1
        self._silent_s = 0.0
        self._looked_s: float | None = None

    @property
    def interval_s(self) -> float:
        """How long to wait from one look to the next."""
        return min(max(self.timeout_s / 8, 0.05), 5.0)

    @property
    def step_s(self) -> float:
        """What the time between two looks counts for at the most."""
        return 2 * self.interval_s

    def is_stuck(self, now_s: float, *, signs: int, busy: bool) -> bool:
        """Look.

        Args:
            now_s: of any steady clock.
            signs: how many signs of life there have been.
            busy: the engine has something to compute.
        """
        passed_s = 0.0 if self._looked_s is None else min(now_s - self._looked_s, self.step_s)
        self._looked_s = now_s
        if not busy or signs != self._signs:
            # Work may have begun at any time until the next look: that one begins to count.
            self._signs, self._silent_s = signs if busy else -1, 0.0
            return False
        self._silent_s += passed_s
        return self._silent_s >= self.timeout_s
