"""POST /update_weights_from_disk, /release_memory_occupation, /resume_memory_occupation: SGLang's names and fields."""

import asyncio
from typing import Annotated, Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from headrace.errors import HeadraceError
from headrace.ipc.messages import (
    EVERYTHING,
    Occupation,
    ReleaseMemory,
    ResumeMemory,
    UpdateWeights,
    WeightsAnswer,
)
from headrace.server.body import parse, read_json_object
from headrace.server.context import ServerContext
from headrace.server.openai.unsupported import refuse_unsupported
from headrace.server.responses import JsonResponse
from headrace.source.uri import parse_source

# Fields of SGLang's that would mean something here, and the values of them that ask for nothing. What means nothing
# here is passed over: `torch_empty_cache`, `recapture_cuda_graph`.
_UPDATE_OFF_VALUES: dict[str, tuple[Any, ...]] = {
    "is_async": (False,),
    "keep_pause": (False,),
    "token_step": (0,),
    "manifest": ({},),
}


# Longer than any path or key: what is wrong with it stands in an answer and in the log.
_Text = Annotated[str, msgspec.Meta(max_length=4096)]


class UpdateRequest(msgspec.Struct, frozen=True, kw_only=True):
    """POST /update_weights_from_disk.

    Attributes:
        model_path: any URI or folder that the server could have been started with.
        in_place: ours; overwrite the served weights where there is no room for both.
        weight_version: a name for the weights, told by /model_info.
    """

    model_path: _Text
    load_format: Literal["auto", "safetensors", "runai_streamer"] | None = None
    abort_all_requests: bool | None = None
    flush_cache: bool | None = None
    in_place: bool | None = None
    weight_version: _Text | None = None


class MemoryRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be given back or taken again; all where nothing is named. There are no CUDA graphs here."""

    tags: list[Literal["weights", "kv_cache", "cuda_graph"]] | None = None

    @property
    def occupations(self) -> tuple[Occupation, ...]:
        """Those that exist here."""
        return tuple(name for name in EVERYTHING if not self.tags or name in self.tags)


class UpdateResponse(msgspec.Struct, frozen=True):
    """SGLang's answer. `num_paused_requests`: those that waited for the change, or were ended by it."""

    success: bool
    message: str
    num_paused_requests: int


class MemoryResponse(msgspec.Struct, frozen=True):
    """What came of it."""

    success: bool
    message: str


async def update_weights_from_disk(request: Request) -> Response:
    """Serve another checkpoint; 200, or 400 with what is wrong with it. Answered when it is served."""
    context = ServerContext.of(request)
    body = await read_json_object(request, context.options.max_body_bytes)
    wanted = parse(body, UpdateRequest)
    refuse_unsupported(body, _UPDATE_OFF_VALUES)
    context.client.state.refuse_unless_serving()
    try:
        await asyncio.to_thread(parse_source, wanted.model_path)  # it may look at a file system
    except HeadraceError as error:
        return _updated(False, str(error), 0)
    answer = await context.client.change_weights(
        UpdateWeights(
            wanted.model_path,
            abort_requests=wanted.abort_all_requests is True,
            in_place=wanted.in_place is True,
            flush_cache=wanted.flush_cache is not False,
        )
    )
    if answer.success and wanted.weight_version is not None:
        context.client.weights.version = wanted.weight_version
    return _updated(answer.success, answer.message, answer.paused_requests)


async def release_memory_occupation(request: Request) -> Response:
    """Give memory back to the system; 400, with nothing done, while there are requests."""
    asked = await _memory_request(request)
    return _changed(await ServerContext.of(request).client.change_weights(ReleaseMemory(asked.occupations)))


async def resume_memory_occupation(request: Request) -> Response:
    """Take it again, the weights from where they are served from; 400 where they cannot be had."""
    asked = await _memory_request(request)
    return _changed(await ServerContext.of(request).client.change_weights(ResumeMemory(asked.occupations)))


async def _memory_request(request: Request) -> MemoryRequest:
    context = ServerContext.of(request)
    has_body = "transfer-encoding" in request.headers or request.headers.get("content-length", "0") != "0"
    body = await read_json_object(request, context.options.max_body_bytes) if has_body else {}
    wanted = parse(body, MemoryRequest)
    context.client.state.refuse_unless_serving()
    return wanted


def _updated(success: bool, message: str, paused: int) -> Response:
    return JsonResponse(UpdateResponse(success, message, paused), status_code=200 if success else 400)


def _changed(answer: WeightsAnswer) -> Response:
    return JsonResponse(
        MemoryResponse(answer.success, answer.message), status_code=200 if answer.success else 400
    )
