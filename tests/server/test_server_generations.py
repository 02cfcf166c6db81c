"""Generations are sent, and let go of, whoever is at the other end."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from scripted_engine import READY

from headrace.ipc.messages import Abort, FrontMessage, Generate, SamplingParams, StepOutput, TokenOutput
from headrace.server.errors import ApiError
from headrace.server.life.engine_state import EngineState
from headrace.server.life.generations import Generations
from headrace.server.life.in_flight import InFlight


class Engine:
    """Takes so many messages, then it is gone."""

    def __init__(self) -> None:
        self.takes = 10**9
        self.got: list[FrontMessage] = []

    def send(self, message: FrontMessage) -> bool:
        if len(self.got) >= self.takes:
            return False
        self.got.append(message)
        return True


def ask(rid: str) -> Generate:
    return Generate(rid=rid, input_ids=[1], sampling=SamplingParams(max_tokens=8))


def run(check: Callable[[EngineState, InFlight, Engine, Generations], Coroutine[Any, Any, None]]) -> None:
    async def checked() -> None:
        state, in_flight, engine = EngineState("s3://bucket/tiny"), InFlight(), Engine()
        await check(state, in_flight, engine, Generations(state, in_flight, engine.send))

    asyncio.run(checked())


def test_a_stream_that_is_left_is_aborted_and_forgotten() -> None:
    async def check(_: EngineState, in_flight: InFlight, engine: Engine, generations: Generations) -> None:
        with generations.submit([ask("a"), ask("b")]):
            in_flight.put(StepOutput((TokenOutput("a", (5,), "length"),)))
        assert engine.got == [ask("a"), ask("b"), Abort("b")]
        assert not in_flight

    run(check)


def test_where_one_of_several_cannot_be_sent_none_is_kept() -> None:
    async def check(_: EngineState, in_flight: InFlight, engine: Engine, generations: Generations) -> None:
        engine.takes = 1
        with pytest.raises(ApiError, match="The engine has just ended"):
            generations.submit([ask("a"), ask("b")])
        assert not in_flight

    run(check)


def test_a_load_that_takes_too_long_ends_them_and_the_engine_is_told() -> None:
    async def check(state: EngineState, _: InFlight, engine: Engine, generations: Generations) -> None:
        with (
            generations.submit([ask("a")], load_until_s=asyncio.get_running_loop().time()) as tokens,
            pytest.raises(ApiError, match="--queue-timeout"),
        ):
            await anext(tokens)
        assert Abort("a") in engine.got

    run(check)


def test_while_the_server_ends_only_an_engine_that_is_ready_is_asked() -> None:
    async def check(state: EngineState, _: InFlight, engine: Engine, generations: Generations) -> None:
        state.drain()
        with pytest.raises(ApiError, match="shutting down"):
            generations.submit([ask("a")])
        state.become_ready(READY)
        with generations.submit([ask("b")]):
            assert engine.got == [ask("b")]

    run(check)
