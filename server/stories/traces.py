"""Traces of calls by OpenTelemetry: one span tree a call, made of its story when the call is over.

    chat MODEL                                   SERVER; child of the client's span where `traceparent` names one
      queue | prefill | decode                   one after the other
                recovery, preempted              inside of the part in which it began

Names follow the GenAI semantic conventions (https://opentelemetry.io/docs/specs/semconv/gen-ai/). No text of a prompt or an
answer is sent. Sampling, headers and the service's name follow the variables OTEL_* of the SDK.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, format_trace_id, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from server import __version__
from server.stories.record import CallStory

_EXPORT_TIMEOUT = 5.0
"""Seconds for one export, and at most for the last one at the server's end."""
_TOGETHER = 0.05
"""Seconds between interruptions of a call's choices that have one reason."""
_OPERATIONS = {"/v1/completions": "text_completion", "/v1/embeddings": "embeddings"}
_CONTEXT = TraceContextTextMapPropagator()

Attributes = dict[str, AttributeValue]


@dataclass(slots=True)
class _Interruption:
    name: str
    begin: float
    end: float
    attributes: Attributes = field(default_factory=dict)
    choices: set[int | None] = field(default_factory=set)


class Traces:
    """Sends the spans of calls to a collector, from a thread of the SDK. One writer: `tell`, on the event loop."""

    def __init__(self, endpoint: str) -> None:
        resource = Resource.create({SERVICE_VERSION: __version__})
        if str(resource.attributes.get(SERVICE_NAME, "")).startswith(
            "unknown_service"
        ):  # none by OTEL_SERVICE_NAME
            resource = resource.merge(Resource({SERVICE_NAME: "cohort"}))
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        exporter = OTLPSpanExporter(endpoint, timeout=_EXPORT_TIMEOUT)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("cohort", __version__)
        # One line for each failed export is enough; the SDK's are at several levels.
        logging.getLogger("opentelemetry.sdk").setLevel(logging.ERROR)

    def tell(self, story: CallStory) -> None:
        """Make the spans of a call that is over."""
        operation = _OPERATIONS.get(story.route, "chat")
        root = self._tracer.start_span(
            f"{operation} {story.model}" if story.model else operation,
            _CONTEXT.extract(story.trace_headers) if story.trace_headers else None,
            SpanKind.SERVER,
            start_time=_nanoseconds(story, story.received),
        )
        story.trace_id = format_trace_id(root.get_span_context().trace_id)
        end = max(story.ended or 0.0, story.answered or story.received)
        if root.is_recording():
            root.set_attributes({"gen_ai.operation.name": operation, **_attributes(story)})
            if story.outcome == "error":
                root.set_status(Status(StatusCode.ERROR, story.code or story.error))
            self._tell_parts(story, root)
        root.end(_nanoseconds(story, end))

    def _tell_parts(self, story: CallStory, root: Span) -> None:
        interruptions = list(_interruptions(story))
        for name, begin, end, attributes in _parts(story):
            part = self._span(story, root, name, begin, end, attributes)
            for one in [one for one in interruptions if begin <= one.begin < end]:
                interruptions.remove(one)
                attributes = {**one.attributes, "cohort.choices": len(one.choices)}
                self._span(story, part, one.name, one.begin, min(one.end, end), attributes)

    def _span(
        self, story: CallStory, parent: Span, name: str, begin: float, end: float, attributes: Attributes
    ) -> Span:
        span = self._tracer.start_span(
            name,
            set_span_in_context(parent),
            attributes=attributes,
            start_time=_nanoseconds(story, begin),
        )
        span.end(_nanoseconds(story, end))
        return span

    def close(self) -> None:
        """Send what is left. Waits at most some seconds; nothing is raised if the collector is gone."""
        self._provider.force_flush(int(_EXPORT_TIMEOUT * 1000))
        self._provider.shutdown()


def _nanoseconds(story: CallStory, at: float) -> int:
    """A time of the engine's clock as Unix time."""
    return int((story.received_unix + at - story.received) * 1e9)


def _attributes(story: CallStory) -> Attributes:
    """What is known of the whole call."""
    found: dict[str, AttributeValue | None] = {
        "gen_ai.provider.name": "cohort",
        "gen_ai.request.model": story.model or None,
        "gen_ai.response.id": story.id,
        "gen_ai.response.finish_reasons": tuple(
            story.finish_reasons[choice] for choice in sorted(story.finish_reasons)
        ),
        "gen_ai.usage.input_tokens": story.prompt_tokens,
        "gen_ai.usage.output_tokens": story.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": story.cached_tokens,
        **{f"gen_ai.request.{name}": value for name, value in story.parameters.items()},
        "http.request.method": "POST",
        "http.route": story.route,
        "http.response.status_code": story.status,
        "error.type": story.code or story.error,
        "cohort.request_id": story.request_id,
        "cohort.client_request_id": story.client_request_id,
        "cohort.key": story.key or None,
        "cohort.stream": story.stream,
        "cohort.ttft": story.ttft_seconds(),
        "cohort.preempted": story.preempted,
        "cohort.resumed": story.resumed,
    }
    return {name: value for name, value in found.items() if value is not None}


def _parts(story: CallStory) -> Iterator[tuple[str, float, float, Attributes]]:
    """Name, begin and end of each part that the call came to, with its attributes."""
    end = story.ended or story.received
    if story.queued is not None:
        waited: Attributes = {f"cohort.waited.{reason}": seconds for reason, seconds in story.waited.items()}
        yield "queue", story.queued, end if story.admitted is None else story.admitted, waited
    if story.admitted is not None:
        found: Attributes = {"cohort.cached_tokens": story.cached_tokens}
        if story.prefix is not None and story.prefix.missed is not None:
            found["cohort.prefix.missed"] = story.prefix.missed.value
        yield "prefill", story.admitted, end if story.first_token is None else story.first_token, found
    if story.first_token is not None:
        yield "decode", story.first_token, end, {"gen_ai.usage.output_tokens": story.output_tokens}


def _interruptions(story: CallStory) -> Iterator[_Interruption]:
    """Restarts and preemptions, each from the loss of what was computed to the next token. Those of several choices that have
    one reason are one."""
    found: list[_Interruption] = []
    open_: dict[int | None, _Interruption] = {}
    for event in story.events:
        if event.name in ("restart", "preempted"):
            name = "recovery" if event.name == "restart" else "preempted"
            last = found[-1] if found else None
            if last is None or last.name != name or event.at - last.begin > _TOGETHER:
                last = _Interruption(name, event.at, event.at)
                if "cause" in event.details:
                    last.attributes["cohort.cause"] = str(event.details["cause"])
                found.append(last)
            last.choices.add(event.choice)
            open_[event.choice] = last
        elif event.name in ("resumed", "finished") and event.choice in open_:
            one = open_.pop(event.choice)
            one.end = max(one.end, event.at)
    for one in open_.values():  # events beyond the bound are missing
        one.end = max(one.end, story.ended or one.begin)
    yield from found
