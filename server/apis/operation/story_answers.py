"""JSON schemas of the stories of calls."""

from __future__ import annotations

from engine.refusal import Because
from engine.story import Lost, Missed, WaitReason
from server.openapi.schema import (
    BOOLEAN,
    COUNT,
    INTEGER,
    NUMBER,
    STRING,
    Schema,
    array,
    closed,
    const,
    nullable,
    one_of,
)

_SECONDS = nullable({**NUMBER, "minimum": 0})
_WAITED = closed({}, {reason.value: {**NUMBER, "minimum": 0} for reason in WaitReason})
_SUMMARY: Schema = {
    "object": const("request"),
    "id": {
        **nullable(STRING),
        "description": "Identifier of the answer; null if the call was refused before.",
    },
    "request_id": {**STRING, "description": "The `x-request-id` of the answer."},
    "client_request_id": {**nullable(STRING), "description": "The `x-request-id` that the client sent."},
    "trace_id": {**nullable(STRING), "description": "Identifier of the OpenTelemetry trace."},
    "route": STRING,
    "model": STRING,
    "key": {**STRING, "description": "Name of the API key; empty without keys."},
    "stream": BOOLEAN,
    "parameters": {
        "type": "object",
        "additionalProperties": NUMBER,
        "description": "Numbers that the client set.",
    },
    "state": one_of("preparing", "waiting", "running", "interrupted", "ended"),
    "outcome": nullable(one_of("stop", "length", "abort", "error", "refused")),
    "status": nullable(INTEGER),
    "code": {**nullable(STRING), "description": "Code of the error that ended the call."},
    "finish_reasons": array(STRING),
    "received": {**NUMBER, "description": "Unix time at which the body was complete."},
    "prepare_seconds": _SECONDS,
    "queue_seconds": _SECONDS,
    "prefill_seconds": _SECONDS,
    "ttft_seconds": _SECONDS,
    "decode_seconds": _SECONDS,
    "e2e_seconds": _SECONDS,
    "waited_for": {
        **_WAITED,
        "description": "Seconds of `queue_seconds` by reason, which they add up to; of a call that waits, so far.",
    },
    "paused_for": {
        **_WAITED,
        "description": "Seconds that sequences were rolled back until their next token, of all choices together: by preemptions "
        "(`kv_blocks`) and restarts (`recovery`).",
    },
    "interruptions": nullable(
        closed(
            {
                "count": COUNT,
                "causes": {"type": "object", "additionalProperties": COUNT},
                "restart_seconds": {**NUMBER, "minimum": 0},
                "recompute_seconds": {**NUMBER, "minimum": 0},
                "outage_seconds": {**NUMBER, "minimum": 0},
            },
            description="Failures of the executor under the call, of all choices together: how many, by cause, and the seconds "
            "until its sequences ran again and from then on until their next tokens. `outage_seconds` is the time from the loss "
            "of the executor until the next one was ready, not added up over choices: the number that the console shows, too.",
        )
    ),
    "refused": nullable(
        closed(
            {
                "because": one_of(*Because),
                "limit": {
                    **nullable(NUMBER),
                    "description": "Seconds; of `queued_seqs` and `queued_tokens` a number.",
                },
                "estimated_wait": _SECONDS,
                "waited": _SECONDS,
                "queued_seqs": nullable(COUNT),
                "queued_tokens": nullable(COUNT),
                "queued_of_key": {
                    **nullable(COUNT),
                    "description": "Sequences of the same API key among those, of `keys` keys in all (policy `fair`).",
                },
                "keys": nullable(COUNT),
            },
            description="Why the call was told to come back later, on arrival or after a wait, and what the queue was then.",
        )
    ),
    "prompt_tokens": COUNT,
    "cached_tokens": COUNT,
    "disk_tokens": COUNT,
    "output_tokens": COUNT,
    "choices": COUNT,
    "preempted": COUNT,
    "resumed": COUNT,
    "prefix": nullable(
        closed(
            {
                "matched_tokens": COUNT,
                "missed": nullable(one_of(*Missed)),
                "first_difference": nullable(COUNT),
                "evicted_tokens": COUNT,
                "evicted_by": nullable(one_of(*Lost)),
                "window": {
                    **nullable(COUNT),
                    "description": "Window of the layers whose KV was missing, in tokens, where other layers had theirs.",
                },
                "unread_tokens": {
                    **COUNT,
                    "description": "Tokens behind the match that are on disk and were computed.",
                },
            },
            description="How much of the first prompt was found in the prefix cache, and why not more.",
        )
    ),
}
_EVENT = closed(
    {"at": NUMBER, "event": STRING},
    {
        "choice": COUNT,
        "waited": _WAITED,
        "cached_tokens": COUNT,
        "output_tokens": COUNT,
        "cause": STRING,
        "reason": STRING,
        "status": INTEGER,
        "code": STRING,
    },
)

STORIES: dict[str, Schema] = {
    "RequestStory": closed(
        {**_SUMMARY, "events": array(_EVENT), "events_dropped": COUNT},
        description="What became of a call. Times are seconds; those of events count from the arrival.",
    ),
    "RequestStoryList": closed(
        {"object": const("list"), "data": array(closed(_SUMMARY)), "has_more": BOOLEAN}
    ),
}
