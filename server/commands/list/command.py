"""`cohort list`: the models on this disk. folders.py finds them; the executor's tool `fits` says what context each may have."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from server.commands.common import ToolError, ask, console, fail, print_json, size, take_interrupts
from server.commands.options import AsJson, with_settings

if TYPE_CHECKING:
    from server.commands.list.folders import Found

NOT_SERVED = "GGUF files are not served yet"


@with_settings(("download_dir",))
def list_models(as_json: AsJson = False, **flags: Any) -> None:
    """List the models on this disk.

    Searches the folders of Hugging Face, LM Studio, Ollama and llama.cpp, and --download-dir. Shows the size of each model
    and the context length that fits into memory."""
    from server.commands.list.folders import find, roots

    take_interrupts()
    folders = roots(os.environ, Path.home())
    if flags["download_dir"] is not None:
        folders["Cohort"] = [Path(flags["download_dir"]).expanduser()]
    rows = _rows([_embedded(), *find(folders)])
    if as_json:
        print_json(rows)
    else:
        _show(rows)


def _embedded() -> Found:
    from server.bootstrap import EMBEDDED_NAME, embedded_directory
    from server.commands.list.folders import Found

    directory = embedded_directory()
    weights = sum(path.stat().st_size for path in directory.glob("*.safetensors"))
    return Found(EMBEDDED_NAME, "safetensors bfloat16", weights, directory, "Cohort")


def _rows(models: list[Found]) -> list[dict[str, Any]]:
    """A row per model as plain data: `context` in tokens, or None and `problem`."""
    from server.bootstrap import executor_config
    from server.settings.load import load

    chosen, _ = load({}, {})
    served = [one for one in models if one.problem is None and not one.is_gguf]
    try:
        fits = ask("fits", {"configs": [asdict(executor_config(chosen, one.path)) for one in served]})
    except ToolError as error:
        fail(str(error), 1)
    facts = dict(zip((id(one) for one in served), fits, strict=True))
    return [_row(one, facts.get(id(one))) for one in models]


def _row(one: Found, fit: dict[str, Any] | None) -> dict[str, Any]:
    problem = one.problem or (NOT_SERVED if one.is_gguf else None)
    fit = fit or {"context": None, "problem": problem}
    return {**asdict(one), "path": str(one.path), **fit}


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
        if row["problem"] and row["problem"] != NOT_SERVED:
            screen.print(f"{row['name']}: {row['problem']}", style="dim")
    if any(row["problem"] == NOT_SERVED for row in rows):
        screen.print(f"{NOT_SERVED}.", style="dim")
