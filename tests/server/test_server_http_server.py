"""The server that ticks once a second: told to end it ends, whatever the time to its next tick."""

import asyncio
import email.utils
from collections.abc import Awaitable, Callable

import httpx
import pytest
import uvicorn

import headrace.server.life.http_server as module
from headrace.server.life.http_server import HttpServer
from headrace.server.life.launch import bind


async def hello(scope: object, receive: object, send: Callable[[dict[str, object]], Awaitable[None]]) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"hello"})


def run(monkeypatch: pytest.MonkeyPatch, ask: Callable[[httpx.AsyncClient], Awaitable[None]]) -> None:
    """A server whose next tick is an hour away, asked by `ask` and told to end."""
    monkeypatch.setattr(module, "_TICK_S", 3600.0)

    async def main() -> None:
        with bind("127.0.0.1", 0) as listener:
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            server = HttpServer(uvicorn.Config(hello, lifespan="off", log_config=None))
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            async with httpx.AsyncClient(base_url=url) as client:
                await ask(client)
            server.should_exit = True
            await asyncio.wait_for(serving, 60)

    asyncio.run(main())


def test_told_to_end_it_does_not_wait_for_its_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask(client: httpx.AsyncClient) -> None:
        assert (await client.get("/")).text == "hello"

    run(monkeypatch, ask)


def test_an_answer_bears_the_date(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask(client: httpx.AsyncClient) -> None:
        assert email.utils.parsedate_to_datetime((await client.get("/")).headers["date"]).year >= 2025

    run(monkeypatch, ask)
