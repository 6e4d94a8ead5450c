"""`Mlp`: the feed-forward of dense layers, and of each expert."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from executors.llm.model.config import DecoderConfig, LayerConfig
from executors.llm.model.layers.activations import (
    ACTIVATIONS,
    CLAMPED,
    STEADY_ACTIVATIONS,
    Activation,
    clamped_swiglu,
)
from executors.llm.model.layers.base import LayerStep, PackingPlan, Sublayer
from executors.llm.model.linear import Linear, Packing
from executors.llm.model.places import NamedPlaces, of_linear
from executors.llm.row_loras import RowLoras


@dataclass(frozen=True, slots=True)
class MlpNames:
    """Names of an MLP's tensors, see `TensorNames`."""

    gate_up: str
    gate: str
    up: str
    down: str


class Mlp(Sublayer):
    """down(act(gate(x)) * up(x)), or down(act(up(x))) if the family has no gate. Gate and up are one linear layer."""

    def __init__(
        self, config: DecoderConfig, inner: int, bias: bool, dtype: torch.dtype, device: torch.device,
        names: MlpNames | None = None,
    ) -> None:  # fmt: skip
        """`names`: of its tensors; None for those of a dense layer."""
        family = config.family.names
        self.names = names or MlpNames(family.gate_up, family.gate, family.up, family.down)
        self.gated = bool(family.gate)
        self.inner = inner
        self.activation = config.activation
        self.act: Activation | None = ACTIVATIONS.get(config.activation)
        self.moe = config.moe
        self.steady = False
        self.gate_up = Linear((2 if self.gated else 1) * inner, config.hidden_size, bias, dtype, device)
        self.down = Linear(config.hidden_size, inner, bias, dtype, device)
        if config.activation == CLAMPED and config.moe is not None:
            self.gate_up.clamp = config.moe.alpha, config.moe.limit

    def __call__(self, x: torch.Tensor, adapters: RowLoras | None = None) -> torch.Tensor:
        """[T, hidden] -> [T, hidden]."""
        inside = self.inside(x, adapters)
        return self.down(inside, None if adapters is None else adapters.extra(self.down, inside))

    def inside(self, x: torch.Tensor, adapters: RowLoras | None = None) -> torch.Tensor:
        """Compute what `down` gets: [T, hidden] -> [T, inner]."""
        extra = None if adapters is None else adapters.extra(self.gate_up, x)
        inner = self.gate_up.gated(x, self.activation, extra) if self.gated else None
        if inner is None:
            inner = self.gate_up(x, extra)
            if self.gated:
                inner = self.joined(*inner.chunk(2, -1))
            elif self.act is not None:
                inner = self.act(inner)
        return inner

    def joined(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        """Compute the activation of gate and up, both [T, inner]."""
        if self.act is not None:
            return self.act(gate) * up
        assert self.moe is not None  # only CLAMPED has no function of the gate alone
        return clamped_swiglu(gate, up, self.moe.alpha, self.moe.limit, self.steady)

    def be_steady(self) -> None:
        """Make a row's result the same in any batch, bit for bit. Costs a few extra passes if torch computes the activation."""
        self.act, self.steady = STEADY_ACTIVATIONS.get(self.activation), True

    @property
    def linears(self) -> tuple[Linear, ...]:
        """See `Sublayer`."""
        return self.gate_up, self.down

    @property
    def adapted(self) -> tuple[Linear, ...]:
        """See `Sublayer`."""
        return self.gate_up, self.down

    def tensors(self) -> NamedPlaces:
        """See `Sublayer`."""
        names = self.names
        if names.gate_up:
            yield from of_linear(self.gate_up, (names.gate_up, 2 * self.inner))
        elif self.gated:
            yield from of_linear(self.gate_up, (names.gate, self.inner), (names.up, self.inner))
        else:
            yield from of_linear(self.gate_up, (names.up, self.inner))
        yield from of_linear(self.down, (names.down, -1))

    def packing(self, plan: PackingPlan) -> Iterator[tuple[Linear, Packing]]:
        """See `Sublayer`."""
        gated = self.gated and plan.fused and not self.gate_up.turns_output
        yield self.gate_up, Packing(plan.kind, gated=gated)
        yield self.down, Packing(plan.kind)

    def forward(self, x: torch.Tensor, step: LayerStep) -> torch.Tensor:
        """See `Sublayer`."""
        adapters = step.inputs.adapters
        return step.share.product(self.down, self.inside(x, adapters), adapters, "mlp")


def dense_mlp(config: DecoderConfig, layer: LayerConfig, dtype: torch.dtype, device: torch.device) -> Mlp:
    """Make the MLP of a dense layer."""
    return Mlp(config, layer.inner or config.intermediate_size, config.mlp_bias, dtype, device)
