"""What is served here: GET /v1/models, /v1/models/{id}, /model_info, /server_info, /version."""

from starlette.requests import Request
from starlette.responses import Response

from headrace import __version__
from headrace.ipc.options import DEFAULT_MEM_FRACTION
from headrace.server.context import ServerContext
from headrace.server.openai.protocol import ModelCard, ModelList
from headrace.server.openai.served_model import ServedModel
from headrace.server.responses import JsonResponse
from headrace.server.seen.startup_state import ready_s, startup_table


async def list_models(request: Request) -> Response:
    """The one model, once it is ready: scripts take this answer for readiness."""
    return JsonResponse(ModelList(data=(_card(request),)))


async def show_model(request: Request) -> Response:
    """One model's card; the id may hold slashes."""
    ServerContext.of(request).check_model(request.path_params["id"])
    return JsonResponse(_card(request))


async def model_info(request: Request) -> Response:
    """The model's facts, under SGLang's names."""
    context = ServerContext.of(request)
    model = _known(context)
    return JsonResponse(
        {
            "model_path": context.client.state.model_uri,
            "weight_version": context.client.weights.version,
            "served_model_name": context.options.served_model_name,
            "tokenizer_path": context.options.engine.tokenizer_path or context.options.engine.model,
            "is_generation": True,
            "load_format": context.options.engine.load_format,
            "model_type": model.config.get("model_type"),
            "architectures": model.config.get("architectures"),
            "max_model_len": model.context_length,
            "vocab_size": model.vocab_size,
        }
    )


async def server_info(request: Request) -> Response:
    """State, options (no secrets) and the start-up table."""
    context = ServerContext.of(request)
    client, options, engine = context.client, context.options, context.options.engine
    state = client.state
    ready = state.ready
    return JsonResponse(
        {
            "version": __version__,
            "served_model_name": options.served_model_name,
            "model_path": state.model_uri,
            "in_memory": client.weights.occupied,
            "ready": state.serving,
            "device": engine.device,
            "dtype": engine.dtype,
            "mem_fraction_static": engine.mem_fraction_static or DEFAULT_MEM_FRACTION,
            "max_running_requests": engine.max_running_requests,
            "max_queued_requests": engine.max_queued_requests,
            "chunked_prefill_size": engine.chunked_prefill_size,
            "max_prefill_tokens": engine.max_prefill_tokens,
            "page_size": engine.page_size,
            "disable_radix_cache": engine.disable_radix_cache,
            "enable_priority_scheduling": engine.enable_priority_scheduling,
            "enable_deterministic_inference": engine.enable_deterministic_inference,
            "enable_cache_report": options.enable_cache_report,
            "sampling_defaults": state.model.defaults if state.model else None,
            "max_total_tokens": ready.max_total_tokens if ready else None,
            "bytes_streamed": ready.bytes_streamed if ready else state.progress.latest.bytes_done,
            "ready_s": ready_s(state) if ready else None,
            "engine_restarts": state.restarts,
            "phases": startup_table(state),
            "memory": ready.memory if ready else None,
            "summary": ready.summary if ready else [],
        }
    )


async def version(_: Request) -> Response:
    """The version."""
    return JsonResponse({"version": __version__})


def _known(context: ServerContext) -> ServedModel:
    state = context.client.state
    state.refuse_unless_serving()
    assert state.model is not None
    return state.model


def _card(request: Request) -> ModelCard:
    context = ServerContext.of(request)
    name = context.options.served_model_name
    return ModelCard(
        id=name, created=context.client.created, root=name, max_model_len=_known(context).context_length
    )
