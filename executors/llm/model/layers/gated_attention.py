"""`GatedAttention`: attention whose output each head scales with a gate of its own, as in Qwen3-Next and Qwen3.5."""

from __future__ import annotations

import torch

from executors.llm.model.config import DecoderConfig, LayerConfig
from executors.llm.model.layers.activations import steady_sigmoid
from executors.llm.model.layers.attention import Attention
from executors.llm.model.layers.base import LayerStep
from executors.llm.model.linear import Linear
from executors.llm.model.places import NamedPlaces, of_linear


class GatedAttention(Attention):
    """o(sigmoid(gate) * attention). The projection of queries has for each head its query and behind it its gate, both
    [head_dim], after Qwen3NextAttention in transformers."""

    def __init__(
        self, config: DecoderConfig, layer: LayerConfig, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__(config, layer, dtype, device)
        rows = 2 * self.sizes.q_size + 2 * self.sizes.kv_size
        self.qkv = Linear(rows, config.hidden_size, config.qkv_bias, dtype, device)

    def tensors(self) -> NamedPlaces:
        """See `Sublayer`."""
        sizes, names = self.sizes, self.config.family.names
        parts = (names.q, 2 * sizes.q_size), (names.k, sizes.kv_size), (names.v, sizes.kv_size)
        yield from of_linear(self.qkv, *parts)
        yield from of_linear(self.o, (names.o, self.config.hidden_size))

    def forward(self, x: torch.Tensor, step: LayerStep) -> torch.Tensor:
        """See `Sublayer`."""
        c, adapters = self.sizes, step.inputs.adapters
        qkv = self.qkv(x, None if adapters is None else adapters.extra(self.qkv, x))
        both, kv = qkv.split((2 * c.q_size, 2 * c.kv_size), -1)
        q, gate = both.view(-1, c.num_heads, 2, c.head_dim).unbind(2)
        heads = torch.cat((q, kv.view(-1, 2 * c.num_kv_heads, c.head_dim)), 1)
        q, k, v = self._heads(heads, step)
        out = step.inputs.attend(self.cache_index, q, k, v, self.sinks)
        out = (out.reshape(gate.shape) * steady_sigmoid(gate)).view(-1, c.q_size)
        return step.share.product(self.o, out, adapters, "attention")
