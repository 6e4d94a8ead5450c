"""`DeviceWeights`: adapters in a device's memory, computed by Cohort's Triton kernels, or by torch where those cannot be used.

    weights   [places, numbers]              an adapter's A and B of all matrices, which begin at the same numbers at each place
    ranks     int32 [places, matrices * 4]   of each part of a matrix, 0 where the adapter leaves it as it is
    scales    float32, likewise

All of it is allocated at the start, for as many adapters of the highest rank as there may be: KV is sized beside it, and captured
graphs find it where it was. Which adapter is at which place is the table's business (`table.py`); a step names places alone. An
adapter is copied to a place that no step uses, on a stream of its own, while steps run on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from executors.contract.errors import ConfigError
from executors.kernels.lora_tiles import MOST_PARTS, PART_WORDS, LoraMatrix, LoraTiles, in_tiles, tile_rows
from executors.llm.device.table import device_of
from executors.llm.lora.loaded import LoadedLora, load_adapter
from executors.llm.lora.table import Lora
from executors.llm.model.decoder import Decoder
from executors.llm.row_loras import Product

Add = Callable[[LoraMatrix, LoraTiles, torch.Tensor, torch.Tensor], None]
"""Adds what adapters add to the rows of a product: (matrix, tiles, x, out), as `triton.lora.add_lora`."""
_ALIGN = 64
"""Numbers: each matrix begins at a multiple of 128 bytes or more."""


@dataclass(frozen=True, slots=True)
class DeviceLora:
    """An adapter at its place."""

    rank: int
    num_bytes: int


class DeviceWeights:
    """The `LoraWeights` of a decoder on a device."""

    def __init__(
        self, decoder: Decoder, places: int, max_rank: int, add: Add | None = None, why: str = ""
    ) -> None:
        """`add` computes; without it torch does, and `why` says why. Raises OutOfMemory, or torch's error for it."""
        self._decoder = decoder
        self._add = add or add_by_torch
        self._why = why
        self.max_rank = max_rank
        linears = [linear for layer in decoder.layers for linear in layer.adapted_linears()]
        shapes = _shapes(decoder)
        self._stride, at = 0, []
        for shape in (shapes[id(linear)] for linear in linears):
            at.append(self._stride)
            numbers = max_rank * (len(shape.begins) * shape.inputs + shape.outputs)
            self._stride += -(-numbers // _ALIGN) * _ALIGN
        device, words = decoder.device, PART_WORDS * len(linears)
        self._weights = torch.zeros(places, self._stride, dtype=decoder.dtype, device=device)
        self._ranks = torch.zeros(places, words, dtype=torch.int32, device=device)
        self._scales = torch.zeros(places, words, dtype=torch.float32, device=device)
        self._copies = device_of(device).copies()
        self._linears = linears
        self._matrices = {
            id(linear): self._matrix(number, begin, shapes[id(linear)])
            for number, (begin, linear) in enumerate(zip(at, linears, strict=True))
        }

    def _matrix(self, number: int, at: int, shape: _Shape) -> LoraMatrix:
        flat, inputs = self._weights.view(-1), shape.inputs
        ranks, scales = (table.view(-1)[PART_WORDS * number :] for table in (self._ranks, self._scales))
        return LoraMatrix(
            flat[at:], flat[at + len(shape.begins) * self.max_rank * inputs :], ranks, scales, self._stride,
            self._ranks.shape[1], self.max_rank, inputs, shape.outputs, shape.begins,
        )  # fmt: skip

    @property
    def by_torch(self) -> bool:
        """Whether torch computes: some launches for each part of each matrix at each place, whether or not a row uses it."""
        return self._add is add_by_torch

    @property
    def note(self) -> str:
        """For `status()`."""
        if self.by_torch:
            return f"adapters: torch, which is slower than Cohort's kernels: {self._why}"
        return "adapters: cohort-triton"

    def use_torch(self, why: str) -> None:
        """Compute by torch from now on. Called before the first step."""
        self._add, self._why = add_by_torch, why

    @property
    def num_bytes(self) -> int:
        """Bytes of memory of all places."""
        return self._weights.nbytes + self._ranks.nbytes + self._scales.nbytes

    # -- adapters --------------------------------------------------------------------------------------------------------

    def read(self, path: Path, digest: str, place: int) -> DeviceLora:
        """See `LoraWeights`. Raises ConfigError also for a rank above the highest."""
        lora = load_adapter(self._decoder, path, digest, grouped=False)
        if lora.rank > self.max_rank:
            raise ConfigError(f"{path.name}: rank {lora.rank}; max_lora_rank is {self.max_rank}")
        self._copy(lora, place)
        return DeviceLora(lora.rank, lora.num_bytes)

    def blank(self, place: int) -> DeviceLora:
        """Make an adapter of the highest rank at a place, which changes nothing and costs what others cost."""
        self._ranks[place].fill_(self.max_rank)
        self._scales[place].zero_()
        return DeviceLora(self.max_rank, self._stride * self._weights.itemsize)

    def _copy(self, lora: LoadedLora, place: int) -> None:
        """Copy an adapter to its place, and wait until it is there."""
        ranks = torch.zeros(self._ranks.shape[1], dtype=torch.int32)
        scales = torch.zeros(self._scales.shape[1])
        with self._copies:
            for number, linear in enumerate(self._linears):
                matrix = self._matrices[id(linear)]
                for part in lora.parts(linear):
                    which, rank = matrix.begins.index(part.begin), len(part.a)
                    of_a, of_b = part_of(matrix, place, which)
                    of_a[:rank].copy_(part.a)
                    of_b[:rank].copy_(part.rows_of_b())
                    ranks[PART_WORDS * number + which] = rank
                    scales[PART_WORDS * number + which] = part.scale
            self._ranks[place].copy_(ranks)
            self._scales[place].copy_(scales)

    # -- rows ------------------------------------------------------------------------------------------------------------

    def rows(self, places: np.ndarray, adapters: Mapping[int, Lora]) -> HostRows:
        """See `LoraWeights`."""
        return HostRows(self, places)

    def bind(self, tiles: LoraTiles) -> DeviceRows:
        """Return the adapters of rows that are described on the device."""
        return DeviceRows(self, tiles)

    def matrix(self, linear: Product) -> LoraMatrix:
        """Return the adapters' weights of a linear layer that they may change."""
        return self._matrices[id(linear)]

    def serves(self, linear: Product) -> bool:
        """Return whether adapters may change a linear layer."""
        return id(linear) in self._matrices

    def add(self, linear: Product, tiles: LoraTiles, x: torch.Tensor, out: torch.Tensor) -> None:
        """Add to the result of a linear layer, if adapters may change it."""
        if self.serves(linear):
            self._add(self._matrices[id(linear)], tiles, x.contiguous(), out)


class DeviceRows:
    """The `RowLoras` of a step whose rows are described on the device."""

    def __init__(self, weights: DeviceWeights, tiles: LoraTiles) -> None:
        self._weights = weights
        self._tiles = tiles

    def extra(self, linear: Product, x: torch.Tensor) -> torch.Tensor | None:
        """See `RowLoras`."""
        if not self._weights.serves(linear):
            return None
        total = torch.zeros(len(x), linear.outputs, dtype=torch.float32, device=x.device)
        self._weights.add(linear, self._tiles, x, total)
        return total

    def add(self, linear: Product, x: torch.Tensor, out: torch.Tensor) -> None:
        """See `RowLoras`."""
        self._weights.add(linear, self._tiles, x, out)

    def padded(self, rows: int) -> DeviceRows:
        """See `RowLoras`. Rows that no tile names have none."""
        return self


class HostRows(DeviceRows):
    """The `StepLoras` of a step: one copy to the device."""

    def __init__(self, weights: DeviceWeights, places: np.ndarray) -> None:
        """`places` int64 [T] of the rows' adapters, -1 for none."""
        size = tile_rows(len(places))
        rows, owners = in_tiles(places, size)
        packed = torch.from_numpy(np.concatenate((rows, owners))).to(weights._weights.device)
        super().__init__(weights, LoraTiles(packed[: len(rows)], packed[len(rows) :], size))
        self._places = places

    def subset(self, rows: np.ndarray) -> HostRows:
        """See `StepLoras`."""
        return HostRows(self._weights, self._places[rows])


def add_by_torch(matrix: LoraMatrix, tiles: LoraTiles, x: torch.Tensor, out: torch.Tensor) -> None:
    """Add what adapters add, without waiting for the device: each adapter is computed for all rows, and counts for its own."""
    rows = tiles.rows.long()
    # Behind the last row there is one for places of tiles without a row.
    owner = torch.full((len(x) + 1,), -1, dtype=torch.int32, device=x.device)
    owner.index_copy_(0, torch.where(rows < 0, len(x), rows), tiles.owners.repeat_interleave(tiles.tile_rows))
    wide, order = x.float(), torch.arange(matrix.most, device=x.device)
    total = torch.zeros(out.shape, dtype=torch.float32, device=x.device)
    for place in range(-(-matrix.a.numel() // matrix.stride)):
        own = (owner[:-1] == place)[:, None]
        for which, (begin, end) in enumerate(zip(matrix.begins, matrix.ends, strict=True)):
            word = place * matrix.words + which
            of_a, of_b = part_of(matrix, place, which)
            sums = torch.where(order < matrix.ranks[word], wide @ of_a.float().T, 0.0)
            added = matrix.scales[word] * (sums @ of_b.float())
            total[:, begin:end] += torch.where(own, added, 0.0)
    out.copy_(out.float() + total)


def of_place(matrix: LoraMatrix, place: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a matrix's ranks int32 and scales float32 at a place, [PART_WORDS] each."""
    begin = place * matrix.words
    return matrix.ranks[begin : begin + PART_WORDS], matrix.scales[begin : begin + PART_WORDS]


def part_of(matrix: LoraMatrix, place: int, which: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return A [most, inputs] and B transposed [most, outputs] of a part at a place."""
    begin, end = matrix.begins[which], matrix.ends[which]
    most, inputs = matrix.most, matrix.inputs
    a = matrix.a[place * matrix.stride + which * most * inputs :][: most * inputs]
    b = matrix.b[place * matrix.stride + most * begin :][: most * (end - begin)]
    return a.view(most, inputs), b.view(most, end - begin)


@dataclass(frozen=True, slots=True)
class _Shape:
    """Shape of a merged matrix: its columns, its rows, and the first row of each part."""

    inputs: int
    outputs: int
    begins: tuple[int, ...]


def _shapes(decoder: Decoder) -> dict[int, _Shape]:
    """Shapes of the matrices that adapters may change, by the linear layer's id."""
    served = {id(linear) for layer in decoder.layers for linear in layer.adapted_linears()}
    parts: dict[int, dict[int, tuple[int, int]]] = {}
    for place in decoder.places().values():
        if place.linear is not None and id(place.linear) in served:
            rows, columns = place.tensor.T.shape if place.turned else place.tensor.shape
            parts.setdefault(id(place.linear), {})[place.begin] = rows, columns
    shapes = {}
    for linear, sizes in parts.items():
        begins = tuple(sorted(sizes))
        if begins[0] or len(begins) > MOST_PARTS:
            raise RuntimeError(f"parts that begin at {begins}: the kernel takes {MOST_PARTS}, the first at 0")
        shapes[linear] = _Shape(sizes[0][1], begins[-1] + sizes[begins[-1]][0], begins)
    return shapes
