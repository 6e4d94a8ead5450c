"""Layers that carry a state from token to token, on CPUs: what `scan.h` gets, and its functions for one layer.

`StateStep` describes a step's items and the slots of their states, once for all layers. `DeltaKernel` and `ConvolutionKernel`
hold what one layer has beside its projections.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from executors.kernels.cpu import DTYPES, I64, POINTER, CpuKernels

MAX_KERNEL, MAX_KEY_SIZE = 16, 256
"""Largest kernel of a convolution and largest key: those of scan.h."""
_RUN = 64
"""Channels of a unit of work: `CHANNELS` of scan.h."""


class StateStepStruct(ctypes.Structure):
    """`StateStep` of scan.h."""

    _fields_ = [("num_items", I64), ("num_inner", I64), ("items", POINTER), ("inner", POINTER)]


class SlotsStruct(ctypes.Structure):
    """`Slots` of scan.h."""

    _fields_ = [("memory", POINTER), ("size", I64)]


class ConvolutionStruct(ctypes.Structure):
    """`Convolution` of scan.h."""

    _fields_ = [("kernel", I64), ("channels", I64), ("taps", POINTER), ("bias", POINTER)]


class DeltaStruct(ctypes.Structure):
    """`Delta` of scan.h."""

    _fields_ = [
        ("convolution", ConvolutionStruct),
        *((name, I64) for name in ("num_runs", "num_keys", "heads", "key_size", "value_size")),
        *((name, POINTER) for name in ("runs", "keys", "places", "speeds", "dt_bias", "norm")), ("eps", ctypes.c_float),
    ]  # fmt: skip


class LayerSlots:
    """The states of all layers that have some, float32 [slots, *shape] each; those of a slot are contiguous."""

    def __init__(self, layers: Sequence[torch.Tensor]) -> None:
        self._layers = tuple(layers)
        self.structs = (SlotsStruct * len(layers))(
            *(SlotsStruct(layer.data_ptr(), layer.stride(0)) for layer in layers)
        )
        self.address = ctypes.addressof(self.structs)

    def of(self, layer: int) -> int:
        """Return the address of a layer's `Slots`."""
        return ctypes.addressof(self.structs[layer])


class StateStep:
    """A step's n items, and where their states lie."""

    def __init__(
        self, layers: LayerSlots, q_lens: Sequence[int], sources: np.ndarray, destinations: np.ndarray,
        inner: Sequence[tuple[int, int]], inner_slots: np.ndarray,
    ) -> None:  # fmt: skip
        """`q_lens`: rows of each item, at least 1, one item after the other. `sources` int64 [n] (-1: zeros), `destinations`
        int64 [n]: slots before and behind the items. `inner`: m pairs of an item and a count of its rows, behind which
        `inner_slots` int64 [m] take the state. A slot that is written is no other item's source."""
        self.layers = layers
        lengths = np.asarray(q_lens, np.int64)
        # The longest first: threads that take what is left at the end take little.
        order = np.argsort(-lengths, kind="stable")
        rows = np.cumsum(lengths) - lengths
        self._items = np.ascontiguousarray(
            np.stack((rows, lengths, sources, destinations), 1)[order], np.int64
        )
        self._inner = np.empty((0, 3), np.int64)
        if len(inner):
            items, counts = np.array(inner, np.int64).T
            places = np.stack((np.argsort(order)[items], counts, inner_slots), 1)
            self._inner = np.ascontiguousarray(places[np.lexsort((places[:, 1], places[:, 0]))], np.int64)
        self.struct = StateStepStruct(
            len(self._items), len(self._inner), self._items.ctypes.data, self._inner.ctypes.data
        )
        self.address = ctypes.addressof(self.struct)


class ConvolutionKernel:
    """A causal convolution between two gates."""

    def __init__(self, kernels: CpuKernels, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        """`weight` [channels, kernel], `bias` [channels]."""
        self._call = kernels.short_convolution
        self._taps = weight.float().T.contiguous()
        self._bias = None if bias is None else bias.float().contiguous()
        kernel, self._channels = self._taps.shape
        self.struct = ConvolutionStruct(
            kernel,
            self._channels,
            self._taps.data_ptr(),
            None if self._bias is None else self._bias.data_ptr(),
        )

    def __call__(self, x: torch.Tensor, step: StateStep, layer: int, dtype: torch.dtype) -> torch.Tensor:
        """Return c * convolution(b * u) [T, channels] of `dtype`, of x = (b, c, u), float32 [T, 3 * channels]. Move the states
        of the layer with this number among those of the step, [kernel - 1, channels] each."""
        out = torch.empty((len(x), self._channels), dtype=dtype if dtype in DTYPES else torch.float32)
        self._call(
            ctypes.addressof(self.struct), step.address, step.layers.of(layer), x.data_ptr(), x.stride(0),
            DTYPES[out.dtype], out.data_ptr(), torch.get_num_threads(),
        )  # fmt: skip
        return out.to(dtype)


@dataclass(frozen=True, slots=True)
class DeltaPlaces:
    """Where a row of the projection [columns] has a layer's parts, and a row of rates [2 * heads] its own.

    `runs`: (channel, column, count) of neighbouring channels of the convolution. `keys`: columns of the query and the key of
    each key head. `heads`: columns of query, key, value and gate of each value head, then of b and a in the rates.
    """

    runs: Sequence[tuple[int, int, int]]
    keys: Sequence[tuple[int, int]]
    heads: Sequence[tuple[int, int, int, int, int, int]]


class DeltaKernel:
    """The gated delta rule with its convolution and its gated norm: all of a layer between two projections."""

    def __init__(
        self, kernels: CpuKernels, places: DeltaPlaces, key_size: int, value_size: int, weight: torch.Tensor, a_log: torch.Tensor,
        dt_bias: torch.Tensor, norm: torch.Tensor, eps: float,
    ) -> None:  # fmt: skip
        """`weight` [channels, kernel]; `a_log`, `dt_bias` [heads]; `norm` [value size]."""
        self._call = kernels.delta
        self._taps = weight.float().T.contiguous()
        self._floats = [a_log.float().exp(), dt_bias.float().contiguous(), norm.float().contiguous()]
        runs = [
            (channel + at, column + at, min(_RUN, count - at))
            for channel, column, count in places.runs
            for at in range(0, count, _RUN)
        ]
        self._tables = [np.array(table, np.int64) for table in (runs, places.keys, places.heads)]
        self._columns = len(places.heads) * value_size
        kernel, channels = self._taps.shape
        self.struct = DeltaStruct(
            ConvolutionStruct(kernel, channels, self._taps.data_ptr(), None),
            len(runs), len(places.keys), len(places.heads), key_size, value_size,
            *(table.ctypes.data for table in self._tables), *(one.data_ptr() for one in self._floats), eps,
        )  # fmt: skip

    def __call__(
        self, x: torch.Tensor, rates: torch.Tensor, step: StateStep, layer: int, dtype: torch.dtype
    ) -> torch.Tensor:
        """Return [T, heads * value size] of `dtype`; x float32 [T, columns] and rates float32 [T, 2 * heads] are overwritten.
        Move the states of the layer with this number among those of the step: of each (kernel - 1) * channels inputs of the
        convolution, then [heads, key size, value size]."""
        out = torch.empty((len(x), self._columns), dtype=dtype if dtype in DTYPES else torch.float32)
        self._call(
            ctypes.addressof(self.struct), step.address, step.layers.of(layer), x.data_ptr(), x.stride(0), rates.data_ptr(),
            len(x), DTYPES[out.dtype], out.data_ptr(), torch.get_num_threads(),
        )  # fmt: skip
        return out.to(dtype)
