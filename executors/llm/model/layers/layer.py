"""The parameters of one decoder block."""

from __future__ import annotations

import torch

from executors.llm.model.config import DecoderConfig, LayerConfig
from executors.llm.model.layers.modules import Experts, Mlp, Norm
from executors.llm.model.linear import Linear


class Layer:
    """One block's parameters."""

    def __init__(
        self, config: DecoderConfig, layer: LayerConfig, dtype: torch.dtype, device: torch.device
    ) -> None:
        family, hidden = config.family, config.hidden_size

        def norm(name: str, size: int = hidden) -> Norm | None:
            return Norm(family.norm, size, config.norm_eps, dtype, device) if name else None

        self.config = layer
        self.attn_norm = norm(family.names.attn_norm)
        self.attn_post_norm = norm(family.names.attn_post_norm)
        self.mlp_norm = norm(family.names.mlp_norm)
        self.mlp_post_norm = norm(family.names.mlp_post_norm)
        self.qkv = Linear(config.q_size + 2 * config.kv_size, hidden, config.qkv_bias, dtype, device)
        self.o = Linear(hidden, config.q_size, config.o_bias, dtype, device)
        self.mlp: Mlp | Experts = (
            Experts(config, dtype, device)
            if layer.sparse
            else Mlp(config, config.intermediate_size, config.mlp_bias, dtype, device)
        )
        # Over heads, queries and keys are normed in one call: a row of weights per head, the same for all of a kind.
        heads = config.num_heads + config.num_kv_heads
        per_head, full = family.qk_norm == "head", family.qk_norm == "full"
        self.qk_norm = torch.empty(heads, config.head_dim, dtype=dtype, device=device) if per_head else None
        self.q_norm = norm(family.names.q_norm if full else "", config.q_size)
        self.k_norm = norm(family.names.k_norm if full else "", config.kv_size)

    def adapted_linears(self) -> tuple[Linear, ...]:
        """The linear layers that LoRA adapters may change: qkv, o, and of an MLP without experts gate and up, and down."""
        return (self.qkv, self.o, *(self.mlp.linears if isinstance(self.mlp, Mlp) else ()))
