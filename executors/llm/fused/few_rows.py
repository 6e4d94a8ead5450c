"""`FewRows`: the products of a decoder's layers with norm, activation and residual in them, for steps of few tokens.

residual | norm, qkv | (norm heads, rotate, write KV) | (attention) | residual += o
residual | norm, gate and up, act(gate) * up | residual += down

Six launches of a layer in place of nine, the two in brackets being `TritonForward`'s own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from executors.kernels.triton.few_rows import (
    DTYPES,
    MOST_ROWS,
    FewRowsWorkspace,
    added_product,
    normed_product,
)
from executors.llm.model.modules import Mlp

if TYPE_CHECKING:
    from executors.llm.model.decoder import Decoder
    from executors.llm.model.layer import Layer
    from executors.llm.model.linear import Linear
    from executors.llm.model.modules import Norm


def why_not(decoder: Decoder) -> str | None:
    """Why steps of few tokens are computed as others are, None if `FewRows` computes them. Of a decoder that `TritonForward`
    computes."""
    reasons = {
        f"{str(decoder.dtype).removeprefix('torch.')}": decoder.dtype not in DTYPES,
        "norms behind sublayers": any(
            layer.attn_post_norm is not None or layer.mlp_post_norm is not None for layer in decoder.layers
        ),
        "experts": any(not isinstance(layer.mlp, Mlp) for layer in decoder.layers),
        "weights in another form": any(
            not linear.plain for layer in decoder.layers for linear in (layer.qkv, layer.o, *layer.mlp.linears)
        ),
    }  # fmt: skip
    return next((reason for reason, holds in reasons.items() if holds), None)


class FewRows:
    """Of a decoder that `why_not` has nothing against. Its layers are alike in shape, and so share one workspace."""

    def __init__(self, decoder: Decoder) -> None:
        config = decoder.config
        self._activation = config.activation
        self._plus_one = config.family.norm == "rms1"
        self._scale = config.residual_scale
        hidden = config.hidden_size
        shapes = [(hidden, config.q_size), (hidden, config.intermediate_size)]
        self._workspace = FewRowsWorkspace(shapes, decoder.device)

    def takes(self, tokens: int) -> bool:
        """Whether it computes a step of so many tokens: a graph's are those that it is padded to."""
        return 0 < tokens <= MOST_ROWS

    def qkv(self, layer: Layer, residual: torch.Tensor) -> torch.Tensor:
        """[T, hidden] -> queries, keys and values [T, (heads + 2 kv_heads) * head_dim] of its norm."""
        return self._normed(layer.attn_norm, layer.qkv, residual, None)

    def add_attention(self, layer: Layer, x: torch.Tensor, residual: torch.Tensor) -> None:
        """Add to `residual` [T, hidden] what `o` makes of `x` [T, heads * head_dim]."""
        self._add(layer.o, x, residual)

    def add_mlp(self, layer: Layer, residual: torch.Tensor) -> None:
        """Add to `residual` [T, hidden] what the MLP makes of its norm."""
        gate_up, down = layer.mlp.linears
        self._add(down, self._normed(layer.mlp_norm, gate_up, residual, self._activation), residual)

    def _normed(
        self, norm: Norm | None, linear: Linear, x: torch.Tensor, activation: str | None
    ) -> torch.Tensor:
        assert norm is not None and linear.weight is not None
        return normed_product(
            x, norm.weight, norm.eps, linear.weight, bias=linear.bias, activation=activation, plus_one=self._plus_one
        )  # fmt: skip

    def _add(self, linear: Linear, x: torch.Tensor, residual: torch.Tensor) -> None:
        assert linear.weight is not None
        added_product(x, linear.weight, residual, self._workspace, bias=linear.bias, scale=self._scale)
