"""What the routes share: the engine's client and the server's options."""

from dataclasses import dataclass

from starlette.requests import Request

from headrace.server.errors import ApiError, invalid
from headrace.server.life.engine_client import EngineClient
from headrace.server.options import ServeOptions
from headrace.server.seen.metrics import ServerMetrics


@dataclass(frozen=True, slots=True)
class ServerContext:
    """Held by the application; `of(request)` finds it.

    Attributes:
        metrics: what is counted of requests.
    """

    client: EngineClient
    options: ServeOptions
    metrics: ServerMetrics

    def engine_pid(self) -> int | None:
        """The engine's process, where there is one of its own at the moment."""
        return self.client.state.engine_pid

    @staticmethod
    def of(request: Request) -> "ServerContext":
        """The context of the application that got this request."""
        context = request.app.state.context
        assert isinstance(context, ServerContext)
        return context

    def check_model(self, name: str | None) -> None:
        """Raises ApiError 404 for a model that is not served here. A request may name none: there is one."""
        served = self.options.served_model_name
        if name is not None and name != served:
            raise ApiError(
                404,
                f"The model {name[:200]!r} is not served here. Served: {served!r}.",
                param="model",
                code="model_not_found",
            )

    def check_priority(self, priority: int | None) -> None:
        """Raises ApiError 400 for a priority that would be without effect."""
        if priority and not self.options.engine.enable_priority_scheduling:
            raise invalid(
                f"`priority` is {priority}, but this server goes by the time of arrival. Leave it out, or have the "
                "server started with --enable-priority-scheduling.",
                "priority",
                "unsupported_parameter",
            )
