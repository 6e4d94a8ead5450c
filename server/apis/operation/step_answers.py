"""JSON schemas of the feed of steps (server/console/feed.py)."""

from __future__ import annotations

from server.openapi.schema import (
    BOOLEAN,
    COUNT,
    INTEGER,
    NUMBER,
    STRING,
    Schema,
    array,
    closed,
    nullable,
    one_of,
    ref,
)

_STAGE = one_of("loading", "ready", "recovering", "draining", "failed", "stopped")
_BLOCKS = closed(
    {"total": COUNT, "used": COUNT, "cached": COUNT, "touched": COUNT},
    description="KV blocks: all, held by sequences, free ones that may be found again, and all that have memory.",
)
_STATES = closed(
    {"total": COUNT, "used": COUNT, "snapshots": COUNT},
    description="Slots of states of layers: all, held by sequences, snapshots for prompts to begin with; 0 for models without.",
)
_SERVER = closed(
    {
        "version": STRING,
        "model": STRING,
        "max_model_len": nullable(COUNT),
        "block_size": nullable(COUNT),
        "interval": NUMBER,
        "kill_button": BOOLEAN,
    },
    description="What does not change: in the first frame, and if the model was loading then, once more when it is there.",
)

_SEQUENCE = {
    "id": COUNT,
    "request_id": STRING,
    "choice": COUNT,
    "status": one_of("waiting", "running", "preempted", "recovering", "finished"),
    "arrived": NUMBER,
    "prompt_tokens": COUNT,
    "cached_tokens": COUNT,
    "computed_tokens": COUNT,
    "output_tokens": COUNT,
    "max_tokens": COUNT,
    "blocks": COUNT,
    "shared_blocks": COUNT,
    "ttft": nullable(NUMBER),
}

STEPS: dict[str, Schema] = {
    "WatchedSequence": closed(
        _SEQUENCE,
        description="Sequence at the time of the frame. `preempted`: it gave way to others for want of KV blocks; `recovering`: "
        "it had begun when the executor was lost, and has not run since. `blocks` counts the KV blocks that it holds, shared "
        "ones included; `ttft` is its time to first token in seconds, null before that.",
    ),
    "WatchedEnd": closed(
        {**_SEQUENCE, "ended": NUMBER, "finish_reason": one_of("stop", "length", "abort", "error")},
        description="Sequence at its end, with its final counts; it holds no blocks then. `abort`: the client went away, or the "
        "call was refused while it waited.",
    ),
    "WatchedOutage": closed(
        {"epoch": COUNT, "began": NUMBER, "ended": nullable(NUMBER), "cause": STRING},
        description="Time without an executor: from the loss of the one of `epoch`, or from a step that failed, until the next "
        "one is ready. `cause` as in stories.",
    ),
    "WatchedStep": closed(
        {"id": COUNT, "epoch": COUNT, "began": NUMBER, "ended": NUMBER},
        {
            "seq_ids": array(COUNT),
            "kinds": {**STRING, "pattern": "^[dvpr]*$"},
            "tokens": array(COUNT),
            "sampled": array(COUNT),
            "started": array(ref("WatchedSequence")),
            "first_tokens": array({"type": "array", "items": NUMBER, "minItems": 2, "maxItems": 2}),
            "error": STRING,
        },
        description="Step. A letter of `kinds` tells what an item was: d decode, v decode with drafts, p prefill, r tokens "
        "computed again. `sampled` counts the tokens that came of it; `first_tokens` pairs a sequence with its time to first "
        "token in seconds. Without `seq_ids`: the items of the step before.",
    ),
    "StepsFrame": closed(
        {
            "stage": _STAGE,
            "detail": STRING,
            "skipped": COUNT,
            "steps": array(ref("WatchedStep")),
            "skipped_ends": COUNT,
            "ended": array(ref("WatchedEnd")),
        },
        {
            "server": _SERVER,
            "at": NUMBER,
            "epoch": COUNT,
            "pid": nullable(INTEGER),
            "running": COUNT,
            "waiting": COUNT,
            "kv_blocks": _BLOCKS,
            "states": _STATES,
            "step_tokens": COUNT,
            "num_steps": COUNT,
            "preemptions": COUNT,
            "resumed": COUNT,
            "prefix_queries": COUNT,
            "prefix_hits": COUNT,
            "output_tokens": COUNT,
            "prompt_tokens": COUNT,
            "sequences": array(ref("WatchedSequence")),
            "outages": array(ref("WatchedOutage")),
        },
        description="Frame: steps and ends since the frame before, and what there is now. Times are seconds of the clock of "
        "`at`. `skipped` steps and `skipped_ends` are not told. `outages` are those under way and of the last minute. "
        "`output_tokens` and `prompt_tokens` count from when the first client began to watch.",
    ),
    "Killed": closed({"killed": INTEGER}, description="Process id of the executor that was killed."),
}
