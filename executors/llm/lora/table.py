"""`LoraTable`: the loaded adapters by name, and which of them the sequences have.

Each adapter has a place, 0 .. most - 1, from when it is read until it is unloaded: a device has memory for one at each.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import numpy as np

from executors.contract import InvalidInput, OutOfMemory, SnapshotValue
from executors.llm.row_loras import StepLoras


class Lora(Protocol):
    """An adapter in memory."""

    @property
    def rank(self) -> int:
        """The highest rank of its matrices."""

    @property
    def num_bytes(self) -> int:
        """Bytes of its numbers."""


class LoraWeights(Protocol):
    """The memory of adapters, and what rows of a step are computed with: `HostWeights`, `DeviceWeights`."""

    def read(self, path: Path, digest: str, place: int) -> Lora:
        """Read an adapter into a place that no step uses. Steps may run meanwhile, on another thread. Raises ConfigError,
        OutOfMemory."""

    def rows(self, places: np.ndarray, adapters: Mapping[int, Lora]) -> StepLoras:
        """Return the adapters of rows, int64 [T] places, -1 for none; `adapters` are those by place."""


class LoraTable:
    """At most `most` adapters, the one that was prepared last included. Changed between steps only, but for `prepare`."""

    def __init__(self, weights: LoraWeights, most: int, num_slots: int) -> None:
        self.weights = weights
        self.most = most
        self._loaded: dict[str, tuple[int, Lora]] = {}
        """Place and adapter by name."""
        self._prepared: tuple[str, int, Lora] | None = None
        """Digest, place and adapter."""
        self._reading = threading.Lock()
        self._taking = threading.Lock()
        """Held while an adapter goes from one of the two to the other, or a place is chosen."""
        self._slots: list[str | None] = [None] * num_slots
        """Name of the adapter of the sequence in each slot."""
        self._places = np.full(num_slots, -1, np.int32)
        """Place of the adapter of the sequence in each slot, -1 for none."""

    def prepare(self, name: str, path: str, digest: str) -> None:
        """Read an adapter, unless it is loaded under this name or was prepared last. Steps may run meanwhile. Raises
        ConfigError, OutOfMemory."""
        if name in self._loaded:
            return
        self._check_room()
        with self._reading:
            with self._taking:
                if self._prepared is not None and self._prepared[0] == digest:
                    return
                self._prepared = None  # so that there are never two
                self._check_room()
                place = min(set(range(self.most)) - {used for used, _ in self._loaded.values()})
            read = self.weights.read(Path(path), digest, place)
            with self._taking:
                self._prepared = digest, place, read

    def load(self, name: str, digest: str) -> None:
        """Load the adapter that was prepared under a name; one that is loaded under it already stays. Raises OutOfMemory, and
        InvalidInput if another one was prepared since."""
        if name in self._loaded:
            return
        self._check_room()
        with self._taking:
            prepared, self._prepared = self._prepared, None
            if prepared is None or prepared[0] != digest:
                raise InvalidInput("another adapter was prepared meanwhile")
            self._loaded[name] = prepared[1:]

    def _check_room(self) -> None:
        if len(self._loaded) >= self.most:
            raise OutOfMemory(f"{len(self._loaded)} adapters are loaded, as many as there is room for")

    @contextmanager
    def blanks(self, make: Callable[[int], Lora]) -> Iterator[None]:
        """While none is loaded: within, there are as many as there may be, named by `blank_name`, for steps that are tried out.
        `make` returns the one at a place."""
        if self._loaded:
            raise RuntimeError("adapters are loaded")
        self._loaded = {blank_name(place): (place, make(place)) for place in range(self.most)}
        try:
            yield
        finally:
            self.clear()
            self._loaded = {}

    def unload(self, name: str) -> None:
        """Forget an adapter. Raises InvalidInput while a sequence uses it; an unknown name is ignored."""
        if name in self._slots:
            raise InvalidInput(f"adapter {name[:80]!r} is in use")
        self._loaded.pop(name, None)

    def check(self, name: str | None) -> None:
        """Raises InvalidInput for an adapter that is not loaded."""
        if name is not None and name not in self._loaded:
            raise InvalidInput(f"adapter {name[:80]!r} is not loaded")

    def begin(self, slot: int, name: str | None) -> None:
        """A sequence with this adapter takes a slot."""
        self._slots[slot] = name
        self._places[slot] = -1 if name is None else self._loaded[name][0]

    def drop(self, slot: int) -> None:
        """The sequence has left its slot."""
        self._slots[slot] = None
        self._places[slot] = -1

    def clear(self) -> None:
        """All sequences have left."""
        self._slots = [None] * len(self._slots)
        self._places[:] = -1

    def rows(self, names: list[str | None], lengths: np.ndarray) -> StepLoras | None:
        """The adapters of items with so many rows each; None if none has one."""
        places = [-1 if name is None else self._loaded[name][0] for name in names]
        return self._rows(np.array(places, np.int64), lengths)

    def rows_of_slots(self, slots: np.ndarray, lengths: np.ndarray) -> StepLoras | None:
        """The same for items in these slots."""
        return self._rows(self._places[slots].astype(np.int64), lengths)

    def _rows(self, places: np.ndarray, lengths: np.ndarray) -> StepLoras | None:
        if (places < 0).all():
            return None
        return self.weights.rows(np.repeat(places, lengths), dict(self._loaded.values()))

    def places(self, slots: np.ndarray) -> np.ndarray:
        """int32: places of the adapters of some slots, -1 for none."""
        return self._places[slots]

    def snapshot(self) -> Mapping[str, SnapshotValue]:
        """For metrics."""
        return {
            "loaded": len(self._loaded),
            "bytes": sum(one.num_bytes for _, one in self._loaded.values()),
            "highest_rank": max((one.rank for _, one in self._loaded.values()), default=0),
        }


def blank_name(place: int) -> str:
    """Return the name of the blank adapter at a place; no other adapter is named so."""
    return f"\0blank {place}"
