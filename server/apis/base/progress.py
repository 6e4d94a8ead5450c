"""A stream that tells what its call waits for, in comments: for a client that sends the header `X-Cohort-Progress`, as the
console does. Readers of event streams ignore comments, so the events are the same."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import Request

from engine.request import Stage
from server.http.event_stream import KEEP_ALIVE, OpenAIForm, StreamForm
from server.state.server_state import ServerState

HEADER = "x-cohort-progress"
INTERVAL = 0.5
"""Seconds of silence after which a comment is sent."""


class ProgressForm(OpenAIForm):
    """OpenAI's form with comments `: progress {...}`."""

    def __init__(self, state: ServerState, answer_id: str) -> None:
        self._state = state
        self._answer_id = answer_id

    def keep_alive(self) -> bytes:
        """What the call waits for now, as a comment."""
        return b": progress " + msgspec.json.encode(progress(self._state, self._answer_id)) + b"\n\n"


def progress(state: ServerState, answer_id: str) -> dict[str, Any]:
    """See `CallsProgress.of`; besides, `recovering` with the `seconds` since the executor was lost and a `detail`, and `unknown`
    in a process that has no engine (--api-server-count), with the answer's `id`, by which /v1/steps names its sequences."""
    core = state.core
    if core is None or core.stats() is None:
        return {"state": "unknown", "id": answer_id}
    stage, detail = state.stage()
    if stage is Stage.RECOVERING:
        return {"state": stage.value, "seconds": round(state.recovering_for(), 1), "detail": detail}
    return state.calls_progress.of(answer_id, core.sequences)


def stream_form(request: Request, state: ServerState, answer_id: str) -> tuple[float, StreamForm]:
    """Seconds of silence after which a stream says that it is alive, and what it says then."""
    if HEADER in request.headers:
        return INTERVAL, ProgressForm(state, answer_id)
    return KEEP_ALIVE, OpenAIForm()
