"""What an operator declares of several models: pairs NAME=SOURCE, the settings' `models`, and the models of a folder.

models:
  small: /models/small.gguf                     a source, as the argument MODEL takes it
  large: {source: ORG/NAME, pin: true, settings: {max_model_len: 8192}, sampling: {temperature: 0.2}}
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from executors.contract import ConfigError
from server.model_defaults.sampling import SamplingDefaults
from server.model_files.candidates import model_stem
from server.model_files.folders import Found, find
from server.model_files.short_names import models_on_disk, names_of
from server.models.variants import Variant
from server.settings.environment import SettingsError, nearest
from server.settings.readers import Unfit
from server.settings.table import TABLE, Settings

IDLE_UNLOAD = 1800.0
"""Seconds without a call after which a model is unloaded, where several are served and nothing else is said."""

OF_A_MODEL = frozenset(
    {
        "attention_backend", "block_size", "chat_template", "classifier_from_token", "cpu_isa", "deterministic", "device",
        "download_dir", "dtype", "enable_prefix_caching", "enforce_eager", "executor", "executor_option", "generation_config",
        "generic_tools", "gpu_memory_utilization", "kv_cache_dtype", "kv_cache_memory_bytes", "load_format", "max_in_flight",
        "max_lora_rank", "max_loras", "max_model_len", "max_num_batched_tokens", "max_num_seqs", "num_speculative_tokens",
        "override_generation_config", "pipeline_parallel_size", "quantization", "reasoning_parser", "recovery_timeout",
        "revision", "seed", "speculative_config", "target_itl_ms", "tensor_parallel_size", "tokenizer", "tool_call_parser",
    }
)  # fmt: skip
"""Settings that a model may have of its own. All others are the server's."""

REFUSED_BESIDE = {
    "api_server_count": "API workers serve one model",
    "enable_lora": "adapters are declared beside their model's source, under lora",
    "lora_modules": "adapters are declared beside their model's source, under lora",
    "lora_root": "adapters are declared beside their model's source, under lora",
    "model": "name it NAME=SOURCE",
    "model_alias": "a model's aliases are declared beside its source",
    "revision": "it belongs to one model: give it in the model's settings",
    "served_model_name": "the models have names already",
    "tokenizer": "it belongs to one model: give it in the model's settings",
}
"""Settings that several models do not go with, and why."""

SEVERAL = ("models", "models_dir", "memory", "idle_unload", "swap_after", "min_residency", "load_timeout")
"""Settings of a server of several models."""

_NAME = re.compile(r"[^\s\x00-\x1f\x7f]{1,256}")
_KEYS = (
    "source", "aliases", "pin", "preload", "idle_unload", "memory", "settings", "sampling", "draft", "lora", "variants"
)  # fmt: skip
_UNSERVED = {"mmproj": "images are not read by any model here; leave it out"}
"""Keys that other servers have, and why a model here has none."""
_OF_VARIANT = ("template", "sampling")
_OF_LORA = ("path", "base_model_name")
_MOST_LORA_NAME = 200
_SAMPLING = tuple(one.name for one in fields(SamplingDefaults) if one.name != "stated")
_STORES = {"ollama": "Ollama", "hf": "Hugging Face"}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredModel:
    """One model. `settings`: the server's with the model's own. `memory`: bytes that it needs, None: estimated from its files.
    `variants`: further names, with what is different under them. `loras`: where adapters are, by their names. `problem`: why its
    files cannot be served, None if nothing is known against them."""

    name: str
    settings: Settings
    aliases: tuple[str, ...] = ()
    pin: bool = False
    preload: bool = False
    idle_unload: float = IDLE_UNLOAD
    memory: int | None = None
    variants: tuple[Variant, ...] = ()
    loras: Mapping[str, str] = field(default_factory=dict)
    problem: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """All names that clients give it."""
        return (self.name, *self.aliases, *(one.name for one in self.variants), *self.loras)


def serves_several(settings: Settings) -> bool:
    """Whether the settings declare models by name."""
    return bool(settings.models) or settings.models_dir is not None


def several_flag(settings: Settings) -> str:
    """The setting that declares models."""
    return TABLE["models" if settings.models else "models_dir"].flag


def check_alone(settings: Settings) -> None:
    """Raise SettingsError for settings that have no effect on a server of one model."""
    for name in SEVERAL:
        if name in settings.explicit and not serves_several(settings):
            raise SettingsError(f"{TABLE[name].flag} has no effect with one model; name several, NAME=SOURCE")


def declared_models(settings: Settings) -> list[DeclaredModel]:
    """All models, those that are named first. Raises SettingsError."""
    for name, why in REFUSED_BESIDE.items():
        if name in settings.explicit and getattr(settings, name):
            raise SettingsError(f"{TABLE[name].flag} does not go with several models: {why}")
    if settings.executor_mode != "process":
        raise SettingsError(
            "--executor-mode inline does not go with several models: an unload ends a process"
        )
    models = [_declared(settings, name, value) for name, value in settings.models.items()]
    models += _in_folder(settings, {name for one in models for name in one.names})
    if not models:
        raise SettingsError(f"--models-dir {settings.models_dir}: no model is there")
    names: dict[str, str] = {}
    for model in models:
        for name in model.names:
            if name in names:
                where = f"both {names[name]} and {model.name}" if names[name] != model.name else "two things"
                raise SettingsError(f"models: {model.name}: {name!r} names {where}")
            names[name] = model.name
    return models


def _declared(settings: Settings, name: str, value: Any) -> DeclaredModel:
    """One entry of `models`. Raises SettingsError that names what is wrong."""
    where = f"models: {name[:100]}"
    if not _NAME.fullmatch(name):
        raise SettingsError(f"{where!r}: a name has 1 to 256 characters and no spaces")
    entry: Mapping[str, Any] = {"source": value} if isinstance(value, str) else value
    if not isinstance(entry, Mapping):
        raise SettingsError(f"{where}: a source, or a mapping with source, is expected")
    for key in entry:
        if key in _UNSERVED:
            raise SettingsError(f"{where}: {key}: {_UNSERVED[key]}")
        if key not in _KEYS:
            raise SettingsError(f"{where}: {key}: no such key{nearest(str(key), _KEYS)}")
    source = entry.get("source")
    if not isinstance(source, str) or not source:
        raise SettingsError(f"{where}: source: it should be a string, as the argument MODEL takes it")
    aliases = entry.get("aliases", [])
    if not isinstance(aliases, list) or not all(
        isinstance(one, str) and _NAME.fullmatch(one) for one in aliases
    ):
        raise SettingsError(f"{where}: aliases: a list of names is expected")
    own = _own_settings(where, entry.get("settings", {}))
    if "sampling" in entry:
        own["override_generation_config"] = _read(
            where, "sampling", "override_generation_config", entry["sampling"]
        )
    if "draft" in entry:
        own["speculative_config"] = _draft(where, entry["draft"], own)
    loras = dict(_loras(where, entry.get("lora", {})))
    if loras:
        own["lora_modules"] = tuple(json.dumps({"name": name, **one}) for name, one in loras.items())
        # No others come: each has a place, and no memory is kept for more.
        if "max_loras" not in {*own, *settings.explicit}:
            own["max_loras"] = min(settings.max_loras, len(loras))
    return DeclaredModel(
        name=name,
        settings=_of_model(settings, name, source, own),
        aliases=tuple(aliases),
        pin=_switch(where, entry, "pin"),
        preload=_switch(where, entry, "preload") or _switch(where, entry, "pin"),
        idle_unload=(
            _read(where, "idle_unload", "idle_unload", entry["idle_unload"])
            if "idle_unload" in entry
            else _idle_unload(settings)
        ),
        memory=_read(where, "memory", "memory", entry["memory"]) if "memory" in entry else None,
        variants=tuple(_variants(where, entry.get("variants", {}))),
        loras={name: one["path"] for name, one in loras.items()},
    )


def _draft(where: str, value: Any, own: Mapping[str, Any]) -> Any:
    """The setting `speculative_config` for a draft model's source, or for an object of that setting."""
    if "speculative_config" in own:
        raise SettingsError(f"{where}: draft: settings has speculative_config already; leave one of them out")
    if not isinstance(value, str | Mapping) or not value:
        raise SettingsError(f"{where}: draft: a source, or a mapping as speculative_config, is expected")
    config = {"model": value} if isinstance(value, str) else value
    return _read(where, "draft", "speculative_config", config)


def _loras(where: str, values: Any) -> Iterator[tuple[str, dict[str, str]]]:
    """Name and fields of each adapter, as an object of `--lora-modules` has them."""
    if not isinstance(values, Mapping):
        raise SettingsError(f"{where}: lora: a mapping of names is expected")
    for name, value in values.items():
        own = f"{where}: lora: {str(name)[:100]}"
        if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > _MOST_LORA_NAME:
            raise SettingsError(f"{own!r}: a name has 1 to {_MOST_LORA_NAME} characters and no spaces")
        fields_of = {"path": value} if isinstance(value, str) else value
        if not isinstance(fields_of, Mapping):
            raise SettingsError(
                f"{own}: a folder, a GGUF file or a hub name, or a mapping with path, is expected"
            )
        for key, text in fields_of.items():
            if key not in _OF_LORA:
                raise SettingsError(f"{own}: {key}: no such key{nearest(str(key), _OF_LORA)}")
            if not isinstance(text, str) or not text.strip():
                raise SettingsError(f"{own}: {key}: it should be a string")
        if "path" not in fields_of:
            raise SettingsError(f"{own}: path: it should be a string, as --lora-modules takes it")
        yield name, dict(fields_of)


def _variants(where: str, values: Any) -> Iterator[Variant]:
    if not isinstance(values, Mapping):
        raise SettingsError(f"{where}: variants: a mapping of names is expected")
    for name, value in values.items():
        own = f"{where}: variants: {str(name)[:100]}"
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise SettingsError(f"{own!r}: a name has 1 to 256 characters and no spaces")
        if not isinstance(value, Mapping) or not value:
            raise SettingsError(f"{own}: a mapping with {' or '.join(_OF_VARIANT)} is expected")
        for key in value:
            if key not in _OF_VARIANT:
                raise SettingsError(f"{own}: {key}: no such key{nearest(str(key), _OF_VARIANT)}")
        template, sampling = (value.get(key, {}) for key in _OF_VARIANT)
        if not isinstance(template, Mapping) or not all(isinstance(key, str) for key in template):
            raise SettingsError(f"{own}: template: a mapping of the template's variables is expected")
        if not isinstance(sampling, Mapping):
            raise SettingsError(f"{own}: sampling: a mapping is expected")
        for key in sampling:
            if key not in _SAMPLING:
                raise SettingsError(f"{own}: sampling: {key}: no such key{nearest(str(key), _SAMPLING)}")
        try:
            SamplingDefaults.of(sampling, "sampling")
        except ConfigError as fault:
            raise SettingsError(f"{own}: {fault}") from None
        yield Variant(name=name, template=dict(template), sampling=dict(sampling))


def _switch(where: str, entry: Mapping[str, Any], key: str) -> bool:
    value = entry.get(key, False)
    if not isinstance(value, bool):
        raise SettingsError(f"{where}: {key}: it should be true or false")
    return value


def _own_settings(where: str, values: Any) -> dict[str, Any]:
    if not isinstance(values, Mapping):
        raise SettingsError(f"{where}: settings: a mapping is expected")
    own = {}
    for key, value in values.items():
        name = str(key).replace("-", "_")
        if name not in OF_A_MODEL:
            why = (
                "it is the server's, not a model's"
                if name in TABLE
                else f"no such setting{nearest(name, TABLE)}"
            )
            raise SettingsError(f"{where}: settings: {key}: {why}")
        own[name] = _read(where, f"settings: {key}", name, value)
    return own


def _read(where: str, label: str, row: str, value: Any) -> Any:
    try:
        return TABLE[row].value_of(value)
    except Unfit as fault:
        raise SettingsError(f"{where}: {label}: {fault} (not {str(fault.value)[:100]!r})") from None


def _of_model(settings: Settings, name: str, source: str, own: Mapping[str, Any]) -> Settings:
    """The server's settings with the model's own, as `cohort serve` would have them for this model alone."""
    explicit = (settings.explicit - set(SEVERAL)) | {"model", "served_model_name", *own}
    alone = {one.name: getattr(settings, one.name) for one in fields(settings)}
    alone |= {"models": {}, "models_dir": None, "model": source, "served_model_name": (name,), **own}
    return replace(settings, **{**alone, "explicit": frozenset(explicit)})


def _idle_unload(settings: Settings) -> float:
    return IDLE_UNLOAD if settings.idle_unload is None else settings.idle_unload


# -- a folder --------------------------------------------------------------------------------------------------------------


def _in_folder(settings: Settings, names: set[str]) -> Iterator[DeclaredModel]:
    """The models of `--models-dir` whose names are not among `names`, to which they are added: of several files of one name the
    first one counts."""
    if settings.models_dir is None:
        return
    for name, source, problem in _found(settings):
        if name in names:
            continue
        names.add(name)
        own = _of_model(settings, name, source, {})
        yield DeclaredModel(name=name, settings=own, idle_unload=_idle_unload(settings), problem=problem)


def _found(settings: Settings) -> Iterator[tuple[str, str, str | None]]:
    """Name, source and fault of each model in the folder, or in the store that has this name."""
    place = settings.models_dir
    assert place is not None
    if place in _STORES:
        for one in models_on_disk(settings.download_dir):
            if one.source == _STORES[place]:
                yield names_of(one)[0], one.name if place == "ollama" else str(one.path), one.problem
        return
    folder = Path(place).expanduser()
    if not folder.is_dir():
        raise SettingsError(f"--models-dir {place}: no such directory")
    for one in find({"LM Studio": [folder]}):
        yield _name_of(one), str(one.path), one.problem


def _name_of(model: Found) -> str:
    """A GGUF file's name without its ending and part, a checkpoint's folder."""
    return model_stem(model.path.name) if model.is_gguf else model.path.name
