"""The start-up table of the engine that serves now: nothing while it loads, and its own after a restart."""

import asyncio
import time
from collections.abc import Iterator

import pytest
from front_harness import OPTIONS
from scripted_engine import READY, model_info

from headrace.ipc.messages import ModelInfo
from headrace.ipc.timeline import Timeline
from headrace.server.life.engine_client import EngineClient
from headrace.server.life.fault import EngineFailed
from headrace.server.life.front import make_client
from headrace.server.openai.served_model import ServedModel, build_served_model
from headrace.server.seen.startup_state import ready_s, startup_phases, startup_table
from headrace.server.text_threads import TextThreads

LAST_S = max(phase.end_s for phase in READY.phases)


@pytest.fixture
def texts() -> Iterator[TextThreads]:
    threads = TextThreads()
    yield threads
    threads.close()


def build(info: ModelInfo) -> ServedModel:
    return build_served_model(info, chat_template=None, sampling_defaults="model")


async def load(client: EngineClient, *, started_s: float, timeline: Timeline) -> None:
    client.attach(lambda _: True, started_s=started_s, timeline=timeline)
    client.receive(model_info())
    await client.state.loaded_model()
    client.receive(READY)


def test_while_the_engine_loads_there_is_no_table(texts: TextThreads) -> None:
    async def told() -> None:
        client = make_client(OPTIONS, build, texts)
        client.attach(lambda _: True, started_s=0.25)
        assert startup_phases(client.state) == startup_table(client.state) == ()
        assert ready_s(client.state) == 0.0

    asyncio.run(told())


def test_both_processes_phases_are_on_the_clock_that_began_with_exec(texts: TextThreads) -> None:
    async def told() -> None:
        client = make_client(OPTIONS, build, texts)
        timeline = Timeline(time.monotonic() - 10)
        timeline.add("front: imports", 0.25, 0.5)
        await load(client, started_s=0.25, timeline=timeline)
        rows = {row.name: row for row in startup_table(client.state)}
        assert rows["front: until the engine is started"].end_s == rows["front: imports"].start_s == 0.25
        assert rows["transfer"].start_s == READY.phases[0].start_s + 0.25
        assert rows["front: tokenizer"].start_s >= 10
        assert ready_s(client.state) >= rows["front: tokenizer"].end_s

    asyncio.run(told())


def test_what_passes_between_the_last_phase_and_the_first_answer_is_seen(texts: TextThreads) -> None:
    async def told() -> None:
        client = make_client(OPTIONS, build, texts)
        await load(client, started_s=0.25, timeline=Timeline(time.monotonic() - 10))
        assert ready_s(client.state) >= 10
        silent = [row for row in startup_table(client.state) if row.name == "(unnamed)"]
        assert silent[0].start_s == LAST_S + 0.25

    asyncio.run(told())


def test_an_engine_that_is_started_again_has_a_table_of_its_own(texts: TextThreads) -> None:
    async def told() -> None:
        client = make_client(OPTIONS, build, texts)
        await load(client, started_s=0.25, timeline=Timeline(time.monotonic() - 1000))
        client.lose(EngineFailed("It was killed."))
        assert startup_table(client.state) == ()
        await load(client, started_s=0.0, timeline=Timeline(time.monotonic()))
        names = [row.name for row in startup_table(client.state)]
        assert "front: until the engine is started" not in names
        assert {"front: tokenizer", "transfer", "warm up"} <= set(names)
        assert LAST_S <= ready_s(client.state) < 1000

    asyncio.run(told())
