"""A front in a thread of the test, served by real uvicorn, with a scripted engine behind a real channel."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import httpx
from scripted_engine import Script, ScriptedEngine, say

from headrace.ipc.front_channel import FrontChannel, private_address
from headrace.ipc.messages import ModelInfo
from headrace.ipc.options import EngineOptions
from headrace.ipc.timeline import Timeline
from headrace.server.life.engine_client import EngineClient
from headrace.server.life.fault import Fault
from headrace.server.life.front import make_client, make_server
from headrace.server.life.launch import bind
from headrace.server.openai.served_model import build_served_model
from headrace.server.options import ServeOptions
from headrace.server.seen.startup_log import log_startup
from headrace.server.seen.tracing import tracing_of
from headrace.server.text_threads import TextThreads

OPTIONS = ServeOptions(engine=EngineOptions(model="s3://bucket/tiny"), served_model_name="tiny")


class Front:
    """A running front.

    Attributes:
        url: of the server, without a path.
        http: a client for it.
        engine: the scripted engine.
        client: the front's own view of the engine; it lives on another thread.
    """

    def __init__(
        self, url: str, engine: ScriptedEngine, client: EngineClient, loop: asyncio.AbstractEventLoop
    ):
        self.url = url
        self.engine = engine
        self.client = client
        self.loop = loop
        self.http = httpx.Client(base_url=url, timeout=60)

    def complete(self, **body: object) -> httpx.Response:
        """POST /v1/completions with model and prompt filled in where they are not given."""
        return self.http.post("/v1/completions", json={"model": "tiny", "prompt": "Say", **body})

    def chat(self, **body: object) -> httpx.Response:
        """POST /v1/chat/completions in the same way."""
        messages = [{"role": "user", "content": "Hi"}]
        return self.http.post("/v1/chat/completions", json={"model": "tiny", "messages": messages, **body})


def _fail_with_it(client: EngineClient) -> Callable[["asyncio.Future[Fault]"], None]:
    """What the supervisor does for an engine that is never started again."""
    return lambda fault: None if fault.cancelled() else client.fail(fault.result().error)


@contextlib.contextmanager
def running_front(
    script: Script | None = None,
    *,
    options: ServeOptions = OPTIONS,
    load: bool = True,
    info: ModelInfo | None = None,
) -> Iterator[Front]:
    """A front on a free port; with `load` it is ready when this yields."""
    with private_address() as address, bind("127.0.0.1", 0) as listener:
        started = threading.Event()
        parts: list[tuple[EngineClient, asyncio.AbstractEventLoop, asyncio.Event]] = []

        async def serve() -> None:
            channel = FrontChannel(address)
            build = partial(
                build_served_model, chat_template=None, sampling_defaults=options.sampling_defaults
            )
            texts = TextThreads()
            client = make_client(options, build, texts)
            client.attach(channel.send, started_s=0.1, timeline=Timeline(time.monotonic() - 0.1))
            client.fault.add_done_callback(_fail_with_it(client))
            channel.start(asyncio.get_running_loop(), client.receive)
            traces = contextlib.ExitStack()
            server = make_server(client, options, traces.enter_context(tracing_of(options, client.state)))
            end = asyncio.Event()
            parts.append((client, asyncio.get_running_loop(), end))
            serving = asyncio.ensure_future(server.serve(sockets=[listener]))
            log = asyncio.ensure_future(log_startup(client.state))
            started.set()
            await end.wait()
            if client.state.serving:
                await log
            log.cancel()
            server.should_exit = True
            await serving
            traces.close()
            texts.close()
            channel.close()

        thread = threading.Thread(target=lambda: asyncio.run(serve()))
        thread.start()
        started.wait()
        client, loop, end = parts[0]
        engine = ScriptedEngine(address, script or say("Hello, world."))
        front = Front(f"http://127.0.0.1:{listener.getsockname()[1]}", engine, client, loop)
        try:
            if load:
                engine.load(info)
                asyncio.run_coroutine_threadsafe(client.state.until_serving(), loop).result(60)
            yield front
        finally:
            front.http.close()
            loop.call_soon_threadsafe(end.set)
            thread.join()
            engine.stop()
