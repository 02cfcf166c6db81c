"""How many connections a transfer keeps busy: a controller that is told what happened and has no clock.

It starts modest, doubles while that pays, and then only now and then tries a few more. A store that asks to slow
down is obeyed at once; where it began to ask is remembered, approached one by one, and passed only seldom.
"""

START = 8
PROCESS_CEILING = 64

_PAYS = (
    0.3  # a step is followed by the next if it brought this share of what it would have, were nothing shared
)
_KEPT = 1.05  # and is kept, without another, if it brought this much
_FIRST_REST = 8  # windows until the next try after one that did not pay; doubled each time
_LONGEST_REST = 256
_REST_AT_LIMIT = 256  # windows until more than the store bore is tried again; doubled each time
_LONGEST_REST_AT_LIMIT = 1 << 16


class Pace:
    """Belongs to one transfer, under its lock.

    Attributes:
        workers: connections to keep busy now, between 1 and the ceiling.
        era: grows with every step back; what was asked for before one says nothing about what came after.
    """

    def __init__(self, ceiling: int = PROCESS_CEILING, start: int = START) -> None:
        assert ceiling >= 1 and start >= 1
        self.workers = min(start, ceiling)
        self.era = 0
        self._ceiling = ceiling
        self._limit: int | None = None  # the most that the store is known to bear, once it asked to slow down
        self._level = self.workers  # what is known to be good; more than that is a trial
        self._goodput: float | None = None  # at that level
        self._doubling = True
        self._unsettled = True  # the present window began under another number of workers
        self._looked_at: float | None = None  # a trial's first window, where it did not pay
        self._rest = 0
        self._next_rest = _FIRST_REST
        self._rest_at_limit = 0
        self._next_rest_at_limit = _REST_AT_LIMIT

    def measured(self, goodput: float, *, room: bool = True) -> None:
        """A window has passed in which all workers were busy.

        Args:
            goodput: bytes a second of all of them together.
            room: more could do more; without it nothing new is tried.
        """
        if self._unsettled:
            self._unsettled = False
            return
        if self.workers > self._level and self._goodput is not None:
            self._judge(goodput, self._goodput)
            return
        self._looked_at = None
        self._level = self.workers
        self._goodput = goodput if self._goodput is None else 0.7 * self._goodput + 0.3 * goodput
        if self._rest > 0:
            self._rest -= 1
        elif room:
            self._try_more()

    def throttled(self, era: int) -> None:
        """The store asked to slow down (429, 503) when it was asked for something in that era."""
        if era != self.era:
            return
        back = self._level if self.workers > self._level else max(1, self.workers // 2)
        self._limit = max(1, self.workers - 1)
        self._rest_at_limit = self._next_rest_at_limit
        self._next_rest_at_limit = min(2 * self._next_rest_at_limit, _LONGEST_REST_AT_LIMIT)
        self._shrink(back, rest=0)

    def timed_out(self, era: int) -> None:
        """A connection that was made, or asked for something, in that era stalled."""
        if era == self.era:
            self._shrink(max(1, self.workers * 3 // 4), rest=_FIRST_REST)

    def _shrink(self, workers: int, rest: int) -> None:
        self.era += 1
        self.workers = self._level = workers
        self._goodput = None
        self._doubling = False
        self._rest = rest
        self._unsettled = True
        self._looked_at = None

    def _judge(self, goodput: float, before: float) -> None:
        if self._looked_at is not None:
            goodput = max(goodput, self._looked_at)
        gain, most = goodput / max(before, 1e-9), self.workers / self._level
        if gain >= 1 + _PAYS * (most - 1) or (self._limit is not None and gain >= 1):
            self._level, self._goodput, self._next_rest = self.workers, goodput, _FIRST_REST
            self._looked_at = None
            self._try_more()
            return
        if self._looked_at is None:
            self._looked_at = goodput  # new connections need a while: once more
            return
        self._looked_at = None
        self._doubling = False
        self._rest = self._next_rest
        self._next_rest = min(2 * self._next_rest, _LONGEST_REST)
        if gain >= _KEPT:
            self._level, self._goodput = self.workers, goodput
        else:
            self.workers = self._level
            self._unsettled = True

    def _try_more(self) -> None:
        if self._limit is not None and self.workers >= self._limit:
            if self._rest_at_limit > 0:
                self._rest_at_limit -= 1
                return
            more = self.workers + 1
        elif self._limit is not None:
            more = self.workers + 1
        elif self._doubling:
            more = 2 * self.workers
        else:
            more = self.workers + max(1, self.workers // 4)
        more = min(more, self._ceiling)
        self._unsettled = more != self.workers
        self.workers = more
