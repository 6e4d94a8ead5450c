"""FP8 (e4m3) instead of wider floats: linear layers that multiply e4m3 by e4m3, and KV stored in e4m3.

    weights       e4m3 [rows, columns]; a scale per row, or per 128 columns of some rows (`blocks`)
    activations   quantized dynamically, a scale per token, or per 128 columns of one
    product       a scale per row: torch._scaled_mm; blocks: Cohort's own Triton kernel

A weight is its e4m3 number times its scale. On a device that does not multiply e4m3, weights are widened while they are
loaded.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

_log = logging.getLogger(__name__)

E4M3 = torch.float8_e4m3fn
LARGEST = 448.0
GROUP = 128
"""Number of rows, and of columns, that share a scale in block quantization."""
_LEAST = 1e-10


@dataclass(frozen=True, slots=True)
class Fp8Plan:
    """Which linear layers hold e4m3, and with which scales.

    `stored`: the checkpoint's names of the weights that are e4m3 in its files; None: all layers are quantized, and wider
    weights are rounded while they are loaded. `triton`: True if Triton kernels compute the products, False if torch does.
    """

    blocks: bool
    stored: frozenset[str] | None
    triton: bool


def _kernels() -> Any:
    from executors.kernels.triton import fp8

    return fp8


def quantized(x: torch.Tensor, blocks: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize `x` [rows, columns] to e4m3 [rows, columns] and scales float32 [rows, 1], or with `blocks` [rows, columns /
    128].

    The largest number that shares a scale becomes 448. `executors.kernels.triton.fp8.quantize` does the same in one pass.
    """
    rows, columns = x.shape
    width = GROUP if blocks else columns
    parts = F.pad(x.float(), (0, -columns % width)).view(rows, -1, width)
    peak = parts.abs().amax(-1).clamp_min(_LEAST)
    scaled = (parts * (LARGEST / peak)[..., None]).view(rows, -1)[:, :columns]
    return scaled.clamp(-LARGEST, LARGEST).to(E4M3), peak / LARGEST


def from_e8m0(exponents: torch.Tensor) -> torch.Tensor:
    """Return the powers of two that bytes in e8m0 are, float32; 255, which is not a number, becomes infinite."""
    bits = exponents.int()
    return torch.where(bits == 0, 1 << 22, bits << 23).view(torch.float32)  # 0 is below the normal numbers


def widened(x: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Return e4m3 `x` [rows, columns] with `scales` [rows, 1], or [rows, columns / 128], as float32."""
    if scales.shape[1] > 1:
        scales = scales.repeat_interleave(GROUP, 1)[:, : x.shape[1]]
    return x.float() * scales


_NO_KERNEL = ("CUBLAS_STATUS_NOT_SUPPORTED", "only supports per-tensor scaling")
"""Texts of errors raised before a launch if there is no kernel with scales per row. cuBLASLt raises them for some sizes
(pytorch/ao#4582 has 9,216 columns and at most 256 rows on an H100), torch before 2.13 for all sizes on a CPU. A kernel with
one scale for the whole tensor exists; the row scales are then applied to its float32 result."""
_REFUSED: set[tuple[int, int, int]] = set()
"""(rows of x, rows, columns) that the kernels have refused."""


class Fp8Weight:
    """A weight [rows, columns] of a linear layer, filled in parts. With `blocks` its scales are float32 [rows /
    rows_per_scale, columns / 128], both rounded up; else [rows, 1]."""

    __slots__ = ("_kernels", "blocks", "data", "rows_per_scale", "scales")

    def __init__(
        self, rows: int, columns: int, device: torch.device, blocks: bool, rows_per_scale: int = 1, triton: bool = False
    ) -> None:  # fmt: skip
        self._kernels = _kernels() if triton else None
        self.blocks, self.rows_per_scale = blocks, rows_per_scale
        self.data = torch.empty(rows, columns, dtype=E4M3, device=device)
        groups = -(-columns // GROUP) if blocks else 1
        self.scales = torch.empty(-(-rows // rows_per_scale), groups, dtype=torch.float32, device=device)

    @property
    def triton(self) -> bool:
        """Whether Triton kernels may compute the product."""
        return self._kernels is not None

    @property
    def num_bytes(self) -> int:
        """Bytes of memory it takes."""
        return self.data.nbytes + self.scales.nbytes

    def fill(self, source: torch.Tensor, begin: int) -> None:
        """Round rows [count, columns] of any float dtype and store them from row `begin` on. With blocks both `begin` and
        `count` are multiples of `rows_per_scale`, except at the end of a part."""
        source = source.to(self.data.device)
        count, step = len(source), self.rows_per_scale
        data, scales = quantized(source, self.blocks)
        if step > 1:
            # One scale for several rows: the largest of theirs.
            padded = F.pad(scales, (0, 0, 0, -count % step)).view(-1, step, scales.shape[1])
            scales = padded.amax(1).repeat_interleave(step, 0)[:count]
            wide = scales.repeat_interleave(GROUP, 1)[:, : source.shape[1]]
            data = (source.float() / wide).clamp(-LARGEST, LARGEST).to(E4M3)
        self.take(data, begin)
        self.take_scales(scales, begin)

    def take(self, rows: torch.Tensor, begin: int) -> None:
        """Store e4m3 rows unchanged, from row `begin` on."""
        self.data[begin : begin + len(rows)].view(torch.uint8).copy_(rows.view(torch.uint8))

    def take_scales(self, scales: torch.Tensor, begin: int) -> None:
        """Store scales [count, 1 or groups] of rows, from row `begin` on."""
        first = begin // self.rows_per_scale
        own = scales[:: self.rows_per_scale]
        self.scales[first : first + len(own)].copy_(own)

    def __call__(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """[m, columns] -> [m, rows] in the dtype of x."""
        kernels = self._kernels
        data, scales = (kernels.quantize if kernels else quantized)(x.contiguous(), self.blocks)
        if not self.blocks:
            return self._scaled_mm(data, scales, x.dtype, bias)
        if kernels:
            product: torch.Tensor = kernels.block_matmul(
                data, scales, self.data, self.scales, self.rows_per_scale, x.dtype, bias
            )
            return product
        weight = widened(self.data, self.scales.repeat_interleave(self.rows_per_scale, 0)[: len(self.data)])
        return F.linear(widened(data, scales), weight, None if bias is None else bias.float()).to(x.dtype)

    def gated(self, x: torch.Tensor, bias: torch.Tensor | None, activation: str) -> torch.Tensor | None:
        """Compute act(gate) * up [m, rows / 2] of rows that are a gate and an up projection, in one kernel; return None if
        there is no such kernel. `activation`: one of the kernels' `KINDS`."""
        if not (self.blocks and self._kernels):
            return None
        data, scales = self._kernels.quantize(x.contiguous(), True)
        product: torch.Tensor = self._kernels.block_gated(
            data, scales, self.data, self.scales, self.rows_per_scale, x.dtype, activation, bias
        )
        return product

    def _scaled_mm(
        self, data: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype, bias: torch.Tensor | None
    ) -> torch.Tensor:
        # Scales per row: the right operand has to be column-major, and the result is bf16 on a GPU (torch 2.11 has float16
        # in some builds only). Without fast accumulation: partial sums are kept in fp32.
        out_dtype = dtype if data.is_cpu else torch.bfloat16
        fused = bias is not None and bias.dtype is out_dtype is torch.bfloat16 and not data.is_cpu
        sizes = (len(data), *self.data.shape)
        if sizes not in _REFUSED:
            try:
                out = torch._scaled_mm(
                    data, self.data.t(), scale_a=scales, scale_b=self.scales.view(1, -1), bias=bias if fused else None,
                    out_dtype=out_dtype, use_fast_accum=False,
                ).to(dtype)  # fmt: skip
                return out if fused or bias is None else out + bias
            except RuntimeError as error:
                if not any(text in str(error) for text in _NO_KERNEL):
                    raise
                _REFUSED.add(sizes)
        one = torch.ones((), dtype=torch.float32, device=data.device)
        wide = torch._scaled_mm(
            data, self.data.t(), scale_a=one, scale_b=one, out_dtype=torch.float32, use_fast_accum=False
        )
        wide.mul_(scales).mul_(self.scales.view(1, -1))
        return (wide if bias is None else wide.add_(bias)).to(dtype)


def narrowed(x: torch.Tensor, scale: float) -> torch.Tensor:
    """Convert keys or values to e4m3 KV: divide by `scale` and clamp to the largest number."""
    return (x.float() / scale).clamp(-LARGEST, LARGEST).to(E4M3)
