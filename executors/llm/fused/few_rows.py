"""`FewRows`: the products of a decoder's layers, fused with norm, activation and residual, for steps of few tokens.

    residual | norm, qkv | (norm heads, rotate, write KV) | (attention) | residual += o
    residual | norm, gate and up, act(gate) * up | residual += down

A layer takes six launches instead of nine for one token. The two in brackets are those of `TritonForward`. For more tokens
norms and activation are launches of their own, which is faster then, and only the residual is added by the products. With weights
in e4m3 up to four tokens take six launches, and more the general kernels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from executors.kernels.triton.activation import gated
from executors.kernels.triton.few_rows import (
    DTYPES,
    MOST_NARROW_ROWS,
    MOST_ROWS,
    FewRowsWorkspace,
    added_product,
    normed_product,
)
from executors.kernels.triton.norms import rms_norm
from executors.llm.model.layers.mlp import Mlp

if TYPE_CHECKING:
    from executors.llm.model.decoder import Decoder
    from executors.llm.model.layers.layer import Layer
    from executors.llm.model.layers.norms import Norm
    from executors.llm.model.linear import Linear


def why_not(decoder: Decoder) -> str | None:
    """Return why steps of few tokens use the general kernels, None if `FewRows` computes them. The decoder is one that
    `TritonForward` computes."""
    reasons = {
        f"{str(decoder.dtype).removeprefix('torch.')}": decoder.dtype not in DTYPES,
        "norms after sublayers": any(
            layer.attn_post_norm is not None or layer.mlp_post_norm is not None for layer in decoder.layers
        ),
        "experts": any(not isinstance(layer.feed_forward, Mlp) for layer in decoder.layers),
        "weights in another form": any(
            not linear.plain and not narrow(linear) for layer in decoder.layers for linear in layer.linears
        ),
    }  # fmt: skip
    return next((reason for reason, holds in reasons.items() if holds), None)


def narrow(linear: Linear) -> bool:
    """Return whether a layer is a product with e4m3 that Triton may compute, with a scale for each row."""
    weight = linear.fp8
    return weight is not None and weight.triton and not weight.blocks and linear.rotation is None


class FewRows:
    """Fused products of a decoder that passes `why_not`. Its layers have the same shapes and share one workspace."""

    def __init__(self, decoder: Decoder) -> None:
        config = decoder.config
        self._activation = config.activation
        self._plus_one = config.family.stream.norm == "rms1"
        self._scale = config.residual_scale
        hidden = config.hidden_size
        shapes = [(hidden, config.q_size), (hidden, config.intermediate_size)]
        self._workspace = FewRowsWorkspace(shapes, decoder.device)
        kinds = {tuple(map(narrow, layer.linears)): layer for layer in reversed(decoder.layers)}
        self.kinds = tuple(kinds.values())
        """The first layer, and the first of each kind that has e4m3 in other places."""
        self.most = MOST_NARROW_ROWS if any(map(any, kinds)) else MOST_ROWS
        """Largest number of tokens."""

    def takes(self, tokens: int) -> bool:
        """Return whether a step of that many tokens is computed; for a graph, the number includes padding."""
        return 0 < tokens <= self.most

    def qkv(self, layer: Layer, residual: torch.Tensor) -> torch.Tensor:
        """Compute [T, hidden] -> queries, keys and values [T, (heads + 2 kv_heads) * head_dim] of the normed residual."""
        return self._normed(layer.attn_norm, layer.attention.qkv, residual, None)

    def add_attention(self, layer: Layer, x: torch.Tensor, residual: torch.Tensor) -> None:
        """Add the product of `o` and `x` [T, heads * head_dim] to `residual` [T, hidden]."""
        self._add(layer.attention.o, x, residual)

    def add_mlp(self, layer: Layer, residual: torch.Tensor) -> None:
        """Add the MLP's output for the normed residual to `residual` [T, hidden]."""
        gate_up, down = layer.feed_forward.linears
        self._add(down, self._normed(layer.mlp_norm, gate_up, residual, self._activation), residual)

    def _normed(
        self, norm: Norm | None, linear: Linear, x: torch.Tensor, activation: str | None
    ) -> torch.Tensor:
        assert norm is not None and linear.weight is not None
        if len(x) == 1 or linear.fp8 is not None:
            weight, scales = _operands(linear)
            return normed_product(
                x, norm.weight, norm.eps, weight, bias=linear.bias, activation=activation, plus_one=self._plus_one,
                scales=scales,
            )  # fmt: skip
        product = linear(rms_norm(x, norm.weight, norm.eps, plus_one=self._plus_one))
        return product if activation is None else gated(product, activation)

    def _add(self, linear: Linear, x: torch.Tensor, residual: torch.Tensor) -> None:
        weight, scales = _operands(linear)
        added_product(
            x, weight, residual, self._workspace, bias=linear.bias, scale=self._scale, scales=scales
        )


def _operands(linear: Linear) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the weight, and the scales of its rows if it is e4m3."""
    if linear.fp8 is not None:
        return linear.fp8.data, linear.fp8.scales
    assert linear.weight is not None
    return linear.weight, None
