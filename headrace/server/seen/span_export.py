"""From spans as plain data to OpenTelemetry's SDK, which batches and sends them. The only file that imports it."""

import time
from collections.abc import Sequence

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from headrace import __version__
from headrace.server.seen.span_facts import SpanFacts

SERVICE_NAME = "headrace"


class SpanExport:
    """Sends spans to a collector over OTLP/HTTP.

    The SDK's own variables hold: OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES, OTEL_TRACES_SAMPLER (every request is
    told, but for those whose caller did not sample its own), OTEL_BSP_*, OTEL_EXPORTER_OTLP_HEADERS and so on.
    """

    def __init__(self, endpoint: str | None) -> None:
        """`endpoint`: the URL that takes traces; None goes by OTEL_EXPORTER_OTLP_* or takes this machine's."""
        # Resource.create lets the variables win over the service's name only where they are given.
        resource = Resource({"service.name": SERVICE_NAME, "service.version": __version__}).merge(
            _of_environment()
        )
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
        self._tracer = self._provider.get_tracer("headrace", __version__)
        self._propagator = TraceContextTextMapPropagator()
        self._epoch_ns = 0

    def send(self, facts: SpanFacts) -> None:
        """Queue a span with all below it; never waits."""
        # The SDK wants the time of day, which may be set anew; what is told has the monotonic clock's.
        self._epoch_ns = time.time_ns() - time.monotonic_ns()
        parent = self._propagator.extract(dict(facts.parent), context=Context())
        self._make(facts, parent)

    def close(self) -> None:
        """Send what is queued. May take as long as a collector lets it."""
        self._provider.shutdown()

    def _make(self, facts: SpanFacts, parent: Context) -> None:
        span = self._tracer.start_span(
            facts.name,
            context=parent,
            kind=SpanKind.SERVER if facts.server else SpanKind.INTERNAL,
            attributes={name: _value(value) for name, value in facts.attributes.items()},
            start_time=self._ns(facts.start_s),
        )
        for name, time_s in facts.events:
            span.add_event(name, timestamp=self._ns(time_s))
        if facts.error:
            span.set_status(Status(StatusCode.ERROR, facts.error))
        within = set_span_in_context(span, parent)
        for child in facts.children:
            self._make(child, within)
        span.end(end_time=self._ns(facts.end_s))

    def _ns(self, time_s: float) -> int:
        return self._epoch_ns + round(time_s * 1e9)


def _value(value: str | int | float | bool | tuple[str, ...]) -> str | int | float | bool | Sequence[str]:
    return list(value) if isinstance(value, tuple) else value


def _of_environment() -> Resource:
    """What OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME say, and the SDK of itself."""
    made = Resource.create()
    return Resource(
        {
            name: value
            for name, value in made.attributes.items()
            if not str(value).startswith("unknown_service")
        }
    )
