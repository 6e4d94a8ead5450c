"""`TritonExperts`: a layer's mixture of experts by Cohort's own Triton kernels, without waiting for the device."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from executors.kernels.device_layouts import DeviceRows
from executors.kernels.triton.activation import EXPERT_KINDS
from executors.kernels.triton.experts import (
    ExpertWeights,
    add_up,
    place,
    place_directly,
    product,
    route,
)
from executors.kernels.triton.tuning import Choice, choose, kind_of
from executors.llm.lean_torch import random_numbers

if TYPE_CHECKING:
    from executors.llm.model.layers.experts import Experts

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_TRIED = tuple(2**n for n in range(15))
"""Numbers of tokens that together cover all plans."""


def choose_tile(tokens: int, top_k: int, experts: int, dtype: torch.dtype, steady: bool) -> Choice:
    """Choose the tile for a step of that many tokens. `steady`: one tile for all steps, because other tiles may use other
    instructions, which round differently. Rows within a tile do not affect each other."""
    kind, each = kind_of(dtype), tokens * top_k / experts
    few, some = choose("experts", kind, "few"), choose("experts", kind, "some")
    if not steady and each <= few.most:
        return few
    return some if steady or not some.most or each <= some.most else choose("experts", kind, "many")


class TritonExperts:
    """Replacement of an `Experts` that uses its weights."""

    def __init__(
        self, experts: Experts, gate_up: ExpertWeights, down: ExpertWeights, dtype: torch.dtype
    ) -> None:
        """`gate_up` and `down`: of all experts, gate before up; `dtype`: of activations, one of DTYPES."""
        self._experts = experts
        self._gate_up = gate_up
        self._down = down
        self._dtype = dtype

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[T, hidden] -> [T, hidden], both contiguous, in the weights' dtype."""
        return self.mix(x, self._experts.router(x)) if len(x) else torch.empty_like(x)

    def mix(self, x: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        """Compute the output for T > 0, given the router's `logits` [T, experts], contiguous."""
        tile, direct = self.plan(len(x))
        moe = self._experts.moe
        # The softmax over the chosen is that over all, divided by the sum of the chosen.
        routing = route(logits, moe.top_k, moe.normalized or moe.softmax_last)
        placing = place_directly(routing) if direct else place(routing, tile.rows)
        clamp = moe.alpha, moe.limit
        inner = product(x, self._gate_up, routing, placing, tile, self._experts.activation, clamp)
        return add_up(product(inner, self._down, routing, placing, tile, None), len(x))

    def plan(self, tokens: int) -> tuple[Choice, bool]:
        """Return the tile for a step of that many tokens, and whether each pair gets its own tile. It does as long as few
        tokens share an expert, because sorting then saves less than it costs. A single token's experts are all different."""
        moe = self._experts.moe
        tile = choose_tile(tokens, moe.top_k, moe.num_experts, self._dtype, self._experts.steady)
        return tile, tokens == 1 or tokens * moe.top_k <= moe.num_experts // 2

    def error(self) -> float:
        """Run every plan once beside the module that it replaces; return the largest relative error of a token's result,
        infinity if that is not a number. The first run compiles the kernels, which takes seconds and is cached on disk."""
        worst = 0.0
        for tokens in self._plans():
            x, logits = self._made_up(tokens)
            output, expected = self.mix(x, logits).float(), self._experts.mix(x, logits).float()
            far = (output - expected).norm(dim=-1) / expected.norm(dim=-1).clamp_min(1e-6)
            worst = max(worst, float(far.nan_to_num(torch.inf).max()))
        return worst

    def _plans(self) -> list[int]:
        """Return the smallest number of tokens of each plan."""
        return list({self.plan(tokens): tokens for tokens in reversed(_TRIED)}.values())

    def _made_up(self, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Make `x` and `logits` for `mix` with a clear choice of experts: among near-equal experts either could be chosen."""
        moe, noise = self._experts.moe, random_numbers(tokens)
        x = torch.randn(tokens, self._gate_up.columns, generator=noise)
        places = torch.rand(tokens, moe.num_experts, generator=noise).topk(moe.top_k, 1).indices
        chosen = (torch.arange(moe.top_k) / 4).expand(tokens, -1)
        logits = torch.full((tokens, moe.num_experts), -4.0).scatter_(1, places, chosen)
        dtype, device = self._dtype, self._gate_up.numbers.device
        return x.to(dtype).to(device), logits.to(dtype).to(device)


def triton_experts(experts: Experts) -> TritonExperts | None:
    """Return the kernels for these experts; None if their weights are stored in a format that the kernels do not read."""
    dtype = experts.dtype
    if experts.activation not in EXPERT_KINDS or dtype not in DTYPES:
        return None
    biases = experts.stacked_biases()
    if experts.on_device is not None:
        count = experts.moe.num_experts
        gate_up, down = (_of_rows(rows, count) for rows in experts.on_device)
    elif (stacked := experts.stacked()) is not None and stacked[0].dtype == dtype:
        gate_up, down = (ExpertWeights(numbers) for numbers in stacked)
    else:
        return None
    if biases is not None:
        gate_up, down = replace(gate_up, bias=biases[0]), replace(down, bias=biases[1])
    return TritonExperts(experts, gate_up, down, dtype)


def _of_rows(rows: DeviceRows, experts: int) -> ExpertWeights:
    """Return the weights of all experts, given their rows in MXFP4."""
    return ExpertWeights(
        rows.codes.view(experts, -1, rows.codes.shape[1]), rows.scales.view(experts, -1, rows.scales.shape[1])
    )
