"""Selects the linear layers that stay on a GPU as their file holds them."""

from __future__ import annotations

from collections.abc import Mapping

from executors.kernels.device_layouts import LAYOUTS
from executors.llm.model.decoder import Decoder, stored_parts
from executors.llm.model.layers.layer import Layer
from executors.llm.model.linear import Linear, StoredFormat
from executors.llm.model.parameters import linear_parts, of_layer
from executors.llm.model.places import Place
from executors.llm.parallel.shard import routed

_OF_EXPERTS = "MXFP4"
"""Format that the kernels for experts read."""


def keep(decoder: Decoder, index: int, layer: Layer, stored: Mapping[str, StoredFormat]) -> None:
    """Keep the formats of a layer's linear layers, by checkpoint names, which frees their memory before it is touched.

    Experts are kept where all are in MXFP4, and are widened otherwise, as are linear layers with a part that the file has in
    another form.
    """
    if (experts := routed(layer.feed_forward)) is not None:
        own = {linear for expert in experts.experts for linear in expert.linears}
        names = [name for name, place in of_layer(decoder, index, layer) if place.linear in own]
        of_experts = [stored.get(name) for name in names]
        if all(one is not None and one.kind == _OF_EXPERTS and one.order is None for one in of_experts):
            experts.keep_on_device(_OF_EXPERTS)
    parts: dict[Linear, list[tuple[str, Place]]] = {one: [] for one in layer.adapted_linears()}
    for name, place in of_layer(decoder, index, layer):
        if place.linear in parts:
            parts[place.linear].append((name, place))
    for linear, places in parts.items():
        places.sort(key=lambda one: one[1].begin)
        if any(place.turned for _, place in places):
            continue
        rows = [(name, len(place.tensor)) for name, place in places]
        if (formats := stored_parts(rows, stored, LAYOUTS)) is not None:
            linear.keep_on_device(formats, decoder.device)


def keep_head(decoder: Decoder, stored: Mapping[str, StoredFormat]) -> None:
    """The same for the head, and for an embedding that is tied to it."""
    parts = linear_parts(decoder.places()).get(id(decoder.lm_head))
    if parts and (formats := stored_parts(parts, stored, LAYOUTS)) is not None:
        decoder.keep_head_on_device(formats)
