"""Operations and answers of paths for operators, for /openapi.json."""

from __future__ import annotations

from server.apis.operation.step_answers import STEPS
from server.apis.operation.story_answers import STORIES
from server.openapi.operation import Operation
from server.openapi.schema import (
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
from server.telemetry.stories.ring import OUTCOMES, SORTS

_PAGE = ("text/html", "text/plain")
_OF_MODEL = (
    ("model", {"type": "string"}, "Name of one of several models. Default: the first one that is loaded."),
)
OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "get", "/v1/executors", "listExecutors", "Models", "List the executors, with their properties and status",
        "ExecutorList", (401, 403, 431, 500, 503),
    ),
    Operation(
        "get", "/v1/requests", "listRequests", "Operation", "List the calls under way and the last ones that ended",
        "RequestStoryList", (400, 401, 403, 404, 431, 500), "Requires the admin key. `--stories` sets how many are kept.",
        query=(
            ("sort", {"enum": list(SORTS)}, "What the list is sorted by. Default: received."),
            ("order", {"enum": ["desc", "asc"]}, "`desc` begins with the largest or latest. Default: desc."),
            ("outcome", {"type": "string"}, f"Outcomes, separated by commas: {', '.join(OUTCOMES)}. Default: all."),
            ("key", {"type": "string"}, "Name of the API key. Default: all."),
            ("model", {"type": "string"}, "Name of the model. Default: all."),
            ("client_request_id", {"type": "string"}, "The `x-request-id` that the client sent. Default: all."),
            ("limit", {"type": "integer", "minimum": 1, "maximum": 1000}, "Most calls that are listed. Default: 100."),
        ),
    ),
    Operation(
        "get", "/v1/requests/{request_id}", "getRequest", "Operation", "Tell the story of one call", "RequestStory",
        (401, 403, 404, 431, 500),
        "Requires the admin key. The identifier is that of the answer, its `x-request-id`, or the `x-request-id` that the client "
        "sent: of several calls the latest one is told.",
    ),
    Operation(
        "get", "/v1/settings", "getSettings", "Operation", "Return the server's settings, without secrets", "Settings",
        (401, 403, 404, 431, 500),
        "Requires the admin key. `given` is true for what flags, the environment or a file have set; `in_force` is null while "
        "the model loads.",
    ),
    Operation(
        "get", "/live", "live", "Operation", "Report whether the server process responds", "Live", (403, 431, 500), keyless=True,
        description="The only path for liveness probes: status 200 also while the server loads, recovers and drains.",
    ),
    Operation(
        "get", "/ready", "ready", "Operation", "Report whether the server accepts new requests", "Stage", (403, 431, 500),
        description="The path for readiness probes: status 200 only while load balancers should send requests here.",
        keyless=True, not_ready=True,
    ),
    Operation(
        "get", "/health", "health", "Operation", "Report whether the server works or is recovering", "Stage", (403, 431, 500),
        description="Status 503 while the server loads, if a recovery takes too long, and if the engine has failed.",
        keyless=True, not_ready=True,
    ),
    Operation("get", "/version", "version", "Operation", "Return the server's version", "Version", (403, 431, 500), keyless=True),
    Operation(
        "get", "/metrics", "metrics", "Operation", "Return metrics as Prometheus text", None,
        description="Needs no key, unless the server was started with `--metrics-key`; then it needs that key.",
        own_key=True,
    ),
    Operation(
        "post", "/v1/kill_executor", "killExecutor", "Operation", "Kill the executor's process with SIGKILL", "Killed",
        (400, 401, 403, 404, 415, 431, 500, 503),
        "For demonstrations: a new executor takes over, and every stream goes on. Requires `--enable-kill-button` and the admin "
        "key; has no body.",
        query=_OF_MODEL,
    ),
    Operation(
        "get", "/v1/steps", "watchSteps", "Operation", "Watch every step, the sequences and the KV blocks", None,
        (401, 403, 404, 429, 431, 500),
        "A stream of frames, five a second while anything runs, until the client leaves; the console draws it. The first frame "
        "has `server`. A step without `seq_ids` has the items of the step before it. Where clients have API keys, it requires "
        "the admin key.",
        chunk="StepsFrame", events="typed", media=(), query=_OF_MODEL,
    ),
    Operation(
        "get", "/", "console", "Operation", "Return the console for browsers, and a few lines of text for other clients", None,
        (403, 431, 500), keyless=True, media=_PAGE,
    ),
    Operation(
        "get", "/docs", "reference", "Operation", "Return the API reference for browsers", None, (403, 431, 500), keyless=True,
        media=_PAGE,
    ),
    Operation(
        "get", "/console/{path}", "consoleFile", "Operation", "Return a file of the console", None, (403, 404, 431, 500),
        keyless=True, media=("text/javascript", "text/css", "text/html", "image/svg+xml"),
    ),
    Operation(
        "get", "/openapi.json", "openapi", "Operation", "Return this description", "Description",
    ),
)  # fmt: skip

ANSWERS: dict[str, Schema] = {
    "ExecutorList": closed(
        {
            "object": const("list"),
            "data": array(
                closed(
                    {
                        "id": STRING,
                        "object": const("executor"),
                        "mode": nullable(STRING),
                        "pid": nullable(INTEGER),
                        "snapshot_age_s": nullable(NUMBER),
                        "info": {"type": "object"},
                        "notation": closed(
                            {
                                "tool_calls": STRING,
                                "tool_calls_stay_text": {"type": "boolean"},
                                "reasoning": STRING,
                            }
                        ),
                        "capabilities": {"type": "object"},
                        "status": {"type": "object"},
                        "metrics": {"type": "object"},
                        "cache": {"type": ["object", "null"]},
                        "lora": {"type": ["object", "null"]},
                        "kv_layout": {"type": "object"},
                        "kv_capacity": nullable(COUNT),
                    },
                    description="Executor, described by the records of the executor interface.",
                )
            ),
            "registered": array(STRING),
        }
    ),
    "Live": closed({"status": const("live")}),
    "Settings": closed(
        {
            "object": const("settings"),
            "version": STRING,
            "settings": {
                "type": "object",
                "additionalProperties": closed(
                    {"value": {}, "given": {"type": "boolean"}}, {"set": {"type": "boolean"}}
                ),
            },
            "in_force": {"type": ["object", "null"]},
        },
        description="Settings by name. The value of a secret is null; `set` says whether there is one.",
    ),
    "Stage": closed(
        {"status": one_of("loading", "ready", "recovering", "draining", "failed", "stopped")},
        {"detail": STRING, "phase": STRING, "done": INTEGER, "total": INTEGER},
        description="Stage of the server. While it loads, `done` and `total` tell the progress, in the unit of the phase.",
    ),
    "Description": {"type": "object", "required": ["openapi", "paths"]},
    **STORIES,
    **STEPS,
}
