"""`TritonForward`: a decoder's layers as a few large kernels: five of Cohort's own and four products each.

    residual += last sublayer's output, norm | qkv | norm heads, rotate, write KV | attention | o
    residual += attention's output, norm     | gate and up | act(gate) * up | down, or experts

Steps of one token take six launches if the decoder allows it, and steps of at most 16 add to the residual in their products:
see `few_rows.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from executors.kernels.triton.activation import EXPERT_KINDS, KINDS, gated
from executors.kernels.triton.norms import rms_norm
from executors.kernels.triton.rotary import rotate_and_store
from executors.llm.attention.packed import PagedAttend
from executors.llm.fused.few_rows import FewRows
from executors.llm.fused.triton_experts import TritonExperts, triton_experts
from executors.llm.model.layers.attention import Attention
from executors.llm.model.layers.experts import Experts
from executors.llm.model.layers.gated_attention import GatedAttention
from executors.llm.model.layers.mlp import Mlp
from executors.llm.model.layers.shared_experts import SharedExperts

if TYPE_CHECKING:
    from executors.llm.model.api import Attend, ForwardInput
    from executors.llm.model.decoder import Decoder
    from executors.llm.model.layers.layer import Layer
    from executors.llm.model.layers.norms import Norm
    from executors.llm.model.linear import Linear
    from executors.llm.row_loras import RowLoras


def why_not(decoder: Decoder) -> str | None:
    """Return why torch computes a decoder around the attention kernels, None if `TritonForward` computes it."""
    config = decoder.config
    family = config.family
    experts_alone = not any(isinstance(layer.feed_forward, Mlp) for layer in decoder.layers)
    reasons = {
        "several ranks": not decoder.alone,
        "layers without attention": any(not isinstance(layer.mixer, Attention) for layer in decoder.layers),
        "gates of attention": any(isinstance(layer.mixer, GatedAttention) for layer in decoder.layers),
        "another feed-forward": any(
            not isinstance(layer.feed_forward, Mlp | Experts | SharedExperts) for layer in decoder.layers
        ),
        "heads of different sizes": any(layer.heads is not None for layer in config.layers),
        "layers that read the KV of others": any(layer.kv_from is not None for layer in config.layers),
        "values that are normed": family.attention.value_norm,
        "inputs of each layer": config.layer_input_size > 0,
        "scalars of layers": bool(family.names.layer_scalar),
        "LayerNorm": family.stream.norm == "layer",
        "an ungated MLP": config.moe is None and not family.names.gate and not family.names.gate_up,
        f"the activation {config.activation}": config.activation
        not in (EXPERT_KINDS if experts_alone else KINDS),
        "learned positions": decoder.position_embed is not None,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


class TritonForward:
    """A `FusedForward` of a decoder that passes `why_not`."""

    def __init__(self, decoder: Decoder, few: FewRows | None = None) -> None:
        """`few`: computes steps of few tokens."""
        self._decoder = decoder
        self.few = few
        self._plus_one = decoder.config.family.stream.norm == "rms1"
        self._mlps: list[Mlp | Experts | TritonExperts] = []
        for layer in decoder.layers:
            kind = layer.feed_forward
            kind = kind.experts if isinstance(kind, SharedExperts) else kind
            assert isinstance(kind, Mlp | Experts)
            self._mlps.append((triton_experts(kind) or kind) if isinstance(kind, Experts) else kind)

    @property
    def experts(self) -> TritonExperts | None:
        """Experts of a layer that has some; all layers are alike."""
        return next((mlp for mlp in self._mlps if isinstance(mlp, TritonExperts)), None)

    def takes(self, attend: Attend) -> bool:
        """Return whether the forward supports this attention."""
        return isinstance(attend, PagedAttend)

    def __call__(self, inputs: ForwardInput) -> torch.Tensor:
        """Compute hidden states [T, hidden] after the final norm."""
        decoder, attend = self._decoder, inputs.attend
        assert isinstance(attend, PagedAttend)
        residual = decoder.look_up(inputs.token_ids)
        if decoder.embed_scale != 1.0:
            residual *= decoder.embed_scale
        # What adapters add belongs between the products and what is fused with them there.
        if self.few is not None and inputs.adapters is None and self.few.takes(len(residual)):
            return self._few(self.few, residual, inputs.positions, attend)
        x: torch.Tensor | None = None
        for index in range(len(decoder.layers)):
            with decoder.ranges("layer", index):
                x = self._layer(index, x, residual, inputs, attend)
        return self._norm(decoder.final_norm, x, residual)

    def _layer(
        self,
        index: int,
        x: torch.Tensor | None,
        residual: torch.Tensor,
        inputs: ForwardInput,
        attend: PagedAttend,
    ) -> torch.Tensor:
        """Compute what is to be added to `residual` after a layer, given that of the layer before, `x`."""
        layer, adapters, ranges = self._decoder.layers[index], inputs.adapters, self._decoder.ranges
        with ranges("attention"):
            normed = self._norm(layer.attn_norm, x, residual)
            attended = self._attend(
                index, layer, _product(layer.attention.qkv, normed, adapters), inputs.positions, attend
            )
            x = _product(layer.attention.o, attended, adapters)
            if layer.attn_post_norm is not None:
                x = self._norm(layer.attn_post_norm, None, x)
        with ranges("feed-forward"):
            x = self._mlp(index, self._norm(layer.mlp_norm, self._scaled(x), residual), adapters)
            if layer.mlp_post_norm is not None:
                x = self._norm(layer.mlp_post_norm, None, x)
        return self._scaled(x)

    def _few(
        self, few: FewRows, residual: torch.Tensor, positions: torch.Tensor, attend: PagedAttend
    ) -> torch.Tensor:
        decoder, ranges = self._decoder, self._decoder.ranges
        for index, layer in enumerate(decoder.layers):
            with ranges("layer", index):
                with ranges("attention"):
                    attended = self._attend(index, layer, few.qkv(layer, residual), positions, attend)
                    few.add_attention(layer, attended, residual)
                with ranges("feed-forward"):
                    few.add_mlp(layer, residual)
        return self._norm(decoder.final_norm, None, residual)

    def _scaled(self, x: torch.Tensor) -> torch.Tensor:
        """Scale the output of a sublayer before it is added to the residual stream."""
        scale = self._decoder.config.residual_scale
        return x if scale == 1.0 else x * scale

    def _norm(self, norm: Norm | None, x: torch.Tensor | None, residual: torch.Tensor) -> torch.Tensor:
        """Compute the norm of `residual`; None: the same tensor. If `x` is given, it is first added to `residual` in place."""
        if norm is None:
            return residual if x is None else residual.add_(x)
        if x is None:
            return rms_norm(residual, norm.weight, norm.eps, plus_one=self._plus_one)
        return rms_norm(x, norm.weight, norm.eps, residual=residual, plus_one=self._plus_one)

    def _attend(
        self, index: int, layer: Layer, qkv: torch.Tensor, positions: torch.Tensor, attend: PagedAttend
    ) -> torch.Tensor:
        """Compute [T, heads * head_dim] from the output of `layer.qkv`."""
        config, rope = self._decoder.config, layer.attention.rope
        to = attend.stored(index)
        q_norm, k_norm = layer.attention.q_norm, layer.attention.k_norm
        if q_norm is not None and k_norm is not None:  # over all heads
            q, k, v = qkv.split((config.q_size, config.kv_size, config.kv_size), -1)
            normed = (self._norm(norm, None, part.contiguous()) for norm, part in ((q_norm, q), (k_norm, k)))
            qkv = torch.cat((*normed, v), -1)
        q = rotate_and_store(
            qkv, to.kv, to.cells, config.num_heads,
            positions=positions, table=None if rope is None else self._decoder.rotary[rope], norms=layer.attention.qk_norm,
            eps=config.norm_eps, plus_one=self._plus_one, kv_scales=to.scales,
            neighbours=any(one.neighbours for one in config.ropes), norm_last=config.family.attention.norm_last,
            query_factors=self._decoder.query_factors, peaks=to.peaks,
        )  # fmt: skip
        return attend.attend(index, q, layer.attention.sinks).view(len(q), -1)

    def _mlp(self, index: int, x: torch.Tensor, adapters: RowLoras | None) -> torch.Tensor:
        kind, mlp = self._decoder.layers[index].feed_forward, self._mlps[index]
        if isinstance(kind, SharedExperts):
            return mlp(x) + kind.gated(x, self._dense(kind.shared, x, adapters))
        return self._dense(mlp, x, adapters) if isinstance(mlp, Mlp) else mlp(x)

    def _dense(self, mlp: Mlp, x: torch.Tensor, adapters: RowLoras | None) -> torch.Tensor:
        gate_up, down = mlp.linears
        activation = self._decoder.config.activation
        inner = None if adapters is not None else gate_up.gated(x, activation)
        return _product(
            down, gated(_product(gate_up, x, adapters), activation) if inner is None else inner, adapters
        )


def _product(linear: Linear, x: torch.Tensor, adapters: RowLoras | None) -> torch.Tensor:
    """Compute a linear layer with the adapters of the rows."""
    out = linear(x)
    if adapters is not None:
        adapters.add(linear, x, out)
    return out
