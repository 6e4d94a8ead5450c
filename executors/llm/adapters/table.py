"""`AdapterTable`: the loaded adapters by name, and `AdapterRows`: which of them the rows of a step have."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from executors.contract import InvalidInput, OutOfMemory, SnapshotValue
from executors.llm.adapters.loaded import LoadedAdapter
from executors.llm.model.decoder import Decoder
from executors.llm.row_adapters import Product
from executors.lora import read_adapter


@dataclass(frozen=True, slots=True)
class AdapterRows:
    """The `RowAdapters` of a step. `of_row` int64 [T]: the place in `loaded` of each row's adapter, -1 for none."""

    of_row: torch.Tensor
    loaded: tuple[LoadedAdapter, ...]

    @property
    def addresses(self) -> list[int]:
        """See `RowAdapters`."""
        return [one.address for one in self.loaded]

    def subset(self, rows: np.ndarray) -> AdapterRows:
        """Of some rows, in that order."""
        return AdapterRows(self.of_row.index_select(0, torch.from_numpy(rows)), self.loaded)

    def padded(self, rows: int) -> AdapterRows:
        """With rows that have none behind them, `rows` in all."""
        return AdapterRows(F.pad(self.of_row, (0, rows - len(self.of_row)), value=-1), self.loaded)

    def extra(self, linear: Product, x: torch.Tensor) -> torch.Tensor | None:
        """What is added to the result of a linear layer for rows x [T, inputs]: float32 [T, outputs], None for nothing."""
        found: torch.Tensor | None = None
        for place, adapter in enumerate(self.loaded):
            parts = adapter.parts(linear)
            rows = (self.of_row == place).nonzero()[:, 0] if parts else None
            if rows is None or not len(rows):
                continue
            if found is None:
                found = torch.zeros(len(x), linear.outputs)
            own = x.index_select(0, rows).float()
            for part in parts:
                end = part.begin + part.outputs
                found[rows, part.begin : end] += part.scale * (
                    (own @ part.a.float().T) @ part.rows_of_b().float()
                )
        return found


class AdapterTable:
    """At most `most` adapters, and the one that was prepared last. Changed between steps only, but for `prepare`."""

    def __init__(self, load: Callable[[Path, str], LoadedAdapter], most: int, num_slots: int) -> None:
        self._load = load
        self._most = most
        self._loaded: dict[str, LoadedAdapter] = {}
        self._prepared: tuple[str, LoadedAdapter] | None = None
        """Digest and adapter. A whole tuple is set at a time, by the thread that has read it."""
        self._reading = threading.Lock()
        self._slots: list[str | None] = [None] * num_slots
        """Name of the adapter of the sequence in each slot."""

    def prepare(self, name: str, path: str, digest: str) -> None:
        """Read an adapter, unless it is loaded under this name or was prepared last. Steps may run meanwhile. Raises
        ConfigError, OutOfMemory."""
        if name in self._loaded:
            return
        self._check_room()
        with self._reading:
            prepared = self._prepared
            if prepared is None or prepared[0] != digest:
                prepared = self._prepared = None  # so that there are never two
                self._prepared = digest, self._load(Path(path), digest)

    def load(self, name: str, digest: str) -> None:
        """Load the adapter that was prepared under a name; one that is loaded under it already stays. Raises OutOfMemory, and
        InvalidInput if another one was prepared since."""
        if name in self._loaded:
            return
        self._check_room()
        prepared, self._prepared = self._prepared, None
        if prepared is None or prepared[0] != digest:
            raise InvalidInput("another adapter was prepared meanwhile")
        self._loaded[name] = prepared[1]

    def _check_room(self) -> None:
        if len(self._loaded) >= self._most:
            raise OutOfMemory(f"{len(self._loaded)} adapters are loaded, as many as there is room for")

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

    def drop(self, slot: int) -> None:
        """The sequence has left its slot."""
        self._slots[slot] = None

    def clear(self) -> None:
        """All sequences have left."""
        self._slots = [None] * len(self._slots)

    def rows(self, names: list[str | None], lengths: np.ndarray) -> AdapterRows | None:
        """The adapters of items with so many rows each; None if none has one."""
        if not any(names):
            return None
        used = list(dict.fromkeys(name for name in names if name is not None))
        places = np.array([-1 if name is None else used.index(name) for name in names], np.int64)
        of_row = torch.from_numpy(np.repeat(places, lengths))
        return AdapterRows(of_row, tuple(self._loaded[name] for name in used))

    def of_slots(self, slots: np.ndarray) -> list[str | None]:
        """Names of the adapters of some slots."""
        return [self._slots[slot] for slot in slots.tolist()]

    def snapshot(self) -> Mapping[str, SnapshotValue]:
        """For metrics."""
        return {
            "loaded": len(self._loaded),
            "bytes": sum(one.num_bytes for one in self._loaded.values()),
            "highest_rank": max((one.rank for one in self._loaded.values()), default=0),
        }


def adapter_loader(decoder: Decoder) -> Callable[[Path, str], LoadedAdapter]:
    """A function that loads a file for this decoder and checks its digest."""
    return lambda path, digest: LoadedAdapter(decoder, read_adapter(path, digest))
