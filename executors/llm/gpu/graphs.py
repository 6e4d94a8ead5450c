"""Captured graphs of whole steps: which shapes there are, when they are captured, and which one a step gets.

    decode  1, 2, 4, 8, 16, ... 256, 320, ...   items of one token each, in order, every row sampled
    mixed   16, 32, 64, ... 512, 640, ... 2048  chunks and decode steps; the last token is always padding

Padding is computed: up to 512 tokens that costs less than the calls of a step without a graph, which take the host 3.5 to 4 ms.
Larger graphs lie closer, and take only steps that fill three quarters of them.

Smallest first. The first few are there when the executor is ready. The others follow one at a time while nobody computes, and
where that never happens between two steps, once a shape has been missed often enough, with one or two more that have been missed:
each time the steps out have to end first. Never within a step.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from time import monotonic
from typing import Protocol

import torch

from executors.contract.memory_faults import no_device_memory
from executors.llm.gpu.inputs import Event, StepShape

_log = logging.getLogger(__name__)

AT_START = 4
"""Graphs that are captured before the executor is ready."""
MISSES = 16
"""Steps without the graph they want before one is captured between two of them: a capture takes as long as some tens of steps,
and one of those that are launched call by call up to twice as long as one that is replayed."""
STARVED_S = 30.0
"""Seconds to the next try after a capture that found no memory, twice as many after each: somebody else may be starting."""
STARVED_TRIES = 5
"""Of them, at most: a capture that fails keeps a little, and computes a step for nothing."""
PER_STANDSTILL = 3
"""Graphs that are captured between two steps, at most."""
CLOSE_TO = 512
"""Tokens from which on a step has to fill three quarters of its graph."""
LARGE_ROWS = (320, 384, 448, 512, 640, 768, 896, 1024)
"""Of steps of nothing but decodes, above 256. A graph takes the driver's memory, so there are not more."""
MIXED_TOKENS = (16, 32, 64, 128, 256, 512, 640, 768, 1024, 1280, 1536, 2048)
"""Tokens of mixed steps that get a graph: prompts and budgets like to be as long as that."""
_PADDING = 8
"""Tokens more that such a graph has: one is what padding names, eight keep rows of products where cuBLAS likes them."""
_CHUNKS = 32
"""Chunks of a mixed step, at most: each has a tile of queries that is not full."""


class Graph(Protocol):
    """Work that was recorded, over the memory that it was recorded with."""

    def replay(self) -> None:
        """Queue all of it."""


class StepDevice(Protocol):
    """What steps need of their device beside tensors."""

    pinned: bool
    """Whether host memory that it copies from and to has to be pinned to be copied beside other work."""
    captures: bool
    """Whether it has graphs."""
    compiles: bool
    """Whether kernels are compiled, or loaded, when they are first launched."""

    def event(self) -> Event:
        """A new mark."""

    def reserve(self, num_bytes: int) -> None:
        """Set so much memory aside for all that is captured: without it every larger graph takes memory of its own."""

    def capture(self, run: Callable[[], None]) -> Graph:
        """Run it once, then record it."""


class CudaDevice:
    """A `StepDevice`: torch's CUDA graphs, which share one pool of memory, for they never run at the same time."""

    pinned = True
    captures = True
    compiles = True

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()
        self._arena: torch.cuda.CUDAGraph | None = None
        """Keeps the pool, and what was reserved in it."""
        self._failed: list[torch.cuda.CUDAGraph] = []
        """Kept: the end of one would free the stream's cuBLAS workspace, whose address other graphs hold."""

    def event(self) -> Event:
        """See `StepDevice`."""
        event: Event = torch.cuda.Event()
        return event

    def reserve(self, num_bytes: int) -> None:
        """See `StepDevice`: a graph that takes it all at once and gives it back, to the pool. Later ones are cut from it."""
        device = self._stream.device

        def take(size: int) -> None:
            torch.zeros(size, dtype=torch.uint8, device=device)

        self._run(lambda: take(1024))
        self._arena = self._record(lambda: take(num_bytes))

    def capture(self, run: Callable[[], None]) -> Graph:
        """See `StepDevice`."""
        self._run(run)
        graph = self._record(run)
        try:
            # The first launch brings the graph to the device, which takes time and memory: not a client's.
            graph.replay()
            torch.cuda.current_stream(self._stream.device).synchronize()
        except BaseException:
            self._failed.append(graph)
            raise
        return graph

    def _run(self, run: Callable[[], None]) -> None:
        """Where it will be captured, which compiles and loads what is not there, and lets libraries allocate what they keep."""
        current = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(current)
        try:
            with torch.cuda.stream(self._stream):
                run()
        finally:
            # Also where it failed half-way: what is queued there reads inputs that the next step overwrites.
            current.wait_stream(self._stream)

    def _record(self, run: Callable[[], None]) -> torch.cuda.CUDAGraph:
        graph, current = torch.cuda.CUDAGraph(), torch.cuda.current_stream(self._stream.device)
        try:
            # Other threads ask the device for its memory meanwhile: that is none of the capture's business.
            with torch.cuda.graph(
                graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
            ):
                run()
        except BaseException:
            self._failed.append(graph)
            # torch 2.11 goes on allocating for a capture that cannot be ended, and gives nothing cached back meanwhile.
            with contextlib.suppress(RuntimeError):
                torch._C._cuda_endAllocateToPool(self._stream.device.index, self._pool)
            raise
        finally:
            # A capture that cannot be ended leaves its stream the current one, and steps would go there.
            torch.cuda.set_stream(current)
        return graph


@dataclass(frozen=True, slots=True)
class StepFacts:
    """What decides which graph a step fits: its tokens and items, tiles of queries of its chunks, how many of its items are
    single tokens and how many are sampled, and pieces of the single tokens' keys."""

    tokens: int
    items: int
    tiles: int
    decodes: int
    samples: int
    pieces: int = 0


Pieces = Callable[[int], int]
"""Pieces, at most, of the keys of so many sequences."""


def no_pieces(rows: int) -> int:
    """`Pieces` where attention cuts keys by itself."""
    return 0


def decode_shapes(max_rows: int, pieces: Pieces = no_pieces) -> list[StepShape]:
    """Of steps of nothing but decodes, for up to `max_rows` sequences."""
    most = min(max_rows, LARGE_ROWS[-1])
    sizes = sorted({size for size in (1, 2, 4, *range(8, 257, 8), *LARGE_ROWS) if size <= most} | {most})
    return [StepShape(size, size, size, decodes=size, pieces=pieces(size)) for size in sizes]


def mixed_shapes(
    max_rows: int, max_tokens: int, queries_per_tile: int, pieces: Pieces = no_pieces
) -> list[StepShape]:
    """Of steps with chunks in them. Each has tokens and an item more than it takes: what padding names."""
    shapes = []
    for tokens in MIXED_TOKENS:
        if tokens <= max(max_tokens, MIXED_TOKENS[0]):
            rows = min(tokens, max_rows)
            tiles = -(-tokens // queries_per_tile) + min(tokens // 2, _CHUNKS)
            shapes.append(StepShape(tokens + _PADDING, rows + 1, rows, tiles, rows, True, pieces(rows)))
    return shapes


def affordable(
    shapes: Sequence[StepShape], num_bytes: Callable[[StepShape], int], most: int
) -> list[StepShape]:
    """The shapes without those of more than `CLOSE_TO` tokens that take over `most` bytes while they are computed: graphs share
    memory, which nothing else can have."""
    return [shape for shape in shapes if shape.tokens <= CLOSE_TO + _PADDING or num_bytes(shape) <= most]


def fits(shape: StepShape, facts: StepFacts) -> bool:
    """Whether a step can be padded to this shape, and it is worth it."""
    if shape.tokens > CLOSE_TO + _PADDING and 4 * facts.tokens < 3 * (shape.tokens - _PADDING * shape.listed):
        return False
    # A row of padding has a piece as well, which writes its zeros.
    if facts.pieces and facts.pieces + shape.decodes - facts.decodes > shape.pieces:
        return False
    if not shape.listed:
        return not facts.tiles and facts.items <= shape.items
    return (
        facts.tokens < shape.tokens and facts.items < shape.items and facts.tiles <= shape.tiles
        and facts.decodes <= shape.decodes and facts.samples <= shape.samples
    )  # fmt: skip


class StepGraphs:
    """The graphs of one executor. Used by the thread that computes its steps.

    `prepare(shape)` returns what is to be captured of a shape, over static memory. A failure to capture it ends all capturing,
    and steps go on without; but for want of memory, which is tried again later.
    """

    def __init__(
        self, device: StepDevice, shapes: Sequence[StepShape], prepare: Callable[[StepShape], Callable[[], None]]
    ) -> None:  # fmt: skip
        self._device = device
        self._prepare = prepare
        self._graphs: dict[StepShape, Graph] = {}
        # Chunks last among shapes of one size: whoever decodes comes back every step.
        self.shapes = sorted(shapes, key=lambda shape: (shape.tokens, shape.listed))
        self._wanted = lru_cache(maxsize=1024)(self._best)
        self._misses: Counter[StepShape] = Counter()
        self.failure = ""
        self._starved = 0
        self._again_at = 0.0
        self.in_step = False
        """A step is being put on its way: set by its owner."""

    @property
    def note(self) -> str:
        """How far it is, for `status()`."""
        captured = f"graphs: {len(self._graphs)} of {len(self.shapes)} captured"
        if self.failure:
            return f"{captured}; no more: {self.failure}"
        return f"{captured}; no memory for the next, retrying in {self.wait:.0f} s" if self.wait else captured

    @property
    def missing(self) -> StepShape | None:
        """The smallest shape that is still to be captured."""
        if self.failure:
            return None
        return next((shape for shape in self.shapes if shape not in self._graphs), None)

    @property
    def wait(self) -> float:
        """Seconds until the next may be captured: one before it found no memory."""
        return max(0.0, self._again_at - monotonic()) if self._again_at else 0.0

    def find(self, facts: StepFacts) -> tuple[StepShape, Graph] | None:
        """The graph for a step, a larger one where the best is missing, None if it has to do without. Counts what is missing."""
        wanted = self._wanted(facts)
        if wanted is not None:
            if wanted in self._graphs:
                return wanted, self._graphs[wanted]
            self._misses[wanted] += 1
        there = (shape for shape in self.shapes if shape in self._graphs and fits(shape, facts))
        shape = next(there, None)
        return None if shape is None else (shape, self._graphs[shape])

    def settled(self, facts: StepFacts) -> bool:
        """Whether a step has the best graph that it can have: `find` will answer the same from now on."""
        return self._wanted(facts) in self._graphs

    def overdue(self, facts: StepFacts) -> list[StepShape]:
        """The shape for a step, if so many wanted it that it is to be captured before this one, and others that half as many
        wanted. They follow in order, each unless the one before it failed."""
        wanted = self._wanted(facts)
        if wanted is None or self._misses[wanted] < MISSES or wanted in self._graphs:
            return []
        if self.failure or self.wait:
            return []
        missed = [
            shape for shape, count in self._misses.most_common()
            if count >= MISSES // 2 and shape not in self._graphs and shape != wanted
        ]  # fmt: skip
        return [wanted, *missed[: PER_STANDSTILL - 1]]

    def _best(self, facts: StepFacts) -> StepShape | None:
        return next((shape for shape in self.shapes if fits(shape, facts)), None)

    def capture(self, shape: StepShape) -> None:
        """Capture one. Raises RuntimeError within a step: whoever waits for that would wait for this, too."""
        if self.in_step:
            raise RuntimeError("a graph cannot be captured within a step")
        try:
            self._graphs[shape] = self._device.capture(self._prepare(shape))
        except Exception as error:
            why = no_device_memory(error)
            if why is None or self._starved == STARVED_TRIES:
                self.fail(f"capture {shape}", error)
                return
            pause = STARVED_S * 2**self._starved
            self._starved += 1
            self._again_at = monotonic() + pause
            _log.warning("no memory for a graph of %s, retrying in %d s: %s", shape, pause, why)

    def fail(self, what: str, error: Exception) -> None:
        """Nothing more is captured, for this could not be done."""
        self.failure = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        _log.warning(
            "could not %s; no more graphs are captured, and kernels are launched one by one: %s",
            what,
            self.failure,
            exc_info=error,  # torch raises what ending the capture says: the cause is the error before it
        )
