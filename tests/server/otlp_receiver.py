"""A collector of traces on loopback: it keeps what is sent to it by OTLP over HTTP."""

import contextlib
import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


class Receiver:
    """What has come.

    Attributes:
        url: takes traces.
        bodies: as they came, uncompressed.
        paths: that were asked for.
        resources: each batch's, name → value.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.bodies: list[bytes] = []
        self.paths: list[str] = []
        self.resources: list[dict[str, Any]] = []
        self._spans: list[Any] = []
        self._more = threading.Condition()

    def take(self, path: str, body: bytes) -> None:
        """Keep a batch."""
        request = ExportTraceServiceRequest.FromString(body)
        with self._more:
            self.bodies.append(body)
            self.paths.append(path)
            for of_resource in request.resource_spans:
                self.resources.append(attributes_of(of_resource.resource))
                for scope in of_resource.scope_spans:
                    self._spans += scope.spans
            self._more.notify_all()

    def spans(self, name: str = "") -> list[Any]:
        """All spans, or those of a name, by their start."""
        with self._more:
            return sorted(
                (span for span in self._spans if name in ("", span.name)),
                key=lambda span: span.start_time_unix_nano,
            )

    def span(self, name: str) -> Any:
        """The one span of this name; AssertionError unless there is one, soon."""
        with self._more:
            assert self._more.wait_for(lambda: self.spans(name), 60), [span.name for span in self._spans]
        (span,) = self.spans(name)
        return span

    def children(self, parent: Any) -> list[Any]:
        """The spans right below one."""
        return [span for span in self.spans() if span.parent_span_id == parent.span_id]


def attributes_of(holder: Any) -> dict[str, Any]:
    """A span's, an event's or a resource's attributes as plain values."""
    return {attribute.key: _plain(attribute.value) for attribute in holder.attributes}


def _plain(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_plain(entry) for entry in value.array_value.values]
    return getattr(value, kind)


@contextlib.contextmanager
def receiver() -> Iterator[Receiver]:
    """A collector that ends with the block; it refuses what is sent to /refuse."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.path == "/refuse":
                self.send_error(403)
                return
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            found.take(self.path, body)
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        found = Receiver(f"http://127.0.0.1:{server.server_port}/v1/traces")
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield found
        finally:
            server.shutdown()
            thread.join()
