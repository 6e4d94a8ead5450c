"""Where the engine keeps prefixes of prompts for later ones, as far as those who make prompts need to know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from executors.contract import KvLayout


@dataclass(frozen=True, slots=True)
class PrefixKeeping:
    """`interval`: tokens between the positions up to which a prefix can be kept, 0: none is kept. `at_points`: it is at a few
    positions only, which requests name, because layers have a window or a state."""

    interval: int = 0
    at_points: bool = False

    @classmethod
    def of(cls, layout: KvLayout, enabled: bool) -> Self:
        """That of an executor's KV. `enabled`: the prefix cache is on."""
        if not (enabled and layout.paged):
            return cls()
        interval = layout.block_size if layout.state is None else layout.state.interval
        return cls(interval, layout.state is not None or any(one.window is not None for one in layout.groups))

    def kept(self, position: int) -> int:
        """The end of what is kept of a prefix of so many tokens."""
        return position // self.interval * self.interval if self.interval else 0
