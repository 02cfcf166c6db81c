"""The application: routes, the API key, and errors in one shape. Made for a client and options, no globals."""

from http import HTTPStatus

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from headrace.server import info, prefix_cache, probes, weights
from headrace.server.auth import ApiKeyMiddleware
from headrace.server.context import ServerContext
from headrace.server.errors import ApiError
from headrace.server.life.engine_client import EngineClient
from headrace.server.openai.chat import chat_completions
from headrace.server.openai.completions import completions
from headrace.server.options import ServeOptions
from headrace.server.responses import error_response
from headrace.server.seen import scrape
from headrace.server.seen.http_meter import HttpMeter
from headrace.server.seen.metrics import ServerMetrics
from headrace.server.seen.request_trace import see_log
from headrace.server.seen.tracing import Tracing

ROUTES = (
    Route("/health", probes.health, methods=["GET"]),
    Route("/ping", probes.health, methods=["GET"]),
    Route("/ready", probes.ready, methods=["GET"]),
    Route("/health_generate", probes.health_generate, methods=["GET"]),
    Route("/metrics", scrape.metrics, methods=["GET"]),
    Route("/version", info.version, methods=["GET"]),
    Route("/model_info", info.model_info, methods=["GET"]),
    Route("/get_model_info", info.model_info, methods=["GET"]),
    Route("/server_info", info.server_info, methods=["GET"]),
    Route("/get_server_info", info.server_info, methods=["GET"]),
    Route("/flush_cache", prefix_cache.flush, methods=["GET", "POST"]),
    Route("/update_weights_from_disk", weights.update_weights_from_disk, methods=["POST"]),
    Route("/release_memory_occupation", weights.release_memory_occupation, methods=["GET", "POST"]),
    Route("/resume_memory_occupation", weights.resume_memory_occupation, methods=["GET", "POST"]),
    Route("/v1/models", info.list_models, methods=["GET"]),
    Route("/v1/models/{id:path}", info.show_model, methods=["GET"]),
    Route("/v1/completions", completions, methods=["POST"]),
    Route("/v1/chat/completions", chat_completions, methods=["POST"]),
)


def create_app(client: EngineClient, options: ServeOptions, tracing: Tracing | None = None) -> ASGIApp:
    """The ASGI application. `tracing` is told of the requests that have ended."""
    metrics = ServerMetrics()
    middleware = []
    if options.api_key is not None:
        middleware.append(Middleware(ApiKeyMiddleware, api_key=options.api_key))
    app = Starlette(
        routes=list(ROUTES),
        middleware=middleware,
        exception_handlers={
            ApiError: _api_error,
            HTTPException: _http_error,
            ClientDisconnect: _gone,
            Exception: _defect,
        },
    )
    app.router.redirect_slashes = False
    app.state.context = ServerContext(client, options, metrics)
    return HttpMeter(app, metrics, [route.path for route in ROUTES], tracing)


async def _api_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error_response(error)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.url.path
    if error.status_code == HTTPStatus.NOT_FOUND:
        answer = ApiError(404, f"There is no route {path[:200]} here.", code="not_found")
    elif error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        answer = ApiError(
            405, f"{request.method} is not possible on {path[:200]}.", code="method_not_allowed"
        )
    else:
        answer = ApiError(error.status_code, error.detail)
    answer.headers.update(error.headers or {})
    return error_response(answer)


async def _gone(_: Request, __: Exception) -> Response:
    return Response(status_code=499)  # the client left while it sent its body: nobody reads this


async def _defect(_: Request, __: Exception) -> Response:
    # uvicorn ends the connection after a defect: said here, so that no client sends its next request into it.
    headers = {"Connection": "close"}
    return error_response(
        ApiError(500, f"The server failed; {see_log()}.", code="internal_error", headers=headers)
    )
