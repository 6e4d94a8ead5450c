"""A story as plain data for JSON. It contains no text and no token of a prompt or an answer."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from engine.story import Event, Story, WaitReason
from server.telemetry.stories.record import CallStory

_NOTICED = 0.1
"""Seconds of waiting from which on the log tells what for."""
_DIGITS = 6
"""Digits behind the point of a second."""


def summary(story: CallStory, now: float) -> dict[str, Any]:
    """A story without its events."""
    return {
        "object": "request",
        "id": story.id,
        "request_id": story.request_id,
        "client_request_id": story.client_request_id,
        "trace_id": story.trace_id,
        "route": story.route,
        "model": story.model,
        "key": story.key,
        "stream": story.stream,
        "parameters": story.parameters,
        "state": story.state,
        "outcome": story.outcome,
        "status": story.status,
        "code": story.code or story.error,
        "finish_reasons": [story.finish_reasons[choice] for choice in sorted(story.finish_reasons)],
        "received": round(story.received_unix, 3),
        "prepare_seconds": None if story.queued is None else _seconds(story.queued - story.received),
        "queue_seconds": _seconds(story.queue_seconds(now)),
        "prefill_seconds": _seconds(story.prefill_seconds(now)),
        "ttft_seconds": _seconds(story.ttft_seconds()),
        "decode_seconds": _seconds(story.decode_seconds(now)),
        "e2e_seconds": _seconds(story.e2e_seconds(now)),
        "waited_for": _by_reason(story.waited_for()),
        "paused_for": _by_reason(story.paused),
        "interruptions": _interruptions(story, now),
        "refused": _refused(story),
        "prompt_tokens": story.prompt_tokens,
        "cached_tokens": story.cached_tokens,
        "disk_tokens": story.disk_tokens,
        "output_tokens": story.output_tokens,
        "choices": story.choices,
        "preempted": story.preempted,
        "resumed": story.resumed,
        "prefix": _prefix(story),
    }


def whole(story: CallStory, now: float) -> dict[str, Any]:
    """A story with its events."""
    return {
        **summary(story, now),
        "events": [_event(event, story.received) for event in story.events],
        "events_dropped": story.num_dropped_events,
    }


def log_fields(story: CallStory) -> dict[str, Any]:
    """Fields of the access log's line, without those that say nothing."""
    now = story.answered or story.received
    reasons = sorted(set(story.finish_reasons.values()))
    fields = {
        "queue_ms": _milliseconds(story.queue_seconds(now)),
        "waited_for": _main_reason(story.waited),
        "refused": None if story.refusal is None else story.refusal.because.value,
        "ttft_ms": _milliseconds(story.ttft_seconds()),
        "prompt_tokens": story.prompt_tokens or None,
        "cached_tokens": story.cached_tokens if story.admitted is not None else None,
        "disk_tokens": story.disk_tokens or None,
        "output_tokens": story.output_tokens if story.first_token is not None else None,
        "finish": ",".join(reasons) or None,
        "preempted": story.preempted or None,
        "resumed": story.resumed or None,
        "trace_id": story.trace_id,
        "prompt": None if story.prompt is None else _harmless(story.prompt),
    }
    return {name: value for name, value in fields.items() if value is not None}


def server_timing(story: Story, streams: bool) -> bytes | None:
    """The value of the header `server-timing`, in milliseconds; None for a call that was not queued. Of a stream, whose headers
    are sent with its first event, the decode is not known yet."""
    if story.queued is None:
        return None
    now = time.monotonic()
    parts = {
        "prepare": story.queued - story.received,
        "queue": story.queue_seconds(now),
        "prefill": story.prefill_seconds(now),
        "decode": None if streams else story.decode_seconds(now),
    }
    durations = (f"{name};dur={value * 1000:.1f}" for name, value in parts.items() if value is not None)
    return ", ".join(durations).encode()


def _harmless(text: str) -> str:
    """The text, with line breaks and control characters escaped: they would forge lines and control the terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _milliseconds(value: float | None) -> float | None:
    return None if value is None else round(value * 1000, 1)


def _prefix(story: CallStory) -> dict[str, Any] | None:
    prefix = story.prefix
    if prefix is None:
        return None
    return {
        "matched_tokens": prefix.matched_tokens,
        "missed": prefix.missed,
        "first_difference": prefix.first_difference,
        "evicted_tokens": prefix.evicted_tokens,
        "evicted_by": prefix.evicted_by,
        "window": prefix.window,
        "unread_tokens": prefix.unread_tokens,
    }


def _interruptions(story: Story, now: float) -> dict[str, Any] | None:
    interruptions = story.interruptions
    if not interruptions.count:
        return None
    return {
        "count": interruptions.count,
        "causes": dict(interruptions.causes),
        "restart_seconds": _seconds(interruptions.restart_seconds),
        "recompute_seconds": _seconds(interruptions.recompute_seconds),
        "outage_seconds": _seconds(
            interruptions.outage_seconds(now if story.parts or story.ended is None else story.ended)
        ),
    }


def _refused(story: Story) -> dict[str, Any] | None:
    refusal = story.refusal
    if refusal is None:
        return None
    return {
        "because": refusal.because,
        "limit": refusal.limit,
        "estimated_wait": None if refusal.estimated_wait is None else round(refusal.estimated_wait, 3),
        "waited": None if refusal.waited is None else round(refusal.waited, 3),
        "queued_seqs": refusal.queued_seqs,
        "queued_tokens": refusal.queued_tokens,
        "queued_of_key": refusal.queued_of_key,
        "keys": refusal.keys,
    }


def _main_reason(waited: Mapping[WaitReason, float]) -> str | None:
    """The largest reason of a wait that a person would notice; None of a shorter one."""
    if sum(waited.values()) < _NOTICED:
        return None
    return max(waited, key=lambda reason: waited[reason]).value


def _by_reason(times: Mapping[WaitReason, float]) -> dict[str, float | None]:
    return {reason.value: _seconds(seconds) for reason, seconds in times.items()}


def _event(event: Event, received: float) -> dict[str, Any]:
    fields: dict[str, Any] = {"at": _seconds(event.at - received), "event": event.name}
    if event.choice is not None:
        fields["choice"] = event.choice
    for name, value in event.details.items():
        fields[name] = _by_reason(value) if isinstance(value, dict) else value
    return fields


def _seconds(value: float | None) -> float | None:
    return None if value is None else round(value, _DIGITS)
