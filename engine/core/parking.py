"""`Parking`: the executor is put away while sequences are unfinished, and brought back when there is room for it again."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field


@dataclass(slots=True)
class Parking:
    """`EngineCore` asks, the loop task answers."""

    pending: bool = False
    """Whether the executor is to be put away. Written by `EngineCore`."""
    done: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while the executor is away. Written by the loop task."""
    resume: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the executor should come back. Written by `EngineCore`, cleared by the loop task."""
    back: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once it is back. Written by the loop task, cleared by `EngineCore`."""
