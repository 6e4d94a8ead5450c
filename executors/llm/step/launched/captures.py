"""`StepCaptures`: when graphs of launched steps are captured, and which kernels are compiled before the first step.

start         memory for graphs is reserved, kernels of all padded sizes are compiled, the smallest few graphs are captured
at rest       one more graph at a time
between two steps, where many steps missed their graph: see `graphs.py`, which also says which graph a step gets
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

import torch

from executors.contract import ProgressCallback
from executors.contract.faults import no_device_memory, no_memory
from executors.llm.attention.packed import PackedAttention
from executors.llm.device.base import StepDevice
from executors.llm.step.launched.graphs import (
    AT_START,
    LaunchLimits,
    StepGraphs,
    adapted_shapes,
    decode_shapes,
    mixed_shapes,
)
from executors.llm.step.launched.inputs import StepShape
from executors.llm.step.launched.program import DeviceProgram

_log = logging.getLogger(__name__)


class StepCaptures:
    """See the module. `graphs` is None where none are captured."""

    def __init__(
        self, program: DeviceProgram, device: StepDevice, limits: LaunchLimits, max_model_len: int, report: ProgressCallback,
        drain: Callable[[], None],
    ) -> None:  # fmt: skip
        """`report` receives the progress of captures; `drain` waits for all steps in flight."""
        self._program = program
        self._device = device
        self._max_batch_size, self._max_tokens = limits.max_batch_size, limits.max_tokens
        self._max_drafts = limits.max_drafts
        self._max_model_len = max_model_len
        self._report = report
        self._drain = drain
        self._groups = len(program.tables)
        self._graph_adapters = limits.max_adapters
        """Most LoRA adapters of a step with a graph."""
        self.graphs = self._make_graphs(limits.eager)

    def _make_graphs(self, eager: bool) -> StepGraphs | None:
        packed = self._program.packed
        if eager or packed is None or not self._device.captures:
            return None
        return StepGraphs(self._device, self._padded_shapes(packed), self._program.captured)

    def _padded_shapes(self, packed: PackedAttention) -> list[StepShape]:
        rows, pieces = self._max_batch_size, self.most_pieces
        mixed = mixed_shapes(
            rows, self._max_tokens, packed.queries_per_tile, pieces, self.most_tile_pieces, self._max_drafts
        )
        shapes = [*decode_shapes(rows, pieces), *mixed]
        shapes += adapted_shapes(shapes, self._graph_adapters)
        return [replace(shape, groups=self._groups) for shape in shapes]

    def most_pieces(self, rows: int) -> int:
        """Return the most pieces of keys of a step of `rows` decodes."""
        packed = self._program.packed
        return 0 if packed is None else packed.most_pieces(rows, self._max_model_len)

    def most_tile_pieces(self, tiles: int) -> int:
        """Return the most pieces of keys of that many tiles of queries."""
        packed = self._program.packed
        return 0 if packed is None else packed.most_tile_pieces(tiles, self._max_model_len)

    def reserve(self, num_bytes: int) -> None:
        """Reserve memory for graphs. If that memory is unavailable, the start fails; if the device cannot capture, there are
        no graphs."""
        if self.graphs is not None:
            try:
                self._device.reserve(num_bytes)
            except Exception as error:
                if no_memory(error) is not None:
                    raise
                self._device.check()
                self.graphs.fail("reserve memory for graphs", error)

    def first(self, compiled: bool) -> bool:
        """See `Launch`. Captures the smallest few graphs and compiles all remaining kernels before the first step."""
        if self._device.compiles and not compiled:
            compiled = self._compile()
        for _ in range(AT_START):
            if not self.wait:
                self.next()
        return compiled

    @torch.inference_mode()
    def _compile(self) -> bool:
        """Run padding steps of all padded sizes, and return whether all have run. Otherwise the first step that launches a kernel
        compiles it, which takes seconds for several kernels."""
        packed = self._program.packed
        if packed is None:
            return True
        shapes = [*self._small_shapes(), *self._padded_shapes(packed)]
        for number, shape in enumerate(shapes):
            self._report("kernels", number, len(shapes))
            try:
                self._program.captured(shape).run()
            except Exception as error:
                why = no_device_memory(error)
                if why is None:
                    raise
                # Steps are made smaller, too, until they fit.
                _log.warning("kernels for steps of %d tokens are not compiled yet: %s", shape.tokens, why)
                self._report("kernels", len(shapes), len(shapes))
                return False
        self._report("kernels", len(shapes), len(shapes))
        return True

    def _small_shapes(self) -> list[StepShape]:
        """Steps of one token, and of one prompt beside one decode, without a graph."""
        pieces = min(1, self.most_pieces(1))
        alone = [StepShape(1, 1, 1, decodes=1, pieces=pieces), StepShape(4, 3, 1, 1, 1, True, pieces)]
        alone += [replace(one, lora_tiles=1) for one in alone if self._graph_adapters]
        return [replace(one, groups=self._groups) for one in alone]

    @torch.inference_mode()
    def rehearse(self) -> None:
        """Run padding steps of few sizes, whose kernels are those of nearly all sizes: the small ones, and of each kind that has
        graphs the first, the second, the one in the middle and the last. Called in a rehearsal of `Rehearsals`."""
        packed = self._program.packed
        if packed is None:
            return
        kinds: dict[tuple[bool, bool], list[StepShape]] = {}
        for shape in self._padded_shapes(packed):
            kinds.setdefault((shape.listed, bool(shape.lora_tiles)), []).append(shape)
        few = [
            of_kind[n]
            for of_kind in kinds.values()
            for n in sorted({0, min(1, len(of_kind) - 1), len(of_kind) // 2, len(of_kind) - 1})
        ]
        for shape in (*self._small_shapes(), *few):
            self._program.captured(shape).run()

    def next(self) -> bool:
        """See `Launch`. Captures the smallest missing graph."""
        shape = self.graphs.missing if self.graphs is not None else None
        if shape is not None:
            self.capture(shape)
        return shape is not None

    @property
    def wait(self) -> float:
        """See `Launch`."""
        return 0.0 if self.graphs is None else self.graphs.wait

    @property
    def next_tokens(self) -> int:
        """Tokens of the graph that `next` captures; 0 if none is left."""
        missing = None if self.graphs is None else self.graphs.missing
        return 0 if missing is None else missing.tokens

    @property
    def has_more(self) -> bool:
        """See `Launch`."""
        return self.graphs is not None and self.graphs.missing is not None

    def capture(self, shape: StepShape) -> None:
        """Capture a graph of that shape between two steps."""
        assert self.graphs is not None
        self._drain()
        stage = f"CUDA graph for {shape.tokens} {'mixed tokens' if shape.listed else 'sequences'}"
        self._report(stage, 0, 1)
        self.graphs.capture(shape)
        self._report(stage, 1, 1)

    def without_adapters(self) -> None:
        """Capture none for steps with LoRA adapters."""
        self._graph_adapters = 0
        if self.graphs is not None:
            self.graphs.shapes = [shape for shape in self.graphs.shapes if not shape.lora_tiles]
