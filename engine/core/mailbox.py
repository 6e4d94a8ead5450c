"""`Mailbox`: where a reader picks up what its sequences gained."""

from __future__ import annotations

import asyncio

from engine.request import TokenDelta


class Mailbox:
    """Deltas for one reader, by the reader's own keys (a choice index, say).

    Written by the loop task (`put`), read by one task (`take`). Deltas not yet taken are merged, so that a slow or dead
    reader costs no more than its sequences' tokens, which `max_tokens` bounds.
    """

    def __init__(self) -> None:
        self._deltas: dict[int, TokenDelta] = {}
        self._filled = asyncio.Event()

    def put(self, key: int, delta: TokenDelta) -> None:
        """Add a delta; never blocks."""
        held = self._deltas.get(key)
        if held is None:
            self._deltas[key] = delta
        else:
            held.merge(delta)
        self._filled.set()

    async def take(self) -> dict[int, TokenDelta]:
        """Wait for deltas and take all there are; never empty. Cancelling it loses none."""
        await self._filled.wait()
        self._filled.clear()
        deltas, self._deltas = self._deltas, {}
        return deltas
