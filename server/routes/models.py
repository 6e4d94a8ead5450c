"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from engine.errors import ModelNotFound
from server.routes.common import READ, json_response, state_of
from server.state import AdapterLike, ServerState

router = APIRouter()


@router.api_route("/v1/models", methods=READ)
async def list_models(request: Request) -> Response:
    """List the names under which the model is served."""
    state = state_of(request)
    cards = [_card(state, name) for name in state.names]
    cards += [_adapter_card(state, one) for one in (state.adapters.all() if state.adapters else ())]
    return json_response({"object": "list", "data": cards})


@router.api_route("/v1/models/{name:path}", methods=READ)
async def get_model(request: Request, name: str) -> Response:
    """One model; names may contain slashes, as hub names do."""
    state = state_of(request)
    adapter = None if state.adapters is None else state.adapters.get(name)
    if adapter is not None:
        return json_response(_adapter_card(state, adapter))
    if name not in state.names:
        raise ModelNotFound(f"The model '{name[:200]}' does not exist.", param="model")
    return json_response(_card(state, name))


def _card(state: ServerState, name: str) -> dict[str, Any]:
    # max_model_len is vLLM's addition; benchmarks and agents size their prompts by it.
    return {
        "id": name,
        "object": "model",
        "created": state.started,
        "owned_by": "cohort",
        "root": state.names[0],
        "parent": None,
        "max_model_len": state.model.max_model_len if state.model is not None else None,
        # False: it makes embeddings only.
        "generates": state.model.info.generates if state.model is not None else None,
    }


def _adapter_card(state: ServerState, adapter: AdapterLike) -> dict[str, Any]:
    """vLLM's form: `parent` is the model that the adapter changes, `root` where it was loaded from."""
    base = _card(state, adapter.name)
    return {**base, "created": adapter.created, "root": adapter.root, "parent": state.names[0]}
