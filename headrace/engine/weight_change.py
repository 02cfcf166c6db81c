"""Other weights in a running engine, and memory given back and taken again.

A change is a script that the step loop goes on with between its steps: what waits for a store runs in a thread, what
touches model, scheduler or cache runs here. Until the script swaps the models, the old one serves.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from headrace.engine import memory_views
from headrace.engine.front_log import logged_by_the_front
from headrace.engine.load_meter import load_of
from headrace.engine.served import Served
from headrace.engine.successor import Successor, begin_stream, open_successor
from headrace.errors import HeadraceError
from headrace.ipc.messages import (
    EngineMessage,
    LogLine,
    Occupation,
    ReleaseMemory,
    ResumeMemory,
    UpdateWeights,
    WeightsAnswer,
)
from headrace.stream.arena import Arena
from headrace.stream.library.memory_room import NotEnoughMemory, check_room, memory_room

if TYPE_CHECKING:
    from headrace.engine.engine import Engine

# While a change is under way, an idle engine looks so often whether it can go on.
_LOOK_EVERY_S = 0.02
_SHOW_EVERY_S = 1.0
_ALL: tuple[Occupation, ...] = ("weights", "kv_cache")
_CODE = "weights_changed"  # of requests that a change ends
_NO_ROOM = "Free memory, and ask again."
_NO_ROOM_FOR_BOTH = (
    "Ask with in_place=true, which overwrites the served weights once nothing runs (a failure then starts the engine "
    "anew), or free memory: a smaller --max-total-tokens leaves more."
)
_logger = logging.getLogger(__name__)

T = TypeVar("T")
# Yields while it waits; returns what is answered.
Script = Generator[None, None, WeightsAnswer]


class WeightsLost(HeadraceError):
    """Weights were being overwritten when it failed: nothing can be served with what is in memory now."""


class WeightChanges:
    """The changes of one engine, one at a time. Belongs to the engine's thread."""

    def __init__(self, engine: "Engine", served: Served, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._served = served
        self._occupied: set[Occupation] = set(_ALL)
        self._script: Script | None = None
        self._lost: WeightsLost | None = None
        self._outbox: deque[EngineMessage] = deque()  # other threads append log lines
        self._log = ExitStack()
        self._clock = clock
        self._shown_s = clock()

    # ---- what the step loop asks

    @property
    def wait_s(self) -> float | None:
        """How long the loop may wait for a message; None where no change is under way."""
        return _LOOK_EVERY_S if self._script is not None else None

    def missing(self) -> str:
        """Why no request can be computed: a sentence; "" where memory is complete."""
        gone = [name for name in _ALL if name not in self._occupied]
        if not gone:
            return ""
        return (
            f"The memory of {_and(gone)} was given back (/release_memory_occupation). Ask again after "
            "/resume_memory_occupation."
        )

    def begin(self, asked: UpdateWeights | ReleaseMemory | ResumeMemory) -> WeightsAnswer | None:
        """Begin what is asked for; the answer, unless `advance` will give it."""
        if self._script is not None:
            return self._answer(False, "Another change of weights or memory is under way. Ask again later.")
        if isinstance(asked, ReleaseMemory):
            return self._release(asked.occupations)
        self._log.enter_context(logged_by_the_front(self._outbox.append, self._engine.options.log_level))
        self._script = self._update(asked) if isinstance(asked, UpdateWeights) else self._resume(asked)
        return None

    def advance(self) -> list[EngineMessage]:
        """Go on with the change under way; log lines, failures of requests and the answer, to be sent in this order."""
        if self._script is not None:
            try:
                next(self._script)
            except StopIteration as end:
                self._end(end.value)
            except WeightsLost as error:
                self._lost = error
                self._end(self._answer(False, str(error)))
            except HeadraceError as error:
                self._end(self._answer(False, str(error)))
            except Exception as error:
                _logger.exception("The change of weights failed.")
                self._end(self._answer(False, f"The engine failed at the change: {error!r}."))
        if self._script is not None:
            self._show_life()
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

    # ---- scripts

    def _update(self, asked: UpdateWeights) -> Script:
        self._say(f"Change of weights: opening {asked.model}; what is served goes on.")
        served, options = self._served, self._engine.options
        successor = yield from _in_thread(partial(open_successor, asked.model, served, options))
        try:
            has_weights = "weights" in self._occupied
            arena = self._arena_for(successor, may_overwrite=asked.in_place)
            if has_weights and arena is served.arena:
                paused = yield from self._overwrite(successor, arena, asked)
            else:
                paused = yield from self._load_aside(successor, arena, asked)
        finally:
            successor.close()
        text = f"{asked.model} is served now."
        self._say(f"Change of weights: {text}")
        return self._answer(True, text, paused)

    def _load_aside(
        self, successor: Successor, arena: Arena, asked: UpdateWeights
    ) -> Generator[None, None, int]:
        """Load while the old weights serve (or where there are none), then swap; how many requests that paused."""
        try:
            yield from self._stream(successor, arena)
        except BaseException:
            arena.give_back()  # also where it is the released one, which is of no use half filled
            raise
        ended = yield from self._until_idle(asked.abort_requests)
        self._swap(successor, arena, flush_cache=asked.flush_cache)
        return ended + self._engine.scheduler.waiting_count

    def _overwrite(
        self, successor: Successor, arena: Arena, asked: UpdateWeights
    ) -> Generator[None, None, int]:
        """Load over the old weights, with nothing running; how many requests wait for it or were ended.

        Raises WeightsLost.
        """
        self._say("Change of weights: no room for both, so the old ones are overwritten once nothing runs.")
        ended = yield from self._until_idle(asked.abort_requests)
        try:
            yield from self._stream(successor, arena)
        except Exception as error:
            self._occupied.discard("weights")
            raise WeightsLost(
                f"The weights were overwritten in part when the load of {asked.model} failed, and cannot be used: "
                f"{error}",
                remedy=f"The engine starts again on {self._served.model}.",
            ) from error
        self._swap(successor, arena, flush_cache=asked.flush_cache)
        return ended + self._engine.scheduler.waiting_count

    def _resume(self, asked: ResumeMemory) -> Script:
        missing = [name for name in asked.occupations if name not in self._occupied]
        if "kv_cache" in missing:
            memory_views.take_again([*self._served.cache.keys, *self._served.cache.values])
        if "weights" not in missing:
            self._occupied.update(missing)
            return self._answer(True, self._holdings())
        text = "the same weights as before"
        if self._served.is_random:
            memory_views.take_again(self._served.parameters.values())
            seed = self._engine.options.random_seed or 0
            memory_views.fill_with_noise(self._served.parameters, seed)
        else:
            model = self._served.model
            self._say(f"Taking memory again: streaming {model}.")
            successor = yield from _in_thread(
                partial(open_successor, model, self._served, self._engine.options)
            )
            try:
                if successor.items != self._served.items:
                    text = "its objects changed meanwhile, so these are other weights than before"
                arena = self._arena_for(successor, may_overwrite=False)
                unchanged = UpdateWeights(model, flush_cache=successor.items != self._served.items)
                yield from self._load_aside(successor, arena, unchanged)
            finally:
                successor.close()
        self._occupied.update(missing)
        return self._answer(True, f"{self._holdings()} {self._served.model}: {text}.")

    def _release(self, occupations: tuple[Occupation, ...]) -> WeightsAnswer:
        scheduler, served = self._engine.scheduler, self._served
        if count := len(scheduler.requests()):
            return self._answer(
                False, f"Memory is kept while there are requests ({count} now). Ask again later."
            )
        if "weights" in occupations and "weights" in self._occupied:
            if served.arena is not None:
                served.arena.give_back()
            else:
                memory_views.give_back(served.parameters.values())
        if "kv_cache" in occupations and "kv_cache" in self._occupied:
            scheduler.flush_cache()
            scheduler.pool.forget_use()
            memory_views.give_back([*served.cache.keys, *served.cache.values])
        self._occupied.difference_update(occupations)
        self._say(f"Memory given back: {_and(occupations)}." if occupations else "No memory given back.")
        return self._answer(True, self._holdings())

    # ---- steps of scripts

    def _arena_for(self, successor: Successor, *, may_overwrite: bool) -> Arena:
        """Where to load: a second arena, the released one, or the served one where there is no room for another.

        Raises NotEnoughMemory where it would be the served one and that may not be overwritten.
        """
        served = self._served
        size, to_come = served.arena_plan.size_bytes, self._cache_to_come_bytes()
        is_there = "weights" in self._occupied
        what = f"To load {successor.model}{f' beside {served.model}' if is_there else ''}"
        if to_come:
            what += f" ({size:,} bytes, and {to_come:,} that the KV cache may yet take)"
        try:
            check_room(size + to_come, what, memory_room(), _NO_ROOM_FOR_BOTH if is_there else _NO_ROOM)
        except NotEnoughMemory:
            if not may_overwrite or served.arena is None:
                raise
            return served.arena
        return Arena(size) if is_there or served.arena is None else served.arena

    def _cache_to_come_bytes(self) -> int:
        """Of the KV cache on the CPU, what has never been touched."""
        if self._served.arena is None or "kv_cache" not in self._occupied:
            return 0
        pool, cache = self._engine.scheduler.pool, self._served.cache
        untouched = pool.page_count - pool.used_count
        return sum(tensor.nbytes for tensor in (*cache.keys, *cache.values)) // pool.page_count * untouched

    def _stream(self, successor: Successor, arena: Arena) -> Generator[None, None, None]:
        """Every byte in place and proved."""
        stream = begin_stream(successor, arena, self._engine.options)
        self._say(f"Streaming {successor.plan.bytes_total:,} bytes of {successor.model}.")
        try:
            proof = yield from _in_thread(stream.wait)
        except BaseException:
            stream.cancel()
            raise
        if proof:
            self._say(proof)

    def _until_idle(self, abort_requests: bool) -> Generator[None, None, int]:
        """Nothing is running, and nothing new is let in; how many requests were ended for it."""
        scheduler = self._engine.scheduler
        scheduler.hold()
        if abort_requests:
            text = "The request was ended by a change of weights that did not wait for it. Ask again."
            failures = self._engine.fail_all(503, _CODE, text)
            self._outbox.extend(failures)
            return len(failures)
        while scheduler.has_work:
            yield
        return 0

    def _swap(self, successor: Successor, arena: Arena, *, flush_cache: bool) -> None:
        """Compute with what is in the arena from now on, and let the old weights' memory go."""
        engine, served = self._engine, self._served
        old = engine.runner.model
        loaded = memory_views.wrap_parameters(arena, served.arena_plan)
        parameters = served.parameters
        if served.arena is None:
            memory_views.take_again(parameters.values())
            for name, tensor in parameters.items():
                tensor.copy_(loaded[name])
        else:
            parameters = loaded
        engine.use(type(old)(successor.config, parameters, old.arithmetic), successor.eos_token_ids)
        if flush_cache:
            engine.scheduler.forget_prefixes()
        self._served = replace(
            served,
            model=successor.model,
            config=successor.config,
            items=successor.items,
            arena=None if served.arena is None else arena,
            parameters=parameters,
        )
        self._occupied.add("weights")
        if arena is not served.arena and served.arena is not None:
            served.arena.give_back()  # whoever may still hold a tensor of it

    # ---- words

    def _show_life(self) -> None:
        """Requests that wait for the change get no tokens meanwhile: the front must not take the engine for stuck."""
        now_s = self._clock()
        if now_s - self._shown_s >= _SHOW_EVERY_S:
            self._shown_s = now_s
            self._outbox.append(load_of(self._engine.scheduler))

    def _end(self, answer: WeightsAnswer) -> None:
        self._script = None
        self._log.close()
        self._engine.scheduler.let_in()
        if not answer.success:
            self._say(answer.message, "error")
        self._outbox.append(answer)

    def _say(self, text: str, level: str = "info") -> None:
        self._outbox.append(LogLine(level, text))

    def _answer(self, success: bool, message: str, paused: int = 0) -> WeightsAnswer:
        occupied: tuple[Occupation, ...] = tuple(name for name in _ALL if name in self._occupied)
        return WeightsAnswer(success, message, self._served.model, occupied, paused)

    def _holdings(self) -> str:
        return f"In memory: {_and([name for name in _ALL if name in self._occupied]) or 'nothing'}."


def _in_thread(work: Callable[[], T]) -> Generator[None, None, T]:
    """The result of something that waits, computed in a thread; raises what it raises.

    A daemon: an engine that ends does not wait for a store.
    """
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # handed to the script
            future.set_exception(error)

    threading.Thread(target=run, name="weight-change", daemon=True).start()
    while not future.done():
        yield
    return future.result()


def _and(names: "tuple[Occupation, ...] | list[Occupation]") -> str:
    return " and ".join({"weights": "weights", "kv_cache": "KV cache"}[name] for name in names)
