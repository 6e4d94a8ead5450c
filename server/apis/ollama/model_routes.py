"""GET /api/version, /api/tags, /api/ps and POST /api/show, in Ollama's form."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from typing import Any, cast

from fastapi import APIRouter, Request
from starlette.responses import Response

from engine.errors import InvalidRequest
from executors.contract import ExecutorError
from server.apis.base.common import READ, json_response, models_of, read, state_of
from server.apis.ollama.answers import (
    Capability,
    Details,
    OllamaModel,
    OllamaProcesses,
    OllamaTags,
    Package,
    ProcessCard,
    TagCard,
)
from server.apis.ollama.convert import LATEST
from server.apis.ollama.encode import written_time
from server.apis.ollama.routes import without_tag
from server.apis.ollama.schema import OllamaShowRequest
from server.model_defaults.preset import Preset
from server.prepare.fill_in_middle import fill_in_middle
from server.state.server_state import ModelRowLike, ServedModel, ServerState
from server.templates.template import DEFAULT, TOOL_USE

router = APIRouter()

API_VERSION = "0.13.0"
"""Version of Ollama whose API this is. Clients compare it with the oldest that they can use, so it is not this server's own."""
_NEVER = "9999-12-31T23:59:59Z"
"""When the model is unloaded."""
_DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}


@router.api_route("/api/version", methods=READ)
async def version(request: Request) -> Response:
    """The version of Ollama whose API this is."""
    return json_response({"version": API_VERSION})


@router.api_route("/api/tags", methods=READ)
async def tags(request: Request) -> Response:
    """List the names under which models are served."""
    if (models := models_of(request)) is None:
        cards = [_card(state_of(request), *names) for names in _served(state_of(request))]
    else:
        await models.refresh()
        cards = [_card(row.state, *names) for row in models.rows() for names in _tagged(row)]
    answer: OllamaTags = {"models": cards}
    return json_response(answer)


@router.api_route("/api/ps", methods=READ)
async def ps(request: Request) -> Response:
    """List the loaded models: all that are served, once they are loaded."""
    answer: OllamaProcesses = {"models": []}
    if (models := models_of(request)) is None:
        answer["models"] = _processes(state_of(request), _served(state_of(request)), _NEVER)
    else:
        for row in models.rows():
            if row.status == "loaded":
                seconds = row.expires_in
                expires = _NEVER if seconds is None else written_time(time.time() + seconds)
                answer["models"] += _processes(row.state, _tagged(row), expires)
    return json_response(answer)


def _processes(state: ServerState, names: Sequence[tuple[str, int]], expires_at: str) -> list[ProcessCard]:
    """The `names` of a loaded model; none while it loads."""
    if state.model is None:
        return []
    on_gpu = not state.model.info.device.startswith("cpu")
    processes: list[ProcessCard] = []
    for name, created in names:
        card = _card(state, name, created)
        process: ProcessCard = {
            "name": card["name"],
            "model": card["model"],
            "size": card["size"],
            "digest": card["digest"],
            "details": card["details"],
            "expires_at": expires_at,
            "size_vram": card["size"] if on_gpu else 0,
            "context_length": state.model.max_model_len,
        }
        processes.append(process)
    return processes


@router.post("/api/show")
async def show(request: Request) -> Response:
    """Describe the model of one name."""
    state = state_of(request)
    body = await read(request, OllamaShowRequest)
    name = body.model or body.name
    if name is None:
        raise InvalidRequest("Missing required parameter: 'model'.", "model", "missing_required_parameter")
    if (models := models_of(request)) is not None:
        await models.refresh()  # `ollama run` asks here first
        row = models.find(name)
        if row.state.model is None:  # clients describe all models that are listed: none is loaded for that
            return json_response(_unloaded_facts(row.state, row.name))
        state, name = row.state, row.lora_of(name) or row.name
    model, _ = await state.find(without_tag(state, name))
    name = without_tag(state, name)
    parameters = _parameters(model)
    facts: OllamaModel = {
        "modelfile": _modelfile(name, model, parameters),
        "parameters": "\n".join(parameters),
        "template": _template(model) or model.preset.template,
        "details": _details(state, name),
        "model_info": _model_info(model) | _state_info(model),
        "capabilities": _capabilities(model),
        "modified_at": written_time(dict(_served(state)).get(name, state.started)),
    }
    return json_response({**_packaged(model.preset), **facts})


def _unloaded_facts(state: ServerState, name: str) -> OllamaModel:
    """What is known of a model that is not loaded."""
    return {
        "modelfile": f"FROM {name}\n",
        "parameters": "",
        "template": "",
        "details": _details(state, name),
        "model_info": {},
        "capabilities": ["completion"],
        "modified_at": written_time(state.started),
    }


def _served(state: ServerState) -> list[tuple[str, int]]:
    """All names, each with the time when its model was loaded, in Unix seconds."""
    adapters = state.adapters.all() if state.adapters else ()
    return [*((name, state.started) for name in state.names), *((one.name, one.created) for one in adapters)]


def _tagged(row: ModelRowLike) -> list[tuple[str, int]]:
    """`_served` of one of several models, loaded or not, with Ollama's tag: Open WebUI unloads by names with a tag that are
    listed."""
    served = dict.fromkeys((*row.state.names, *row.loras), row.state.started) | dict(_served(row.state))
    return [(name if ":" in name else name + LATEST, created) for name, created in served.items()]


def _card(state: ServerState, name: str, created: int) -> TagCard:
    fingerprint = "" if state.model is None else state.model.fingerprint
    return {
        "name": name,
        "model": name,
        "modified_at": written_time(created),
        "size": _size(state),
        "digest": hashlib.sha256(f"{fingerprint}/{name}".encode()).hexdigest(),
        "details": _details(state, name),
    }


def _size(state: ServerState) -> int:
    """Bytes of the weights in memory; 0 while they are not loaded."""
    if state.model is None or state.core is None:
        return 0
    try:
        return state.core.executor.capabilities().memory.parameter_memory
    except ExecutorError:
        return 0


def _details(state: ServerState, name: str) -> Details:
    info = None if state.model is None else state.model.info
    names = (name, name.removesuffix(LATEST))
    is_adapter = state.adapters is not None and any(map(state.adapters.get, names))
    details: Details = {
        "parent_model": state.names[0] if is_adapter else "",
        "format": "",
        "family": "",
        "families": [],
        "parameter_size": "",
        "quantization_level": "",
    }
    if info is not None:
        level = info.quantization or _DTYPES.get(info.dtype, info.dtype)
        details["family"], details["families"] = info.family, [info.family]
        details["parameter_size"] = _count(info.num_parameters)
        details["quantization_level"] = level.upper()
    return details


def _count(parameters: int) -> str:
    """A number of parameters as Ollama writes it: 134.52M, 8.0B."""
    for unit, step in (("B", 10**9), ("M", 10**6), ("K", 10**3)):
        if parameters >= step:
            return f"{parameters / step:.{1 if unit == 'B' else 2}f}{unit}"
    return str(parameters)


def _model_info(model: ServedModel) -> dict[str, Any]:
    """Facts by the names of GGUF's metadata."""
    info = model.info
    facts = {
        "context_length": model.max_model_len,
        "embedding_length": info.hidden_size,
        "block_count": info.num_layers,
        "attention.head_count": info.num_heads,
        "attention.head_count_kv": info.num_kv_heads,
        "attention.key_length": info.head_dim,
        "vocab_size": info.vocab_size,
    }
    general = {"general.architecture": info.family, "general.parameter_count": info.num_parameters}
    return general | {f"{info.family}.{name}": value for name, value in facts.items()}


def _state_info(model: ServedModel) -> dict[str, Any]:
    """What layers keep of sequences beside KV, for which GGUF's metadata has no names; {} for a model that keeps nothing."""
    states = model.states
    if states is None:
        return {}
    return {
        "cohort.state.bytes_per_sequence": states.slot_bytes,
        "cohort.state.slots": states.num_slots,
        "cohort.state.snapshot_interval": states.interval,
    }


def _parameters(model: ServedModel) -> list[str]:
    """The defaults of sampling, each as a name and a value."""
    defaults = model.defaults
    values = {
        "temperature": defaults.temperature,
        "top_k": defaults.top_k,
        "top_p": defaults.top_p,
        "min_p": defaults.min_p,
        "typical_p": defaults.typical_p,
        "repeat_penalty": defaults.repetition_penalty,
        "frequency_penalty": defaults.frequency_penalty,
        "presence_penalty": defaults.presence_penalty,
    }
    preset, lines = model.preset, [f"{name} {value:g}" for name, value in values.items()]
    numbers = {"seed": preset.seed, "num_predict": preset.max_tokens}
    lines += [f"{name} {value}" for name, value in numbers.items() if value is not None]
    if preset.context is not None:
        lines.append(f"num_ctx {model.max_model_len}")
    return lines + [f"stop {json.dumps(one, ensure_ascii=False)}" for one in preset.stop]


def _packaged(preset: Preset) -> Package:
    """What the model's package brings, without what it does not."""
    facts = {
        "system": preset.system,
        "messages": [dict(one) for one in preset.messages],
        "license": "\n".join(preset.licenses),
        "adapter": preset.adapter,
    }
    return cast(Package, {name: value for name, value in facts.items() if value})


def _modelfile(name: str, model: ServedModel, parameters: list[str]) -> str:
    """The model as a Modelfile says it."""
    preset, quotes = model.preset, '"""'
    lines = [f"FROM {name}", *([f"ADAPTER {preset.adapter}"] if preset.adapter else ())]
    lines += [f"PARAMETER {line}" for line in parameters]
    if preset.template:
        lines.append(f"TEMPLATE {quotes}{preset.template}{quotes}")
    if preset.system:
        lines.append(f"SYSTEM {quotes}{preset.system}{quotes}")
    lines += [f"MESSAGE {one['role']} {quotes}{one['content']}{quotes}" for one in preset.messages]
    lines += [f"LICENSE {quotes}{one}{quotes}" for one in preset.licenses]
    return "\n".join(lines) + "\n"


def _template(model: ServedModel) -> str:
    """The chat template, which is one of Jinja."""
    sources = {} if model.template is None else model.template.sources
    return sources.get(DEFAULT) or sources.get(TOOL_USE) or next(iter(sources.values()), "")


def _capabilities(model: ServedModel) -> list[Capability]:
    """Ollama's words for what the model can do."""
    if not model.info.generates:
        return ["embedding"]
    capabilities: list[Capability] = ["completion"]
    if model.template is not None and model.template.reads_tools and model.notation.tools is not None:
        capabilities.append("tools")
    if model.notation.reasoning is not None:
        capabilities.append("thinking")
    try:
        fill_in_middle(model.tokenizer)
        capabilities.append("insert")
    except InvalidRequest:
        pass
    return capabilities
