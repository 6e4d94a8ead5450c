"""`cohort list`: the models on this disk. folders.py finds them; the executor's tool `fits` says what context each may have."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from server.commands.common import ToolError, ask, console, fail, print_json, size, take_interrupts
from server.commands.options import AsJson, with_settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from server.model_files.folders import Found


@with_settings(("download_dir",))
def list_models(as_json: AsJson = False, **flags: Any) -> None:
    """List the models on this disk.

    Searches the folders of Hugging Face, LM Studio, Ollama and llama.cpp, and --download-dir. Shows the size of each model
    and the context length that fits into memory."""
    from server.model_files.folders import find, roots

    take_interrupts()
    folders = roots(os.environ, Path.home())
    if flags["download_dir"] is not None:
        folders["Cohort"] = [Path(flags["download_dir"]).expanduser()]
    rows = _rows([*_own(), *find(folders)])
    if as_json:
        print_json(rows)
    else:
        _show(rows)


def _own() -> Iterator[Found]:
    """The default model if it is here, and the one that is part of this package."""
    from server.bootstrap import embedded_directory
    from server.model_files import default_model
    from server.model_files.candidates import quantization_in
    from server.model_files.folders import Found
    from server.model_source import EMBEDDED_NAME

    file = default_model.find()
    if file is not None:
        kind = f"GGUF {quantization_in(file.name)}"
        yield Found(str(file), kind, file.stat().st_size, file, "Cohort")
    directory = embedded_directory()
    weights = sum(path.stat().st_size for path in directory.glob("*.safetensors"))
    yield Found(EMBEDDED_NAME, "safetensors bfloat16", weights, directory, "Cohort")


def _rows(models: list[Found]) -> list[dict[str, Any]]:
    """A row per model as plain data: `context` in tokens, or None and `problem`."""
    from tempfile import TemporaryDirectory

    from executors.contract import ConfigError
    from server.core_configs import executor_config
    from server.model_files.prepared import write_source
    from server.settings.load import load

    chosen, _ = load({}, {})
    fits: dict[int, dict[str, Any]] = {}
    with TemporaryDirectory(prefix="cohort-list-") as scratch:
        configs: dict[int, dict[str, Any]] = {}
        for number, one in enumerate(models):
            directory = one.path
            try:
                if one.problem is None and one.is_gguf:
                    directory = write_source(one.path, Path(scratch) / str(number))
            except ConfigError as error:
                fits[number] = {"context": None, "problem": str(error)}
            else:
                if one.problem is None:
                    configs[number] = asdict(executor_config(chosen, directory))
        try:
            fits |= zip(configs, ask("fits", {"configs": list(configs.values())}), strict=True)
        except ToolError as error:
            fail(str(error), 1)
    unknown = ({"context": None, "problem": one.problem} for one in models)
    return [
        {**_facts(one), **fits.get(number, fit)}
        for number, (one, fit) in enumerate(zip(models, unknown, strict=True))
    ]


def _facts(model: Found) -> dict[str, Any]:
    return {name: value for name, value in asdict(model).items() if name != "package"} | {
        "path": str(model.path)
    }


def _show(rows: list[dict[str, Any]]) -> None:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name, justify in (
        ("model", "left"),
        ("format", "left"),
        ("size", "right"),
        ("context", "right"),
        ("from", "left"),
    ):
        table.add_column(name, justify=justify, overflow="fold")  # type: ignore[arg-type]
    for row in rows:
        context = f"{row['context']:,}" if row["context"] else "-"
        table.add_row(row["name"], row["format"], size(row["size"]), context, row["source"])
    screen = console()
    screen.print(table)
    for row in rows:
        if row["problem"]:
            screen.print(f"{row['name']}: {row['problem']}", style="dim")
