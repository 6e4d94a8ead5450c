"""`cohort pull`: fetch a model onto this disk, and say where it is."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from server.commands.common import INTERRUPTED, fail, size, take_interrupts
from server.commands.options import with_settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from server.hub import HubModel

_LINE_EVERY = 2.0
"""Seconds between two lines about a download where there is no terminal."""

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A hub name ORG/NAME or ORG/NAME:Q4_K_M, or SmolLM2-135M-Instruct, the default model.",
        show_default=False,
    ),
]


@with_settings(("revision", "download_dir"))
def pull(model: Model, **flags: Any) -> None:
    """Fetch a model, and print where it is.

    Models of the hub go to the cache of its library (HF_HOME) or to --download-dir, which other programs share. A download
    that was cut goes on where it stopped. A model that is here is left as it is."""
    from executors.contract import ConfigError
    from server import hub
    from server.model_files import default_model
    from server.settings.load import SettingsError, load
    from server.startup import model_loader

    take_interrupts()
    try:
        if model == default_model.NAME:
            return _default()
        settings, _ = load({"model": model, **flags}, os.environ)
        source = model_loader.model_source(settings)
        if not isinstance(source, hub.HubModel):
            print(f"{model} is here: {source.path}")
            return None
        path = _fetched(source)
    except (SettingsError, ConfigError, hub.HubError) as error:
        from server.system.exit_codes import code_of

        fail(str(error), 1 if isinstance(error, hub.HubError) else code_of(error))
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
    print(
        f"{source.label} is here: {path} ({size(_bytes(path))}). To chat with it: cohort run {source.label}"
    )
    return None


def _default() -> None:
    from server.commands.fetch_default import fetch_default

    fetch_default(False)


def _fetched(source: HubModel) -> Path:
    import asyncio

    from server import hub
    from server.startup.loading import loading_display

    if not sys.stderr.isatty():
        return asyncio.run(hub.fetch(source, _lines(source.label)))
    display = loading_display()
    try:
        return asyncio.run(
            hub.fetch(source, lambda done, total: display.report(f"downloading {source.label}", done, total))
        )
    finally:
        display.close()


def _lines(name: str) -> Callable[[int, int], None]:
    """What reports progress in lines on stderr, the first at once."""
    last = 0.0
    print(f"Fetching {name}", file=sys.stderr, flush=True)

    def report(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if total and now - last >= _LINE_EVERY:
            last = now
            share = f"{size(done)} of {size(total)}, {100 * done // total}%"
            print(f"Fetching {name}: {share}", file=sys.stderr, flush=True)

    return report


def _bytes(path: Path) -> int:
    files = [path] if path.is_file() else [one for one in path.rglob("*") if one.is_file()]
    return sum(one.stat().st_size for one in files)
