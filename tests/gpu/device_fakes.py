"""A CPU behind the seams of a GPU: events that come late, graphs that only run over the memory they were recorded with.

They fail where a GPU would go wrong without a word: a pinned buffer written or read before its event, a replay that would
look elsewhere than its capture did, work of another shape, a value asked for in the middle.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from executors.contract import ExecutorConfig, UnifiedBatch, UnifiedOutput
from executors.llm.attention.key_pieces import PieceRule
from executors.llm.attention.packed import StepMeta
from executors.llm.attention.plain_torch import TorchAttention
from executors.llm.attention.tile_pieces import TileRule
from executors.llm.device.cpu import CpuDevice
from executors.llm.executor import LlmExecutor
from executors.llm.factory import LlmFactory
from executors.llm.kernel_support.kernel_choice import MAKERS
from executors.llm.memory.kv_cache import KvCache
from executors.llm.spec.device_companion import DeviceDraftCompanion
from executors.llm.step.launched.inputs import StepBuffer
from executors.llm.step.launched.steps import LaunchedSteps
from executors.llm.step.pipeline import StepPipeline
from executors.llm.step_arrays import StepArrays
from executors.qwen3.executor import Qwen3ModelExecutor

FORBIDDEN = ("_local_scalar_dense", "nonzero", "masked_select", "_unique2", "is_nonzero")
"""Operators that wait for a value, which a capture does not allow."""
GARBAGE = -77


class LateEvent:
    """Done when it was asked about `lateness` times, or waited for. Until then the buffer's results are garbage, and what went
    to the device must stay as it was."""

    def __init__(self, lateness: int) -> None:
        self.buffer: StepBuffer | None = None
        self.lateness = lateness
        self.asked = self.waited = 0
        self._held: tuple[torch.Tensor, ...] | None = None

    def record(self) -> None:
        assert self._held is None, "recorded again before it was done"
        self.asked = 0
        if self.buffer is not None:
            self._held = tuple(
                one.clone()
                for one in (self.buffer.tensor, self.buffer.masks, self.buffer.result, self.buffer.more)
            )
            self.buffer.result.fill_(GARBAGE)
            self.buffer.more.fill_(GARBAGE)

    def query(self) -> bool:
        self.asked += 1
        if self._held is not None and self.asked > self.lateness:
            self._finish()
        return self._held is None

    def synchronize(self) -> None:
        self.waited += self._held is not None
        self._finish()

    def _finish(self) -> None:
        if self._held is not None:
            assert self.buffer is not None
            words, masks, result, more = self._held
            assert torch.equal(self.buffer.masks, masks), "masks written while the device was to read them"
            assert torch.equal(self.buffer.tensor, words), "written while the device was to read it"
            self.buffer.result.copy_(result)
            self.buffer.more.copy_(more)
            self._held = None


class _Recorder(TorchDispatchMode):
    """(operator, storage, shape) of every tensor that is read and was not made by this very run."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[tuple[str, int, tuple[int, ...]]] = []
        self._made: dict[int, torch.UntypedStorage] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func)
        assert not any(word in name for word in FORBIDDEN), f"{name} waits for the device"
        for tensor in tree_leaves((args, kwargs or {})):
            if isinstance(tensor, torch.Tensor):
                place = tensor.untyped_storage().data_ptr()
                if "lift_fresh" in name and not tensor.dim():  # a number in the code
                    self._made[place] = tensor.untyped_storage()
                if place not in self._made:
                    self.reads.append((name, place, tuple(tensor.shape)))
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor) and not any(tensor is one for one in args):
                storage = tensor.untyped_storage()
                if not any(place == storage.data_ptr() for _, place, _ in self.reads):
                    self._made[storage.data_ptr()] = storage  # kept: its address must not come back
        return out


def _lasting() -> set[int]:
    """Where the tensors lie that exist now. Other objects are not asked for their class: some mind."""
    return {
        one.untyped_storage().data_ptr() for one in gc.get_objects() if issubclass(type(one), torch.Tensor)
    }


class FakeGraph:
    """Runs what was captured, and checks that it is the same."""

    def __init__(self, run: Callable[[], None], lasting: set[int]) -> None:
        self._run = run
        with _Recorder() as first:
            run()
        strange = [read for read in first.reads if read[1] and read[1] not in lasting]
        assert not strange, f"not in static memory: {strange[:3]}"
        self._reads = first.reads
        self.replays = 0

    def replay(self) -> None:
        self.replays += 1
        with _Recorder() as now:
            self._run()
        assert now.reads == self._reads, "this is not what was captured"


class HostedDevice(CpuDevice):
    """A CPU that takes steps as a GPU does, and is the `StepDevice` for them."""

    pinned = compiles = False
    captures = True
    launches = True

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self.attention_order = (PagedTorch.name,)  # type: ignore[misc]

    def steps(self) -> Any:
        return self

    def check(self) -> None: ...


class FakeDevice(HostedDevice):
    """`log` of captures; `graphs` in their order; `lateness` of its events."""

    def __init__(self, lateness: int = 3, captures: bool = True) -> None:
        super().__init__()
        self.captures = captures
        self.lateness = lateness
        self.log: list[str] = []
        self.graphs: list[FakeGraph] = []
        self.events: list[LateEvent] = []
        self.reserved = 0
        self.broken = ""
        """Why it cannot capture."""
        self.lost = ""
        """What it says of every work, once it is lost."""
        self._lasting: set[int] | None = None

    def event(self) -> LateEvent:
        self.events.append(LateEvent(self.lateness))
        return self.events[-1]

    def reserve(self, num_bytes: int) -> None:
        if self.broken:
            raise RuntimeError(self.broken)
        self.reserved = num_bytes

    def check(self) -> None:
        if self.lost:
            raise torch.AcceleratorError(self.lost)

    def capture(self, run: Callable[[], None]) -> FakeGraph:
        if self.broken:
            raise RuntimeError(self.broken)
        run()
        if self._lasting is None:
            self._lasting = _lasting()
        self.log.append("capture")
        self.graphs.append(FakeGraph(run, self._lasting))
        return self.graphs[-1]

    @property
    def replays(self) -> int:
        """Of all graphs."""
        return sum(graph.replays for graph in self.graphs)


class IdleDevice(HostedDevice):
    """Does nothing, at once: graphs that compute nothing, events that are past."""

    def __init__(self) -> None:
        super().__init__()
        self._ran = False

    class Event:
        """Past from the beginning."""

        def record(self) -> None: ...

        def query(self) -> bool:
            return True

        def synchronize(self) -> None: ...

    class Graph:
        """Of nothing."""

        def replay(self) -> None: ...

    def event(self) -> Event:
        return self.Event()

    def reserve(self, num_bytes: int) -> None: ...

    def capture(self, run: Callable[[], None]) -> Graph:
        """Only the first is run: what steps make when they need it is there then."""
        if not self._ran:
            run()
            self._ran = True
        return self.Graph()


class PagedTorch:
    """A `PackedAttention`, query by query, by what the kernels are told and nothing else. Rows that are nobody's are NaN."""

    name = "paged torch"
    note = "attention: paged torch"
    queries_per_tile = 4

    def begin(self, step: StepArrays, cache: KvCache) -> Any:
        """The host's way, for steps that are not packed."""
        return TorchAttention().begin(step, cache)

    def tiles(self, q_lens: Any, pos_offsets: Any, items: Any) -> Any:
        """As the kernels': see `query_tiles`."""
        found = [(i, b) for i in items.tolist() for b in range(0, int(q_lens[i]), self.queries_per_tile)]
        return np.array(found, np.int32).reshape(-1, 2)

    rule = PieceRule(programs=8, tile=4, least=4)
    """Small pieces: sequences of tests are short."""

    def most_pieces(self, rows: int, longest: int) -> int:
        return self.rule.most(rows, longest)

    def pieces(self, lengths: Any) -> Any:
        return self.rule.cut(lengths)

    def pieces_last(self, lengths: Any) -> int:
        return self.rule.lasts(lengths)

    tile_rule = TileRule(programs=6, tile=4, parts=3, least=4)

    def most_tile_pieces(self, tiles: int, longest: int) -> int:
        return self.tile_rule.most(tiles, longest)

    def tile_pieces(self, tiles: Any, q_lens: Any, pos_offsets: Any) -> Any:
        item, begin = tiles[:, 0], tiles[:, 1]
        return self.tile_rule.cut(pos_offsets[item] + np.minimum(begin + self.queries_per_tile, q_lens[item]))

    def reserve(self, pieces: int, tile_pieces: int, cache: KvCache) -> None:
        self.room, self.tile_room = pieces, tile_pieces

    def bind(self, meta: StepMeta, cache: KvCache) -> Any:
        assert len(meta.pieces) <= self.room, "there is no memory for so many pieces"
        assert len(meta.tile_pieces) <= self.tile_room, "there is no memory for so many pieces of tiles"

        def attend(
            layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sinks: torch.Tensor | None = None
        ) -> torch.Tensor:
            assert sinks is None
            out = torch.full_like(q, torch.nan)
            for one in (
                meta.cells,
                meta.lengths,
                meta.tables,
                meta.tiles,
                meta.pieces,
                meta.tile_pieces,
                cache.layers[layer],
            ):
                one.view(one.shape)  # where it lies is part of what is captured; what it says is not
            with _disable_current_modes():
                _paged(meta, cache, layer, (q, k, v, out), self.queries_per_tile)
            return out

        return attend


def _paged(
    meta: StepMeta, cache: KvCache, layer: int, tensors: tuple[torch.Tensor, ...], queries: int
) -> None:
    (q, k, v, out), kv, size = tensors, cache.layers[layer], cache.block_size
    for token, cell in enumerate(meta.cells.tolist()):
        if cell >= 0:
            kv[0, cell // size, :, cell % size] = k[token]
            kv[1, cell // size, :, cell % size] = v[token]

    def one(row: int, item: int, length: int) -> None:
        window = cache.spec.windows[layer]
        first = 0 if window is None else max(0, length - window)
        places = torch.arange(first, length)
        blocks = meta.tables[item, places // size].long()
        keys, values = kv.transpose(2, 3)[:, blocks, places % size].repeat_interleave(
            q.shape[1] // k.shape[1], 2
        )
        scores = torch.einsum("hd,lhd->hl", q[row], keys) * cache.spec.scale
        out[row] = torch.einsum("hl,lhd->hd", scores.softmax(-1), values)

    count = meta.num_decodes
    named = [(i, i) for i in range(count)] if meta.decodes is None else meta.decodes.tolist()
    assert len(named) == count
    # By pieces: keys that are in none are not seen, and a row without a piece is not written.
    found = dict[int, list[tuple[int, int]]]()
    firsts, counts = dict[int, int](), dict[int, int]()
    for row, first_key, end, place, first, number in meta.pieces.tolist():
        if row >= 0:
            assert place == first + len(found.setdefault(row, [])) or number > 1
            assert 0 <= place - first < number and firsts.setdefault(row, first) == first
            counts[row] = number
            found[row].append((first_key, end))
    for number, keys in found.items():
        keys.sort()
        assert len(keys) == counts[number], "the last piece of a row never comes"
        assert all(a[1] == b[0] < b[1] for a, b in pairwise(keys)) and keys[0][0] == 0, "keys left out"
        item, row = named[number]
        length = keys[-1][1]
        assert length == int(meta.lengths.tolist()[item]), "a row's pieces end before its keys"
        if length:
            one(row, item, length)
        else:
            out[row] = 0
    cut = _cut_tiles(meta)
    for tile, (item, begin) in enumerate(meta.tiles.tolist()):
        start, query, offset = (
            part.tolist()[item] for part in (meta.q_starts, meta.q_lens, meta.pos_offsets)
        )
        if begin >= query or (len(meta.tile_pieces) and tile not in cut):
            continue  # a tile without a piece is not written
        assert cut.get(tile, offset + min(begin + queries, query)) == offset + min(begin + queries, query)
        for place in range(begin, min(begin + queries, query)):
            one(start + place, item, offset + place + 1)


def _cut_tiles(meta: StepMeta) -> dict[int, int]:
    """Where the keys of each tile that has pieces end. Each piece begins where the one before it ends, has a place of its own
    among those of shared tiles, and knows how many there are."""
    found = dict[int, list[list[int]]]()
    for piece in meta.tile_pieces.tolist():
        if piece[0] >= 0:
            found.setdefault(piece[0], []).append(piece)
    places: list[int] = []
    for pieces in found.values():
        pieces.sort(key=lambda piece: piece[1])
        assert pieces[0][1] == 0 and all(a[2] == b[1] < b[2] for a, b in pairwise(pieces)), "keys left out"
        assert {piece[5] for piece in pieces} == {len(pieces)}, "the last piece of a tile never comes"
        if len(pieces) > 1:
            places += [piece[3] for piece in pieces]
            assert [piece[3] - piece[4] for piece in pieces] == list(range(len(pieces)))
    assert len(set(places)) == len(places), "two pieces write to one place"
    return {tile: pieces[-1][2] for tile, pieces in found.items()}


MAKERS[PagedTorch.name] = lambda wish: PagedTorch()


class FakeDeviceExecutor(LlmExecutor):
    """`LlmExecutor` that takes the CPU for a GPU. `device` is to be set before warmup where it matters."""

    order: tuple[str, ...] = (PagedTorch.name,)
    """Attention backends of its device."""
    memory: Any = None
    """Memory of its device's own."""

    @property
    def unified(self) -> StepPipeline:
        """What computes its steps."""
        return self._ready().unified

    @property
    def launched(self) -> LaunchedSteps:
        """What launches them."""
        found = self.unified.launched
        assert isinstance(found, LaunchedSteps)
        return found

    async def unified_decode(self, batch: UnifiedBatch) -> UnifiedOutput:
        """As the executor's. A capture on another thread would write its padding over the inputs of a step."""
        timer = self._idle._timer
        assert timer is None or timer._loop is asyncio.get_running_loop(), "captures beside steps"  # type: ignore[attr-defined]
        return await super().unified_decode(batch)

    async def warmup(self) -> None:
        self.device = self.device or FakeDevice()
        self.device.attention_order = self.order  # type: ignore[misc]
        self.device.memory = self.memory
        await super().warmup()
        companion = self._ready().companion
        drafting = [companion.forwards.queue] if isinstance(companion, DeviceDraftCompanion) else []
        for queue in (self.launched.queue, *drafting):
            for buffer in queue.ring._ring:
                if isinstance(buffer.event, LateEvent):
                    buffer.event.buffer = buffer


class FakeQwen3(FakeDeviceExecutor, Qwen3ModelExecutor):
    """The specialised one, likewise."""


class Factory(LlmFactory):
    """Named in `ExecutorConfig.executor` by tests of a child process."""

    def executor_class(self) -> type[LlmExecutor]:
        return FakeDeviceExecutor


class LateOnce(FakeDeviceExecutor):
    """Its steps end at the second look at them. With later ends the executor would look ever later: it sleeps for as long as
    steps took before, and its sleep counts as theirs."""

    async def warmup(self) -> None:
        self.device = self.device or FakeDevice(lateness=1)
        await super().warmup()


class LateOnceFactory(LlmFactory):
    """Named by parts of gpu-check that are tried on a played device."""

    def executor_class(self) -> type[LlmExecutor]:
        return LateOnce


async def begun(settings: ExecutorConfig, device: FakeDevice) -> FakeDeviceExecutor:
    """An executor on this device in its first epoch, which captures nothing beside steps: its graphs, if any, are captured."""
    executor = FakeDeviceExecutor.from_config(settings)
    executor.device = device
    await executor.warmup()
    executor._idle.stop()
    await executor.begin_epoch(1)
    while device.captures and executor.unified.capture_next():
        pass
    return executor
