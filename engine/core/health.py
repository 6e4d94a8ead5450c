"""`Health`: what the engine says of itself."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from engine.request import Stage


@dataclass(slots=True)
class Health:
    """Written by `EngineCore` and what belongs to its loop task, read by anybody."""

    stage: Stage = Stage.LOADING
    detail: str = ""
    """What is wrong, in a line; "" if nothing is."""
    failed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the engine has given up for good."""
