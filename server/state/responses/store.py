"""Responses that clients retrieve, continue and delete later. They are kept in memory, in bounds, by the process that schedules.

The interface is asynchronous and knows no HTTP, so that several front ends may share one store.
"""

from __future__ import annotations

import itertools
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from server.state.responses.errors import StoreFull
from server.state.responses.run import BackgroundRun

Item = tuple[str, bytes]
"""Identifier of an item, and the item as JSON."""
_RETRY_AFTER = 5
"""Seconds after which a client may try again; a response takes about that long."""
_ENTRY_BYTES = 1024
"""Size of an entry besides its texts."""


@dataclass(slots=True)
class StoredResponse:
    """One response. `body`: the response as JSON, once it has ended. `inputs`: the items that it was made of, those of earlier
    responses included. `outputs`: its own items. `run`: its generation, for a background response."""

    id: str
    tenant: str
    inputs: Sequence[Item]
    body: bytes = b""
    outputs: Sequence[Item] = ()
    run: BackgroundRun | None = None
    stored_at: float = 0.0
    size: int = field(default=0)
    """Bytes that are counted for it. One writer: the store."""

    @property
    def in_progress(self) -> bool:
        """Whether it is still generated."""
        return self.run is not None and not self.run.done

    def size_now(self) -> int:
        """Its size in bytes. Texts that several responses share are counted for each of them."""
        events = 0 if self.run is None else self.run.size
        items = sum(len(item) for _, item in (*self.inputs, *self.outputs))
        return _ENTRY_BYTES + items + len(self.body) + events


class SharedResponseStore(Protocol):
    """Keeps responses; every process that answers uses this part. Each operation concerns the responses of one tenant, whose API
    key asks."""

    @property
    def enabled(self) -> bool:
        """Whether anything is kept."""

    async def put(self, response: StoredResponse) -> None:
        """Keep a response, or count it again if it has changed. Raises StoreFull."""

    async def get(self, tenant: str, response_id: str) -> StoredResponse | None:
        """The response of this id."""

    async def item(self, tenant: str, item_id: str) -> bytes | None:
        """An output item of a stored response, as JSON."""

    async def close(self) -> None:
        """End the responses in progress, and forget all."""


@runtime_checkable
class ResponseStore(SharedResponseStore, Protocol):
    """The whole store, in the process that schedules: background responses run there."""

    async def delete(self, tenant: str, response_id: str) -> StoredResponse | None:
        """Forget a response, and return it."""


class MemoryResponseStore:
    """Keeps at most `entries` responses with `size` bytes in total, each for `age` seconds after its end. The oldest ones go
    first; those in progress stay. One writer: the event loop."""

    def __init__(
        self, entries: int, size: int, age: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._entries = entries
        self._most_bytes = size
        self._age = age
        self._clock = clock
        self._responses: OrderedDict[tuple[str, str], StoredResponse] = OrderedDict()
        """By tenant and id, the oldest first."""
        self._items: dict[tuple[str, str], bytes] = {}
        """Output items by tenant and id."""
        self._bytes = 0

    @property
    def enabled(self) -> bool:
        """Whether anything is kept."""
        return self._entries > 0

    def __len__(self) -> int:
        return len(self._responses)

    @property
    def counted_bytes(self) -> int:
        """Bytes that the responses were counted with."""
        return self._bytes

    async def put(self, response: StoredResponse) -> None:
        """Keep a response, or count it again. Raises StoreFull, also for a response that is larger than the store."""
        key = (response.tenant, response.id)
        if (previous := self._responses.pop(key, None)) is not None:
            self._uncount(previous)
        size = response.size_now()
        self._expire()
        while self._bytes + size > self._most_bytes or len(self._responses) >= self._entries:
            oldest = next((one for one in self._responses.values() if not one.in_progress), None)
            if oldest is None:
                message = "The store of responses is full: wait for a background response to end, or set 'store' to false."
                raise StoreFull(message, retry_after=_RETRY_AFTER)
            self._drop(oldest)
        response.size, response.stored_at = size, self._clock()
        self._responses[key] = response
        self._bytes += size
        for item_id, item in response.outputs:
            self._items[(response.tenant, item_id)] = item

    async def get(self, tenant: str, response_id: str) -> StoredResponse | None:
        """The response of this id."""
        self._expire()
        return self._responses.get((tenant, response_id))

    async def delete(self, tenant: str, response_id: str) -> StoredResponse | None:
        """Forget a response, and return it."""
        self._expire()
        response = self._responses.get((tenant, response_id))
        if response is not None:
            self._drop(response)
        return response

    async def item(self, tenant: str, item_id: str) -> bytes | None:
        """An output item of a stored response, as JSON."""
        self._expire()
        return self._items.get((tenant, item_id))

    async def close(self) -> None:
        """End the responses in progress, and forget all."""
        for response in list(self._responses.values()):
            if response.run is not None:
                await response.run.cancel()
        self._responses.clear()
        self._items.clear()
        self._bytes = 0

    def _expire(self) -> None:
        """Drop what is too old. The order is that of `stored_at`."""
        limit = self._clock() - self._age
        old = itertools.takewhile(lambda one: one.stored_at < limit, self._responses.values())
        for response in [one for one in old if not one.in_progress]:
            self._drop(response)

    def _drop(self, response: StoredResponse) -> None:
        del self._responses[(response.tenant, response.id)]
        self._uncount(response)

    def _uncount(self, response: StoredResponse) -> None:
        self._bytes -= response.size
        for item_id, _ in response.outputs:
            self._items.pop((response.tenant, item_id), None)
