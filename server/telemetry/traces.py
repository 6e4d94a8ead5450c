"""Traces of calls by OpenTelemetry: one span tree a call, made of its story when the call is over.

    chat MODEL                                   SERVER; child of the client's span where `traceparent` names one
      queue | prefill | decode                   one after the other
                recovery, preempted              inside of the part in which it began

Names follow the GenAI semantic conventions (https://opentelemetry.io/docs/specs/semconv/gen-ai/). No text of a prompt or an
answer is sent. Sampling, headers and the service's name follow the variables OTEL_* of the SDK.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import (
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    format_trace_id,
    get_current_span,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from server import __version__
from server.telemetry.stories.record import CallStory

_EXPORT_TIMEOUT = 5.0
"""Seconds for one export, and at most for the last one at the server's end."""
_TOGETHER = 0.05
"""Seconds between interruptions of a call's choices that have one reason."""
_LOGGERS = (OTLPSpanExporter.__module__, "opentelemetry.exporter.otlp.common.http")
"""Loggers that tell of failed exports, in the SDK's versions."""
_IN_ADDRESS = re.compile(r"(?<=//)[^/?\s]*(?=@)|(?<=\?)[^\s()'\"]+")
_CONTEXT = TraceContextTextMapPropagator()
_SAMPLED, _UNSET = TraceFlags(TraceFlags.SAMPLED), Status(StatusCode.UNSET)

Attributes = dict[str, AttributeValue]


@dataclass(slots=True)
class _Interruption:
    name: str
    begin: float
    end: float
    attributes: Attributes = field(default_factory=dict)
    choices: set[int | None] = field(default_factory=set)


class Traces:
    """Sends the spans of calls to a collector, from a thread of the SDK. One writer: `tell`, on the event loop.

    Spans are made complete, as the SDK's processor takes them: its own live spans, with their locks and limits, take three times
    as long to make.
    """

    def __init__(self, endpoint: str, operations: Mapping[str, str]) -> None:
        """`operations`: values of `gen_ai.operation.name` by the route; a call of another route is a chat."""
        self._operations = operations
        resource = Resource.create({SERVICE_VERSION: __version__})
        if str(resource.attributes.get(SERVICE_NAME, "")).startswith(
            "unknown_service"
        ):  # none by OTEL_SERVICE_NAME
            resource = resource.merge(Resource({SERVICE_NAME: "cohort"}))
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._resource, self._sampler, self._ids = resource, provider.sampler, provider.id_generator
        self._processor = BatchSpanProcessor(OTLPSpanExporter(endpoint, timeout=_EXPORT_TIMEOUT))
        self._scope = InstrumentationScope("cohort", __version__)
        # One line for each failed export is enough; the SDK's are at several levels.
        logging.getLogger("opentelemetry.sdk").setLevel(logging.ERROR)
        for logger in _LOGGERS:
            logging.getLogger(logger).addFilter(_without_secrets)

    def tell(self, story: CallStory) -> None:
        """Make the spans of a call that is over, if it is sampled."""
        operation = self._operations.get(story.route, "chat")
        name = f"{operation} {story.model}" if story.model else operation
        context = _CONTEXT.extract(story.trace_headers) if story.trace_headers else None
        parent = get_current_span(context).get_span_context()
        trace_id = parent.trace_id if parent.is_valid else self._ids.generate_trace_id()
        story.trace_id = format_trace_id(trace_id)
        sampled = self._sampler.should_sample(context, trace_id, name, SpanKind.SERVER)
        if sampled.decision is not Decision.RECORD_AND_SAMPLE:
            return
        failed = story.outcome == "error"
        root = self._span(
            story,
            name,
            parent if parent.is_valid else None,
            SpanContext(trace_id, self._ids.generate_span_id(), False, _SAMPLED, sampled.trace_state),
            (story.received, max(story.ended or 0.0, story.answered or story.received)),
            {"gen_ai.operation.name": operation, **_attributes(story)},
            SpanKind.SERVER,
            Status(StatusCode.ERROR, story.code or story.error) if failed else _UNSET,
        )
        self._tell_parts(story, root)

    def _tell_parts(self, story: CallStory, root: SpanContext) -> None:
        interruptions = list(_interruptions(story))
        for name, begin, end, attributes in _parts(story):
            part = self._inside(story, name, root, (begin, end), attributes)
            for one in [one for one in interruptions if begin <= one.begin < end]:
                interruptions.remove(one)
                attributes = {**one.attributes, "cohort.choices": len(one.choices)}
                self._inside(story, one.name, part, (one.begin, min(one.end, end)), attributes)

    def _inside(
        self,
        story: CallStory,
        name: str,
        parent: SpanContext,
        times: tuple[float, float],
        attributes: Attributes,
    ) -> SpanContext:
        own = SpanContext(parent.trace_id, self._ids.generate_span_id(), False, _SAMPLED, parent.trace_state)
        return self._span(story, name, parent, own, times, attributes, SpanKind.INTERNAL, _UNSET)

    def _span(
        self,
        story: CallStory,
        name: str,
        parent: SpanContext | None,
        own: SpanContext,
        times: tuple[float, float],
        attributes: Attributes,
        kind: SpanKind,
        status: Status,
    ) -> SpanContext:
        self._processor.on_end(
            ReadableSpan(
                name,
                own,
                parent,
                self._resource,
                attributes,
                kind=kind,
                instrumentation_scope=self._scope,
                status=status,
                start_time=_nanoseconds(story, times[0]),
                end_time=_nanoseconds(story, times[1]),
            )
        )
        return own

    def close(self) -> None:
        """Send what is left. Waits at most some seconds; nothing is raised if the collector is gone."""
        self._processor.force_flush(int(_EXPORT_TIMEOUT * 1000))
        self._processor.shutdown()  # type: ignore[no-untyped-call]


def _without_secrets(record: logging.LogRecord) -> bool:
    """Take from a line what may be secret in the collector's address: user and password, and parameters."""
    record.msg, record.args = _IN_ADDRESS.sub("(removed)", record.getMessage()), None
    return True


def _nanoseconds(story: CallStory, at: float) -> int:
    """A time of the engine's clock as Unix time."""
    return int((story.received_unix + at - story.received) * 1e9)


def _attributes(story: CallStory) -> Attributes:
    """What is known of the whole call."""
    values: dict[str, AttributeValue | None] = {
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
        "http.route": story.route,
        "http.response.status_code": story.status,
        "error.type": story.code or story.error,
        "cohort.request_id": story.request_id,
        "cohort.client_request_id": story.client_request_id,
        "cohort.key": story.key or None,
        "cohort.stream": story.stream or None,
        "cohort.ttft": story.ttft_seconds(),
        "cohort.preempted": story.preempted or None,
        "cohort.resumed": story.resumed or None,
    }
    return {name: value for name, value in values.items() if value is not None}


def _parts(story: CallStory) -> Iterator[tuple[str, float, float, Attributes]]:
    """Name, begin and end of each part that the call came to, with its attributes."""
    end = story.ended or story.received
    if story.queued is not None:
        waited: Attributes = {f"cohort.waited.{reason}": seconds for reason, seconds in story.waited.items()}
        yield "queue", story.queued, end if story.admitted is None else story.admitted, waited
    if story.admitted is not None:
        attributes: Attributes = {"cohort.cached_tokens": story.cached_tokens}
        if story.prefix is not None and story.prefix.missed is not None:
            attributes["cohort.prefix.missed"] = story.prefix.missed.value
        yield "prefill", story.admitted, end if story.first_token is None else story.first_token, attributes
    if story.first_token is not None:
        yield "decode", story.first_token, end, {}


def _interruptions(story: CallStory) -> Iterator[_Interruption]:
    """Restarts and preemptions, each from the loss of what was computed to the next token. Those of several choices that have
    one reason are one."""
    interruptions: list[_Interruption] = []
    open_: dict[int | None, _Interruption] = {}
    for event in story.events:
        if event.name in ("restart", "preempted"):
            name = "recovery" if event.name == "restart" else "preempted"
            last = interruptions[-1] if interruptions else None
            if last is None or last.name != name or event.at - last.begin > _TOGETHER:
                last = _Interruption(name, event.at, event.at)
                if "cause" in event.details:
                    last.attributes["cohort.cause"] = str(event.details["cause"])
                interruptions.append(last)
            last.choices.add(event.choice)
            open_[event.choice] = last
        elif event.name in ("resumed", "finished") and event.choice in open_:
            one = open_.pop(event.choice)
            one.end = max(one.end, event.at)
    for one in open_.values():  # events beyond the bound are missing
        one.end = max(one.end, story.ended or one.begin)
    yield from interruptions
