"""Operations and answers of LoRA adapters, for /openapi.json."""

from __future__ import annotations

from server.apis.lora.schema import LoadAdapterRequest, UnloadAdapterRequest
from server.openapi.operation import OF_BODIES, Operation
from server.openapi.schema import Schema

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "post", "/v1/load_lora_adapter", "loadLoraAdapter", "Models", "Load a LoRA adapter from below --lora-root", None,
        OF_BODIES, "Requires the admin key. Under a used name the new adapter takes the place of the old one; streams that have "
        "begun keep the old one.",
        LoadAdapterRequest, {"A folder below the root": {"lora_name": "sql", "lora_path": "team/sql-v2"}},
    ),
    Operation(
        "post", "/v1/unload_lora_adapter", "unloadLoraAdapter", "Models", "Unload a LoRA adapter", None, OF_BODIES,
        "Requires the admin key. Streams that have begun with the adapter go on.", UnloadAdapterRequest,
        {"By its name": {"lora_name": "sql"}},
    ),
)  # fmt: skip

ANSWERS: dict[str, Schema] = {}
