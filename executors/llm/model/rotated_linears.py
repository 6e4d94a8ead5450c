"""Products around the linear layers of a decoder, as `transforms.py` describes them.

q, k and v, and gate and up, are one linear layer here with one input: its parts have to have the same transform of it. Their
outputs have a transform each. A LoRA adapter adds to the layer as a whole: it gets the input before the transform, and what it
adds comes after that of the output, as PEFT does it around a module with hooks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch

from executors.llm.model import parameters as naming
from executors.llm.model.hadamard import Hadamard
from executors.llm.model.linear import Linear
from executors.llm.model.names import names_in_settings
from executors.llm.model.rotation import Rotation, Transform
from executors.llm.model.stored_transform import StoredMatrix, StoredTransform
from executors.llm.model.transforms import Location, OnlineTransform, Transforms


class RotatedParts(naming.DecoderParts, Protocol):
    """The parts of a `Decoder` that may be rotated."""

    device: torch.device

    def linears(self) -> list[Linear]:
        """All linear layers, the head last."""


def rotate_linears(decoder: RotatedParts, transforms: Transforms) -> list[StoredMatrix]:
    """Give the linear layers their rotations, and return the matrices that are still to be filled. Raises ConfigError for
    transforms that cannot be computed."""
    if decoder.config.family.names.transposed:
        raise transforms.refused(f"a {decoder.config.family.name} model", "families of nn.Linear layers")
    parts, of_head = naming.linear_parts(naming.places(decoder)), decoder.config.family.names.lm_head
    head = decoder.lm_head
    if decoder.config.headless:
        parts.pop(id(head), None)
        of_head = decoder.config.family.names.classifier if decoder.classifier is not None else ""
    modules = {}
    for place, rows_of in parts.items():
        # A head that is tied goes by the embedding's name there.
        stems = [name.removesuffix(".weight") for name, _ in rows_of] if place != id(head) else [of_head]
        modules[place] = [(stem, rows) for stem, (_, rows) in zip(stems, rows_of, strict=True)]
    _check_targets(
        decoder, transforms, [stem for rows_of in modules.values() for stem, _ in rows_of], of_head
    )
    pool = _Pool(transforms, decoder.device)
    for linear in decoder.linears():
        if id(linear) in modules:
            linear.rotation = _rotation(linear, modules[id(linear)], pool)
    return list(pool.matrices.values())


class _Pool:
    """The transforms of a decoder, each once."""

    def __init__(self, transforms: Transforms, device: torch.device) -> None:
        self.transforms, self._device = transforms, device
        self._sylvester: dict[int, Hadamard] = {}
        self._stored: dict[tuple[str, int, bool], StoredTransform] = {}
        self.matrices: dict[tuple[str, int], StoredMatrix] = {}

    def of(self, stem: str, location: Location, size: int) -> Transform | None:
        """Return the transform of `size` columns at a side of a linear layer, None if there is none. Raises ConfigError."""
        transforms = self.transforms
        matches = [
            one
            for one in transforms.online
            if one.location == location and one.covers(names_in_settings(stem))
        ]
        if len(matches) > 1:
            what = f"{matches[0].name} and {matches[1].name} both at the {location} of {stem}"
            raise transforms.refused(what, "one transform there")
        if not matches:
            return None
        [one] = matches
        block = one.block or size
        if size % block:
            what = f"{one.name}: head_dim {block} for {size} columns at the {location} of {stem}"
            raise transforms.refused(what, "divisors")
        if one.stored:
            return self._of_file(one, block)
        if block & (block - 1):
            what = f"{one.name}: a Hadamard matrix of size {block} at the {location} of {stem}"
            raise transforms.refused(what, "powers of two (head_dim names the size of blocks)")
        if block not in self._sylvester:
            self._sylvester[block] = Hadamard(block, self._device)
        return self._sylvester[block]

    def _of_file(self, one: OnlineTransform, size: int) -> StoredTransform:
        if (one.name, size) not in self.matrices:
            memory = torch.empty(size, size, dtype=torch.float32, device=self._device)
            scaled = one.kind != "random-matrix"
            self.matrices[one.name, size] = StoredMatrix(
                one.name, size, scaled, one.permuted and scaled, memory
            )
        matrix = self.matrices[one.name, size]
        matrix.locations.add(one.location)
        turned = one.inverse and matrix.scaled
        if (one.name, size, turned) not in self._stored:
            self._stored[one.name, size, turned] = StoredTransform(matrix, turned)
        return self._stored[one.name, size, turned]


def _rotation(linear: Linear, modules: list[tuple[str, int]], pool: _Pool) -> Rotation | None:
    assert linear.weight is not None
    columns = linear.weight.shape[1]
    befores = [pool.of(stem, "input", columns) for stem, _ in modules]
    if any(one is not befores[0] for one in befores):
        stems = ", ".join(stem for stem, _ in modules)
        raise pool.transforms.refused(f"different transforms of the one input of {stems}", "the same for all")
    after, begin = [], 0
    for stem, rows in modules:
        if (one := pool.of(stem, "output", rows)) is not None:
            after.append((begin, begin + rows, one))
        begin += rows
    return Rotation(befores[0], tuple(after)) if befores[0] is not None or after else None


def _check_targets(decoder: RotatedParts, transforms: Transforms, linears: list[str], of_head: str) -> None:
    """Raise ConfigError for a target that is, or may be, something else than a linear layer of the decoder."""
    family = decoder.config.family
    names = {name for stem in linears for name in names_in_settings(stem)}
    others = set(_containers(linears))
    others |= {
        name.rpartition(".")[0]
        for name, place in naming.places(decoder).items()
        if place.linear is None or name.startswith(f"{family.names.embed}.")
    }
    others -= {*linears, of_head}
    for one in transforms.online:
        # The parts of a nested checkpoint that are left out have names, too.
        if not family.nested and not any(one.covers(names_in_settings(stem)) for stem in linears):
            what = f"{one.name}: {', '.join(one.targets)} as targets at {one.location}, which no linear layer matches,"
            raise transforms.refused(what, "linear layers")
        for target in one.targets:
            if not target.startswith("re:") and target != "Linear" and target not in names:
                raise transforms.refused(f"{one.name}: target {target!r} at {one.location}", "linear layers")
        for name in sorted(others):
            if any(one.reaches(form) for form in names_in_settings(name)):
                raise transforms.refused(f"{one.name}: {name} as a target at {one.location}", "linear layers")
    if decoder.classifier is not None and any(one.covers((of_head,)) for one in transforms.online):
        raise transforms.refused(f"the head {of_head} as a target", "linear layers of the body")


def _containers(linears: list[str]) -> Iterator[str]:
    """Yield the modules that the linear layers are in."""
    for stem in linears:
        parts = stem.split(".")
        yield from (".".join(parts[:count]) for count in range(1, len(parts)))
