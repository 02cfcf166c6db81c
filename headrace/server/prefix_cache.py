"""GET or POST /flush_cache: forget the prompts that were computed before."""

from starlette.requests import Request
from starlette.responses import Response

from headrace.server.context import ServerContext
from headrace.server.errors import invalid
from headrace.server.responses import JsonResponse


async def flush(request: Request) -> Response:
    """200 when the cache is empty; 400, with nothing touched, while requests run or wait (as in SGLang)."""
    client = ServerContext.of(request).client
    client.state.refuse_unless_serving()
    answer = await client.flush_cache()
    if not answer.flushed:
        raise invalid(answer.message, code="cache_in_use")
    return JsonResponse({"flushed": True, "message": answer.message})
