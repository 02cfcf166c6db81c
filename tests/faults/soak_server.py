"""A server that misbehaves at random, the same way at each run of a seed, and that remembers what it did."""

import random
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.faults.server import Behaviour, Exchange, honest, stall_before_head
from tests.faults.soak_faults import FAILING, ODD, SILENT, Draw, Fatal, redirected

# Failures in a row without a byte in between, of a small read at the start and of a chunk: fewer than a load gets over,
# as a busy machine may add one of its own.
_BORNE_AT_START = 2
_BORNE = 6
# Each costs somebody's whole patience.
_MOST_SILENCES = 15


@dataclass(slots=True)
class Chance:
    """Answers reads of objects: `server.usual` of one load.

    Attributes:
        seed: what is drawn for a request depends on it, the request's range and how often that came; on no clock.
        rate: the share of answers that are not honest.
        silent: connections may fall silent, too.
        redirects: an object may be found elsewhere.
        bursts: at which requests the server begins to answer everything with 503, and for how many.
        closes: every connection is closed after one answer.
        hangs: the first read of an object's last bytes gets no answer.
        fatal, fatal_at: what ends the load, at which request for weights.
        events: what else happens, at which request for weights.
        told: how often each fault was sent; a fatal one under its own name.
    """

    seed: int
    rate: float
    silent: bool = False
    redirects: bool = False
    bursts: tuple[tuple[int, int], ...] = ()
    closes: bool = False
    hangs: bool = False
    fatal: Fatal | None = None
    fatal_name: str = ""
    fatal_at: int = 0
    events: dict[int, Callable[[], None]] = field(default_factory=dict)
    told: Counter[str] = field(default_factory=Counter)
    _weights: int = 0
    _asked: Counter[tuple[str, int]] = field(default_factory=Counter)
    _failed: Counter[tuple[str, int]] = field(default_factory=Counter)
    _reached: dict[tuple[str, int], int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _happening: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, exchange: Exchange) -> None:
        """A behaviour."""
        with self._lock:
            name, behaviour = self._next(exchange)
            if name:
                self.told[name] += 1
        self._happen()
        behaviour(exchange)
        if self.closes:
            exchange.keep = False

    def _happen(self) -> None:
        with self._happening:
            for at in [at for at in self.events if at <= self._weights]:
                self.events.pop(at)()

    def end(self) -> None:
        """Nothing happens any more, and no thread holds on to what would have."""
        with self._happening:
            self.events.clear()

    def _next(self, exchange: Exchange) -> tuple[str, Behaviour]:
        first, end = exchange.span
        size = end - first
        of_weights = exchange.asked.path.endswith(".safetensors") and first > 0
        if of_weights:
            self._weights += 1
            if self.fatal is not None and (
                self._weights >= self.fatal_at if self.fatal.lasts else self._weights == self.fatal_at
            ):
                return self.fatal_name, self.fatal.behave
            if self.hangs and end == len(exchange.stored.data):
                self.hangs = False
                return "the last chunk hangs", stall_before_head
        if size <= 0 or exchange.asked.range is None:
            return "", honest
        asked = (exchange.asked.path.rpartition("/")[2], end)
        self._asked[asked] += 1
        if first > self._reached.setdefault(asked, first):
            self._reached[asked], self._failed[asked] = first, 0
        chance = random.Random(f"{self.seed} {asked} {first} {self._asked[asked]}")
        if of_weights and any(at <= self._weights < at + count for at, count in self.bursts):
            name, draw = "throttled", FAILING["throttled"]
        elif chance.random() >= self.rate:
            return "", honest
        else:
            name, draw = self._draw(chance, exchange)
        if name not in ODD and draw is not _redirect:
            self._failed[asked] += 1
            if self._failed[asked] > (_BORNE if of_weights else _BORNE_AT_START):
                return "", honest
        return name, draw(chance, size)

    def _draw(self, chance: random.Random, exchange: Exchange) -> tuple[str, Draw]:
        kinds: dict[str, Draw] = dict(ODD if chance.random() < 0.4 else FAILING)
        if (
            self.silent
            and chance.random() < 0.15
            and sum(self.told[name] for name in SILENT) < _MOST_SILENCES
        ):
            kinds = SILENT
        if self.redirects and "/moved/" not in exchange.asked.path and chance.random() < 0.15:
            return "redirected", _redirect
        name = chance.choice(sorted(kinds))
        return name, kinds[name]


def _redirect(_chance: random.Random, _size: int) -> Behaviour:
    return redirected
