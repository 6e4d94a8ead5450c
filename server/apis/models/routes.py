"""GET /v1/models and /v1/models/{id}, in OpenAI's form, and in Anthropic's for its clients."""

from __future__ import annotations

import math
import time
from typing import Literal, cast

from fastapi import APIRouter, Request
from starlette.responses import Response

from engine.errors import InvalidRequest, ModelNotFound
from server.apis.base.common import READ, json_response, models_of, read, state_of
from server.apis.models.answers import (
    AnthropicModel,
    AnthropicModelList,
    ModelCapabilities,
    OpenAIModel,
    OpenAIModelList,
    SamplingDefaults,
    Success,
)
from server.apis.models.schema import ModelName
from server.http.disconnect import while_connected
from server.state.server_state import LoraLike, ModelRowLike, ServedModel, ServerState

router = APIRouter()

_ANTHROPIC = "anthropic-version"
"""Header that every client of Anthropic's API sends."""


@router.api_route("/v1/models", methods=READ)
@router.api_route("/models", methods=READ)
async def list_models(request: Request) -> Response:
    """List the names under which models are served. `/models` is llama.cpp's path."""
    state = state_of(request)
    if (models := models_of(request)) is not None:
        await models.refresh()
        cards = [
            _row_card(row, name) for row in models.rows() for name in (row.name, *row.variants, *row.loras)
        ]
    else:
        cards = [_card(state, name) for name in state.names]
        cards += [_adapter_card(state, one) for one in (state.adapters.all() if state.adapters else ())]
    if _ANTHROPIC in request.headers:
        listed: AnthropicModelList = {
            "data": list(map(_anthropic_card, cards)),
            "first_id": cards[0]["id"] if cards else None,
            "last_id": cards[-1]["id"] if cards else None,
            "has_more": False,
        }
        return json_response(listed)
    answer: OpenAIModelList = {"object": "list", "data": cards}
    if models is not None and math.isfinite(models.budget):
        answer["memory"] = {"budget": int(models.budget)}
    return json_response(answer)


@router.post("/models/load")
async def load_model(request: Request) -> Response:
    """Load one of several models, as llama.cpp's server does. Answers once it is loaded; with one model, at once."""
    body = await read(request, ModelName)
    models = models_of(request)
    if models is None:
        state_of(request).require(body.model)
    else:
        await while_connected(request.receive, models.load(body.model))
    answer: Success = {"success": True}
    return json_response(answer)


@router.post("/models/unload")
async def unload_model(request: Request) -> Response:
    """Unload one of several models as soon as no call uses it."""
    body = await read(request, ModelName)
    models = models_of(request)
    if models is None:
        state_of(request).require(body.model)
        message = "This server has one model, which stays loaded until the server ends."
        raise InvalidRequest(message, "model", "unsupported_value")
    models.unload(body.model)
    answer: Success = {"success": True}
    return json_response(answer)


@router.api_route("/v1/models/{name:path}", methods=READ)
async def get_model(request: Request, name: str) -> Response:
    """One model; names may contain slashes, as hub names do. An alias describes the model that it stands for."""
    state = state_of(request)
    if (models := models_of(request)) is not None:
        await models.refresh()
        card = _row_card(models.find(name), name)
        return json_response(_anthropic_card(card) if _ANTHROPIC in request.headers else card)
    served = state.served_name(name) or name
    adapter = None if state.adapters is None else state.adapters.get(served)
    if adapter is None and served not in state.names:
        raise ModelNotFound(f"The model '{name[:200]}' does not exist.", param="model")
    card = _card(state, served) if adapter is None else _adapter_card(state, adapter)
    card["id"] = name
    return json_response(_anthropic_card(card) if _ANTHROPIC in request.headers else card)


def _row_card(row: ModelRowLike, name: str) -> OpenAIModel:
    """One of several models, with its status in the words of llama.cpp's server."""
    lora = row.lora_of(name)
    adapter = None if lora is None or row.state.adapters is None else row.state.adapters.get(lora)
    card = _card(row.state, name) if adapter is None else _adapter_card(row.state, adapter)
    card["id"] = name
    if lora is not None:
        card["root"] = row.loras[lora]
    card["parent"] = row.name if lora is not None or name in row.variants else None
    card["status"] = {"value": row.status}
    if row.reason:
        card["status"]["reason"] = row.reason
    card["aliases"] = list(row.aliases) if lora is None else []
    card["memory"] = row.need
    return card


def _card(state: ServerState, name: str) -> OpenAIModel:
    # max_model_len is vLLM's addition; benchmarks and agents size their prompts by it.
    return {
        "id": name,
        "object": "model",
        "created": state.started,
        "owned_by": "cohort",
        "root": state.names[0],
        "parent": None,
        "max_model_len": state.model.max_model_len if state.model is not None else None,
        # False: it makes embeddings or scores only.
        "generates": state.model.info.generates if state.model is not None else None,
        "scores": _scores(state.model),
        # {}: the model has none, and OpenAI's are in force.
        "sampling_defaults": None if state.model is None else _sampling_defaults(state.model),
        # Mistral's SDK reads no card without these two.
        "type": "base",
        "capabilities": _capabilities(state.model),
    }


def _scores(model: ServedModel | None) -> Literal["reranker", "embedding"] | None:
    """`Scoring.kind`; None for a model that scores nothing, and while it loads."""
    match "" if model is None else model.scoring.kind:
        case "reranker":
            return "reranker"
        case "embedding":
            return "embedding"
    return None


def _sampling_defaults(model: ServedModel) -> SamplingDefaults:
    return cast(SamplingDefaults, model.defaults.own)


def _capabilities(model: ServedModel | None) -> ModelCapabilities:
    """What the model can do, in Mistral's words; nothing while it loads."""
    if model is None:
        return {"completion_chat": False, "function_calling": False, "reasoning": False}
    chats = model.info.generates and model.template is not None
    calls = model.template is not None and model.template.reads_tools and model.notation.tools is not None
    return {
        "completion_chat": chats,
        "function_calling": chats and calls,
        "reasoning": chats and model.notation.reasoning is not None,
    }


def _adapter_card(state: ServerState, adapter: LoraLike) -> OpenAIModel:
    """vLLM's form: `parent` is the model that the adapter changes, `root` where it was loaded from. `notes`, if any, say what of
    its files is not used."""
    card = _card(state, adapter.name)
    card["created"], card["root"], card["parent"] = adapter.created, adapter.root, state.names[0]
    card["sampling_defaults"] = _sampling_defaults(adapter.model)
    if adapter.notes:
        card["notes"] = list(adapter.notes)
    return card


def _anthropic_card(card: OpenAIModel) -> AnthropicModel:
    """The same model in Anthropic's form."""
    return {
        "type": "model",
        "id": card["id"],
        "display_name": card["id"],
        "created_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(card["created"])),
        "lifecycle": "active",
        "max_input_tokens": card["max_model_len"],
        "max_tokens": card["max_model_len"],
    }
