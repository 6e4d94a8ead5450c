"""The host's data for a step, packed: one int32 array, one copy to the device.

    | dest | settings | token ids | source | positions | ... | tiles | decodes | pieces | rows |  `Tail`: changes of tables
      -- the sampler's -   ------------------------ the forward's ----------------------------
      -------------------------- fixed for a StepShape ----------------------------------------   as many as there are

A captured graph reads the first part at fixed places. What the sampler reads comes first: there it lies alike in all shapes
with as many samples, which share a sampler's graph. Unused places hold padding, whose results are never read: tokens without a
cell, items of length 0 in an unused slot, samples that go to an unused place of the token pool.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
import torch

from executors.contract.batch import TableUpdates
from executors.contract.slots import SlotTable
from executors.kernels.lora_tiles import tile_rows
from executors.llm.attention.key_pieces import WORDS
from executors.llm.device.base import Event

_MERGED = 64
"""Number of steps whose changes of block tables are kept separately."""
_NOTHING = (np.empty(0, np.int64), np.empty(0, np.int32))
"""An empty set of places in a table and their values."""
_ALIGN = 4
"""Alignment of sections in int32 words: the kernels' compiler checks whether pointers are multiples of 16 bytes, and int64
needs alignment too."""


@dataclass(frozen=True, slots=True)
class StepShape:
    """Sizes of a step's arrays, padding included. `listed`: decode items are listed, because there are chunks beside them;
    otherwise the items are one token each, in order, and every row is sampled. `pieces` of the decode items' keys: see
    `key_pieces.py`. `lora_tiles` of rows with LoRA adapters: see `lora_tiles.py`; 0: no row has one. `groups` of KV blocks, each
    with cells of its own. `tile_pieces` of the tiles' keys: see `tile_pieces.py`; 0: no tile's keys are cut."""

    tokens: int
    items: int
    samples: int
    tiles: int = 0
    decodes: int = 0
    listed: bool = False
    pieces: int = 0
    lora_tiles: int = 0
    groups: int = 1
    tile_pieces: int = 0


@dataclass(frozen=True, slots=True)
class Section:
    """`count` numbers of a dtype from word `begin` on; `pad` fills up a step that has fewer, None: the section is always
    full."""

    begin: int
    count: int
    kind: type[np.generic]
    words: int


_KINDS: dict[str, type[np.generic]] = {
    "source": np.int64, "dest": np.int64, "temperature": np.float64, "top_p": np.float64, "min_p": np.float64, "u": np.float64,
}  # fmt: skip
"""Dtypes of sections that are not int32. `source` and `dest` are places in a token pool that may have more than 2^31."""
_TORCH: dict[type[np.generic], torch.dtype] = {
    np.int32: torch.int32,
    np.int64: torch.int64,
    np.float64: torch.float64,
}


def cells_of(group: int) -> str:
    """Return the name of the section of a group's cells."""
    return f"cells {group}" if group else "cells"


@lru_cache(maxsize=1024)
def layout(shape: StepShape) -> dict[str, Section]:
    """Return the section offsets of a step of this shape, in words of 4 bytes."""
    chunks = shape.items if shape.listed else 0
    counts = {
        "dest": shape.samples, "shaped": shape.samples, "masked": shape.samples, "ends": shape.samples,
        "guessed": shape.samples, "temperature": shape.samples,
        "top_k": shape.samples, "top_p": shape.samples, "min_p": shape.samples, "u": shape.samples,
        "token_ids": shape.tokens, "source": shape.tokens, "positions": shape.tokens,
        **{cells_of(group): shape.tokens for group in range(shape.groups)},
        "slots": shape.items, "lengths": shape.items, "q_starts": chunks, "q_lens": chunks, "pos_offsets": chunks,
        "tiles": 2 * shape.tiles, "decodes": 2 * shape.decodes if shape.listed else 0, "pieces": WORDS * shape.pieces,
        "tile_pieces": WORDS * shape.tile_pieces,
        "rows": shape.samples if shape.listed else 0,
        "lora_rows": shape.lora_tiles * tile_rows(shape.tokens), "lora_owners": shape.lora_tiles,
    }  # fmt: skip
    sections, begin = {}, 0
    for name, count in counts.items():
        kind = _KINDS.get(name, np.int32)
        words = count * np.dtype(kind).itemsize // 4
        sections[name] = Section(begin, count, kind, words)
        begin += -(-words // _ALIGN) * _ALIGN
    return sections


@lru_cache(maxsize=1024)
def num_words(shape: StepShape) -> int:
    """Return the number of words of all sections."""
    *_, last = layout(shape).values()
    return last.begin + -(-last.words // _ALIGN) * _ALIGN


def section_of(words: np.ndarray, shape: StepShape, name: str) -> np.ndarray:
    """Return a section of an int32 array that holds a packed step, in the section's dtype."""
    section = layout(shape)[name]
    return words[section.begin : section.begin + section.words].view(section.kind)


def result_words(samples: int) -> int:
    """Return the number of words of a result: int32 tokens, then one byte per token that marks a bad row."""
    return -(-samples // _ALIGN) * _ALIGN + -(-samples // 4)


def result_views(result: torch.Tensor, samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return int32 [samples] tokens and int8 [samples] flags as views of an int32 tensor of `result_words`."""
    begin = -(-samples // _ALIGN) * _ALIGN
    flags = result[begin : begin + -(-samples // 4)].view(torch.int8)
    return result[:samples], flags[:samples]


def host_results(result: np.ndarray, samples: int) -> tuple[np.ndarray, np.ndarray]:
    """Return `result_views` of an int32 array."""
    begin = -(-samples // _ALIGN) * _ALIGN
    flags = result[begin : begin + -(-samples // 4)].view(np.int8)
    return result[:samples], flags[:samples]


class HostStep:
    """Writer of a step into an int32 array."""

    def __init__(self, words: np.ndarray, shape: StepShape) -> None:
        self._words = words
        self._sections = layout(shape)

    def put(self, name: str, values: np.ndarray, pad: float = 0) -> None:
        """Write a section's values (raveled if they are pairs), then `pad` to its end."""
        section = self._sections[name]
        view = self._words[section.begin : section.begin + section.words].view(section.kind)
        view[: len(values)] = values
        if len(values) < section.count:
            view[len(values) :] = pad

    def put_pairs(self, name: str, pairs: np.ndarray, pad: tuple[int, int]) -> None:
        """Do the same as `put` for sections of pairs; `pairs` int [k, 2]."""
        section = self._sections[name]
        view = self._words[section.begin : section.begin + section.words].reshape(-1, 2)
        view[: len(pairs)] = pairs
        view[len(pairs) :] = pad


class DeviceStep:
    """A packed step on the device: a tensor for each section, made once for a graph, and for each step without one."""

    def __init__(self, words: torch.Tensor, shape: StepShape) -> None:
        self.shape = shape
        self._views: dict[str, torch.Tensor] = {}
        for name, section in layout(shape).items():
            view = words[section.begin : section.begin + section.words]
            self._views[name] = view if section.kind is np.int32 else view.view(_TORCH[section.kind])

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._views[name]

    def pairs(self, name: str) -> torch.Tensor:
        """int32 [k, 2]."""
        return self._views[name].view(-1, 2)

    @property
    def pieces(self) -> torch.Tensor:
        """int32 [k, WORDS]."""
        return self._views["pieces"].view(-1, WORDS)

    @property
    def tile_pieces(self) -> torch.Tensor:
        """int32 [k, WORDS]."""
        return self._views["tile_pieces"].view(-1, WORDS)


class Settled(Protocol):
    """An object that still needs the contents of a buffer."""

    def settle(self) -> None:
        """Wait for the contents and copy them."""


class StepBuffer:
    """Host memory of a step in flight: the inputs sent to the device, `masks` for rows that follow a grammar, the results (`more`
    for the few items that request more than tokens), and the event after which the device no longer uses them.

    `owner`: the object that will take the results, None after it has.
    """

    def __init__(self, words: int, results: int, pinned: bool, event: Event) -> None:
        self.event = event
        self.owner: Settled | None = None
        self._pinned = pinned
        self.result = torch.empty(results, dtype=torch.int32, pin_memory=pinned)
        self.results: np.ndarray = self.result.numpy()
        self.more = torch.empty(0, dtype=torch.int32)
        self.masks = torch.empty(0, 0, dtype=torch.int32)
        self.tensor = torch.empty(words, dtype=torch.int32, pin_memory=pinned)
        self.words: np.ndarray = self.tensor.numpy()

    def fit_more(self, words: int) -> torch.Tensor:
        """Return `more` with room for that many words; its contents are lost."""
        if words > len(self.more):
            with torch.inference_mode(False):  # steps are computed in it, results are read outside
                self.more = torch.empty(2 * words, dtype=torch.int32, pin_memory=self._pinned)
        return self.more[:words]

    def fit_masks(self, rows: int, words: int) -> np.ndarray:
        """Return `masks` with room for that many, int32 [rows, words]; the contents are lost."""
        if rows > len(self.masks):
            with torch.inference_mode(False):
                self.masks = torch.empty(2 * rows, words, dtype=torch.int32, pin_memory=self._pinned)
        view: np.ndarray = self.masks.numpy()[:rows]
        return view

    def fit(self, words: int) -> None:
        """Make room for that many words; the contents are lost."""
        if words > len(self.words):
            self.tensor = torch.empty(2 * words, dtype=torch.int32, pin_memory=self._pinned)
            self.words = self.tensor.numpy()


class BufferRing:
    """Buffers for the steps in flight, used in turn. A buffer is free once its step's event has passed, because the device
    makes a step's copies when it reaches them."""

    def __init__(self, buffers: list[StepBuffer]) -> None:
        self._ring = deque(buffers)

    def take(self) -> StepBuffer:
        """Return the buffer of the oldest step. Waits for that step if it is not done."""
        buffer = self._ring[0]
        self._ring.rotate(-1)
        self._free(buffer)
        return buffer

    def drain(self) -> None:
        """Wait for all steps in flight."""
        for buffer in self._ring:
            self._free(buffer)

    @staticmethod
    def _free(buffer: StepBuffer) -> None:
        if not buffer.event.query():
            buffer.event.synchronize()
        if buffer.owner is not None:
            buffer.owner.settle()
            buffer.owner = None


class DeviceTables:
    """All slots' block tables of one group, int32 [slots + 1, blocks] on the device; the last row belongs to no slot. Changes on
    the host travel in the packed copy of the next step that uses the tables."""

    def __init__(self, host: np.ndarray, device: torch.device) -> None:
        self._host = host
        self._changed: list[np.ndarray] = []
        slots, blocks = host.shape
        self.tensor = torch.zeros(slots + 1, blocks, dtype=torch.int32, device=device)
        self.padding_slot = slots

    @staticmethod
    def of(slots: SlotTable, device: torch.device) -> tuple[DeviceTables, ...]:
        """Return the tables of each group."""
        return tuple(DeviceTables(host, device) for host in slots.block_tables)

    @staticmethod
    def take_in(tables: Sequence[DeviceTables], updates: TableUpdates) -> None:
        """Record changes of the tables of all groups."""
        if len(tables) == 1:
            tables[0].changed(updates.slots, updates.starts, updates.counts)
            return
        for group, one in enumerate(tables):
            own = updates.groups == group
            one.changed(updates.slots[own], updates.starts[own], updates.counts[own])

    def changed(self, slots: np.ndarray, starts: np.ndarray, counts: np.ndarray) -> None:
        """Record that the host wrote entries `starts[i] .. + counts[i]` of the tables of `slots[i]`."""
        if len(slots):
            total = int(counts.sum())
            places = slots.astype(np.int64) * self._host.shape[1] + starts
            if total != len(slots) or (counts != 1).any():
                places = np.arange(total) + np.repeat(places - np.cumsum(counts) + counts, counts)
            self._changed.append(places)
        if len(self._changed) > _MERGED:  # many steps in a row that sent nothing
            self._changed = [np.unique(np.concatenate(self._changed))]

    def unsent(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the int64 places in the flattened table that differ, and their int32 values. They remain unsent until
        `sent`."""
        if not self._changed:
            return _NOTHING
        places = self._changed[0]
        if len(self._changed) > 1:
            places = np.unique(np.concatenate(self._changed))  # a place may have changed twice
        return places, self._host.reshape(-1)[places]

    def sent(self) -> None:
        """Mark the unsent changes as sent."""
        self._changed.clear()


class Tail:
    """Data behind a step of `begin` words: `rows` int64 [k], for optional use, and changes of tables: for each table its
    places, then its values."""

    def __init__(
        self, begin: int, changes: Sequence[tuple[torch.Tensor, np.ndarray, np.ndarray]], rows: np.ndarray | None = None
    ) -> None:  # fmt: skip
        """`changes`: a contiguous table on the device, int64 places in the flattened table, int32 values."""
        self._rows = np.empty(0, np.int64) if rows is None else rows
        self._begin = begin
        begin += -(-2 * len(self._rows) // _ALIGN) * _ALIGN
        self._parts: list[tuple[int, torch.Tensor, np.ndarray, np.ndarray]] = []
        for tensor, places, values in changes:
            if len(places):
                self._parts.append((begin, tensor, places, values))
                begin += -(-3 * len(places) // _ALIGN) * _ALIGN
        self.end = begin

    def write(self, words: np.ndarray) -> None:
        """Write the data into the packed step."""
        words[self._begin : self._begin + 2 * len(self._rows)].view(np.int64)[:] = self._rows
        for begin, _, places, values in self._parts:
            middle = begin + 2 * len(places)
            words[begin:middle].view(np.int64)[:] = places
            words[middle : middle + len(values)] = values

    def rows(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the rows, read from the packed step on the device."""
        return inputs[self._begin : self._begin + 2 * len(self._rows)].view(torch.int64)

    def apply(self, inputs: torch.Tensor) -> None:
        """Apply the changes of tables, read from the packed step on the device."""
        for begin, tensor, places, _ in self._parts:
            middle = begin + 2 * len(places)
            at, values = inputs[begin:middle].view(torch.int64), inputs[middle : middle + len(places)]
            tensor.view(-1).index_copy_(0, at, values)
