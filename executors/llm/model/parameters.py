"""Maps checkpoint tensors to the parameters of a `Decoder`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch

from executors.llm.model.config import DecoderConfig
from executors.llm.model.layers.layer import Layer
from executors.llm.model.layers.modules import Experts, Mlp, Norm
from executors.llm.model.linear import Linear


@dataclass(frozen=True, slots=True)
class Place:
    """Destination of a checkpoint tensor: `tensor`, which has its shape (for the norms of heads see `places`).

    If `linear` is given and has given up its weight, `tensor` is a shape without memory and the rows go to `linear.fill`,
    starting at row `begin`; if `turned`, the rows are the checkpoint's columns. A tied embedding goes to both its tensor and
    the head.
    """

    tensor: torch.Tensor
    linear: Linear | None = None
    begin: int = 0
    turned: bool = False

    @property
    def packed(self) -> bool:
        """Whether the rows go to a linear layer that stores them in another format."""
        return self.linear is not None and self.linear.given_up


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


Named = Iterator[tuple[str, Place]]


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
    found = {f"{names.embed}.weight": embed}
    if decoder.position_embed is not None:
        found[f"{names.positions}.weight"] = Place(decoder.position_embed)
    if not decoder.config.tied:
        found.update(_parts(decoder.lm_head, ((names.lm_head, -1),)))
    if decoder.classifier is not None:
        found[f"{names.classifier}.weight"] = Place(decoder.classifier)
    found.update(_of_norm(decoder.final_norm, names.final_norm))
    for i, layer in enumerate(decoder.layers):
        found.update(of_layer(decoder, i, layer))
    return found


def linear_parts(decoder: DecoderParts) -> dict[int, list[tuple[str, int]]]:
    """Map the id of each linear layer to the checkpoint names of its weights and their numbers of rows, from the first row
    on."""
    found: dict[int, list[tuple[int, str, int]]] = {}
    for name, place in places(decoder).items():
        if place.linear is not None:
            rows = place.tensor.shape[1] if place.turned else len(place.tensor)
            found.setdefault(id(place.linear), []).append((place.begin, name, rows))
    return {linear: [(name, rows) for _, name, rows in sorted(parts)] for linear, parts in found.items()}


def of_layer(decoder: DecoderParts, index: int, layer: Layer) -> Named:
    """Return the part of `places` for one layer, which need not be in the decoder yet."""
    transposed = decoder.config.family.transposed
    for name, place in _of_layer(decoder, layer):
        if transposed and place.tensor.dim() == 2 and name.endswith(".weight"):
            place = Place(place.tensor.T, place.linear, place.begin, turned=True)
        yield name.replace("{i}", str(decoder.first_layer + index)), place


def _of_norm(norm: Norm, name: str) -> Named:
    for part, tensor in norm.parameters(name).items():
        yield part, Place(tensor)


def head_norms(decoder: DecoderParts) -> frozenset[str]:
    """Names in `parameters` whose checkpoint tensor is broadcast over heads."""
    names = decoder.config.family.names
    if decoder.config.family.qk_norm != "head":
        return frozenset()
    return frozenset(
        f"{name}.weight".replace("{i}", str(decoder.first_layer + i))
        for i in range(len(decoder.layers))
        for name in (names.q_norm, names.k_norm)
    )


def _of_layer(decoder: DecoderParts, layer: Layer) -> Named:
    c, names = decoder.config, decoder.config.family.names
    if names.qkv:
        yield from _parts(layer.qkv, ((names.qkv, c.q_size + 2 * c.kv_size),))
    else:
        yield from _parts(layer.qkv, ((names.q, c.q_size), (names.k, c.kv_size), (names.v, c.kv_size)))
    yield from _parts(layer.o, ((names.o, c.hidden_size),))
    if isinstance(layer.mlp, Experts):
        yield from _of_experts(decoder, layer.mlp)
    else:
        yield from _of_mlp(layer.mlp, names.gate_up, names.gate, names.up, names.down)
    norms: tuple[tuple[Norm | None, str], ...] = (
        (layer.attn_norm, names.attn_norm),
        (layer.attn_post_norm, names.attn_post_norm),
        (layer.mlp_norm, names.mlp_norm),
        (layer.mlp_post_norm, names.mlp_post_norm),
        (layer.q_norm, names.q_norm),
        (layer.k_norm, names.k_norm),
    )
    for norm, name in norms:
        if norm is not None:
            yield from _of_norm(norm, name)
    if layer.qk_norm is not None:
        yield f"{names.q_norm}.weight", Place(layer.qk_norm[: c.num_heads])
        yield f"{names.k_norm}.weight", Place(layer.qk_norm[c.num_heads :])


def _of_experts(decoder: DecoderParts, experts: Experts) -> Named:
    names = decoder.config.family.names
    yield from _parts(experts.router, ((names.router, experts.moe.num_experts),))
    for e, expert in enumerate(experts.experts):
        for name, place in _of_mlp(expert, "", names.expert_gate, names.expert_up, names.expert_down):
            yield name.replace("{e}", str(e)), place


def _of_mlp(mlp: Mlp, gate_up: str, gate: str, up: str, down: str) -> Named:
    if gate_up:
        yield from _parts(mlp.gate_up, ((gate_up, 2 * mlp.inner),))
    elif mlp.gated:
        yield from _parts(mlp.gate_up, ((gate, mlp.inner), (up, mlp.inner)))
    else:
        yield from _parts(mlp.gate_up, ((up, mlp.inner),))
    yield from _parts(mlp.down, ((down, -1),))


def _parts(linear: Linear, parts: tuple[tuple[str, int], ...]) -> Named:
    """Yield rows of one linear layer under the names of its parts, (name, rows); -1 means all rows."""
    assert linear.weight is not None, "packed weights cannot be loaded into"
    begin = 0
    for name, rows in parts:
        end = len(linear.weight) if rows < 0 else begin + rows
        yield f"{name}.weight", Place(linear.weight[begin:end], linear, begin)
        if linear.bias is not None:
            yield f"{name}.bias", Place(linear.bias[begin:end])
        begin = end
