"""The front's life: serve, hear of the engine's end or of a signal, and leave nothing behind."""

import asyncio
import contextlib
import logging
import socket
from functools import partial
from typing import Any, TypeVar

import uvicorn

from headrace.ipc.front_channel import FrontChannel
from headrace.ipc.messages import Stop
from headrace.server.app import create_app
from headrace.server.engine_client import EngineClient, EngineFailed
from headrace.server.engine_process import EngineProcess, exit_sentence
from headrace.server.errors import unavailable
from headrace.server.http_protocol import HttpProtocol
from headrace.server.http_server import HttpServer
from headrace.server.logs import configure_logging
from headrace.server.options import ServeOptions
from headrace.server.served_model import build_served_model
from headrace.server.signals import Signals
from headrace.server.startup_log import log_startup
from headrace.server.status_line import StatusLine
from headrace.server.text_threads import TextThreads

# How long an engine may take to end by itself, and answers to leave, before they are cut off.
_ENGINE_END_S = 5.0
_ANSWERS_END_S = 3
# Between an engine's end and the arrival of its last words.
_LAST_WORDS_S = 0.5
_KEEP_ALIVE_S = 75  # longer than proxies keep idle connections, so that they close first

T = TypeVar("T")

_log = logging.getLogger(__name__)


def serve(
    options: ServeOptions,
    *,
    listener: socket.socket,
    address: str,
    engine: EngineProcess,
    signals: Signals,
    texts: TextThreads,
    chat_template: str | None,
    engine_started_s: float,
) -> int:
    """Serve on a listening socket for an engine that has been started; the exit code.

    Raises HeadraceError if the engine cannot serve. The caller ends the engine, and is left with `texts` that may
    still be busy.
    """
    status = configure_logging(options.log_level, options.log_format)
    for note in options.notes:
        _log.info("%s", note)
    channel = FrontChannel(address)
    try:
        return asyncio.run(
            _serve(
                options, listener, channel, engine, signals, texts, chat_template, engine_started_s, status
            )
        )
    finally:
        channel.close()


async def _serve(
    options: ServeOptions,
    listener: socket.socket,
    channel: FrontChannel,
    engine: EngineProcess,
    signals: Signals,
    texts: TextThreads,
    chat_template: str | None,
    engine_started_s: float,
    status: StatusLine,
) -> int:
    loop = asyncio.get_running_loop()
    build = partial(
        build_served_model, chat_template=chat_template, sampling_defaults=options.sampling_defaults
    )
    client = EngineClient(channel.send, build, texts, max_waiting=options.engine.max_queued_requests)
    channel.start(loop, client.receive)
    server = make_server(client, options, engine_started_s, engine.pid)
    serving = loop.create_task(server.serve(sockets=[listener]))
    ended: asyncio.Future[int] = loop.create_future()
    engine.watch(lambda code: _set_from_thread(loop, ended, code))
    stop: asyncio.Future[None] = loop.create_future()
    signals.attach(loop, lambda: _set(stop, None))
    host, port = listener.getsockname()[:2]
    _log.info("Listening on http://%s:%d; the model is loading.", f"[{host}]" if ":" in host else host, port)
    failed = loop.create_task(client.failed())
    log = loop.create_task(log_startup(client, engine_started_s, status))
    try:
        await _wait(serving, failed, ended, stop, first=True)
        if serving.done():
            serving.result()
        if stop.done():
            await _drain(client, ended, options.shutdown_timeout_s)
        elif not failed.done():
            await _wait(failed, timeout_s=_LAST_WORDS_S)
            client.fail(_engine_ended(ended.result()))
        failure = None if stop.done() else client.failure
        channel.send(Stop())
        engine.close_stdin()
        # An answer that a client does not read is cut off now; uvicorn would report that as a defect.
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        server.should_exit = True
        await _wait(serving, ended, timeout_s=_ENGINE_END_S)
    finally:
        failed.cancel()
        log.cancel()
        texts.close()
    if failure is not None:
        raise failure
    _log.info("Bye.")
    return 0


def make_server(
    client: EngineClient,
    options: ServeOptions,
    engine_started_s: float = 0.0,
    engine_pid: int | None = None,
) -> uvicorn.Server:
    """The HTTP server of one application, to be run on the client's loop. It handles no signals."""
    return HttpServer(
        uvicorn.Config(
            create_app(client, options, engine_started_s=engine_started_s, engine_pid=engine_pid),
            http=HttpProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=options.log_level == "debug",
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=_ANSWERS_END_S,
        )
    )


async def _drain(client: EngineClient, ended: "asyncio.Future[int]", timeout_s: float) -> None:
    """Let running requests end within `timeout_s`, then cut them off; at once if the engine is gone."""
    client.drain()
    _log.info("Shutting down: running requests have %.0f s. A second signal ends at once.", timeout_s)
    idle = asyncio.ensure_future(client.idle())
    await _wait(idle, ended, timeout_s=timeout_s, first=True)
    if not idle.done():
        idle.cancel()
        client.fail(
            unavailable("The server is shutting down; this answer was cut off.", "shutting_down", close=True)
        )


async def _wait(*futures: "asyncio.Future[Any]", timeout_s: float | None = None, first: bool = False) -> None:
    """Wait for all of them, or for the first one; raises and cancels nothing."""
    when = asyncio.FIRST_COMPLETED if first else asyncio.ALL_COMPLETED
    await asyncio.wait(futures, timeout=timeout_s, return_when=when)


def _engine_ended(returncode: int) -> EngineFailed:
    if returncode == -9:
        remedy = (
            "If nobody killed it, the system did for want of memory (dmesg tells): lower "
            "--mem-fraction-static or --max-total-tokens, or give the machine more memory."
        )
    else:
        remedy = "What it wrote above says more."
    return EngineFailed(f"The engine process {exit_sentence(returncode)}.", remedy=remedy)


def _set_from_thread(loop: asyncio.AbstractEventLoop, future: "asyncio.Future[int]", value: int) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody asks any more
        loop.call_soon_threadsafe(_set, future, value)


def _set(future: "asyncio.Future[T]", value: T) -> None:
    if not future.done():
        future.set_result(value)
