"""`SigmoidExperts`: a mixture of experts whose router gives each expert a score of its own, as in LFM2-MoE."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from executors.llm.model.config import DecoderConfig, LayerConfig
from executors.llm.model.layers.activations import steady_sigmoid
from executors.llm.model.layers.base import LayerStep, PackingPlan, Sublayer
from executors.llm.model.layers.experts import Experts
from executors.llm.model.linear import Linear, Packing
from executors.llm.model.places import NamedPlaces, Place

_LEAST = 1e-6
"""What is added to the sum that weights are divided by, see Lfm2MoeTopKRouter in transformers."""


class ScoredExperts(Experts):
    """Experts whose scores are sigmoid(router(x)): the largest `top_k` of score + bias are chosen, weighted with their scores
    without the bias."""

    def __init__(self, config: DecoderConfig, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(config, dtype, device)
        self.choice_bias: torch.Tensor | None = None
        """Float32 [experts] whatever the model's dtype: near ties are decided by it."""
        if self.moe.choice_bias:
            self.choice_bias = torch.empty(self.moe.num_experts, dtype=torch.float32, device=device)

    def routed(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Experts`."""
        scores = steady_sigmoid(logits.float())
        ranked = scores if self.choice_bias is None else scores + self.choice_bias
        chosen = ranked.topk(self.moe.top_k, -1).indices
        weights = scores.gather(-1, chosen)
        if self.moe.normalized:
            weights = weights / (weights.sum(-1, keepdim=True) + _LEAST)
        return weights * self.moe.scale, chosen


class SigmoidExperts(Sublayer):
    """The feed-forward of a layer with such experts. It is no `Experts`, for the fused call on a GPU computes a softmax."""

    def __init__(
        self, config: DecoderConfig, layer: LayerConfig, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.experts = ScoredExperts(config, dtype, device)
        self._bias_name = config.family.names.choice_bias

    @property
    def linears(self) -> tuple[Linear, ...]:
        """See `Sublayer`."""
        return self.experts.linears

    def tensors(self) -> NamedPlaces:
        """See `Sublayer`."""
        yield from self.experts.tensors()

    def norms(self) -> NamedPlaces:
        """See `Sublayer`. The bias is among them, for it is a vector."""
        if self.experts.choice_bias is not None:
            yield self._bias_name, Place(self.experts.choice_bias)

    def packing(self, plan: PackingPlan) -> Iterator[tuple[Linear, Packing]]:
        """See `Sublayer`."""
        yield from self.experts.packing(plan)

    def be_steady(self) -> None:
        """See `Sublayer`."""
        self.experts.be_steady()

    def forward(self, x: torch.Tensor, step: LayerStep) -> torch.Tensor:
        """See `Sublayer`."""
        return step.share.added(self.experts(x, step.inputs.adapters))
