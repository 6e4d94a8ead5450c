"""`DenseAndExperts`: a mixture of experts beside an MLP of every token, each between norms of its own, as in Gemma 4."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F

from executors.llm.model.config import DecoderConfig, LayerConfig
from executors.llm.model.layers.base import LayerStep, PackingPlan, Sublayer
from executors.llm.model.layers.experts import Experts
from executors.llm.model.layers.mlp import dense_mlp
from executors.llm.model.layers.norms import Norm
from executors.llm.model.linear import Linear, Packing
from executors.llm.model.places import NamedPlaces, Place


class ScaledExperts(Experts):
    """Experts whose router gets the residual, normed without a weight and scaled, and whose weights have a factor for each
    expert: routed(scale * rms(x) / sqrt(hidden)), then weight * factor[expert]."""

    def __init__(self, config: DecoderConfig, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(config, dtype, device)
        self._eps, self._names = config.norm_eps, config.family.names
        self.root = config.hidden_size**-0.5
        self.scale = torch.empty(config.hidden_size, dtype=dtype, device=device)
        self.factors = torch.empty(self.moe.num_experts, dtype=dtype, device=device)

    def scales(self) -> NamedPlaces:
        """Yield the places of the scale and the factors."""
        yield self._names.router_scale, Place(self.scale)
        yield self._names.expert_scale, Place(self.factors)

    def router_logits(self, x: torch.Tensor) -> torch.Tensor:
        """Return [T, experts], given the residual [T, hidden]."""
        return self.router(F.rms_norm(x, (x.shape[-1],), None, self._eps) * self.scale * self.root)

    def routed(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Experts`."""
        weights, chosen = super().routed(logits)
        return weights * self.factors[chosen].float(), chosen


class DenseAndExperts(Sublayer):
    """norm(mlp(norm(x))) + norm(experts(norm(x))), where the router sees x itself."""

    norms_input = True

    def __init__(
        self, config: DecoderConfig, layer: LayerConfig, dtype: torch.dtype, device: torch.device
    ) -> None:
        names = config.family.names
        self.mlp = dense_mlp(config, layer, dtype, device)
        self.experts = ScaledExperts(config, dtype, device)

        def norm() -> Norm:
            return Norm(config.family.stream.norm, config.hidden_size, config.norm_eps, dtype, device)

        self.mlp_norm, self.mlp_post_norm = norm(), norm()
        self.experts_norm, self.experts_post_norm = norm(), norm()
        self._norms = (
            (self.mlp_norm, names.mlp_norm), (self.mlp_post_norm, names.dense_post_norm),
            (self.experts_norm, names.experts_norm), (self.experts_post_norm, names.experts_post_norm),
        )  # fmt: skip

    @property
    def linears(self) -> tuple[Linear, ...]:
        """See `Sublayer`."""
        return *self.mlp.linears, *self.experts.linears

    @property
    def adapted(self) -> tuple[Linear, ...]:
        """See `Sublayer`."""
        return self.mlp.adapted

    def tensors(self) -> NamedPlaces:
        """See `Sublayer`."""
        yield from self.mlp.tensors()
        yield from self.experts.tensors()

    def norms(self) -> NamedPlaces:
        """See `Sublayer`."""
        for norm, name in self._norms:
            yield from norm.places(name)
        yield from self.experts.scales()

    def packing(self, plan: PackingPlan) -> Iterator[tuple[Linear, Packing]]:
        """See `Sublayer`."""
        yield from self.mlp.packing(plan)
        yield from self.experts.packing(plan)

    def be_steady(self) -> None:
        """See `Sublayer`."""
        self.mlp.be_steady()
        self.experts.be_steady()

    def forward(self, x: torch.Tensor, step: LayerStep) -> torch.Tensor:
        """See `Sublayer`; `x` is the residual."""
        dense = self.mlp_post_norm(self.mlp(self.mlp_norm(x), step.inputs.adapters))
        logits = self.experts.router_logits(x)
        return dense + self.experts_post_norm(self.experts.mix(self.experts_norm(x), logits))
