"""What the front knows of its engines, without a channel, a process or a route."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from scripted_engine import READY, model_info

from headrace.ipc.timeline import Timeline
from headrace.server.errors import ApiError
from headrace.server.life.engine_state import EngineState
from headrace.server.life.fault import EngineFailed
from headrace.server.life.restarts import Restart
from headrace.server.openai.served_model import ServedModel, build_served_model

GONE = EngineFailed("It was killed.")


def model() -> ServedModel:
    return build_served_model(model_info(), chat_template=None, sampling_defaults="model")


def run(check: Callable[[EngineState], Coroutine[Any, Any, None]], *, queue_timeout_s: float = 600.0) -> None:
    async def checked() -> None:
        await check(EngineState("s3://bucket/tiny", queue_timeout_s=queue_timeout_s))

    asyncio.run(checked())


def test_requests_may_be_sent_before_they_are_served() -> None:
    async def check(state: EngineState) -> None:
        state.know_model(model())
        assert not state.accepting
        state.accept(64)
        assert state.accepting and not state.serving
        state.become_ready(READY)
        assert state.serving and state.max_total_tokens == READY.max_total_tokens

    run(check)


def test_who_waits_goes_on_as_soon_as_it_is_so() -> None:
    async def check(state: EngineState) -> None:
        waiting = asyncio.create_task(state.until_accepting())
        await asyncio.sleep(0)
        state.accept(64)
        await asyncio.sleep(0)
        assert not waiting.done()  # nobody can tokenize yet
        state.know_model(model())
        assert await waiting == 64

    run(check)


def test_who_waits_for_too_long_is_told_how_long_that_is() -> None:
    async def check(state: EngineState) -> None:
        with pytest.raises(ApiError, match=r"--queue-timeout allows \(0 s\)") as caught:
            await state.until_accepting(state.queue_until_s())
        assert caught.value.status == 503

    run(check, queue_timeout_s=0.0)


def test_a_server_that_ends_lets_those_go_who_wait_for_the_load() -> None:
    async def check(state: EngineState) -> None:
        waiting = asyncio.create_task(state.loaded_model())
        await asyncio.sleep(0)
        state.drain()
        with pytest.raises(ApiError, match="shutting down"):
            await waiting

    run(check)


def test_a_lost_engine_leaves_nothing_of_itself_but_that_one_was_ready() -> None:
    async def check(state: EngineState) -> None:
        state.attach(pid=7, started_s=0.5, timeline=None)
        state.know_model(model())
        state.become_ready(READY)
        state.lose()
        assert [state.model, state.max_total_tokens, state.ready, state.engine_pid] == [None] * 4
        assert state.ever_ready
        assert state.failure_for_client(GONE).message == "The engine failed: It was killed."

    run(check)


def test_before_any_engine_was_ready_it_is_the_load_that_failed() -> None:
    async def check(state: EngineState) -> None:
        state.failure = GONE
        with pytest.raises(ApiError, match=r"The model could not be loaded: It was killed\.") as caught:
            state.refuse_if_closed()
        assert caught.value.status == 500

    run(check)


def test_a_restart_is_counted_when_its_engine_comes_and_is_over_when_that_is_ready() -> None:
    async def check(state: EngineState) -> None:
        state.restart = Restart(1, "It was killed.", 99.0)
        state.attach(pid=None, started_s=0.0, timeline=Timeline(0.0))
        assert state.restarts == 1
        assert state.restart == Restart(1, "It was killed.", None)
        state.become_ready(READY)
        assert state.restart is None

    run(check)
