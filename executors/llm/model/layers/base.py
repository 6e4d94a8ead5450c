"""`Sublayer`: what a kind of layer says about itself, so that loader, memory and forward need not know it.

A kind mixes the tokens of a sequence (a mixer, such as attention) or works on each token alone (a feed-forward, such as an
MLP). To add one, write a file with a subclass, add it to a table of `kinds.py`, and name it in a family's row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch

from executors.kernels.cpu import CpuKernels
from executors.llm.model.api import ForwardInput
from executors.llm.model.caches import LayerMemory
from executors.llm.model.layers.norms import Norm
from executors.llm.model.linear import Linear, Packing
from executors.llm.model.places import NamedPlaces
from executors.llm.row_loras import RowLoras


class Share:
    """What a layer gets from the other ranks that have parts of it. This class is for a layer in one piece, which gets nothing;
    `parallel/share.py` is for ranks."""

    def normed(self, norms: Sequence[Norm], parts: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Apply a norm to each part [T, columns], whose other columns other ranks may have."""
        return [norm(part) for norm, part in zip(norms, parts, strict=True)]

    def product(
        self,
        linear: Linear,
        x: torch.Tensor,
        adapters: RowLoras | None,
        of: Literal["attention", "states", "mlp"],
    ) -> torch.Tensor:
        """Compute the last linear layer of a sublayer, whose input columns other ranks may have."""
        return linear(x, None if adapters is None else adapters.extra(linear, x))

    def added(self, out: torch.Tensor, of: Literal["experts", "shared"] = "experts") -> torch.Tensor:
        """Add up the outputs of experts of which each rank has a part; `of`: those that a router chooses, or the one of every
        token."""
        return out


@dataclass(frozen=True, slots=True)
class LayerStep:
    """A step as a layer sees it. `rotary`: for each rope of the model, the rows of its table at the tokens' positions.
    `query_factors`: float32 [T], what their queries are multiplied by; None if nothing is. `layer_inputs` [T, layers, size]: see
    `LayerInputs`; None if layers have none. `shared_kv`: keys and values of the step, by the `cache_index` of a layer whose KV
    later layers read; written by that layer."""

    inputs: ForwardInput
    rotary: list[torch.Tensor]
    share: Share
    query_factors: torch.Tensor | None = None
    layer_inputs: torch.Tensor | None = None
    shared_kv: dict[int, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PackingPlan:
    """How linear layers are packed for the kernels: as `kind`; those that must stay exact as `plain`. `fused`: the kernels
    compute the activation."""

    kind: str
    plain: str
    fused: bool


class Sublayer:
    """One sublayer and its parameters, which are allocated but not filled. The defaults are those of a sublayer of linear layers
    that keeps nothing between steps."""

    cache_index = -1
    """The layer's place in its group of memory, see `memory`; set by the decoder."""
    norms_input = False
    """Whether a feed-forward gets the residual itself, and has the norm before it."""

    @property
    def linears(self) -> tuple[Linear, ...]:
        """Linear layers that can be packed."""
        return ()

    @property
    def adapted(self) -> tuple[Linear, ...]:
        """Linear layers that LoRA adapters may change, and that may hold FP8 or the format of their file on a GPU."""
        return ()

    def memory(self) -> LayerMemory | None:
        """Return what the layer keeps between steps: keys and values of each token, a state of each sequence, or nothing."""
        return None

    def tensors(self) -> NamedPlaces:
        """Yield the places of the checkpoint's tensors, except `norms`."""
        return iter(())

    def norms(self) -> NamedPlaces:
        """Yield the places of norms inside the sublayer, which come after the norms around it."""
        return iter(())

    def head_norms(self) -> tuple[str, ...]:
        """Return which names of `norms` belong to tensors that are broadcast over heads."""
        return ()

    def packing(self, plan: PackingPlan) -> Iterator[tuple[Linear, Packing]]:
        """Yield the layout of each linear layer for the kernels."""
        for linear in self.linears:
            yield linear, Packing(plan.kind)

    def be_steady(self) -> None:
        """Make a row's result the same in any batch, bit for bit."""

    def use_kernels(self, kernels: CpuKernels) -> None:
        """Compute with functions of the kernels what they have beside linear layers. Called when all parameters are loaded."""

    def forward(self, x: torch.Tensor, step: LayerStep) -> torch.Tensor:
        """[T, hidden] -> [T, hidden]. Rows behind the last item's are arbitrary."""
        raise NotImplementedError  # each kind computes its own: there is no forward that all share
