"""GET /v1/settings: the settings of this server and what the model and the machine made of them. It requires the admin key."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from executors.contract import NotReady
from server import __version__
from server.apis.base.common import READ, json_response, state_of
from server.settings.report import report
from server.state.server_state import ServerState

router = APIRouter()


@router.api_route("/v1/settings", methods=READ)
async def settings(request: Request) -> Response:
    """Every setting with its value, and whether it was given. Answers while the model loads, too."""
    state = state_of(request)
    return json_response(
        {
            "object": "settings",
            "version": __version__,
            "settings": report(state.settings),
            "in_force": (
                _in_force(state)
                if state.models is None
                else {row.name: _in_force(row.state) for row in state.models.rows()}
            ),
        }
    )


def _in_force(state: ServerState) -> dict[str, Any] | None:
    """What settings of the value None came to, and what had to give way; None while the model loads."""
    model, core = state.model, state.core
    if model is None or core is None:
        return None
    try:
        layout = core.executor.kv_layout()
        most = core.executor.capabilities().max_batch_size
    except NotReady:
        return None
    return {
        "served_model_name": list(state.names),
        "model_family": model.info.family,
        "fingerprint": model.fingerprint,
        "device": model.info.device,
        "dtype": model.info.dtype,
        "quantization": model.info.quantization,
        "max_model_len": model.max_model_len,
        "scheduling_policy": state.settings.policy,
        "step_sequences": min(most, state.settings.max_num_seqs or most),
        "step_tokens": core.stats().step_tokens,
        "block_size": layout.block_size,
        "num_blocks": layout.num_blocks,
        "kv_bytes": layout.num_bytes,
    }
