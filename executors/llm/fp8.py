"""FP8 (e4m3) in place of wider floats: linears that multiply e4m3 by e4m3, and KV that is stored so.

    weights       e4m3 [rows, columns]; a scale per row, or per 128 columns of some rows (`blocks`)
    activations   rounded as they come, a scale per token, or per 128 columns of one
    product       a scale per row: torch._scaled_mm; blocks: our own Triton kernel

A weight is its e4m3 number times its scale. Without a GPU that multiplies e4m3, weights are widened as they are loaded.
"""

from __future__ import annotations

import functools
import logging
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from executors.kernels import triton_build

if TYPE_CHECKING:
    from executors.llm.linear import Linear
    from executors.llm.models.decoder import Decoder, Layer

_log = logging.getLogger(__name__)

E4M3 = torch.float8_e4m3fn
LARGEST = 448.0
GROUP = 128
"""Rows, and columns, that share a scale where there are blocks."""
_LEAST = 1e-10
_ALIGN = 16
"""torch._scaled_mm takes multiples of this only."""
_CAPABILITY = (8, 9)
"""Of the first GPUs whose tensor cores multiply e4m3."""


@dataclass(frozen=True, slots=True)
class Fp8Plan:
    """Which linears of the layers are held in e4m3, with what scales. `stored`: the checkpoint's names of those weights that
    are e4m3 in its files; None: all, and wider weights are rounded as they are loaded. `triton`: its kernels compute, else
    torch."""

    blocks: bool
    stored: frozenset[str] | None
    triton: bool


def why_not(device: torch.device, backend: str, blocks: bool = False) -> str | None:
    """Why nothing multiplies e4m3 here, None if something does. On a CPU it is done for the sake of comparison, slowly, and
    only where an attention `backend` that stands in for a GPU's was asked for."""
    if device.type == "cpu":
        return None if backend in ("torch", "triton") else "a CPU does not multiply e4m3"
    if device.type == "cuda" and (capability := torch.cuda.get_device_capability(device)) < _CAPABILITY:
        return f"compute capability {capability[0]}.{capability[1]} does not multiply e4m3, 8.9 and later do"
    if device.type == "cuda" and blocks and (lacking := why_no_triton(device, backend)) is not None:
        return f"scales of blocks need Cohort's Triton kernels: {lacking}"
    return None


def has_triton(device: torch.device, backend: str) -> bool:
    """Whether Triton kernels compute here: on GPUs, and interpreted where they were asked for."""
    return why_no_triton(device, backend) is None


def why_no_triton(device: torch.device, backend: str) -> str | None:
    """Why Triton kernels do not compute here, None if they do."""
    if device.type != "cuda" and backend != "triton":
        return "they are for GPUs"
    return triton_build.missing() or _fault(device)


@functools.cache
def _fault(device: torch.device) -> str | None:
    """What is wrong with our kernels there; said once."""
    from executors.kernels import triton_check

    wrong = triton_check.fp8_fault(device) if triton_check.wanted(device) else None
    if wrong is not None:
        _log.warning("fp8: Cohort's Triton kernels are not used: %s", wrong)
    return wrong


def _kernels() -> Any:
    from executors.kernels.triton import fp8

    return fp8


def quantized(x: torch.Tensor, blocks: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """`x` [rows, columns] -> e4m3 [rows, columns] and scales float32 [rows, 1], or with `blocks` [rows, columns / 128]: the
    largest of what shares a scale becomes 448. What `executors.kernels.triton.fp8.quantize` does in one pass."""
    rows, columns = x.shape
    width = GROUP if blocks else columns
    parts = F.pad(x.float(), (0, -columns % width)).view(rows, -1, width)
    peak = parts.abs().amax(-1).clamp_min(_LEAST)
    scaled = (parts * (LARGEST / peak)[..., None]).view(rows, -1)[:, :columns]
    return scaled.clamp(-LARGEST, LARGEST).to(E4M3), peak / LARGEST


def widened(x: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """float32 of e4m3 `x` [rows, columns] with `scales` [rows, 1], or [rows, columns / 128]."""
    if scales.shape[1] > 1:
        scales = scales.repeat_interleave(GROUP, 1)[:, : x.shape[1]]
    return x.float() * scales


_NO_KERNEL = ("CUBLAS_STATUS_NOT_SUPPORTED", "only supports per-tensor scaling")
"""What is said, before anything is launched, where there is no kernel with scales per row: by cuBLASLt of some sizes
(pytorch/ao#4582 has 9,216 columns and at most 256 rows on an H100), by torch before 2.13 of all on a CPU. With one scale for all
there is one; ours are then applied to its float32 result."""
_REFUSED: set[tuple[int, int, int]] = set()
"""(rows of x, rows, columns) of those met."""


class Fp8Weight:
    """A weight [rows, columns] of a linear. With `blocks` its scales are float32 [rows / rows_per_scale, columns / 128], both
    rounded up; else [rows, 1]. Filled in parts."""

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
    def num_bytes(self) -> int:
        """Bytes of memory it takes."""
        return self.data.nbytes + self.scales.nbytes

    def fill(self, source: torch.Tensor, begin: int) -> None:
        """Round rows [count, columns] of any float dtype, the first of which is row `begin`. With blocks both are multiples of
        `rows_per_scale`, but at the end of a part."""
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
        """e4m3 rows as they are, the first of which is row `begin`."""
        self.data[begin : begin + len(rows)].view(torch.uint8).copy_(rows.view(torch.uint8))

    def take_scales(self, scales: torch.Tensor, begin: int) -> None:
        """Scales [count, 1 or groups] of rows, the first of which is row `begin`."""
        first = begin // self.rows_per_scale
        kept = scales[:: self.rows_per_scale]
        self.scales[first : first + len(kept)].copy_(kept)

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

    def _scaled_mm(
        self, data: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype, bias: torch.Tensor | None
    ) -> torch.Tensor:
        # Scales per row: the right operand has to be column-major, and the result is bf16 on a GPU (torch 2.11 has float16
        # in some builds only). Without fast accumulation: partial sums are kept in fp32.
        out_dtype = torch.bfloat16 if data.is_cuda else dtype
        fused = bias is not None and bias.dtype is out_dtype is torch.bfloat16 and data.is_cuda
        sizes = (len(data), *self.data.shape)
        if sizes not in _REFUSED:
            try:
                out = torch._scaled_mm(
                    data, self.data.t(), scale_a=scales, scale_b=self.scales.view(1, -1), bias=bias if fused else None,
                    out_dtype=out_dtype, use_fast_accum=False,
                ).to(dtype)  # fmt: skip
                return out if fused or bias is None else out + bias
            except RuntimeError as error:
                if not any(said in str(error) for said in _NO_KERNEL):
                    raise
                _REFUSED.add(sizes)
        one = torch.ones((), dtype=torch.float32, device=data.device)
        wide = torch._scaled_mm(
            data, self.data.t(), scale_a=one, scale_b=one, out_dtype=torch.float32, use_fast_accum=False
        )
        wide.mul_(scales).mul_(self.scales.view(1, -1))
        return (wide if bias is None else wide.add_(bias)).to(dtype)


def hold(decoder: Decoder, index: int, layer: Layer, plan: Fp8Plan) -> None:
    """Let the linears of a layer that the plan speaks of hold e4m3: they give up their memory, which nothing has touched.

    Experts and linears whose checkpoint is transposed stay wide, as do those of sizes that the products do not take.
    """
    from executors.llm.models import modules, parameters

    mlp = layer.mlp.linears if isinstance(layer.mlp, modules.Mlp) else ()
    parts: dict[Linear, list[tuple[str, parameters.Place]]] = {one: [] for one in (layer.qkv, layer.o, *mlp)}
    for name, place in parameters.of_layer(decoder, index, layer):
        if place.linear in parts:
            parts[place.linear].append((name, place))
    for linear, named in parts.items():
        assert linear.weight is not None
        fits = plan.blocks or not any(size % _ALIGN for size in linear.weight.shape)
        there = plan.stored is None or all(name in plan.stored for name, _ in named)
        if fits and there and not any(place.turned for _, place in named):
            # Where a merged linear's parts begin within a block, a scale covers as many rows as divide all their beginnings.
            step = math.gcd(GROUP, *(place.begin for _, place in named)) if plan.blocks else 1
            rows, columns = linear.weight.shape
            linear.hold(Fp8Weight(rows, columns, decoder.device, plan.blocks, step, plan.triton))


def narrowed(x: torch.Tensor, scale: float) -> torch.Tensor:
    """Keys or values as e4m3 KV holds them: divided by `scale`, too large ones as the largest number."""
    return (x.float() / scale).clamp(-LARGEST, LARGEST).to(E4M3)
