"""The adapter that is part of a model of Ollama's store: requests for the model's name are answered with it.

It is loaded like any other one, under its digest, and has no name of its own. A step computes one adapter for a row, so a server
of such a model takes no others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import structlog

from engine.errors import EngineError
from executors.contract import ConfigError
from server.lora.registry import EngineLike, PackedLora
from server.lora.start import uses_adapters
from server.lora.store import LoraStore
from server.model_files.ollama_package import Package
from server.settings.load import SettingsError
from server.settings.table import Settings
from server.state.server_state import ServedModel

log = structlog.get_logger("server")

_HIGHEST_RANK = 256


def with_own_adapter(settings: Settings, package: Package, rank_of: Callable[[Path, str], int]) -> Settings:
    """Return the settings with room for the package's adapter alone. `rank_of(path, shown)` reads its rank.

    Raises ConfigError for an adapter that cannot be used, SettingsError beside other adapters.
    """
    if package.adapter is None:
        return settings
    if uses_adapters(settings):
        raise SettingsError(
            f"{package.where} has an adapter of its own, and a request has one at most: leave out --lora-modules, --lora-root "
            "and --enable-lora, or serve its GGUF file"
        )
    rank = rank_of(package.adapter, shown_name(package))
    if rank > _HIGHEST_RANK:
        raise ConfigError(
            f"{shown_name(package)}: rank {rank} is more than the {_HIGHEST_RANK} that are supported"
        )
    return replace(settings, enable_lora=True, max_loras=1, max_lora_rank=rank)


async def load_own_adapter(
    engine: EngineLike,
    package: Package,
    model: ServedModel,
    pack: Callable[[Path, Path, str], PackedLora],
    store: LoraStore,
) -> ServedModel:
    """Copy the package's adapter into `store` and load it. Returns the model with it. Raises ConfigError naming its file."""
    assert package.adapter is not None
    place, label = store.place(), shown_name(package)
    place.mkdir(mode=0o700)
    packed = await asyncio.to_thread(pack, package.adapter, place, label)
    try:
        await engine.add_adapter(packed.digest, str(packed.path), lambda: None)
    except EngineError as error:
        raise ConfigError(error.message if label in error.message else f"{label}: {error.message}") from None
    for note in packed.notes:
        log.warning(f"{label}: {note}")
    log.info("the model's adapter is loaded", path=str(package.adapter), rank=packed.rank)
    fingerprint = f"{model.fingerprint}-{packed.digest[:10]}"
    return replace(model, adapter=packed.digest, fingerprint=fingerprint)


def shown_name(package: Package) -> str:
    """The adapter's file in messages."""
    return f"{package.where}: its adapter {package.adapter}"
