"""What the fork server imports for executors of this room: what each of them needs, whatever its model and its device."""

from pathlib import Path

from executors.llm.lean_torch import import_torch

if not any(Path("/dev").glob("nvidia[0-9]*")):  # what a GPU's part of torch asks for has not been tried
    import_torch()

import executors.llm.executor  # noqa: F401
