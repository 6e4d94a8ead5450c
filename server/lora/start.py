"""The adapters of a server that starts: its registry, and those that `--lora-modules` names."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from engine.errors import EngineError
from executors.contract import ConfigError
from server.hub import HubModel, hub_name
from server.lora.files import check_present, shown_name, weights_file
from server.lora.modules import LoraModule
from server.lora.registry import LoraRegistry
from server.model_files.prepared import is_gguf
from server.settings.load import SettingsError
from server.settings.table import Settings


def uses_adapters(settings: Settings) -> bool:
    """Whether the server has LoRA adapters."""
    return settings.enable_lora or bool(settings.lora_modules) or settings.lora_root is not None


def check_adapter_settings(settings: Settings) -> None:
    """Raises SettingsError for settings of adapters that contradict each other, or name no folder."""
    if settings.lora_on_demand and settings.lora_root is None:
        raise SettingsError("--lora-on-demand: it loads what lies below --lora-root, which is not given")
    if settings.lora_root is not None and not Path(settings.lora_root).is_dir():
        raise SettingsError(f"--lora-root {settings.lora_root}: no such directory")


def check_modules(modules: Sequence[LoraModule]) -> None:
    """Raise ConfigError for the first module that names nothing on this disk and nothing that a hub could have."""
    for module in modules:
        _place(module, None)


def check_files(modules: Sequence[LoraModule], check: Callable[[Path, str], None]) -> None:
    """Raise ConfigError for the first module on this disk that lacks a file or whose headers say that it cannot be served, in the
    words in which `load_modules` would refuse it. `check(source, shown)` raises ConfigError or OSError."""
    for module in modules:
        folder = Path(module.path).expanduser()
        if not folder.exists():
            continue
        try:
            file = weights_file(folder)
            if not is_gguf(file):
                check_present(folder)
                if not file.is_file():  # opening a FIFO would wait for its writer
                    continue
            check(file if is_gguf(file) else folder, shown_name(module.path, folder, file))
        except EngineError as error:
            raise ConfigError(f"--lora-modules {module.name}={module.path}: {error.message}") from None
        except ConfigError as error:
            text = f"The adapter '{module.name}' cannot be loaded: {error}"
            raise ConfigError(f"--lora-modules {module.name}={module.path}: {text}") from None
        except OSError:
            continue  # loading it tells why it cannot be read


def _place(module: LoraModule, download_dir: str | None) -> Path | HubModel:
    """Where a module's files are. Raises ConfigError."""
    folder = Path(module.path).expanduser()
    if folder.is_file() and not is_gguf(folder):
        raise ConfigError(
            f"--lora-modules {module.name}={module.path}: a folder in PEFT's format or a GGUF file is needed"
        )
    if folder.is_dir() or folder.is_file():
        return folder
    remote = hub_name(module.path)
    if remote is None or remote.repository.startswith((".", "/")):
        raise ConfigError(f"--lora-modules {module.name}: there is no folder {module.path}")
    return HubModel(remote.repository, remote.revision, download_dir=download_dir, adapter=True)


def hub_modules(modules: Sequence[LoraModule], download_dir: str | None) -> list[HubModel]:
    """Those of the hub, which have to be fetched. Raises ConfigError."""
    return [one for one in (_place(module, download_dir) for module in modules) if isinstance(one, HubModel)]


async def load_modules(
    registry: LoraRegistry,
    modules: Sequence[LoraModule],
    fetch: Callable[[HubModel], Awaitable[Path]],
    download_dir: str | None,
) -> None:
    """Load the adapters that the operator named; `fetch` brings those of the hub. Raises ConfigError naming one that cannot be
    loaded, HubError."""
    for module in modules:
        place = await asyncio.to_thread(_place, module, download_dir)
        folder = await fetch(place) if isinstance(place, HubModel) else place
        try:
            await registry.load(module.name, folder, module.path, base_model=module.base_model_name)
        except EngineError as error:
            raise ConfigError(f"--lora-modules {module.name}={module.path}: {error.message}") from None
