"""`SharedExperts`: a mixture of experts beside an expert that every token goes through, as in Qwen2-MoE."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from executors.llm.model.config import DecoderConfig, LayerConfig
from executors.llm.model.layers.activations import steady_sigmoid
from executors.llm.model.layers.base import LayerStep, PackingPlan, Sublayer
from executors.llm.model.layers.experts import Experts
from executors.llm.model.layers.mlp import Mlp, MlpNames
from executors.llm.model.linear import Linear, Packing
from executors.llm.model.places import NamedPlaces, of_linear


class SharedExperts(Sublayer):
    """experts(x) + sigmoid(gate(x)) shared(x), where gate is a row of weights (Qwen2-MoE, Yang et al. 2024)."""

    def __init__(
        self, config: DecoderConfig, layer: LayerConfig, dtype: torch.dtype, device: torch.device
    ) -> None:
        assert config.moe is not None
        names = config.family.names
        self.gate_name = names.shared_router
        self.experts = Experts(config, dtype, device)
        own = MlpNames("", names.shared_gate, names.shared_up, names.shared_down)
        self.shared = Mlp(config, config.moe.shared_size, False, dtype, device, own)
        self.gate = Linear(1, config.hidden_size, False, dtype, device)
        self._steady = False

    @property
    def linears(self) -> tuple[Linear, ...]:
        """See `Sublayer`."""
        return *self.experts.linears, *self.shared.linears, self.gate

    @property
    def adapted(self) -> tuple[Linear, ...]:
        """See `Sublayer`."""
        return self.shared.adapted

    def tensors(self) -> NamedPlaces:
        """See `Sublayer`."""
        yield from self.experts.tensors()
        yield from self.shared.tensors()
        yield from of_linear(self.gate, (self.gate_name, 1))

    def packing(self, plan: PackingPlan) -> Iterator[tuple[Linear, Packing]]:
        """See `Sublayer`. Like the router, the gate is never int8."""
        yield from self.experts.packing(plan)
        yield from self.shared.packing(plan)
        yield self.gate, Packing(plan.plain)

    def be_steady(self) -> None:
        """See `Sublayer`."""
        self._steady = True
        self.experts.be_steady()
        self.shared.be_steady()

    def gated(self, x: torch.Tensor, shared: torch.Tensor) -> torch.Tensor:
        """Scale the shared expert's output [T, hidden], given its input."""
        gate = self.gate(x)
        return (steady_sigmoid(gate) if self._steady else gate.sigmoid()) * shared

    def forward(self, x: torch.Tensor, step: LayerStep) -> torch.Tensor:
        """See `Sublayer`."""
        adapters = step.inputs.adapters
        shared = self.gated(x, self.shared(x, adapters))
        return step.share.added(self.experts(x, adapters)) + step.share.added(shared, "shared")
