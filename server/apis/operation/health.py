"""Endpoints for operators and orchestrators: /live, /ready, /health, /version, /metrics.

/live    200 while the event loop runs, also loading, recovering and draining: the only liveness probe
/ready   200 only when new work should be routed here
/health  503 while loading, when a recovery takes too long, and when the engine is down; a recovery within its time
         is 200, so that an orchestrator that uses it as a liveness probe does not kill a server about to recover
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from engine.request import Stage
from server import __version__
from server.apis.base.common import READ, json_response, state_of
from server.state.progress import Progress
from server.state.server_state import ServerState
from server.telemetry.metrics import CONTENT_TYPE

router = APIRouter()

_COUNTS_TIMEOUT = 0.05
"""Seconds to wait for what API workers counted since they last told it; a scrape waits for none that hangs."""


@router.api_route("/live", methods=READ)
async def live(request: Request) -> Response:
    """200 while the event loop runs."""
    return json_response({"status": "live"})


@router.api_route("/ready", methods=READ)
async def ready(request: Request) -> Response:
    """200 if the server accepts new work."""
    state = state_of(request)
    stage, detail = state.stage()
    return _status(stage is Stage.READY, stage, detail, state.progress)


@router.api_route("/health", methods=READ)
async def health(request: Request) -> Response:
    """200 if the server works or is recovering within its time limit."""
    state = state_of(request)
    stage, detail = state.stage()
    return _status(_is_healthy(state, stage), stage, detail, state.progress)


def _is_healthy(state: ServerState, stage: Stage) -> bool:
    if stage is Stage.RECOVERING:
        return state.recovering_for() <= state.recovery_timeout
    return stage in (Stage.READY, Stage.DRAINING)


def _status(good: bool, stage: Stage, detail: str, progress: Progress | None) -> Response:
    body: dict[str, Any] = {"status": stage.value}
    if detail:
        body["detail"] = detail
    if stage in (Stage.LOADING, Stage.RECOVERING) and progress is not None:
        body |= {
            "phase": progress.phase,
            "detail": f"{detail}; {progress.text()}" if detail else progress.text(),
            "done": progress.done,
            "total": progress.total,
        }
    response = json_response(body, 200 if good else 503)
    if not good:
        response.headers["Retry-After"] = "5"
    return response


@router.api_route("/version", methods=READ)
async def version(request: Request) -> Response:
    """The server's version."""
    return json_response({"version": __version__})


@router.api_route("/metrics", methods=READ)
async def metrics(request: Request) -> Response:
    """Prometheus text, of all processes."""
    state = state_of(request)
    if state.workers is not None:
        await state.workers.sync(_COUNTS_TIMEOUT)
    return Response(state.metrics.render(), headers={"Content-Type": CONTENT_TYPE})
