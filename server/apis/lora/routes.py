"""POST /v1/load_lora_adapter and /v1/unload_lora_adapter, as in vLLM. They require the admin key."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import PlainTextResponse, Response

from engine.errors import InvalidRequest, Unavailable
from server.apis.base.common import read, state_of
from server.apis.lora.schema import LoadAdapterRequest, UnloadAdapterRequest
from server.state.server_state import LoraManager, ServerState

router = APIRouter()


@router.post("/v1/load_lora_adapter")
async def load_lora_adapter(request: Request) -> Response:
    """Load an adapter from below the root."""
    body = await read(request, LoadAdapterRequest)
    await _adapters(state_of(request)).load_below_root(
        body.lora_name, body.lora_path, replaces=body.load_inplace is not False
    )
    return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' added successfully.")


@router.post("/v1/unload_lora_adapter")
async def unload_lora_adapter(request: Request) -> Response:
    """Forget an adapter's name."""
    body = await read(request, UnloadAdapterRequest)
    await _adapters(state_of(request)).unload(body.lora_name)
    return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")


def _adapters(state: ServerState) -> LoraManager:
    if state.models is not None:
        message = (
            "Adapters of several models are declared in the configuration file, under lora of their model."
        )
        raise InvalidRequest(message, "lora_name", "unsupported_parameter")
    if state.model is None:
        raise Unavailable("The model is still loading.")
    if state.adapters is None:
        message = "This server has no LoRA adapters: start it with --enable-lora."
        raise InvalidRequest(message, "lora_name", "unsupported_parameter")
    assert isinstance(state.adapters, LoraManager), "API workers pass these paths on"
    return state.adapters
