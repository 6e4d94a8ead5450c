"""Captured graphs of steps: which shapes exist, when they are captured, and which one a step gets.

    decode  1, 2, 4, 8, 16, ... 256, 320, ...   items of one token each, in order, every row sampled
    mixed   16, 32, 64, ... 512, 640, ... 2048  chunks and decode steps; the last token is always padding

A step has two graphs, replayed one after the other: its forward's, and its sampler's. All shapes with as many samples share a
sampler's graph: 47 shapes of 256 sequences have 82 graphs. Where nothing comes between the two, one graph holds both.

With LoRA adapters some of these shapes exist a second time, for steps in which a row has an adapter: see `adapted_shapes`.
Padding is computed: up to 512 tokens that costs less than the calls of a step without a graph, which take the host 3.5 to 4
ms. Larger graphs are spaced more closely and take only steps that fill three quarters of them.

Small graphs are captured first. The first few, none of them for adapters, exist when the executor is ready. The others follow
one at a time while the device is idle. If it is never idle, a graph is captured between two steps once its shape has been
missed often enough, together with one or two more that have been missed: each time the steps in flight must end first. No
graph is captured within a step.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from time import monotonic
from typing import NamedTuple

import torch

from executors.contract.faults import no_device_memory
from executors.kernels.lora_tiles import most_tiles
from executors.llm.device.base import Graph, StepDevice
from executors.llm.sampling.draft_rows import draft_rows
from executors.llm.sampling.shaped_slots import TABLE_BYTES
from executors.llm.step.launched.inputs import StepShape

_log = logging.getLogger(__name__)

AT_START = 4
"""Number of graphs captured before the executor is ready."""
MISSES = 16
"""Steps without their preferred graph before it is captured between two steps. A capture takes as long as some tens of steps,
and a step launched call by call takes up to twice as long as a replayed one."""
STARVED_S = 30.0
"""Seconds until the next attempt after a capture that found no memory, doubled after each: another process may be starting."""
STARVED_TRIES = 5
"""Largest number of such attempts: a failed capture keeps some memory and computes a step without use."""
PER_STANDSTILL = 3
"""Largest number of graphs captured between two steps."""
CLOSE_TO = 512
"""Number of tokens from which a step must fill three quarters of its graph."""
LARGE_ROWS = (320, 384, 448, 512, 640, 768, 896, 1024)
"""Rows of decode graphs above 256. A graph takes the driver's memory, so there are few."""
MIXED_TOKENS = (16, 32, 64, 128, 256, 512, 640, 768, 1024, 1280, 1536, 2048)
"""Tokens of mixed steps that get a graph: common lengths of prompts and budgets."""
ADAPTED_ROWS = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 640, 768, 1024, 1280, 1536, 2048)
"""Rows of decode graphs, and tokens of mixed ones, that exist for steps with LoRA adapters as well. Above `CLOSE_TO` they are so
close that any step with a graph has one with adapters, too."""
_PADDING = 8
"""Additional tokens of a mixed graph: padding needs one, and eight give products a number of rows that suits cuBLAS."""
_CHUNKS = 32
"""Largest number of chunks in a mixed step: each has a tile of queries that is not full."""


@dataclass(frozen=True, slots=True)
class LaunchLimits:
    """Sizes for which memory is taken. `max_batch_size` and `max_tokens` of a step; `eager`: no graphs; `shaping_bytes`: largest
    size of the table of shaped slots; `max_adapters`: most LoRA adapters of a step; `max_drafts` of a sequence in a step."""

    max_batch_size: int
    max_tokens: int
    eager: bool = False
    shaping_bytes: int = TABLE_BYTES
    max_adapters: int = 0
    max_drafts: int = 0

    @property
    def max_samples(self) -> int:
        """Most rows that a step samples: one of each sequence, and those of its drafts as far as there is room for them."""
        return self.max_batch_size + self.draft_rows

    @property
    def draft_rows(self) -> int:
        """Most drafts of a step, of all sequences."""
        return draft_rows(self.max_batch_size, self.max_drafts)


@dataclass(frozen=True, slots=True)
class StepFacts:
    """Figures that decide which graph a step fits: its tokens and items, tiles of queries of its chunks, numbers of single
    tokens and of sampled items, pieces of the single tokens' keys, and whether a row has a LoRA adapter. `groups` of KV blocks
    are the same in all steps; `tile_pieces` of the tiles' keys, 0 if no tile's keys are ever cut."""

    tokens: int
    items: int
    tiles: int
    decodes: int
    samples: int
    pieces: int = 0
    adapted: bool = False
    groups: int = 1
    tile_pieces: int = 0


class Phases(NamedTuple):
    """Work of a step, to be captured or run: what computes logits, and what samples from them; None if `forward` does both."""

    forward: Callable[[], None]
    sample: Callable[[], None] | None

    def run(self) -> None:
        """Run all of it."""
        self.forward()
        if self.sample is not None:
            self.sample()


class StepGraph:
    """The graphs of a step's shape, over `DeviceProgram.inputs`: a `StepWork`."""

    captured = True

    def __init__(self, forward: Graph, sampler: Graph | None) -> None:
        """`sampler`: None if the forward's graph samples, too."""
        self._forward = forward
        self._sampler = sampler

    def forward(self, words: torch.Tensor) -> None:
        """See `StepWork`."""
        self._forward.replay()

    def sample(self, words: torch.Tensor) -> None:
        """See `StepWork`."""
        if self._sampler is not None:
            self._sampler.replay()

    def replay(self) -> None:
        """Queue the whole step."""
        self._forward.replay()
        if self._sampler is not None:
            self._sampler.replay()


Pieces = Callable[[int], int]
"""Returns the largest number of pieces of the keys of a number of sequences, or of tiles."""


def no_pieces(rows: int) -> int:
    """`Pieces` for attention that cuts keys itself."""
    return 0


def decode_shapes(max_rows: int, pieces: Pieces = no_pieces) -> list[StepShape]:
    """Return the shapes of decode steps for up to `max_rows` sequences."""
    most = min(max_rows, LARGE_ROWS[-1])
    sizes = sorted({size for size in (1, 2, 4, *range(8, 257, 8), *LARGE_ROWS) if size <= most} | {most})
    return [StepShape(size, size, size, decodes=size, pieces=pieces(size)) for size in sizes]


def mixed_shapes(
    max_rows: int, max_tokens: int, queries_per_tile: int, pieces: Pieces = no_pieces, tile_pieces: Pieces = no_pieces,
    max_drafts: int = 0,
) -> list[StepShape]:  # fmt: skip
    """Return the shapes of steps with chunks. Each has some more tokens and one more item than it accepts, for padding. With up
    to `max_drafts` of a sequence each sequence may be a chunk and have several sampled rows."""
    shapes = []
    drafts = draft_rows(max_rows, max_drafts)
    for tokens in MIXED_TOKENS:
        if tokens <= max(max_tokens, MIXED_TOKENS[0]):
            rows = min(tokens, max_rows)
            chunks = min(tokens // 2, max(_CHUNKS, min(max_rows, drafts)))
            tiles = -(-tokens // queries_per_tile) + chunks
            samples = min(tokens, max_rows + drafts)
            shape = StepShape(tokens + _PADDING, rows + 1, samples, tiles, rows, True, pieces(rows))
            shapes.append(replace(shape, tile_pieces=tile_pieces(tiles)))
    return shapes


def adapted_shapes(shapes: Sequence[StepShape], adapters: int) -> list[StepShape]:
    """Return the shapes of steps with up to so many LoRA adapters: those of `shapes` with common numbers of rows, and the largest
    decode shape. There are few, because each graph takes memory."""
    decodes = [shape for shape in shapes if not shape.listed]
    chosen = [
        shape for shape in shapes
        if shape.tokens - _PADDING * shape.listed in ADAPTED_ROWS or shape is decodes[-1]
    ]  # fmt: skip
    return [replace(shape, lora_tiles=most_tiles(shape.tokens, adapters)) for shape in chosen if adapters]


def affordable(
    shapes: Sequence[StepShape], num_bytes: Callable[[StepShape], int], most: int
) -> list[StepShape]:
    """Return the shapes without those of more than `CLOSE_TO` tokens that need over `most` bytes while they are computed.
    Graphs share memory that is unavailable for other uses."""
    return [shape for shape in shapes if shape.tokens <= CLOSE_TO + _PADDING or num_bytes(shape) <= most]


def fits(shape: StepShape, facts: StepFacts) -> bool:
    """Return whether a step can be padded to this shape and gains from it."""
    if shape.tokens > CLOSE_TO + _PADDING and 4 * facts.tokens < 3 * (shape.tokens - _PADDING * shape.listed):
        return False
    # Launches for adapters are not free, and a shape that has them has tiles for as many adapters as there may be.
    if facts.adapted != bool(shape.lora_tiles):
        return False
    # A row of padding has a piece as well, which writes its zeros.
    if facts.pieces and facts.pieces + shape.decodes - facts.decodes > shape.pieces:
        return False
    if not shape.listed:
        return not facts.tiles and facts.items <= shape.items
    return (
        facts.tokens < shape.tokens and facts.items < shape.items and facts.tiles <= shape.tiles
        and facts.decodes <= shape.decodes and facts.samples <= shape.samples and facts.tile_pieces <= shape.tile_pieces
    )  # fmt: skip


class StepGraphs:
    """The graphs of one executor. Used by the thread that computes its steps.

    `prepare(shape)` returns the work to capture for a shape, over static memory. If a capture fails, capturing ends and steps
    run without graphs, except after a lack of memory, when the capture is tried again later.
    """

    def __init__(
        self, device: StepDevice, shapes: Sequence[StepShape], prepare: Callable[[StepShape], Phases]
    ) -> None:  # fmt: skip
        self._device = device
        self._prepare = prepare
        self._graphs: dict[StepShape, StepGraph] = {}
        self._forwards: dict[StepShape, Graph] = {}
        self._samplers: dict[int, Graph] = {}
        """By the number of samples."""
        # Chunks last among shapes of one size: whoever decodes comes back every step.
        self.shapes = sorted(shapes, key=lambda shape: (shape.tokens, shape.listed, shape.lora_tiles))
        self._best_shape = lru_cache(maxsize=1024)(self._best)
        self._misses: Counter[StepShape] = Counter()
        self.failure = ""
        self._starved = 0
        self._again_at = 0.0
        self.in_step = False
        """Whether a step is being launched; set by the owner."""

    @property
    def note(self) -> str:
        """Progress of capturing, for `status()`."""
        captured = f"graphs: {len(self._graphs)} of {len(self.shapes)} captured"
        if self.failure:
            return f"{captured}; no more: {self.failure}"
        return f"{captured}; no memory for the next, retrying in {self.wait:.0f} s" if self.wait else captured

    @property
    def missing(self) -> StepShape | None:
        """Next shape to capture: the smallest few without adapters, then the smallest of all."""
        if self.failure:
            return None
        plain = [shape for shape in self.shapes if not shape.lora_tiles][:AT_START]
        return next((shape for shape in (*plain, *self.shapes) if shape not in self._graphs), None)

    @property
    def wait(self) -> float:
        """Seconds until the next capture is allowed, after a capture found no memory."""
        return max(0.0, self._again_at - monotonic()) if self._again_at else 0.0

    def find(self, facts: StepFacts) -> tuple[StepShape, StepGraph] | None:
        """Return the graph for a step: a larger one if the best is missing, None if there is no graph for it. Counts missing
        graphs."""
        best = self._best_shape(facts)
        if best is not None:
            if best in self._graphs:
                return best, self._graphs[best]
            self._misses[best] += 1
        there = (shape for shape in self.shapes if shape in self._graphs and fits(shape, facts))
        shape = next(there, None)
        return None if shape is None else (shape, self._graphs[shape])

    def forget_misses(self) -> None:
        """Count no step so far as one that missed its graph."""
        self._misses.clear()

    def settled(self, facts: StepFacts) -> bool:
        """Return whether a step has the best graph that it can have, so that `find` will return the same from now on."""
        return self._best_shape(facts) in self._graphs

    def overdue(self, facts: StepFacts) -> list[StepShape]:
        """Return the shape for a step if enough steps wanted it that it must be captured before this step, and other shapes
        that half as many steps wanted. They are captured in order until one fails."""
        best = self._best_shape(facts)
        if best is None or self._misses[best] < MISSES or best in self._graphs:
            return []
        if self.failure or self.wait:
            return []
        missed = [
            shape for shape, count in self._misses.most_common()
            if count >= MISSES // 2 and shape not in self._graphs and shape != best
        ]  # fmt: skip
        return [best, *missed[: PER_STANDSTILL - 1]]

    def _best(self, facts: StepFacts) -> StepShape | None:
        return next((shape for shape in self.shapes if fits(shape, facts)), None)

    def capture(self, shape: StepShape) -> None:
        """Capture the graphs of a shape. Raises RuntimeError within a step, because a caller that waits for the step would also
        wait for the capture, and the device's error if it is lost."""
        if self.in_step:
            raise RuntimeError("a graph cannot be captured within a step")
        try:
            phases = self._prepare(shape)
            if shape not in self._forwards:
                self._forwards[shape] = self._device.capture(phases.forward)
            if phases.sample is not None and shape.samples not in self._samplers:
                self._samplers[shape.samples] = self._device.capture(phases.sample)
            self._graphs[shape] = StepGraph(self._forwards[shape], self._samplers.get(shape.samples))
        except Exception as error:
            why = no_device_memory(error)
            if why is None:
                self._device.check()  # an earlier step's error may show here first, and no step works after it
            if why is None or self._starved == STARVED_TRIES:
                self.fail(f"capture {shape}", error)
                return
            pause = STARVED_S * 2**self._starved
            self._starved += 1
            self._again_at = monotonic() + pause
            _log.warning("no memory for a graph of %s, retrying in %d s: %s", shape, pause, why)

    def fail(self, what: str, error: Exception) -> None:
        """Stop capturing after a failure."""
        self.failure = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        _log.warning(
            "could not %s; no more graphs are captured, and kernels are launched one by one: %s",
            what,
            self.failure,
            exc_info=error,  # torch raises what ending the capture says: the cause is the error before it
        )
