"""Who is let in and who waits, counted without a route."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from headrace.server.errors import ApiError
from headrace.server.life.admission import Admission
from headrace.server.life.engine_state import EngineState


def run(check: Callable[[EngineState], Coroutine[Any, Any, None]]) -> None:
    async def checked() -> None:
        await check(EngineState("s3://bucket/tiny"))

    asyncio.run(checked())


def test_it_is_idle_when_the_last_admitted_request_has_ended() -> None:
    async def check(state: EngineState) -> None:
        admission = Admission(state)
        await admission.idle()
        with admission.admit():
            idle = asyncio.create_task(admission.idle())
            with admission.admit():
                assert admission.admitted_count == 2
            await asyncio.sleep(0)
            assert not idle.done()
        await idle
        assert admission.admitted_count == 0

    run(check)


def test_a_request_that_comes_in_the_moment_of_idleness_is_waited_for() -> None:
    async def check(state: EngineState) -> None:
        admission = Admission(state)
        with admission.admit():
            idle = asyncio.create_task(admission.idle())
            await asyncio.sleep(0)
        with admission.admit():
            for _ in range(3):
                await asyncio.sleep(0)
            assert not idle.done()
        await idle

    run(check)


def test_nothing_is_admitted_while_the_server_ends() -> None:
    async def check(state: EngineState) -> None:
        state.drain()
        with pytest.raises(ApiError, match="shutting down"), Admission(state).admit():
            pass

    run(check)


def test_no_more_wait_for_the_load_than_may() -> None:
    async def check(state: EngineState) -> None:
        admission = Admission(state, max_waiting=1)
        with admission.waiting_for_load():
            with (
                pytest.raises(ApiError, match="1 requests wait for it already") as caught,
                admission.waiting_for_load(),
            ):
                pass
            assert caught.value.code == "queue_full"
            assert admission.waiting_count == 1
        assert admission.waiting_count == 0

    run(check)


def test_where_requests_do_not_queue_none_waits() -> None:
    async def check(state: EngineState) -> None:
        admission = Admission(state, queue_while_loading=False)
        with pytest.raises(ApiError, match="Ask again later") as caught, admission.waiting_for_load():
            pass
        assert caught.value.code == "model_loading"

    run(check)
