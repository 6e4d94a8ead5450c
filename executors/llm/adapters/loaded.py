"""`LoadedAdapter`: an adapter in memory, fitted to the linear layers of a decoder."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from executors.contract.errors import ConfigError
from executors.kernels import lora as structs
from executors.llm.model.decoder import Decoder
from executors.llm.model.layer import Layer
from executors.llm.model.linear import Linear
from executors.llm.model.modules import Mlp
from executors.llm.model.parameters import Place
from executors.llm.row_adapters import Product
from executors.lora import AdapterFile, Module


@dataclass(frozen=True, slots=True)
class Part:
    """What an adapter adds to rows begin..begin+outputs of a linear layer's result: scale * (x A^T) B^T.

    `a` [rank, inputs] and `b` [rank, outputs], which is B transposed, in the model's dtype.
    """

    a: torch.Tensor
    b: torch.Tensor
    begin: int
    scale: float


class LoadedAdapter:
    """The parts by linear layer, and the structures that the CPU kernels read."""

    def __init__(self, decoder: Decoder, file: AdapterFile) -> None:
        """Read a file. Raises ConfigError for modules that the model does not have, or has in other sizes."""
        self.rank = file.rank
        self._parts: dict[int, list[Part]] = {}
        places = {name.removesuffix(".weight"): place for name, place in decoder.places().items()}
        served = {id(linear): linear for layer in decoder.layers for linear in _linears(layer)}
        targets = {name: _target(places, served, file, name) for name in file.names}
        for module in file.modules():
            place = targets[module.name]
            assert place.linear is not None
            self._parts.setdefault(id(place.linear), []).append(_part(module, place, decoder.dtype))
        self.num_bytes = sum(
            part.a.nbytes + part.b.nbytes for parts in self._parts.values() for part in parts
        )
        self._kept: list[object] = []
        self._layers = (structs.LoraLayer * len(decoder.layers))(*map(self._layer, decoder.layers))
        self.address = ctypes.addressof(self._layers)

    def parts(self, linear: Product) -> list[Part]:
        """Of a linear layer."""
        return self._parts.get(id(linear), [])

    def _layer(self, layer: Layer) -> structs.LoraLayer:
        made = structs.LoraLayer()
        for where, linear in enumerate(_linears(layer)):
            parts = self._parts.get(id(linear), [])
            array = (structs.LoraPart * len(parts))(*(
                structs.LoraPart(
                    part.a.data_ptr(), part.b.data_ptr(), len(part.a), part.b.shape[1], part.begin, part.scale
                )
                for part in parts
            ))  # fmt: skip
            self._kept.append(array)
            made.weights[where] = structs.LoraWeight(array, len(parts))
        return made


def _linears(layer: Layer) -> tuple[Linear, ...]:
    """The linear layers that adapters may change: qkv, o, and of an MLP without experts gate and up, and down."""
    return (layer.qkv, layer.o, *(layer.mlp.linears if isinstance(layer.mlp, Mlp) else ()))


def _target(places: Mapping[str, Place], served: Mapping[int, Linear], file: AdapterFile, name: str) -> Place:
    place = places.get(name)
    where = f"{file.path.name}: {name[:200]}"
    if place is None:
        raise ConfigError(f"{where}: the model has no such weight")
    if place.linear is None or id(place.linear) not in served:
        raise ConfigError(f"{where}: adapters of this weight are not supported")
    outputs, inputs, _ = file.shapes(name)
    rows, columns = place.tensor.T.shape if place.turned else place.tensor.shape
    if (outputs, inputs) != (rows, columns):
        raise ConfigError(
            f"{where} is for a weight of {outputs} x {inputs}; the model's has {rows} x {columns}"
        )
    return place


def _part(module: Module, place: Place, dtype: torch.dtype) -> Part:
    a, b = (torch.from_numpy(one.copy()).to(dtype) for one in (module.a, module.b))
    if not (a.isfinite().all() and b.isfinite().all()):
        raise ConfigError(f"{module.name[:200]}: its numbers do not fit into {dtype}")
    return Part(a.contiguous(), b.T.contiguous(), place.begin, module.scale)
