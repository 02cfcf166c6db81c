"""The front outlives its engines: one that fails is ended altogether, and another is started from the bucket.

What is decided here by data alone stands in `restarts` and `watchdog`.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Any

from headrace.errors import HeadraceError
from headrace.ipc.timeline import Timeline
from headrace.server.life.engine_client import EngineClient
from headrace.server.life.engine_link import EngineLink, why_ended
from headrace.server.life.engine_process import EngineNotStarted, EngineProcess
from headrace.server.life.fault import EngineFailed, Fault
from headrace.server.life.restarts import Restart, RestartPolicy
from headrace.server.life.watchdog import Watchdog
from headrace.server.seen.startup_log import log_startup
from headrace.server.seen.status_line import StatusLine

# How long an engine may take to end by itself once it has been told to, or has told that it failed.
ENGINE_END_S = 5.0
# Between the end of an engine that ended by itself, or was killed, and the arrival of its last words.
_LAST_WORDS_S = 0.5
_LAST_TOKENS_S = 0.05
# What an aborted engine has to write its stacks to stderr.
_STACKS_S = 2.0

_log = logging.getLogger(__name__)


class Supervisor:
    """Runs one engine after another for a client. Lives on the event loop."""

    def __init__(
        self,
        client: EngineClient,
        start_engine: Callable[[str], EngineProcess],
        policy: RestartPolicy,
        *,
        watchdog_timeout_s: float = 0.0,
        status: StatusLine | None = None,
    ) -> None:
        """Args:
        start_engine: starts one that loads the model of this URI. May raise EngineNotStarted.
        watchdog_timeout_s: how long one with work may be silent; 0: without end.
        status: of the log's stream, for the progress of loads.
        """
        self._client = client
        self._start_engine = start_engine
        self._policy = policy
        self._watchdog_timeout_s = watchdog_timeout_s
        self._status = status
        self._link: EngineLink | None = None

    async def run(self, first: EngineProcess, started_s: float, timeline: Timeline) -> HeadraceError:
        """Keep an engine running; returns why none will run any more.

        The client has failed then, unless the server drains: no engine is started for a server that ends.

        Args:
            first: just started.
            started_s: seconds after the front's exec.
            timeline: what the front did until now, counted from its exec.
        """
        loop, client = asyncio.get_running_loop(), self._client
        state = client.state
        executed_s = first.executed_s - started_s
        fault, served_s = await self._serve_with(first, started_s, timeline)
        failures = 0
        while True:
            failures = self._policy.failures_in_a_row(failures, served_s)
            may_pass = fault.passing or state.ever_ready
            delay_s = self._policy.delay_s(failures, random.random()) if may_pass else None
            if state.draining:
                return fault.error
            if delay_s is None:
                error = _given_up(fault.error, failures)
                client.fail(error)
                return error
            attempt = f"attempt {failures} of {self._policy.most}"
            _log.error("%s The engine is started again in %.1f s (%s).", fault.error, delay_s, attempt)
            client.await_restart(Restart(failures, fault.error.message, loop.time() + delay_s))
            await asyncio.sleep(delay_s)
            _log.info("Starting an engine again, for %s (%s).", state.model_uri, attempt)
            try:
                engine = self._start_engine(state.model_uri)
            except EngineNotStarted as error:
                fault, served_s = Fault(error, True), 0.0
            else:
                started_s = 0.0 if state.ever_ready else engine.executed_s - executed_s
                timeline = Timeline(engine.executed_s - started_s)
                fault, served_s = await self._serve_with(engine, started_s, timeline)

    async def stop(self) -> None:
        """Have the engine end by itself, if there is one and it can. `run` must have been cancelled, or be over."""
        if self._link is not None:
            await self._link.stop(ENGINE_END_S)

    def close(self) -> None:
        """Close the channel, whatever became of the engine at its other end."""
        if self._link is not None:
            self._link.mute()

    async def _serve_with(
        self, process: EngineProcess, started_s: float, timeline: Timeline
    ) -> tuple[Fault, float]:
        """Let an engine serve until it fails; nothing of it is left then. Why, and for how long it was ready."""
        loop, client = asyncio.get_running_loop(), self._client
        self._link = link = EngineLink(process, client.receive)
        client.attach(link.send, pid=process.pid, started_s=started_s, timeline=timeline)
        stuck = loop.create_task(self._until_stuck())
        telling = loop.create_task(self._tell_start(loop.time()))
        ends: set[asyncio.Future[Any]] = {link.ended, client.fault, stuck}
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            served_s = 0.0 if client.state.ready is None else loop.time() - client.state.ready_at_s
            fault = await self._end(link)
        finally:
            stuck.cancel()
            telling.cancel()
        link.mute()  # what is still under way must not reach the state of the next engine
        client.lose(fault.error)
        await link.kill()
        self._link = None
        return fault, served_s

    async def _end(self, link: EngineLink) -> Fault:
        """Why the engine is of no use any more. It may live on."""
        client = self._client
        if not client.fault.done() and link.ended.done():
            code = link.ended.result()
            await asyncio.wait({client.fault}, timeout=_LAST_WORDS_S if code >= 0 else _LAST_TOKENS_S)
        if client.fault.done():
            return client.fault.result()
        if link.ended.done():
            return Fault(why_ended(link.ended.result()), True)
        error = EngineFailed(
            f"The engine had work and gave no sign of life for {self._watchdog_timeout_s:g} s: it was stuck, and has "
            "been ended.",
            remedy="The stacks of its threads are above, if it could write them. If it was only slow, raise "
            "--watchdog-timeout.",
        )
        _log.error("The engine has work and has given no sign of life for %g s.", self._watchdog_timeout_s)
        client.lose(error)  # before its stacks are written: the requests have waited long enough
        link.process.abort()
        await link.until_ended(_STACKS_S)
        return Fault(error, True)

    async def _until_stuck(self) -> None:
        if self._watchdog_timeout_s == 0:
            await asyncio.get_running_loop().create_future()  # never
        loop, client, dog = asyncio.get_running_loop(), self._client, Watchdog(self._watchdog_timeout_s)
        while not dog.is_stuck(loop.time(), signs=client.messages, busy=client.is_computing):
            await asyncio.sleep(dog.interval_s)

    async def _tell_start(self, begun_s: float) -> None:
        state = self._client.state
        is_restart = state.restart is not None
        await log_startup(state, self._status)
        if is_restart and state.ready is not None:
            _log.info("Ready again, %.1f s after the engine was started.", state.ready_at_s - begun_s)


def _given_up(error: HeadraceError, failures: int) -> HeadraceError:
    if failures == 1:
        return error
    return EngineFailed(
        f"The engine has failed {failures} times in a row and is not started again. The last time: {error.message}",
        remedy=error.remedy,
    )
