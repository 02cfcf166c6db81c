"""Changes of weights and memory as the step loop sees them: begun by a message, gone on with between its steps, told.

What a change does is a script (weight_scripts.py): it yields while it waits, and until it swaps the models the old one
serves.
"""

import logging
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

from headrace.engine.change.served import Served
from headrace.engine.change.weight_scripts import Outcome, Script, WeightScripts, WeightsLost
from headrace.engine.front_log import logged_by_the_front
from headrace.engine.load_meter import load_of
from headrace.errors import HeadraceError
from headrace.ipc.messages import (
    EVERYTHING,
    EngineMessage,
    ReleaseMemory,
    ResumeMemory,
    UpdateWeights,
    WeightsAnswer,
)

if TYPE_CHECKING:
    from headrace.engine.engine import Engine

# While a change is under way, an idle engine looks so often whether it can go on.
_LOOK_EVERY_S = 0.02
_SHOW_EVERY_S = 1.0
_logger = logging.getLogger(__name__)


class WeightChanges:
    """The changes of one engine, one at a time. Belongs to the engine's thread."""

    def __init__(self, engine: "Engine", served: Served, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._outbox: deque[EngineMessage] = deque()  # other threads append log lines
        self._scripts = WeightScripts(engine, served, self._outbox.append)
        self._script: Script | None = None
        self._lost: WeightsLost | None = None
        self._log = ExitStack()
        self._clock = clock
        self._shown_s = clock()

    @property
    def served(self) -> Served:
        """What is served now."""
        return self._scripts.served

    @property
    def wait_s(self) -> float | None:
        """How long the loop may wait for a message; None where no change is under way."""
        return _LOOK_EVERY_S if self._script is not None else None

    def missing(self) -> str:
        """Why no request can be computed: a sentence; "" where memory is complete."""
        return self._scripts.missing()

    def begin(self, asked: UpdateWeights | ReleaseMemory | ResumeMemory) -> WeightsAnswer | None:
        """Begin what is asked for; the answer, unless `advance` will give it."""
        if self._script is not None:
            return self._answer(
                Outcome("Another change of weights or memory is under way. Ask again later."), success=False
            )
        if isinstance(asked, ReleaseMemory):
            try:
                return self._answer(self._scripts.release(asked))
            except HeadraceError as error:
                return self._answer(Outcome(str(error)), success=False)
        self._log.enter_context(logged_by_the_front(self._outbox.append, self._engine.options.log_level))
        update, resume = self._scripts.update, self._scripts.resume
        self._script = update(asked) if isinstance(asked, UpdateWeights) else resume(asked)
        return None

    def advance(self) -> list[EngineMessage]:
        """Go on with the change under way; log lines, failures of requests and the answer, to be sent in this order."""
        if self._script is not None:
            self._go_on(self._script)
        sent: list[EngineMessage] = []
        while self._outbox:
            sent.append(self._outbox.popleft())
        return sent

    def raise_if_lost(self) -> None:
        """Raise WeightsLost where there is nothing left to serve with."""
        if self._lost is not None:
            raise self._lost

    def close(self) -> None:
        """End what is under way."""
        if self._script is not None:
            self._script.close()
            self._script = None
            self._log.close()

    def _go_on(self, script: Script) -> None:
        try:
            next(script)
        except StopIteration as end:
            self._end(self._answer(end.value))
        except HeadraceError as error:
            self._lost = error if isinstance(error, WeightsLost) else None
            _logger.error("%s", error)
            self._end(self._answer(Outcome(str(error)), success=False))
        except Exception as error:
            # A defect, or the system's refusal: what is served goes on all the same.
            _logger.exception("The change of weights failed.")
            self._end(self._answer(Outcome(f"The change failed in the engine: {error!r}."), success=False))
        else:
            self._show_life()

    def _end(self, answer: WeightsAnswer) -> None:
        self._script = None
        self._log.close()
        self._engine.scheduler.let_in()
        self._outbox.append(answer)

    def _show_life(self) -> None:
        """Requests that wait for the change get no tokens meanwhile: the front must not take the engine for stuck."""
        now_s = self._clock()
        if now_s - self._shown_s >= _SHOW_EVERY_S:
            self._shown_s = now_s
            self._outbox.append(load_of(self._engine.scheduler))

    def _answer(self, outcome: Outcome, *, success: bool = True) -> WeightsAnswer:
        occupied = tuple(name for name in EVERYTHING if name in self._scripts.occupied)
        return WeightsAnswer(success, outcome.message, self.served.model, occupied, outcome.paused_requests)
