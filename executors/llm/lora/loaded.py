"""`LoadedLora`: an adapter in memory, fitted to the linear layers of a decoder."""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from executors.contract.errors import ConfigError
from executors.kernels import lora as structs
from executors.llm.lora.gguf_modules import GgufModules, gguf_modules
from executors.llm.lora.value_heads import Reorder, apart, value_heads
from executors.llm.model.cuts import Cut
from executors.llm.model.decoder import Decoder
from executors.llm.model.families import family_of
from executors.llm.model.layers.layer import Layer
from executors.llm.model.linear import Linear
from executors.llm.model.names import wrapped_name
from executors.llm.model.places import Place
from executors.llm.row_loras import Product
from executors.lora import LoraFile, Module, read_adapter


@dataclass(frozen=True, slots=True)
class LoraTerm:
    """What an adapter adds to rows begin..begin+outputs of a linear layer's result: scale * (x A^T) B^T.

    `a` [rank, inputs] and `b`, B transposed, in the model's dtype: [rank, outputs], or for the CPU kernels
    [groups, rank, GROUP] with zeros behind the last of the outputs.
    """

    a: torch.Tensor
    b: torch.Tensor
    outputs: int
    begin: int
    scale: float

    def rows_of_b(self) -> torch.Tensor:
        """B transposed, [rank, outputs]."""
        if self.b.dim() == 2:
            return self.b
        return self.b.transpose(0, 1).reshape(len(self.a), -1)[:, : self.outputs]


@dataclass(frozen=True, slots=True)
class Fit:
    """Where a decoder has the modules of an adapter, by their names. `places`: without those of other stages; `cuts`: what a rank
    has of a weight; `gguf`: for names and orders of GGUF files; `reorders`: of modules whose value heads the model has in another
    order; `divided`: of modules that the model has in several, the parts and their rows."""

    places: dict[str, Place]
    cuts: dict[str, Cut | None]
    gguf: GgufModules | None
    reorders: dict[str, Reorder]
    divided: dict[str, dict[str, np.ndarray]]

    def modules(self, file: LoraFile) -> Iterator[Module]:
        """Yield the modules of a file, those in several as their parts."""
        for module in file.modules():
            if (parts := self.divided.get(module.name)) is None:
                yield module
                continue
            for part, rows in parts.items():
                yield replace(module, name=part, b=module.b[rows])

    def in_order(self, module: Module) -> Module:
        """Return the module with rows and columns in the order of the model."""
        if self.gguf is not None:
            module = self.gguf.in_usual_order(module)
        reorder = self.reorders.get(module.name)
        return module if reorder is None else reorder(module)


def fit(decoder: Decoder, file: LoraFile) -> Fit:
    """Find the weights of an adapter's modules by names and sizes; no number is read, and the decoder may be on the meta device.
    Raises ConfigError for modules that the model does not have, or has in other sizes."""
    places = {name.removesuffix(".weight"): place for name, place in decoder.places().items()}
    served = {id(linear): linear for layer in decoder.layers for linear in layer.adapted_linears()}
    gguf = None if file.architecture is None else gguf_modules(file, decoder.whole)
    usual = _usual_names(decoder, file, places) if gguf is None else gguf.usual
    if len(set(usual.values())) < len(usual):
        raise ConfigError(f"{file.label}: it names a weight twice, with different prefixes")
    divided = {} if gguf is not None else _divided(decoder, file)
    cuts = {name: decoder.cuts.get(f"{usual[name]}.weight") for name in file.names}
    targets = {
        name: _target(places.get(usual[name]), cuts[name], served, file, name)
        for name in file.names
        if f"{usual[name]}.weight" not in decoder.elsewhere and name not in divided
    }
    targets |= {part: places[part] for parts in divided.values() for part in parts}
    cuts |= {part: decoder.cuts.get(f"{part}.weight") for parts in divided.values() for part in parts}
    reorder_of = value_heads(decoder.whole, gguf is not None and gguf.tiled)
    reorders = {
        name: reorder for name in targets if (reorder := reorder_of(usual.get(name, name))) is not None
    }
    return Fit(targets, cuts, gguf, reorders, divided)


class LoadedLora:
    """The parts by linear layer, and the structures that the CPU kernels read."""

    def __init__(self, decoder: Decoder, file: LoraFile, grouped: bool | None = None) -> None:
        """Read a file, of which a rank keeps its part. `grouped`: B lies as the CPU kernels read it; by default if one call
        computes the decoder. Raises ConfigError for modules that the model does not have, or has in other sizes."""
        grouped = decoder.fused if grouped is None else grouped
        self.rank = file.rank
        self._parts: dict[int, list[LoraTerm]] = {}
        fitted = fit(decoder, file)
        for module in fitted.modules(file):
            if (place := fitted.places.get(module.name)) is None:
                continue
            assert place.linear is not None
            part = _part(fitted.in_order(module), place, fitted.cuts[module.name], decoder.dtype, grouped)
            self._parts.setdefault(id(place.linear), []).append(part)
        self.num_bytes = sum(
            part.a.nbytes + part.b.nbytes for parts in self._parts.values() for part in parts
        )
        self._pointees: list[object] = []
        layers = map(self._layer, decoder.layers) if grouped else ()
        self._layers = (structs.LoraLayer * len(decoder.layers))(*layers)
        self.address = ctypes.addressof(self._layers)

    def parts(self, linear: Product) -> list[LoraTerm]:
        """Return the terms of a linear layer; [] if the adapter has none for it."""
        return self._parts.get(id(linear), [])

    def _layer(self, layer: Layer) -> structs.LoraLayer:
        struct = structs.LoraLayer()
        # Numbered as in lora.h, also where the mixer has none.
        into, out = (structs.QKV, structs.RATES), structs.O
        *inward, outward = layer.mixer.adapted or (None,)
        of_mixer = [*zip(into, inward, strict=False), *([] if outward is None else [(out, outward)])]
        for where, linear in (*of_mixer, *enumerate(layer.feed_forward.adapted, structs.GATE_UP)):
            parts, at = self.parts(linear), 0
            array = (structs.LoraPart * len(parts))()
            for number, part in enumerate(parts):
                array[number] = structs.LoraPart(
                    part.a.data_ptr(),
                    part.b.data_ptr(),
                    len(part.a),
                    part.outputs,
                    part.begin,
                    at,
                    part.scale,
                )
                at += len(part.a)
            self._pointees.append(array)
            struct.weights[where] = structs.LoraWeight(array, len(parts), at)
        return struct


def load_adapter(decoder: Decoder, path: Path, digest: str, grouped: bool | None = None) -> LoadedLora:
    """Load a file for this decoder and check its digest; see `LoadedLora`."""
    return LoadedLora(decoder, read_adapter(path, digest), grouped)


def _divided(decoder: Decoder, file: LoraFile) -> dict[str, dict[str, np.ndarray]]:
    """Return the modules that the model has in several, with the rows of each part; those of other sizes are left to be
    refused."""
    usual = family_of(decoder.whole.architecture) or decoder.whole.family
    template = usual.names.delta_qkvz
    names = {template.replace("{i}", str(i)) for i in range(decoder.whole.num_layers)} if template else set()
    divided = {}
    for name in file.names:
        outputs, inputs, _ = file.shapes(name)
        parts = apart(decoder.whole, usual, wrapped_name(usual, name, names), outputs)
        if parts is not None and inputs == decoder.whole.hidden_size:
            divided[name] = parts
    return divided


def _usual_names(decoder: Decoder, file: LoraFile, places: Collection[str]) -> dict[str, str]:
    """Usual names of the modules, those of other stages included."""
    usual = {*places, *(name.removesuffix(".weight") for name in decoder.elsewhere)}
    return {name: wrapped_name(decoder.config.family, name, usual) for name in file.names}


def _target(
    place: Place | None, cut: Cut | None, served: Mapping[int, Linear], file: LoraFile, name: str
) -> Place:
    where = f"{file.label}: {name[:200]}"
    if place is None:
        raise ConfigError(f"{where}: the model has no such weight")
    if place.linear is None or id(place.linear) not in served:
        raise ConfigError(
            f"{where}: adapters of this weight are not supported; merge the adapter into the model and serve that"
        )
    outputs, inputs, _ = file.shapes(name)
    rows, columns = place.tensor.T.shape if place.turned else place.tensor.shape
    if cut is not None:
        rows, columns = cut.of
    if (outputs, inputs) != (rows, columns):
        raise ConfigError(
            f"{where} is for a weight of {outputs} x {inputs}; the model's has {rows} x {columns}"
        )
    return place


def _part(module: Module, place: Place, cut: Cut | None, dtype: torch.dtype, grouped: bool) -> LoraTerm:
    of_a, of_b = module.a, module.b
    if cut is not None and cut.columns is not None:
        of_a = of_a[:, slice(*cut.columns)]
    if cut is not None and cut.rows is not None:
        of_b = np.concatenate([of_b[begin:end] for begin, end in cut.rows])
    a, b = (torch.from_numpy(one.copy()).to(dtype) for one in (of_a, of_b))
    if not (a.isfinite().all() and b.isfinite().all()):
        raise ConfigError(f"{module.name[:200]}: its numbers do not fit into {dtype}")
    outputs, turned = len(b), b.T
    if grouped:
        turned = (
            F.pad(turned, (0, -outputs % structs.GROUP)).unflatten(1, (-1, structs.GROUP)).transpose(0, 1)
        )
    return LoraTerm(a.contiguous(), turned.contiguous(), outputs, place.begin, module.scale)
