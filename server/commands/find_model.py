"""The model that a verb works on, found as `cohort serve` finds it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from server.commands.common import busy, fail

if TYPE_CHECKING:
    from server.settings.table import Settings


def find_model(flags: Mapping[str, Any], *, weights: bool = True) -> tuple[Settings, str, Path]:
    """The settings that `cohort serve` would have with these flags, the model's name and its directory; fetched from the hub
    where it is not here (without `weights`, no safetensors). Ends the process with one line for what is wrong."""
    import asyncio
    from dataclasses import replace

    from executors.contract import ConfigError
    from server import hub
    from server.model_files.prepared import model_directory
    from server.settings.load import SettingsError, load
    from server.startup import best_model, model_loader
    from server.startup.loading import loading_display
    from server.startup.model_source import LocalModel
    from server.system.logs import configure_own

    try:
        chosen, _ = load(flags, os.environ)
        source = best_model.choose(chosen).model or model_loader.model_source(chosen)
        chosen = model_loader.settings_for(chosen, source)
        if isinstance(source, LocalModel):
            with busy("reading the model's files"):
                return chosen, source.name, model_directory(source.path, package=source.package)
        configure_own("info")  # lines of a terminal that shows no bar go to stderr
        display = loading_display() if sys.stderr.isatty() else None
        name = source.label

        def report(done: int, total: int) -> None:
            if display is not None:
                display.report(f"downloading {name}", done, total)

        try:
            fetched = asyncio.run(hub.fetch(replace(source, weights=weights), report))
            return chosen, name, model_directory(fetched)
        finally:
            if display is not None:
                display.close()
    except (SettingsError, ConfigError, hub.HubError) as error:
        fail(str(error))
