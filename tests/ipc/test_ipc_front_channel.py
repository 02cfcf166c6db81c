"""The two ends of the channel, on a real socket in a private folder."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.ipc.channel import EngineChannel
from headrace.ipc.front_channel import FrontChannel, private_address
from headrace.ipc.messages import (
    Abort,
    EngineMessage,
    Generate,
    LogLine,
    SamplingParams,
    StepOutput,
    TokenOutput,
)

GENERATE = Generate("r1", [1, 2, 3], SamplingParams(max_tokens=5, seed=-1, stop_token_ids=(7,)))


def folder_of(address: str) -> Path:
    return Path(address.removeprefix("ipc://")).parent


async def receive(
    channel: FrontChannel, count: int, after_start: Callable[[], None] = lambda: None
) -> list[EngineMessage]:
    got: list[EngineMessage] = []
    done = asyncio.Event()

    def take(message: EngineMessage) -> None:
        got.append(message)
        if len(got) == count:
            done.set()

    channel.start(asyncio.get_running_loop(), take)
    after_start()
    await asyncio.wait_for(done.wait(), 30)
    return got


def test_the_folder_is_this_users_alone_and_goes_at_the_end() -> None:
    with private_address() as address:
        folder = folder_of(address)
        assert folder.stat().st_mode & 0o777 == 0o700
        channel = FrontChannel(address)
        assert list(folder.iterdir()) != []
        channel.close()
    assert not folder.exists()


def test_the_folder_goes_when_something_is_raised() -> None:
    with pytest.raises(RuntimeError), private_address() as address:
        raise RuntimeError
    assert not folder_of(address).exists()


def test_a_temporary_directory_too_long_for_a_socket_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    with private_address() as address:
        assert folder_of(address).parent == Path("/tmp")
        FrontChannel(address).close()
    assert list(long.iterdir()) == []


def test_messages_arrive_whole_and_in_order() -> None:
    sent: list[EngineMessage] = [
        LogLine("info", "hello"),
        *(StepOutput((TokenOutput("r1", (index, index + 1)),)) for index in range(1000)),
    ]
    with private_address() as address:
        front = FrontChannel(address)
        engine = EngineChannel(address)

        def send_all() -> None:
            for message in sent:
                engine.send(message)

        thread = threading.Thread(target=send_all)
        assert asyncio.run(receive(front, len(sent), thread.start)) == sent
        thread.join()
        engine.close()
        front.close()


def test_what_came_before_the_loop_listened_is_not_lost() -> None:
    with private_address() as address:
        front = FrontChannel(address)
        engine = EngineChannel(address)
        engine.send(LogLine("info", "early"))
        assert front._socket.poll(30_000)
        assert asyncio.run(receive(front, 1)) == [LogLine("info", "early")]
        engine.close()
        front.close()


def test_sending_does_not_hide_a_message_that_waits_to_be_read() -> None:
    with private_address() as address:
        front = FrontChannel(address)
        engine = EngineChannel(address)

        async def ping_pong(rounds: int) -> int:
            count = 0
            done = asyncio.Event()

            def take(_: EngineMessage) -> None:
                nonlocal count
                count += 1
                assert front.send(Abort(str(count)))
                if count == rounds:
                    done.set()

            front.start(asyncio.get_running_loop(), take)
            engine.send(LogLine("info", "ping"))
            await asyncio.wait_for(done.wait(), 30)
            return count

        def answer() -> None:
            for _ in range(499):
                assert engine.receive(30) is not None
                engine.send(LogLine("info", "pong"))

        thread = threading.Thread(target=answer)
        thread.start()
        assert asyncio.run(ping_pong(500)) == 500
        thread.join()
        engine.close()
        front.close()


def test_the_engine_gets_what_the_front_sent() -> None:
    with private_address() as address:
        front = FrontChannel(address)
        engine = EngineChannel(address)
        engine.send(LogLine("info", "here"))
        assert front._socket.poll(30_000)  # an engine is at the other end
        assert front.send(GENERATE)
        assert engine.receive(30) == GENERATE
        assert engine.receive(0) is None
        engine.close()
        front.close()


def test_sending_without_an_engine_says_so_at_once() -> None:
    with private_address() as address:
        front = FrontChannel(address)
        assert front.send(Abort("r1")) is False
        front.close()
        assert front.send(Abort("r1")) is False
