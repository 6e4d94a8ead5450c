"""y = x W^T + b: packed for Cohort's CPU kernels, packed for oneDNN if those are unavailable, in FP8, as a file holds it, or
plain.

A linear layer that is packed for the kernels or holds e4m3 never stores its weight in rows of a wider dtype: the loader
passes the rows on as it reads them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from executors.kernels.cpu import (
    ACTIVATIONS,
    FIRST_STORED,
    KINDS,
    CpuKernels,
    MergedWeight,
    PackedWeight,
)
from executors.kernels.device_layouts import DeviceRows
from executors.llm.model.fp8 import Fp8Weight
from executors.llm.model.stored_weight import StoredWeight

if TYPE_CHECKING:
    from executors.llm.model.rotation import Rotation

KIND_NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}
"""Default format of a weight by its dtype: one of `KINDS`."""


@dataclass(frozen=True, slots=True)
class Packing:
    """Layout of a linear layer for the kernels. `gated`: its rows are a gate and an up projection, computed by `gated`."""

    kind: str
    gated: bool = False


@dataclass(frozen=True, slots=True)
class StoredFormat:
    """How a file holds the rows of a matrix: `kind` of STORED_KINDS, or another format that cannot be kept. `order`: which column
    of the matrix each of the stored ones is, int64 [columns]; None if they are in order."""

    kind: str
    order: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class StoredParts:
    """The parts of a linear layer that keeps the format of its file: (rows, kind of STORED_KINDS) from the first row on, and the
    order of the columns of all, see `StoredFormat`."""

    parts: tuple[tuple[int, str], ...]
    order: torch.Tensor | None = None

    @property
    def joined(self) -> list[tuple[int, str]]:
        """The parts, with neighbours of one format as one."""
        joined: list[tuple[int, str]] = []
        for rows, kind in self.parts:
            if joined and joined[-1][1] == kind:
                joined[-1] = joined[-1][0] + rows, kind
            else:
                joined.append((rows, kind))
        return joined


def padded_rows(rows: int) -> int:
    """Return how many rows a layer packed for oneDNN computes for `rows` rows: at most a third more, and an eighth more from
    33.

    oneDNN compiles a kernel for every number of rows it meets and keeps a thousand of them. Steps have any number of tokens;
    with few sizes all kernels are compiled soon and take little memory.
    """
    if rows <= 8:
        return rows
    step = 1 << max(2, rows.bit_length() - 4)
    return -(-rows // step) * step


class Linear:
    """`weight` [out, in], `bias` [out] or None: allocated here, filled by the loader.

    `packed`, `fp8` or `on_device` replaces the weight: then `weight` is a shape without memory ("meta"), or None after packing
    for oneDNN. With a `rotation`, the layer is more than that product, see `rotation.py`.
    """

    __slots__ = (
        "_onednn", "_rows", "bias", "clamp", "fp8", "on_device", "packed", "rotation", "stored", "weight",
    )  # fmt: skip

    def __init__(self, rows: int, columns: int, bias: bool, dtype: torch.dtype, device: torch.device) -> None:
        self.weight: torch.Tensor | None = torch.empty(rows, columns, dtype=dtype, device=device)
        self._rows = rows
        self.bias = torch.empty(rows, dtype=dtype, device=device) if bias else None
        self.clamp: tuple[float, float] | None = None
        """Alpha and limit, if the layer is gate and up of a clamped SwiGLU."""
        self.packed: PackedWeight | MergedWeight | None = None
        self.stored: tuple[str, ...] = ()
        """Formats of the layer's parts, if it takes rows as a file holds them quantized."""
        self.fp8: Fp8Weight | None = None
        self.on_device: StoredWeight | None = None
        """The weight as a file holds it, in the memory of a GPU."""
        self._onednn: torch.Tensor | None = None
        self.rotation: Rotation | None = None

    def __call__(self, x: torch.Tensor, extra: torch.Tensor | None = None) -> torch.Tensor:
        """[m, in] -> [m, out]; `extra`, float32 [m, out], is added."""
        return self._product(x, extra) if self.rotation is None else self._rotated(x, extra, wide=False)

    def wide(self, x: torch.Tensor, extra: torch.Tensor | None = None) -> torch.Tensor:
        """Compute the same in float32, not rounded to the dtype of x, if the layer is packed for the kernels."""
        if self.rotation is None:
            return self._product(x, extra, wide=True)
        return self._rotated(x, extra, wide=True)

    def _rotated(self, x: torch.Tensor, extra: torch.Tensor | None, wide: bool) -> torch.Tensor:
        rotation = self.rotation
        assert rotation is not None
        x = rotation.enter(x)
        if not rotation.after:
            return self._product(x, extra, wide)
        return rotation.leave(self._product(x, None, wide), extra)

    def _product(self, x: torch.Tensor, extra: torch.Tensor | None, wide: bool = False) -> torch.Tensor:
        if self.packed is not None:
            return self.packed(x, wide=wide, extra=extra)
        if extra is not None:
            return (self._product(x, None).float() + extra).to(x.dtype)
        if self.fp8 is not None:
            return self.fp8(x, self.bias)
        if self.on_device is not None:
            return self.on_device(x, self.bias)
        if self._onednn is not None:
            rows = len(x)
            if (padded := padded_rows(rows)) != rows:
                return self._compute(F.pad(x, (0, 0, 0, padded - rows)))[:rows]
            return self._compute(x)
        return F.linear(x, self.weight, self.bias)

    def gated(
        self, x: torch.Tensor, activation: str, extra: torch.Tensor | None = None
    ) -> torch.Tensor | None:
        """Compute act(gate) * up in one call; return None if the layer is not packed that way and its format has no such
        kernel. `extra`, float32 [m, out], is added to gate and up."""
        if self.turns_output:
            return None
        if self.fp8 is not None:
            return None if extra is not None else self.fp8.gated(self._entered(x), self.bias, activation)
        if self.packed is None or not self.packed.struct.form:
            return None
        return self.packed(self._entered(x), ACTIVATIONS[activation], extra=extra)

    def _entered(self, x: torch.Tensor) -> torch.Tensor:
        return x if self.rotation is None else self.rotation.enter(x)

    @property
    def turns_output(self) -> bool:
        """Whether the product is transformed before it is used, so that nothing can be fused with it."""
        return self.rotation is not None and bool(self.rotation.after)

    def _compute(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self._onednn, self.bias, "none", [], "")

    def reserve(self, kernels: CpuKernels, kind: str, gated: bool) -> None:
        """Pack the layer for `kernels` while it is loaded, see `Packing`. This frees the weight's memory, which is still
        untouched."""
        self.packed = PackedWeight(kernels, *self._give_up(), kind, gated)

    def reserve_stored(self, kernels: CpuKernels, stored: StoredParts, gated: bool) -> None:
        """Pack the layer while it is loaded, without widening what the file holds quantized."""
        joined = stored.joined
        _, columns = self._give_up()
        packed = [
            PackedWeight(kernels, rows, columns, kind, gated and len(joined) == 1) for rows, kind in joined
        ]
        self.packed = packed[0] if len(packed) == 1 else MergedWeight(packed)
        if stored.order is not None:
            self.packed.set_order(stored.order)
        self.stored = tuple(kind for _, kind in joined)

    def keep_on_device(self, stored: StoredParts, device: torch.device) -> None:
        """Keep what the file holds quantized in that format, for kernels that dequantize it as they multiply. This frees the
        weight's memory, which is still untouched."""
        _, columns = self._give_up()
        self.on_device = StoredWeight(stored.joined, columns, stored.order, device)
        self.stored = tuple(kind for _, kind in stored.joined)

    def keep_rows_on_device(self, rows: DeviceRows, kind: str) -> None:
        """Do the same with memory that is a part of a larger one; all rows are of one format."""
        self._give_up()
        self.on_device = StoredWeight.of_rows(rows)
        self.stored = (kind,)

    def hold(self, weight: Fp8Weight) -> None:
        """Use `weight`, which is filled later, instead of the layer's own weight. This frees that weight's memory, which is
        still untouched."""
        self._give_up()
        self.fp8 = weight

    def _give_up(self) -> tuple[int, int]:
        assert self.weight is not None
        rows, columns = self.weight.shape
        self.weight = torch.empty(rows, columns, dtype=self.weight.dtype, device="meta")
        return rows, columns

    @property
    def outputs(self) -> int:
        """Rows of the weight; both of a gate and an up projection are counted."""
        if self.packed is not None:
            return self.packed.rows
        if self.weight is not None:
            return len(self.weight)
        return self._rows

    @property
    def blocks(self) -> bool:
        """Whether the packed weight is of blocks as files have them, which other products multiply than other weights."""
        return self.packed is not None and self.packed.struct.kind >= FIRST_STORED

    @property
    def halves(self) -> bool:
        """Whether the packed weight is of float16."""
        return self.packed is not None and self.packed.struct.kind == KINDS["float16"]

    @property
    def plain(self) -> bool:
        """Whether the layer is a product with `weight` itself."""
        return not self.given_up and self._onednn is None and self.rotation is None

    @property
    def given_up(self) -> bool:
        """Whether the loader passes rows to `fill` instead of writing into `weight`."""
        return self.packed is not None or self.fp8 is not None or self.on_device is not None

    def fill(self, rows: torch.Tensor, begin: int) -> None:
        """Store rows [count, in] of any float dtype from row `begin` on, after `weight` was given up."""
        taker = self.packed or self.fp8
        assert taker is not None and not isinstance(taker, MergedWeight)
        taker.fill(rows, begin)

    def fill_blocks(self, rows: torch.Tensor, begin: int) -> None:
        """Store rows uint8 [count, bytes of a row] from row `begin` on, after `reserve_stored`."""
        assert self.packed is not None
        self.packed.fill_blocks(rows.numpy(), begin)

    def finish(self) -> None:
        """Finish packing. Called once all rows and the bias are loaded."""
        if self.packed is not None:
            self.packed.set_bias(self.bias)
        if self.clamp is not None and isinstance(self.packed, PackedWeight):
            self.packed.set_clamp(*self.clamp)

    def pack_onednn(self) -> None:
        """Replace the weight by oneDNN's packed form, see `can_pack_onednn`. Does nothing for a weight in FP8 or in a file's
        format."""
        if self.fp8 is not None or self.on_device is not None:
            return
        self._onednn = torch.ops.mkldnn._reorder_linear_weight(self.weight)
        self.weight = None

    @property
    def num_bytes(self) -> int:
        """Bytes of memory that the weight takes, without the bias."""
        if self.packed is not None:
            return self.packed.num_bytes
        if self.fp8 is not None:
            return self.fp8.num_bytes
        if self.on_device is not None:
            return self.on_device.num_bytes
        weight = self._onednn if self.weight is None else self.weight
        return 0 if weight is None else weight.numel() * weight.element_size()


def can_pack_onednn(dtype: torch.dtype, device: torch.device) -> bool:
    """Return True if packing for oneDNN works here and is faster: bf16 on a CPU whose oneDNN has bf16 kernels."""
    if dtype is not torch.bfloat16 or device.type != "cpu":
        return False
    try:
        if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            return False
        # A setting may limit oneDNN to less than the CPU offers, and it refuses then: try it.
        trial = Linear(32, 32, False, dtype, device)
        trial.weight = torch.zeros(32, 32, dtype=dtype)
        trial.pack_onednn()
        trial(torch.zeros(1, 32, dtype=dtype))
    except (RuntimeError, AttributeError):
        return False
    return True
