"""The front's life: serve, hear of the engines' end or of a signal, and leave nothing behind."""

import asyncio
import logging
import socket
from collections.abc import Callable
from functools import partial
from typing import Any

import uvicorn

from headrace.errors import HeadraceError
from headrace.ipc.messages import ModelInfo
from headrace.ipc.options import EngineOptions
from headrace.ipc.timeline import Timeline
from headrace.server.app import create_app
from headrace.server.errors import unavailable
from headrace.server.life.engine_client import EngineClient
from headrace.server.life.engine_process import EngineProcess
from headrace.server.life.http_protocol import HttpProtocol
from headrace.server.life.http_server import HttpServer
from headrace.server.life.restarts import RestartPolicy
from headrace.server.life.signals import Signals
from headrace.server.life.supervisor import ENGINE_END_S, Supervisor
from headrace.server.openai.served_model import ServedModel, build_served_model
from headrace.server.options import ServeOptions
from headrace.server.seen.logs import configure_logging
from headrace.server.seen.tracing import Tracing, tracing_of
from headrace.server.text_threads import TextThreads
from headrace.server.weight_state import options_for

# How long answers may take to leave before they are cut off.
_ANSWERS_END_S = 3
_KEEP_ALIVE_S = 75  # longer than proxies keep idle connections, so that they close first

_log = logging.getLogger(__name__)


def serve(
    options: ServeOptions,
    *,
    listener: socket.socket,
    first_engine: EngineProcess,
    start_engine: Callable[[EngineOptions], EngineProcess],
    first_restart_s: float,
    signals: Signals,
    texts: TextThreads,
    chat_template: str | None,
    engine_started_s: float,
) -> int:
    """Serve on a listening socket for an engine that has been started, and for those that follow it; the exit code.

    Raises HeadraceError if no engine can serve. The caller ends the last engine, and is left with `texts` that may
    still be busy.
    """
    timeline = Timeline(first_engine.executed_s - engine_started_s)
    status = configure_logging(options.log_level, options.log_format)
    for note in options.notes:
        _log.info("%s", note)
    build = partial(
        build_served_model, chat_template=chat_template, sampling_defaults=options.sampling_defaults
    )

    def start_for(model_uri: str) -> EngineProcess:
        return start_engine(options_for(options.engine, model_uri))

    async def run() -> int:
        client = make_client(options, build, texts)
        supervisor = Supervisor(
            client,
            start_for,
            RestartPolicy(options.engine_restarts, first_restart_s),
            watchdog_timeout_s=options.watchdog_timeout_s,
            status=status,
        )
        timeline.add("front: imports", engine_started_s, timeline.now())
        supervising = asyncio.get_running_loop().create_task(
            supervisor.run(first_engine, engine_started_s, timeline)
        )
        await asyncio.sleep(0)  # the channel is open before anything else is done
        try:
            with tracing_of(options, client.state) as tracing:
                return await _serve(options, listener, client, supervisor, supervising, signals, tracing)
        finally:
            supervisor.close()

    try:
        return asyncio.run(run())
    finally:
        texts.close()


async def _serve(
    options: ServeOptions,
    listener: socket.socket,
    client: EngineClient,
    supervisor: Supervisor,
    supervising: "asyncio.Task[HeadraceError]",
    signals: Signals,
    tracing: Tracing | None,
) -> int:
    loop = asyncio.get_running_loop()
    server = make_server(client, options, tracing)
    serving = loop.create_task(server.serve(sockets=[listener]))
    stop: asyncio.Future[None] = loop.create_future()
    signals.attach(loop, lambda: _set(stop))
    host, port = listener.getsockname()[:2]
    _log.info("Listening on http://%s:%d; the model is loading.", f"[{host}]" if ":" in host else host, port)
    await _wait(serving, supervising, stop, first=True)
    if serving.done():
        serving.result()
    if stop.done():
        await _drain(client, options.shutdown_timeout_s)
    failure = supervising.result() if supervising.done() and not stop.done() else None
    supervising.cancel()
    await _wait(supervising)
    # An answer that a client does not read is cut off now; uvicorn would report that as a defect.
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
    server.should_exit = True
    stopping = loop.create_task(supervisor.stop())
    await _wait(serving, stopping, timeout_s=ENGINE_END_S)
    stopping.cancel()
    if failure is not None:
        raise failure
    _log.info("Bye.")
    return 0


def make_client(
    options: ServeOptions, build: Callable[[ModelInfo], ServedModel], texts: TextThreads
) -> EngineClient:
    """The client of the engines of one server, made on the running loop."""
    return EngineClient(
        build,
        texts,
        model_uri=options.engine.model,
        queue_while_loading=options.queue_while_loading,
        queue_timeout_s=options.queue_timeout_s,
        max_waiting=options.engine.max_queued_requests,
        weight_version=options.weight_version,
    )


def make_server(
    client: EngineClient, options: ServeOptions, tracing: Tracing | None = None
) -> uvicorn.Server:
    """The HTTP server of one application, to be run on the client's loop. It handles no signals."""
    return HttpServer(
        uvicorn.Config(
            create_app(client, options, tracing),
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


async def _drain(client: EngineClient, timeout_s: float) -> None:
    """Let running requests end within `timeout_s`, then cut them off. What an engine that fails leaves is nothing."""
    client.drain()
    _log.info("Shutting down: running requests have %.0f s. A second signal ends at once.", timeout_s)
    idle = asyncio.ensure_future(client.admission.idle())
    await _wait(idle, timeout_s=timeout_s)
    if not idle.done():
        idle.cancel()
        client.fail(
            unavailable("The server is shutting down; this answer was cut off.", "shutting_down", close=True)
        )


async def _wait(*futures: "asyncio.Future[Any]", timeout_s: float | None = None, first: bool = False) -> None:
    """Wait for all of them, or for the first one; raises and cancels nothing."""
    when = asyncio.FIRST_COMPLETED if first else asyncio.ALL_COMPLETED
    await asyncio.wait(futures, timeout=timeout_s, return_when=when)


def _set(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
