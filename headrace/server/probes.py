"""Is it alive, is it ready, does it generate: GET /health, /ping, /ready, /health_generate."""

import asyncio
import secrets

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from headrace.ipc.messages import Generate, SamplingParams
from headrace.server.context import ServerContext
from headrace.server.errors import ApiError, unavailable
from headrace.server.life.engine_client import EngineClient
from headrace.server.life.engine_state import EngineState
from headrace.server.refusals import BUSY_STATUSES, RETRY_AFTER_S
from headrace.server.responses import JsonResponse

GENERATE_TIMEOUT_S = 20.0


async def health(request: Request) -> Response:
    """200 while the process can serve or is on its way there, also while a failed engine is started again; says
    nothing about readiness.
    """
    client = ServerContext.of(request).client
    if client.state.failure is not None:
        raise ApiError(503, client.state.failure.message, code="engine_failed")
    return JsonResponse({"status": "alive"})


async def ready(request: Request) -> Response:
    """200 when requests are answered at once; 503 with the load's progress until then, and while draining or while
    memory is given back.

    After a failure of the engine it also tells which attempt this is, why, and when the next engine is started.
    """
    client = ServerContext.of(request).client
    state = client.state
    if state.serving and not client.weights.is_complete:
        report = {"ready": False, "phase": "memory released", "in_memory": client.weights.occupied}
        return JsonResponse(report, status_code=503, headers={"Retry-After": str(RETRY_AFTER_S)})
    if state.serving:
        return JsonResponse({"ready": True, "phase": "serving"})
    if state.failure is not None:
        return JsonResponse({"ready": False, "phase": "failed"}, status_code=503)
    if state.draining:
        return JsonResponse({"ready": False, "phase": "shutting down"}, status_code=503)
    headers = {"Retry-After": str(state.retry_after_s)}
    report = msgspec.structs.asdict(state.progress.report())
    return JsonResponse(report | _of_restart(state), status_code=503, headers=headers)


def _of_restart(state: EngineState) -> dict[str, object]:
    restart = state.restart
    if restart is None:
        return {}
    told: dict[str, object] = {"attempt": restart.attempt, "reason": restart.reason}
    if restart.next_try_s is None:
        return told
    next_try_s = max(restart.next_try_s - asyncio.get_running_loop().time(), 0.0)
    return {"phase": "restarting", "next_try_s": round(next_try_s, 1), **told}


async def health_generate(request: Request) -> Response:
    """200 if the engine makes a token, or has its queue full; tokens for others count as well."""
    client = ServerContext.of(request).client
    client.state.refuse_unless_serving()
    steps = client.steps
    try:
        async with asyncio.timeout(GENERATE_TIMEOUT_S):
            await _one_token(client)
    except TimeoutError:
        if client.steps == steps:
            raise unavailable(
                f"The engine has made no token within {GENERATE_TIMEOUT_S:.0f} s.", "engine_stuck"
            ) from None
    except ApiError as error:
        # An engine with a full queue has work and speaks: to restart it would make things worse.
        if error.status not in BUSY_STATUSES or not client.state.serving:
            raise
        return JsonResponse({"status": "busy"})
    return JsonResponse({"status": "generating"})


async def _one_token(client: EngineClient) -> None:
    probe = Generate(
        rid=f"health-{secrets.token_hex(12)}",
        input_ids=[0],
        sampling=SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True),
    )
    with client.submit([probe]) as tokens:
        async for _ in tokens:
            pass
