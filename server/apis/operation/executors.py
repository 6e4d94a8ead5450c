"""GET /v1/executors: the declared facts and the status of each live executor.

The route never waits for an executor: it declared its facts when it became ready, and the rest is its last snapshot, with the
snapshot's age. An executor that hangs or is being restarted is listed as well, with its state.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from engine.errors import Unavailable
from executors.contract import (
    ExecutorCapabilities,
    ExecutorStatus,
    KvLayout,
    ModelExecutor,
    ModelInfo,
    NotReady,
)
from server.apis.base.common import READ, json_response, models_of, state_of
from server.state.server_state import ServerState

router = APIRouter()


@router.api_route("/v1/executors", methods=READ)
async def list_executors(request: Request) -> Response:
    """Every executor of this server, and the names that `--executor` accepts."""
    state = state_of(request)
    names = state.executor_names
    if (models := models_of(request)) is None:
        if (cards := _cards(state)) is None:
            raise Unavailable("The model is still loading.")
    else:
        cards = []
        for row in models.rows():
            names = names or row.state.executor_names
            cards += [{**card, "model": row.name} for card in _cards(row.state) or ()]
    return json_response({"object": "list", "data": cards, "registered": list(names)})


def _cards(state: ServerState) -> list[dict[str, Any]] | None:
    """The executors of a model; None while it is not loaded."""
    if state.model is None or state.executors is None:
        return None
    registered = [(name, state.executors.get(name)) for name in state.executors.list_names()]
    notation = state.model.notation.facts
    return [_card(name, executor, notation) for name, executor in registered if executor is not None]


def _card(name: str, executor: ModelExecutor, notation: Mapping[str, Any]) -> dict[str, Any]:
    try:
        info, capabilities, layout = executor.info(), executor.capabilities(), executor.kv_layout()
    except NotReady:
        raise Unavailable("The executor is not loaded.") from None
    # Members that RemoteExecutor and InlineExecutor have and the contract does not know.
    age = getattr(executor, "snapshot_age", None)
    return {
        "id": name,
        "object": "executor",
        "mode": getattr(executor, "mode", None),
        "pid": getattr(executor, "pid", None),
        "snapshot_age_s": age() if callable(age) else None,
        "info": _plain(info),
        "notation": notation,
        "capabilities": _capabilities(capabilities, info, layout),
        "status": _status(executor.status()),
        "metrics": _plain(executor.metrics()),
        "cache": _plain(executor.cache_metrics_snapshot()),
        "lora": _plain(executor.lora_metrics_snapshot()),
        "kv_layout": {
            **_plain(layout),
            "num_blocks": layout.num_blocks,
            "capacity_tokens": layout.capacity_tokens,
        },
        "kv_capacity": executor.kv_capacity(),
    }


def _capabilities(capabilities: ExecutorCapabilities, info: ModelInfo, layout: KvLayout) -> dict[str, Any]:
    """The declared memory, and the bytes it comes to when the KV cache is full of the longest sequences."""
    length = capabilities.max_sequence_length
    batch = capabilities.max_batch_size
    if capabilities.paged:
        batch = max(1, min(batch, layout.capacity_tokens // length))
    total = capabilities.memory.calculate_total_memory(batch, length, info.num_layers)
    full = {"batch_size": batch, "sequence_length": length, "total_memory": total}
    return {
        **_plain(capabilities),
        "paged": capabilities.paged,
        "memory": {**_plain(capabilities.memory), "when_full": full},
    }


def _status(status: ExecutorStatus) -> dict[str, Any]:
    return {**_plain(status), "memory": {**_plain(status.memory), "percent": status.memory.percent}}


def _plain(value: Any) -> Any:
    """Plain data of a record or a snapshot. A third-party executor may use NumPy scalars in it."""
    return msgspec.to_builtins(value, enc_hook=lambda odd: odd.item() if hasattr(odd, "item") else str(odd))
