"""Maps checkpoint tensors to the parameters of a `Decoder`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch

from executors.llm.model.config import DecoderConfig
from executors.llm.model.layer_inputs import LayerInputs
from executors.llm.model.layers.layer import Layer
from executors.llm.model.layers.norms import Norm
from executors.llm.model.linear import Linear
from executors.llm.model.places import NamedPlaces, Place, of_linear


class DecoderParts(Protocol):
    """The parts of a `Decoder` that have parameters."""

    config: DecoderConfig
    first_layer: int
    embed: torch.Tensor
    position_embed: torch.Tensor | None
    layers: list[Layer]
    final_norm: Norm
    lm_head: Linear
    classifier: torch.Tensor | None
    layer_inputs: LayerInputs | None


def parameters(decoder: DecoderParts) -> dict[str, torch.Tensor]:
    """Map checkpoint names to the memory that each tensor is copied into, see `places`."""
    return {name: place.tensor for name, place in places(decoder).items()}


def places(decoder: DecoderParts) -> dict[str, Place]:
    """Map checkpoint names to the places of tensors, in the checkpoint's shapes.

    A linear layer that is merged here but not in the checkpoint appears as its parts. A weight that the checkpoint stores as
    [in, out] appears as its transposed view. The norm of a query or key head is a [heads, head_dim] block here: its
    checkpoint tensor [head_dim] is broadcast into it.
    """
    names = decoder.config.family.names
    embed = Place(decoder.embed, decoder.lm_head if decoder.config.tied else None)
    place_of = {f"{names.embed}.weight": embed}
    if decoder.position_embed is not None:
        place_of[f"{names.positions}.weight"] = Place(decoder.position_embed)
    if not decoder.config.tied:
        place_of.update(of_linear(decoder.lm_head, (names.lm_head, -1)))
    if decoder.classifier is not None:
        place_of[f"{names.classifier}.weight"] = Place(decoder.classifier)
    place_of.update(decoder.final_norm.places(names.final_norm))
    if decoder.layer_inputs is not None:
        place_of.update(decoder.layer_inputs.places())
    for i, layer in enumerate(decoder.layers):
        place_of.update(of_layer(decoder, i, layer))
    return place_of


def linear_parts(places: Mapping[str, Place]) -> dict[int, list[tuple[str, int]]]:
    """Map the id of each linear layer of a decoder's places to the checkpoint names of its weights and their numbers of rows,
    from the first row on."""
    parts_of: dict[int, list[tuple[int, str, int]]] = {}
    for name, place in places.items():
        if place.linear is not None:
            rows = place.tensor.shape[1] if place.turned else len(place.tensor)
            parts_of.setdefault(id(place.linear), []).append((place.begin, name, rows))
    return {linear: [(name, rows) for _, name, rows in sorted(parts)] for linear, parts in parts_of.items()}


def of_layer(decoder: DecoderParts, index: int, layer: Layer) -> NamedPlaces:
    """Return the part of `places` for one layer, which need not be in the decoder yet."""
    transposed = decoder.config.family.names.transposed
    for name, place in layer.tensors():
        if transposed and place.tensor.dim() == 2 and name.endswith(".weight"):
            place = Place(place.tensor.T, place.linear, place.begin, turned=True)
        yield name.replace("{i}", str(decoder.first_layer + index)), place


def head_norms(decoder: DecoderParts) -> frozenset[str]:
    """Names in `parameters` whose checkpoint tensor is broadcast over heads."""
    return frozenset(
        name.replace("{i}", str(decoder.first_layer + i))
        for i, layer in enumerate(decoder.layers)
        for name in layer.head_norms()
    )
