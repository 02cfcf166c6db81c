"""GET /metrics, for Prometheus."""

import asyncio
import importlib
import os

from starlette.requests import Request
from starlette.responses import Response

from headrace.server.context import ServerContext
from headrace.server.seen.process_usage import ProcessUsage, process_usage
from headrace.server.seen.startup_state import ready_s, startup_table


async def metrics(request: Request) -> Response:
    """Everything that is counted, in Prometheus' text format or as OpenMetrics, whichever the client asks for."""
    context = ServerContext.of(request)
    # The library is imported by the first scrape, off the loop: no start and no probe waits for it.
    await asyncio.to_thread(importlib.import_module, "prometheus_client")
    from headrace.server.seen.metric_families import State, exposition

    client = context.client
    engine = client.state
    state = State(
        metrics=context.metrics,
        progress=engine.progress.latest,
        ready=engine.ready,
        phases=startup_table(engine),
        ready_s=ready_s(engine),
        restarts=engine.restarts,
        weight_changes=client.weights.changes,
        occupied=client.weights.occupied,
        load=client.load,
        serving=engine.serving and client.weights.is_complete,
        waiting_for_load=client.waiting_for_load_count,
        context_length=engine.model.context_length if engine.model is not None else None,
        processes=_processes(context.engine_pid()),
    )
    body, content_type = exposition(state, request.headers.get("accept", ""))
    return Response(body, headers={"content-type": content_type})


def _processes(engine_pid: int | None) -> dict[str, ProcessUsage]:
    pids = {"front": os.getpid(), "engine": engine_pid}
    usages = {name: process_usage(pid) for name, pid in pids.items() if pid is not None}
    return {name: usage for name, usage in usages.items() if usage is not None}
