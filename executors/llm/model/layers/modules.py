"""Building blocks of the generic decoder: norms, MLPs, experts. They are allocated here and filled by the loader."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F

from executors.llm.model.config import DecoderConfig
from executors.llm.model.families import NormKind
from executors.llm.model.linear import Linear, Packing
from executors.llm.row_loras import RowAdapters

Activation = Callable[[torch.Tensor], torch.Tensor]


def _gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x, approximate="tanh")


ACTIVATIONS: dict[str, Activation] = {
    "silu": F.silu,
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_pytorch_tanh": _gelu_tanh,
    "gelu_new": _gelu_tanh,
}
"""Activations by their names in config.json; `gelu_new` is an older name of the tanh form of Hendrycks and Gimpel 2016."""


def _steady(wide: Activation) -> Activation:
    """Make an activation that computes in fp32 and rounds once."""
    return lambda x: wide(x.float()).to(x.dtype)


def _steady_silu(x: torch.Tensor) -> torch.Tensor:
    below = torch.neg(x).exp_().add_(1.0)
    return torch.div(x, below, out=below)


def _steady_gelu(x: torch.Tensor) -> torch.Tensor:
    return (x * math.sqrt(0.5)).erf_().add_(1.0).mul_(x).mul_(0.5)


def _steady_gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    inner = (x * x).mul_(x).mul_(0.044715).add_(x).mul_(math.sqrt(2.0 / math.pi))
    return inner.tanh_().add_(1.0).mul_(x).mul_(0.5)


STEADY_ACTIVATIONS: dict[str, Activation] = {
    "silu": _steady(_steady_silu),
    "relu": F.relu,
    "gelu": _steady(_steady_gelu),
    "gelu_pytorch_tanh": _steady(_steady_gelu_tanh),
    "gelu_new": _steady(_steady_gelu_tanh),
}
"""The same functions with results that do not depend on an element's position, bit for bit. Torch's own activations compute
the last elements of each thread's share, which do not fill a vector, with other instructions: 82 of 126 cuts of a tensor gave
other bits. Arithmetic, tanh, exp and erf on their own do not (0 of 126, AVX2 and AVX512)."""


class Norm:
    """A norm over the last dimension, of `size` elements. `weight` and `bias` (LayerNorm only) are [size].

    The checkpoint stores w for an "rms1" norm, whose factor is 1 + w, and so does `weight`. The factor is applied in fp32
    before rounding, as in Gemma, because 1 + w in bf16 would lose most of w.
    """

    __slots__ = ("bias", "eps", "kind", "size", "weight")

    def __init__(
        self, kind: NormKind, size: int, eps: float, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.kind: NormKind = kind
        self.size = (size,)
        self.eps = eps
        self.weight = torch.empty(size, dtype=dtype, device=device)
        self.bias = torch.empty(size, dtype=dtype, device=device) if kind == "layer" else None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self.kind == "rms":
            return F.rms_norm(x, self.size, self.weight, self.eps)
        if self.kind == "layer":
            return F.layer_norm(x, self.size, self.weight, self.bias, self.eps)
        return F.rms_norm(x.float(), self.size, self.weight.float() + 1.0, self.eps).to(x.dtype)

    def parameters(self, name: str) -> dict[str, torch.Tensor]:
        """Checkpoint name -> memory."""
        found = {f"{name}.weight": self.weight}
        return found if self.bias is None else {**found, f"{name}.bias": self.bias}


class Mlp:
    """down(act(gate(x)) * up(x)), or down(act(up(x))) if the family has no gate. Gate and up are one linear layer."""

    def __init__(
        self, config: DecoderConfig, inner: int, bias: bool, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.gated = bool(config.family.names.gate)
        self.inner = inner
        self.activation = config.activation
        self.act = ACTIVATIONS[config.activation]
        self.gate_up = Linear((2 if self.gated else 1) * inner, config.hidden_size, bias, dtype, device)
        self.down = Linear(config.hidden_size, inner, bias, dtype, device)

    def __call__(self, x: torch.Tensor, adapters: RowAdapters | None = None) -> torch.Tensor:
        """[T, hidden] -> [T, hidden]."""
        inside = self.inside(x, adapters)
        return self.down(inside, None if adapters is None else adapters.extra(self.down, inside))

    def inside(self, x: torch.Tensor, adapters: RowAdapters | None = None) -> torch.Tensor:
        """Compute what `down` gets: [T, hidden] -> [T, inner]."""
        extra = None if adapters is None else adapters.extra(self.gate_up, x)
        inner = self.gate_up.gated(x, self.activation, extra) if self.gated else None
        if inner is None:
            inner = self.gate_up(x, extra)
            if self.gated:
                gate, up = inner.chunk(2, -1)
                inner = self.act(gate) * up
            else:
                inner = self.act(inner)
        return inner

    def be_steady(self) -> None:
        """Make a row's result the same in any batch, bit for bit. Costs a few extra passes if torch computes the activation."""
        self.act = STEADY_ACTIVATIONS[self.activation]

    @property
    def linears(self) -> tuple[Linear, ...]:
        """Linear layers that can be packed."""
        return self.gate_up, self.down

    def packing(self, kind: str, plain: str, fused: bool) -> Iterator[tuple[Linear, Packing]]:
        """Yield the layout of each linear layer for the kernels; `fused`: the kernels compute the activation."""
        yield self.gate_up, Packing(kind, gated=self.gated and fused and not self.gate_up.turns_output)
        yield self.down, Packing(kind)


class Experts:
    """A mixture of experts: each expert computes all of its tokens in one call, one expert after another.

    Router weights are the largest `top_k` of the fp32 softmax over all experts of router(x) (Shazeer et al. 2017, in the form
    of Qwen3-MoE).
    """

    def __init__(self, config: DecoderConfig, dtype: torch.dtype, device: torch.device) -> None:
        assert config.moe is not None
        self.moe = config.moe
        self.activation = config.activation
        self.steady = False
        self.router = Linear(self.moe.num_experts, config.hidden_size, False, dtype, device)
        count, hidden, inner = self.moe.num_experts, config.hidden_size, self.moe.intermediate_size
        gate_up = torch.empty(count, 2 * inner, hidden, dtype=dtype, device=device)
        down = torch.empty(count, hidden, inner, dtype=dtype, device=device)
        self.experts: list[Mlp] = []
        for e in range(count):
            expert = Mlp(config, inner, False, dtype, device)
            # Only views of the whole are kept: it goes when the last of them is packed.
            expert.gate_up.weight, expert.down.weight = gate_up[e], down[e]
            self.experts.append(expert)

    def __call__(self, x: torch.Tensor, adapters: RowAdapters | None = None) -> torch.Tensor:
        """[T, hidden] -> [T, hidden]."""
        return self.mix(x, self.router(x))

    def mix(self, x: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        """Compute the output for `x`, given the router's `logits` [T, experts]."""
        weights, chosen = logits.float().softmax(-1).topk(self.moe.top_k, -1)
        if self.moe.normalized:
            weights = weights / weights.sum(-1, keepdim=True)
        flat = chosen.flatten()
        # Stable: within an expert the tokens keep their order, so the result does not depend on the batch's layout.
        order = flat.argsort(stable=True)
        counts = torch.bincount(flat, minlength=self.moe.num_experts).tolist()
        rows = order // self.moe.top_k
        shares = weights.flatten()[order].to(x.dtype)[:, None]
        out = torch.zeros_like(x)
        begin = 0
        for expert, count in zip(self.experts, counts, strict=True):
            if count:
                part = slice(begin, begin + count)
                out.index_add_(0, rows[part], expert(x[rows[part]]) * shares[part])
                begin += count
        return out

    def be_steady(self) -> None:
        """See `Mlp`. The experts that share a step do not change a sum: each token adds its own experts in the experts'
        order."""
        self.steady = True
        for expert in self.experts:
            expert.be_steady()

    def stacked(self) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Return all experts' weights as [experts, 2 * inner, hidden], gate before up, and [experts, hidden, inner], as
        views; None if linear layers store them in other formats or are more than products with them."""
        if any(linear.rotation is not None for expert in self.experts for linear in expert.linears):
            return None
        gate_up = _whole([expert.gate_up.weight for expert in self.experts])
        down = _whole([expert.down.weight for expert in self.experts])
        return None if gate_up is None or down is None else (gate_up, down)

    @property
    def linears(self) -> tuple[Linear, ...]:
        """Linear layers that can be packed."""
        return (self.router, *(linear for expert in self.experts for linear in expert.linears))

    def packing(self, kind: str, plain: str, fused: bool) -> Iterator[tuple[Linear, Packing]]:
        """See `Mlp`. The router is small and affects the whole result, so it is never int8."""
        yield self.router, Packing(plain)
        for expert in self.experts:
            yield from expert.packing(kind, plain, fused)


def _whole(parts: list[torch.Tensor | None]) -> torch.Tensor | None:
    """Return the tensor [n, rows, columns] whose parts, in order, these are; None if there is none, or if they have no
    memory."""
    first = parts[0]
    if first is None or first.device.type == "meta":
        return None
    memory, size = first.untyped_storage().data_ptr(), first.numel()
    for i, part in enumerate(parts):
        if part is None or part.dtype != first.dtype or part.shape != first.shape or not part.is_contiguous():
            return None
        place = first.storage_offset() + i * size
        if part.untyped_storage().data_ptr() != memory or part.storage_offset() != place:
            return None
    return first.as_strided((len(parts), *first.shape), (size, first.shape[1], 1))
