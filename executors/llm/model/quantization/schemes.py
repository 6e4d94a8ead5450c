"""How the linear layers of a checkpoint are quantized: one scheme for each, found by the name of its tensors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from executors.llm.model.fp4 import Fp4Form
from executors.llm.model.transforms import Transforms

ZeroRule = Literal["stored", "plus_one", "half"]


@dataclass(frozen=True, slots=True)
class Fp8Scheme:
    """Weights in e4m3. `blocks`: one scale per 128 x 128 weights; otherwise one per row, or one for all."""

    blocks: bool


@dataclass(frozen=True, slots=True)
class IntScheme:
    """Weights in whole numbers of 4 or 8 bits with scales, and zeros, of groups of columns; or in FP4.

    `bits`: None where the shapes of the tensors say it. `zeros`: the zero of a group is the stored one; or that of the word plus
    0x11111111 (of 4 bits; 0x01010101 of 8), modulo 2**32; or half of the range, whatever is stored.
    """

    form: Literal["gptq", "awq", "pack-quantized", "int-quantized"] | Fp4Form
    bits: int | None = None
    zeros: ZeroRule = "stored"

    @property
    def label(self) -> str:
        """What to call the weights in a note: `gptq int4`."""
        return self.form if self.bits is None else f"{self.form} int{self.bits}"


@dataclass(frozen=True, slots=True)
class Rule:
    """The scheme of the modules whose names begin with a match of `pattern`, a regular expression; None: they are wide."""

    pattern: str
    scheme: IntScheme | None


@dataclass(frozen=True, slots=True)
class IntSchemes:
    """The schemes of a checkpoint. The first of the `rules` that matches a module's name wins; the others have the scheme `rest`
    (None: they are wide).

    `by_tensors`: the tensors of a weight show its form, and a name that no rule knows means nothing.
    """

    rest: IntScheme | None
    rules: tuple[Rule, ...] = ()
    by_tensors: bool = False

    def of(self, stem: str) -> IntScheme | None:
        """Return the scheme of the module `stem`, such as `model.layers.0.mlp.up_proj`; None if it is wide."""
        for rule in self.rules:
            if re.match(rule.pattern, stem):
                return rule.scheme
        return self.rest

    def all(self) -> Iterator[IntScheme]:
        """Yield each scheme that a module may have, once."""
        named = (self.rest, *(rule.scheme for rule in self.rules))
        yield from dict.fromkeys(one for one in named if one is not None)

    @property
    def label(self) -> str:
        """What to call the weights in a note: `gptq int4, gptq int8`."""
        return ", ".join(one.label for one in self.all())


@dataclass(frozen=True, slots=True)
class Quantization:
    """What a checkpoint says about its quantization.

    `method`: its name in the file `where`. `fp8` and `integers`: of weights in FP8 and in whole numbers, None if there are none.
    `transforms`: Hadamard products around linear layers, None if there are none. `refusal`: why it is not supported, which holds
    unless the weights prove to be wide. `notes`: sentences on what is not used.
    """

    method: str
    where: str
    fp8: Fp8Scheme | None = None
    integers: IntSchemes | None = None
    transforms: Transforms | None = None
    refusal: str | None = None
    notes: tuple[str, ...] = field(default=(), compare=False)
