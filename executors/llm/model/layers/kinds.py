"""The tables of kinds: each name that a family's row may give a layer's mixer or feed-forward, and what makes it."""

from __future__ import annotations

from collections.abc import Callable

import torch

from executors.llm.model.config import DecoderConfig, LayerConfig
from executors.llm.model.layers.attention import Attention
from executors.llm.model.layers.base import Sublayer
from executors.llm.model.layers.dense_and_experts import DenseAndExperts
from executors.llm.model.layers.experts import layer_experts
from executors.llm.model.layers.gated_attention import GatedAttention
from executors.llm.model.layers.gated_delta import GatedDelta
from executors.llm.model.layers.mlp import dense_mlp
from executors.llm.model.layers.shared_experts import SharedExperts
from executors.llm.model.layers.short_convolution import ShortConvolution
from executors.llm.model.layers.sigmoid_experts import SigmoidExperts

MakeSublayer = Callable[[DecoderConfig, LayerConfig, torch.dtype, torch.device], Sublayer]

MIXERS: dict[str, MakeSublayer] = {
    "attention": Attention,
    "gated_attention": GatedAttention,
    "gated_delta": GatedDelta,
    "short_convolution": ShortConvolution,
}
FEED_FORWARDS: dict[str, MakeSublayer] = {
    "mlp": dense_mlp,
    "experts": layer_experts,
    "shared_experts": SharedExperts,
    "sigmoid_experts": SigmoidExperts,
    "dense_and_experts": DenseAndExperts,
}
