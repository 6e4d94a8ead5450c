"""Layers with experts for `CpuForward`: what their feed-forwards consist of, `Experts` of experts.h, and the memory they take."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from executors.kernels.cpu import FIRST_STORED, I64, POINTER, CpuKernels, operand_bytes, value_dtype
from executors.llm.model.layers.dense_and_experts import DenseAndExperts, ScaledExperts
from executors.llm.model.layers.experts import Experts
from executors.llm.model.layers.mlp import Mlp
from executors.llm.model.layers.shared_experts import SharedExperts
from executors.llm.model.layers.sigmoid_experts import ScoredExperts, SigmoidExperts
from executors.llm.model.linear import KIND_NAMES

if TYPE_CHECKING:
    from executors.llm.model.decoder import Decoder
    from executors.llm.model.layers.layer import Layer
    from executors.llm.model.linear import Linear


class ExpertsStruct(ctypes.Structure):
    """`Experts` of experts.h."""

    _fields_ = [
        *((name, I64) for name in ("count", "top_k", "inner", "normalized")),
        *((name, POINTER) for name in ("router", "gate_up", "down", "factors")),
        ("scored", I64),
        ("choice_bias", POINTER),
        ("scale", ctypes.c_float),
    ]


@dataclass(frozen=True, slots=True)
class Parts:
    """What a feed-forward consists of: an MLP, experts, or experts beside an MLP: one that `gate` scales, or one that like the
    experts has norms around it, those of `beside`."""

    mlp: Mlp | None = None
    experts: Experts | None = None
    gate: Linear | None = None
    beside: DenseAndExperts | None = None


def parts_of(layer: Layer) -> Parts | None:
    """Return the parts of a layer's feed-forward, None if it is of a kind that `CpuForward` does not compute."""
    match layer.feed_forward:
        case Mlp() as mlp:
            return Parts(mlp)
        case Experts() as experts:
            return Parts(None, experts)
        case SigmoidExperts() as scored:
            return Parts(None, scored.experts)
        case SharedExperts() as both:
            return Parts(both.shared, both.experts, both.gate)
        case DenseAndExperts() as beside:
            return Parts(beside.mlp, beside.experts, None, beside)
    return None


def mlp_size(decoder: Decoder) -> int:
    """Return the inner size of the widest MLP, shared experts included; 0 if all layers are experts alone."""
    parts = (parts_of(layer) for layer in decoder.layers)
    return max((part.mlp.inner for part in parts if part is not None and part.mlp is not None), default=0)


def experts_of(decoder: Decoder) -> list[Experts]:
    """Return the experts of all layers that have some."""
    parts = (parts_of(layer) for layer in decoder.layers)
    return [part.experts for part in parts if part is not None and part.experts is not None]


def why_not(decoder: Decoder) -> str | None:
    """Return why `CpuForward` does not compute the decoder's experts, None if it does or there are none."""
    parts = [parts_of(layer) for layer in decoder.layers]
    if None in parts:
        return "feed-forwards of another kind"
    after = bool(decoder.config.family.names.mlp_post_norm)
    if after and any(part is not None and part.experts is not None and part.beside is None for part in parts):
        return "norms after experts"
    if any(_uneven(experts) for experts in experts_of(decoder)):
        return "experts in different formats"
    for part in parts:
        if part is None or part.gate is None or part.experts is None:
            continue
        if _product(part.gate) != _product(part.experts.router):
            return "a router and a gate in different formats"
    return None


def _uneven(experts: Experts) -> bool:
    """Return whether experts of one layer are multiplied in several ways, or have their columns in orders of their own."""
    ups = {_product(expert.gate_up) for expert in experts.experts}
    downs = {_product(expert.down) for expert in experts.experts}
    linears = [linear for expert in experts.experts for linear in expert.linears]
    ordered = any(linear.packed is not None and linear.packed.struct.order for linear in linears)
    return len(ups) > 1 or len(downs) > 1 or ordered


def _product(linear: Linear) -> int | None:
    """Return which product multiplies a packed weight: its kind, one for all weights in blocks as files have them."""
    return None if linear.packed is None else min(linear.packed.struct.kind, FIRST_STORED)


def mixture(experts: Experts, address: Callable[[Linear], int], pointees: list[object]) -> int:
    """Return the address of an `ExpertsStruct`, which lives as long as `pointees`; `address`: of a linear layer's weight."""
    moe, count = experts.moe, len(experts.experts)
    # The softmax over the chosen logits is that over all, scaled to sum to 1.
    ups = (POINTER * count)(*(address(expert.gate_up) for expert in experts.experts))
    downs = (POINTER * count)(*(address(expert.down) for expert in experts.experts))
    struct = ExpertsStruct(
        count, moe.top_k, moe.intermediate_size, int(moe.normalized or moe.softmax_last), address(experts.router),
        ctypes.addressof(ups), ctypes.addressof(downs),
    )  # fmt: skip
    pointees.append((struct, ups, downs))
    if isinstance(experts, ScaledExperts):
        factors = experts.factors.float()
        struct.factors = factors.data_ptr()
        pointees.append(factors)
    if isinstance(experts, ScoredExperts):
        struct.scored, struct.scale = 1, moe.scale
        if experts.choice_bias is not None:
            struct.choice_bias = experts.choice_bias.data_ptr()
            pointees.append(experts.choice_bias)
    return ctypes.addressof(struct)


def bytes_per_token(decoder: Decoder, kernels: CpuKernels) -> int:
    """Return the bytes of memory that a token takes for its experts, 0 without any; see `Mixture.place` of experts.h. What
    threads copy for themselves is left out: it does not grow with a step."""
    moe = decoder.config.moe
    if moe is None or not (layers := experts_of(decoder)):
        return 0

    def operand(columns: int, linears: list[Linear]) -> int:
        plain = decoder.quantization or KIND_NAMES[decoder.dtype]
        kinds = {linear.stored[0] if linear.stored else plain for linear in linears}
        return max(operand_bytes(kernels, columns, kind) for kind in kinds)

    hidden, inner = decoder.config.hidden_size, moe.intermediate_size
    rows = operand(hidden, [experts.experts[0].gate_up for experts in layers])
    inside = operand(inner, [experts.experts[0].down for experts in layers])
    routed = operand_bytes(kernels, hidden, KIND_NAMES[decoder.dtype])
    pair = (
        inside + inner * value_dtype(decoder.dtype).itemsize + 4 * 4
    )  # number and share, as chosen and grouped
    # What experts make beside an MLP is kept until the MLP has computed its own.
    added = 4 * hidden if any(isinstance(experts, ScaledExperts) for experts in layers) else 0
    return routed + rows + 4 * moe.num_experts + moe.top_k * pair + added
