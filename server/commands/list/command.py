"""`cohort list`: the models on this disk, by the shortest name that `cohort serve` takes; with --caches, Cohort's own folders.

command.py   the verb; server/model_files/folders.py finds the models, the executor's tool `fits` says what context each may have
table.py     lines for a terminal of any width
caches.py    the folders that Cohort writes to
"""

from __future__ import annotations

import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from server.commands.common import busy, fail, print_json, take_interrupts
from server.commands.options import AsJson, flag, with_settings
from server.system.executor_tool import ToolError, ask

if TYPE_CHECKING:
    from collections.abc import Iterator

    from server.model_files.folders import Found
    from server.settings.table import Settings

_SHOWN_FACTS = ("context", "problem", "parameters")


@with_settings(("download_dir",))
def list_models(
    as_json: AsJson = False,
    caches: Annotated[
        bool, flag("List the folders that Cohort itself writes to, with their sizes.", "--caches")
    ] = False,
    **flags: Any,
) -> None:
    """List the models on this disk.

    Searches the folders of Hugging Face, LM Studio, Ollama and llama.cpp, and --download-dir. The first column is the name
    for `cohort serve`; * marks the model that it serves when none is named. Shows the size of each model and the context
    length that fits into memory."""
    take_interrupts()
    if caches:
        from server.commands.list.caches import folders, show

        try:
            own = folders(os.environ)
        except RuntimeError:
            fail("this user has no home directory, so nothing is cached; HOME names one", 1)
        return print_json(own) if as_json else show(own)

    from server.commands.list.table import show_models

    rows, why = _rows(flags["download_dir"])
    if as_json:
        print_json(rows)
    else:
        show_models(rows, why)
    return None


def _own() -> Iterator[Found]:
    """The default model if it is here, and the one that is part of this package."""
    from server.model_files import default_model
    from server.model_files.candidates import quantization_in
    from server.model_files.folders import Found
    from server.startup.model_loader import embedded_directory

    file = default_model.find()
    if file is not None:
        kind = f"GGUF {quantization_in(file.name)}"
        yield Found(str(file), kind, file.stat().st_size, file, "Cohort")
    directory = embedded_directory()
    weights = sum(path.stat().st_size for path in directory.glob("*.safetensors"))
    yield Found(default_model.EMBEDDED_NAME, "safetensors bfloat16", weights, directory, "Cohort")


def _rows(download_dir: str | None) -> tuple[list[dict[str, Any]], str]:
    """A row per model as plain data, and why one of them is `chosen`. `context` in tokens, or None and `problem`."""
    from server.model_files.short_names import models_on_disk
    from server.settings.load import SettingsError, load
    from server.startup import best_model

    try:
        settings, _ = load({}, os.environ)
    except SettingsError:
        settings, _ = load({}, {})
    own, others = list(_own()), list(models_on_disk(download_dir))
    models = [*own, *others]
    facts = _facts(models)
    names = _short_names(own, others)
    facts_by_model = {(one.path, one.package): row for one, row in zip(models, facts, strict=True)}
    choice = best_model.choose(replace(settings, model=None), listing=others, facts=facts_by_model)
    chosen = own[0] if choice.entry is None else choice.entry
    rows = [
        {
            "short": short,
            **{name: value for name, value in asdict(one).items() if name != "package"},
            "path": str(one.path),
            **{name: row.get(name) for name in _SHOWN_FACTS},
            "chosen": one is chosen,
        }
        for one, row, short in zip(models, facts, names, strict=True)
    ]
    return rows, choice.why


def _facts(models: list[Found]) -> list[dict[str, Any]]:
    """The executor's facts of each model, see its tool `fits`; of one that it is not asked about, the `problem`."""
    from tempfile import TemporaryDirectory

    from executors.contract import ConfigError
    from server.model_files.prepared import write_source
    from server.settings.load import load
    from server.startup.core_configs import executor_config

    settings, _ = load({}, {})
    rows: dict[int, dict[str, Any]] = {
        number: {"context": None, "problem": one.problem} for number, one in enumerate(models)
    }
    with TemporaryDirectory(prefix="cohort-list-") as scratch:
        configs: dict[int, dict[str, Any]] = {}
        for number, one in enumerate(models):
            directory = one.path
            try:
                if one.problem is None and one.is_gguf:
                    directory = write_source(one.path, Path(scratch) / str(number))
            except ConfigError as error:
                rows[number] = {"context": None, "problem": str(error)}
            else:
                if one.problem is None:
                    configs[number] = asdict(executor_config(settings, directory))
        try:
            with busy("asking the executor what fits"):
                rows |= zip(configs, ask("fits", {"configs": list(configs.values())}), strict=True)
        except ToolError as error:
            fail(str(error), 1)
    return [rows[number] for number in range(len(models))]


def _short_names(own: list[Found], others: list[Found]) -> list[str]:
    """The shortest name of each model with which `cohort serve`, run in this folder, serves it, and no other one."""
    from server.model_files import default_model
    from server.model_files.short_names import FolderIndex
    from server.settings.load import SettingsError, load
    from server.startup.model_loader import embedded_directory

    try:
        settings, _ = load({}, os.environ)
    except SettingsError:
        settings, _ = load({}, {})
    index, embedded = FolderIndex(others), embedded_directory()
    own_names = [default_model.NAME if one.is_gguf else one.name for one in own]
    return [
        *own_names,
        *(_short_name(one, replace(settings, revision=None), index, embedded) for one in others),
    ]


def _short_name(model: Found, settings: Settings, index: Any, embedded: Path) -> str:
    from executors.contract import ConfigError
    from server.hub import HubModel
    from server.model_files.folders import is_of_main, roots
    from server.model_files.short_names import names_of
    from server.settings.load import SettingsError
    from server.startup.model_source import find_source

    for name in names_of(model):
        if name.startswith("-") or not name.isprintable():
            continue
        try:
            source = find_source(replace(settings, model=name), embedded, index)
        except (SettingsError, ConfigError):
            continue
        if isinstance(source, HubModel):
            cache = settings.download_dir or roots(os.environ, Path.home())["Hugging Face"][0]
            if model.path.is_relative_to(Path(cache).expanduser()) and is_of_main(model.path):
                return name
        elif (source.path, source.package.digest if source.package else "") == (model.path, model.package):
            return name
    return str(model.path)
