"""`HostWeights`: adapters in the machine's memory, computed by Cohort's CPU kernels in the one call, or by torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F

from executors.llm.lora.loaded import LoadedLora, load_adapter
from executors.llm.lora.table import Lora
from executors.llm.model.decoder import Decoder
from executors.llm.row_loras import Product


@dataclass(frozen=True, slots=True)
class LoraRows:
    """The `KernelLoras` of a step. `of_row` int64 [T]: the number in `loaded` of each row's adapter, -1 for none."""

    of_row: torch.Tensor
    loaded: tuple[LoadedLora, ...]

    @property
    def addresses(self) -> list[int]:
        """See `KernelLoras`."""
        return [one.address for one in self.loaded]

    def subset(self, rows: np.ndarray) -> LoraRows:
        """Return the adapters of `rows`, int64, in that order."""
        return LoraRows(self.of_row.index_select(0, torch.from_numpy(rows)), self.loaded)

    def padded(self, rows: int) -> LoraRows:
        """With rows that have none behind them, `rows` in all."""
        return LoraRows(F.pad(self.of_row, (0, rows - len(self.of_row)), value=-1), self.loaded)

    def extra(self, linear: Product, x: torch.Tensor) -> torch.Tensor | None:
        """See `RowLoras`."""
        total: torch.Tensor | None = None
        for place, adapter in enumerate(self.loaded):
            parts = adapter.parts(linear)
            rows = (self.of_row == place).nonzero()[:, 0] if parts else None
            if rows is None or not len(rows):
                continue
            if total is None:
                total = torch.zeros(len(x), linear.outputs)
            own = x.index_select(0, rows).float()
            for part in parts:
                end = part.begin + part.outputs
                total[rows, part.begin : end] += part.scale * (
                    (own @ part.a.float().T) @ part.rows_of_b().float()
                )
        return total

    def add(self, linear: Product, x: torch.Tensor, out: torch.Tensor) -> None:
        """See `RowLoras`."""
        extra = self.extra(linear, x)
        if extra is not None:
            out.copy_(out.float() + extra)


class HostWeights:
    """The `LoraWeights` of a decoder on a CPU."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder

    def read(self, path: Path, digest: str, place: int) -> LoadedLora:
        """See `LoraWeights`."""
        return load_adapter(self._decoder, path, digest)

    def rows(self, places: np.ndarray, adapters: Mapping[int, Lora]) -> LoraRows:
        """See `LoraWeights`."""
        used = np.unique(places[places >= 0])
        of_row = np.where(places < 0, -1, np.searchsorted(used, places))
        loaded = tuple(cast(LoadedLora, adapters[place]) for place in used.tolist())
        return LoraRows(torch.from_numpy(of_row), loaded)
