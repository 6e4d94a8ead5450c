"""Selects the linear layers of a decoder layer that hold e4m3."""

from __future__ import annotations

import math

from executors.llm.model.decoder import Decoder
from executors.llm.model.fp8 import GROUP, Fp8Plan, Fp8Weight
from executors.llm.model.layers.base import PackingPlan
from executors.llm.model.layers.layer import Layer
from executors.llm.model.linear import Linear
from executors.llm.model.parameters import of_layer
from executors.llm.model.places import Place

_ALIGN = 16
"""torch._scaled_mm accepts only sizes that are multiples of this."""


def hold(decoder: Decoder, index: int, layer: Layer, plan: Fp8Plan) -> None:
    """Make the linear layers that the plan selects hold e4m3, which frees their memory before it is touched.

    Experts and linear layers whose checkpoint weight is transposed stay wide, as do layers of sizes that the products do not
    support. Of a plain checkpoint, whose weights are rounded as they are loaded, those that must stay exact do, too.
    """
    exact = _exact(layer) if plan.stored is None else frozenset()
    parts: dict[Linear, list[tuple[str, Place]]] = {
        one: [] for one in layer.adapted_linears() if one not in exact
    }
    for name, place in of_layer(decoder, index, layer):
        if place.linear in parts:
            parts[place.linear].append((name, place))
    for linear, places in parts.items():
        assert linear.weight is not None
        fits = plan.blocks or not any(size % _ALIGN for size in linear.weight.shape)
        there = plan.stored is None or all(name in plan.stored for name, _ in places)
        if fits and there and not any(place.turned for _, place in places):
            # Where a merged linear's parts begin within a block, a scale covers as many rows as divide all their beginnings.
            step = math.gcd(GROUP, *(place.begin for _, place in places)) if plan.blocks else 1
            rows, columns = linear.weight.shape
            linear.hold(Fp8Weight(rows, columns, decoder.device, plan.blocks, step, plan.triton))


def _exact(layer: Layer) -> frozenset[Linear]:
    """Return the linear layers that are never rounded, whatever the others are packed as."""
    plan = PackingPlan("rounded", "exact", fused=False)
    layouts = (one for sublayer in layer.sublayers for one in sublayer.packing(plan))
    return frozenset(linear for linear, packing in layouts if packing.kind == "exact")
