"""What the setting `model` names: something on this disk, or a model of the hub.

nothing                        the default model, or the embedded one where that is not here
a directory                    a checkpoint, or GGUF files, of which one is chosen
a file                         GGUF
llama3.2:1b                    a model in Ollama's store
ORG/NAME, ORG/NAME:Q4_K_M      the hub, with or without hf.co/ before it; see server/hub/names.py
Qwen3-4B-Q4_K_M                a model in the folders of other programs; see server/model_files/short_names.py
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from executors.contract import ConfigError
from executors.weight_files import has_weights
from server import hub
from server.model_defaults.ollama_params import read_params
from server.model_files import default_model, ollama
from server.model_files.candidates import candidates, choose, model_stem
from server.model_files.folders import Found
from server.model_files.ollama_package import Package, read_package
from server.model_files.prepared import context_length, is_gguf, model_file
from server.model_files.short_names import FolderIndex, folder_index
from server.model_files.subfolders import refuse_without_model, why_no_model
from server.settings.load import SettingsError
from server.settings.table import Settings

EMBEDDED_NAME = default_model.EMBEDDED_NAME
_GENERAL = "ORG/NAME, such as Qwen/Qwen3-0.6B, or the link to its page"
_TAGGED = re.compile(r"[\w.-]+:[\w.-]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model on this disk. `path`: a checkpoint directory or a GGUF file. `name`: its id for clients."""

    path: Path
    name: str
    is_default: bool = False
    note: str | None = None
    """What the operator should know about the choice."""
    package: Package | None = None
    """What a manifest of Ollama's store names beside the file."""
    why: str | None = None
    """Why it is served although it was not named."""


Source = LocalModel | hub.HubModel


def find_source(settings: Settings, embedded: Path, index: FolderIndex | None = None) -> Source:
    """Return what to serve. `embedded`: the directory of the model that is part of this package; `index`: the models in the
    folders of other programs, None to look through them where no other rule knows the name.

    Raises SettingsError if the name is none of the above, ConfigError if a directory holds several GGUF models, several models
    have the name, or a manifest of Ollama's names what is not supported.
    """
    name = settings.model
    if name is None:
        return _local(settings, _default(settings, embedded))
    path = Path(name).expanduser()
    if path.is_dir():
        return _local(settings, _in_directory(settings, path.resolve(), name))
    if path.exists():
        if not is_gguf(path):
            raise SettingsError(why_no_model(path, name))
        return _local(settings, LocalModel(path, model_stem(path.name)))
    if name == EMBEDDED_NAME:
        return _local(settings, LocalModel(embedded, EMBEDDED_NAME))
    if name == default_model.NAME:
        if (file := default_model.find()) is None:
            raise SettingsError(f"{name} is not here: {default_model.HOW}")
        return _local(settings, LocalModel(file, name, is_default=True))
    plain = hub.without_host(name)  # Ollama's store names such a model without it, too
    if (":" in plain or "/" not in plain) and (entry := ollama.find(plain)) is not None:
        assert entry.path is not None
        return _local(settings, LocalModel(entry.path, plain, package=entry.package()))
    if (hub_name := hub.hub_name(name)) is not None:
        return _on_hub(settings, hub_name)
    if (model := _by_short_name(settings, name, index)) is not None:
        return _local(settings, model)
    if _TAGGED.fullmatch(name):
        raise SettingsError(
            f"{name}: no such file, and Ollama's store on this disk does not have it; a model of the hub is named {_GENERAL}, "
            "and ORG/NAME:Q4_K_M names a GGUF file of it"
        )
    raise SettingsError(f"{name}: no such directory or file, and not a hub name, which is {_GENERAL}")


def with_context(settings: Settings, source: Source) -> Settings:
    """Return the settings with the length of the context that a package asks for, unless the operator names one or it is no
    shorter than the model's own. Raises ConfigError."""
    if not isinstance(source, LocalModel) or source.package is None or settings.max_model_len is not None:
        return settings
    context = read_params(source.package).context
    if context is None:
        return settings
    own = context_length(model_file(source.path) or source.path)
    return settings if own is not None and context >= own else replace(settings, max_model_len=context)


def tagged_names(source: Source, names: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Return the other form of the name of a model of Ollama's, with or without the tag that is meant where none is said, and the
    name that it stands for."""
    name = names[0]
    if not isinstance(source, LocalModel) or source.package is None or name != source.package.name:
        return ()
    if name.endswith(f":{ollama.LATEST}"):
        return ((name.removesuffix(f":{ollama.LATEST}"), name),)
    return () if ":" in name else ((f"{name}:{ollama.LATEST}", name),)


def _default(settings: Settings, embedded: Path) -> LocalModel:
    """The default model is LlmExecutor's. Other executors, which may not compute it, get the embedded one's tokenizer."""
    if settings.executor != "llm":
        return LocalModel(embedded, EMBEDDED_NAME)
    path = default_model.find()
    if path is None:
        note = f"serving {EMBEDDED_NAME}, which only shows that the server works: {default_model.HOW}"
        return LocalModel(embedded, EMBEDDED_NAME, note=note)
    return LocalModel(path, default_model.NAME, is_default=True)


def _by_short_name(settings: Settings, name: str, index: FolderIndex | None) -> LocalModel | None:
    models = (folder_index(settings.download_dir) if index is None else index).named(name)
    if len(models) > 1:
        paths = ", ".join(str(one.path) for one in models)
        raise ConfigError(
            f"{name}: {len(models)} models on this disk have this name; give the path of one: {paths}"
        )
    return in_folders(models[0]) if models else None


def in_folders(model: Found) -> LocalModel:
    """Return how a model in the folders of other programs is served. Raises ConfigError if it cannot be."""
    root = model.path.parent.parent  # two stores may have models of one name: that of this file
    if model.source == "Ollama" and (entry := ollama.find(model.name, root)) and entry.path is not None:
        return LocalModel(entry.path, model.name, package=entry.package())
    if model.is_gguf:
        return LocalModel(model.path, model_stem(model.path.name))
    if model.problem is not None:
        raise ConfigError(f"{model.name}: {model.problem}")
    return LocalModel(model.path, model.path.name if Path(model.name).is_absolute() else model.name)


def _in_directory(settings: Settings, directory: Path, name: str) -> LocalModel:
    """A checkpoint, a prepared directory of a GGUF file, or the GGUF file of a directory that holds nothing else to serve."""
    if (file := model_file(directory)) is not None:
        return LocalModel(directory, model_stem(file.name), package=read_package(directory))
    config = (directory / "config.json").exists()
    checkpoint = config and has_weights([path.name for path in directory.glob("*.safetensors")])
    sizes = {path.name: path.stat().st_size for path in directory.glob("*.gguf") if path.is_file()}
    models = candidates(sizes)
    if not checkpoint and not models and not (config and settings.load_format == "dummy"):
        refuse_without_model(directory, name)
    if checkpoint or not models:
        return LocalModel(directory, directory.name)
    chosen = choose(name, models, None, lambda one: one.name)
    return LocalModel(directory / chosen.name, model_stem(chosen.name))


def _on_hub(settings: Settings, hub_name: hub.HubName) -> hub.HubModel:
    if hub_name.revision and settings.revision and hub_name.revision != settings.revision:
        raise SettingsError(
            f"--revision {settings.revision}: the link names {hub_name.revision}; leave one of them out"
        )
    return hub.HubModel(
        hub_name.repository,
        settings.revision or hub_name.revision,
        settings.download_dir,
        weights=settings.load_format != "dummy",
        gguf=hub_name.gguf,
    )


def _local(settings: Settings, model: LocalModel) -> LocalModel:
    if settings.revision is not None:
        kind = "GGUF file" if model.path.is_file() else "directory"
        raise SettingsError(
            f"--revision {settings.revision}: {settings.model or model.name} is a {kind}, which has no revisions; leave it out"
        )
    return model
