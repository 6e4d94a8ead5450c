"""`Health`: the state that the engine reports."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from engine.request import Stage


@dataclass(slots=True)
class Health:
    """Written by `EngineCore` and the parts of its loop task; any code may read it."""

    stage: Stage = Stage.LOADING
    detail: str = ""
    """One line that says what is wrong; "" if nothing is."""
    failed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the engine has failed and will not recover."""
