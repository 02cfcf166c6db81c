"""What a change of weights or memory does, as scripts: what waits for a store runs in a thread, what touches model,
scheduler or cache in the engine's own, and each `yield` lets the step loop have its turn.
"""

from collections.abc import Callable, Collection, Generator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from headrace.engine.change.in_thread import in_thread
from headrace.engine.change.room import arena_for
from headrace.engine.change.served import Served
from headrace.engine.change.successor import Successor, begin_stream, open_successor
from headrace.engine.loading import memory_views
from headrace.errors import HeadraceError
from headrace.ipc.messages import (
    EVERYTHING,
    EngineMessage,
    LogLine,
    Occupation,
    ReleaseMemory,
    ResumeMemory,
    UpdateWeights,
)
from headrace.stream.arena import Arena

if TYPE_CHECKING:
    from headrace.engine.engine import Engine

_IN_WORDS = {"weights": "weights", "kv_cache": "KV cache"}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a change.

    Attributes:
        message: a sentence for whoever asked.
        paused_requests: requests that waited for it, or were ended by it.
    """

    message: str
    paused_requests: int = 0


Script = Generator[None, None, Outcome]


class InUse(HeadraceError):
    """Memory cannot be given back while requests need it."""


class WeightsLost(HeadraceError):
    """Weights were being overwritten when it failed: nothing can be served with what is in memory now."""


class WeightScripts:
    """The scripts of one engine, of which one at a time may run.

    Attributes:
        served: what is served now.
        occupied: what is in memory.
    """

    def __init__(self, engine: "Engine", served: Served, tell: Callable[[EngineMessage], None]) -> None:
        """`tell` is given log lines and failures of requests, for the front."""
        self._engine = engine
        self._tell = tell
        self.served = served
        self.occupied: set[Occupation] = set(EVERYTHING)

    def missing(self) -> str:
        """Why no request can be computed: a sentence; "" where memory is complete."""
        gone = [name for name in EVERYTHING if name not in self.occupied]
        if not gone:
            return ""
        return (
            f"The memory of {_and(gone)} was given back (/release_memory_occupation). Ask again after "
            "/resume_memory_occupation."
        )

    # ---- scripts

    def update(self, asked: UpdateWeights) -> Script:
        """Serve another checkpoint. Raises HeadraceError, WeightsLost among them."""
        self._say(f"Change of weights: opening {asked.model}; what is served goes on.")
        successor = yield from self._open(asked.model)
        try:
            arena = self._arena_for(successor, may_overwrite=asked.in_place)
            load = self._overwrite if self._is_in_use(arena) else self._load_aside
            paused = yield from load(
                successor, arena, abort_requests=asked.abort_requests, flush_cache=asked.flush_cache
            )
        finally:
            successor.close()
        text = f"{asked.model} is served now."
        self._say(f"Change of weights: {text}")
        return Outcome(text, paused)

    def resume(self, asked: ResumeMemory) -> Script:
        """Take memory again. Raises HeadraceError: what was missing is missing still."""
        missing = [name for name in asked.occupations if name not in self.occupied]
        told = ""
        if "weights" in missing:
            told = yield from self._weights_again()
        if "kv_cache" in missing:
            memory_views.take_again([*self.served.cache.keys, *self.served.cache.values])
        self.occupied.update(missing)
        return Outcome(f"{self._holdings()}{told}")

    def release(self, asked: ReleaseMemory) -> Outcome:
        """Give memory back, at once. Raises InUse."""
        scheduler, served = self._engine.scheduler, self.served
        if count := len(scheduler.requests()):
            raise InUse(
                f"Memory is kept while there are requests ({count} now).",
                remedy="Ask again when they have ended.",
            )
        given = [name for name in asked.occupations if name in self.occupied]
        if "weights" in given and served.arena is not None:
            served.arena.give_back()
        elif "weights" in given:
            memory_views.give_back(served.parameters.values())
        if "kv_cache" in given:
            scheduler.flush_cache()
            scheduler.pool.forget_use()
            memory_views.give_back([*served.cache.keys, *served.cache.values])
        self.occupied.difference_update(given)
        if given:
            self._say(f"Memory given back: {_and(given)}.")
        return Outcome(self._holdings())

    # ---- their parts

    def _open(self, model: str) -> Generator[None, None, Successor]:
        return (yield from in_thread(partial(open_successor, model, self.served, self._engine.options)))

    def _load_aside(
        self, successor: Successor, arena: Arena, *, abort_requests: bool = False, flush_cache: bool
    ) -> Generator[None, None, int]:
        """Load while the old weights serve, or where there are none, then swap; how many requests that paused."""
        try:
            yield from self._stream(successor, arena)
        except BaseException:
            arena.give_back()  # half filled it is of no use, whether it is a new one or the one of before
            raise
        ended = yield from self._until_idle(abort_requests)
        self._swap(successor, arena, flush_cache=flush_cache)
        return ended + self._engine.scheduler.waiting_count

    def _overwrite(
        self, successor: Successor, arena: Arena, *, abort_requests: bool, flush_cache: bool
    ) -> Generator[None, None, int]:
        """Load over the served weights, with nothing running; how many requests that paused. Raises WeightsLost."""
        self._say("Change of weights: no room for both, so the old ones are overwritten once nothing runs.")
        ended = yield from self._until_idle(abort_requests)
        try:
            yield from self._stream(successor, arena)
        except Exception as error:
            self.occupied.discard("weights")
            raise WeightsLost(
                f"The weights were overwritten in part when the load of {successor.model} failed, and cannot be "
                f"used: {error}",
                remedy=f"The engine starts again on {self.served.model}.",
            ) from error
        self._swap(successor, arena, flush_cache=flush_cache)
        return ended + self._engine.scheduler.waiting_count

    def _weights_again(self) -> Generator[None, None, str]:
        """The weights, from where they were served from; a clause that says whether they are the same."""
        served = self.served
        if served.is_random:
            memory_views.take_again(served.parameters.values())
            memory_views.fill_with_noise(served.parameters, self._engine.options.random_seed or 0)
            return " The weights are random, as before."
        self._say(f"Taking memory again: opening {served.model}.")
        successor = yield from self._open(served.model)
        try:
            is_same = successor.items == served.items and successor.config == served.config
            yield from self._load_aside(
                successor, self._arena_for(successor, may_overwrite=False), flush_cache=not is_same
            )
        finally:
            successor.close()
        if is_same:
            return f" {served.model}: the same weights as before."
        return f" {served.model}: its objects changed meanwhile, so these are other weights than before."

    def _is_in_use(self, arena: Arena) -> bool:
        return arena is self.served.arena and "weights" in self.occupied

    def _arena_for(self, successor: Successor, *, may_overwrite: bool) -> Arena:
        pool = self._engine.scheduler.pool
        return arena_for(successor.model, self.served, self.occupied, pool, may_overwrite=may_overwrite)

    def _stream(self, successor: Successor, arena: Arena) -> Generator[None, None, None]:
        """Every byte in place and proved. Raises what ended the transfer, of which no thread is left then."""
        transfer = begin_stream(successor, arena, self._engine.options)
        self._say(f"Streaming {successor.plan.bytes_total:,} bytes of {successor.model}.")
        try:
            yield from in_thread(transfer.wait)
        except BaseException:
            transfer.cancel()
            raise
        if successor.verifier is not None:
            self._say(successor.verifier.summary().describe())

    def _until_idle(self, abort_requests: bool) -> Generator[None, None, int]:
        """Nothing is running, and nothing new is let in; how many requests were ended for it."""
        scheduler = self._engine.scheduler
        scheduler.hold()
        if abort_requests:
            text = "The request was ended by a change of weights that did not wait for it. Ask again."
            failures = self._engine.fail_all(503, "weights_changed", text)
            for failure in failures:
                self._tell(failure)
            return len(failures)
        while scheduler.has_work:
            yield
        return 0

    def _swap(self, successor: Successor, arena: Arena, *, flush_cache: bool) -> None:
        """Compute with what is in the arena from now on, and let the old weights' memory go."""
        engine, served = self._engine, self.served
        old = engine.runner.model
        loaded = memory_views.wrap_parameters(arena, served.arena_plan)
        if served.arena is None:
            memory_views.take_again(served.parameters.values())
            for name, tensor in served.parameters.items():
                tensor.copy_(loaded[name])
            loaded = dict(served.parameters)
        engine.use(type(old)(successor.config, loaded, old.arithmetic), successor.eos_token_ids)
        if flush_cache:
            engine.scheduler.forget_prefixes()
        self.served = replace(
            served,
            model=successor.model,
            config=successor.config,
            items=successor.items,
            arena=None if served.arena is None else arena,
            parameters=loaded,
        )
        self.occupied.add("weights")
        if served.arena is not None and served.arena is not arena:
            served.arena.give_back()  # whoever may still hold a tensor of it

    # ---- words

    def _say(self, text: str) -> None:
        self._tell(LogLine("info", text))

    def _holdings(self) -> str:
        return f"In memory: {_and([name for name in EVERYTHING if name in self.occupied]) or 'nothing'}."


def _and(names: Collection[Occupation]) -> str:
    return " and ".join(_IN_WORDS[name] for name in names)
