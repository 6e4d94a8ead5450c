"""The bodies of POST /v1/load_lora_adapter and /v1/unload_lora_adapter, in vLLM's shape."""

from __future__ import annotations

from typing import ClassVar

from server.schemas.base import WireModel
from server.schemas.extras import Rules


class LoadAdapterRequest(WireModel):
    """An adapter to load, and the name to serve it under."""

    rules: ClassVar[Rules] = Rules(unsupported={})

    lora_name: str
    """vLLM: Name that requests give as `model`. Under a used name the new adapter takes the place of the old one; streams that
    have begun keep the old one."""
    lora_path: str
    """vLLM: Folder of the adapter below `--lora-root`, relative to it or absolute."""
    load_inplace: bool | None = None
    """vLLM: false refuses a name that is in use. Default: true."""


class UnloadAdapterRequest(WireModel):
    """An adapter to unload."""

    rules: ClassVar[Rules] = Rules(unsupported={})

    lora_name: str
    """vLLM: Name of the adapter. Streams that have begun with it go on."""
