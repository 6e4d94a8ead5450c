"""A collector of traces: it takes OTLP over HTTP and keeps the spans."""

from __future__ import annotations

import gzip
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


@dataclass(frozen=True)
class Span:
    """`begin` and `end` in Unix seconds; ids as hex, `parent` "" for a root."""

    name: str
    trace: str
    id: str
    parent: str
    begin: float
    end: float
    attributes: dict[str, Any]
    failed: bool


@dataclass(frozen=True)
class Tree:
    """A span and those inside of it, in order of their begin."""

    span: Span
    children: tuple[Tree, ...]

    def names(self) -> Any:
        """The name, or a list of the name and those of the children."""
        return (
            [self.span.name, *(child.names() for child in self.children)] if self.children else self.span.name
        )


class Receiver:
    """with Receiver() as receiver: ... receiver.url ... receiver.spans"""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.resources: list[dict[str, Any]] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                receiver._take(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.send_header("content-type", "application/x-protobuf")
                self.end_headers()
                self.wfile.write(ExportTraceServiceResponse().SerializeToString())

            def log_message(self, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1/traces"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def trees(self) -> list[Tree]:
        """The spans as trees. A span whose parent is unknown here (the client's) is a root."""
        known = {span.id for span in self.spans}
        return [self._tree(span) for span in self.spans if span.parent not in known]

    def _tree(self, span: Span) -> Tree:
        inside = sorted((one for one in self.spans if one.parent == span.id), key=lambda one: one.begin)
        return Tree(span, tuple(map(self._tree, inside)))

    def _take(self, request: ExportTraceServiceRequest) -> None:
        for group in request.resource_spans:
            self.resources.append(_plain(group.resource.attributes))
            for scope in group.scope_spans:
                for span in scope.spans:
                    self.spans.append(
                        Span(
                            span.name, span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex(),
                            span.start_time_unix_nano / 1e9, span.end_time_unix_nano / 1e9, _plain(span.attributes),
                            span.status.code == 2,
                        )
                    )  # fmt: skip

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _plain(attributes: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for one in attributes:
        kind = one.value.WhichOneof("value")
        value = getattr(one.value, kind)
        found[one.key] = [item.string_value for item in value.values] if kind == "array_value" else value
    return found
