"""How the linear layers of a checkpoint are quantized: one scheme for each, found by the name of its tensors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from executors.llm.model.fp4 import Fp4Form
from executors.llm.model.names import names_in_settings
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


def only_match(pattern: str) -> str | None:
    """Return the only text that a regular expression matches, None if there may be several: `a\\.b$` matches `a.b`."""
    body = pattern.removeprefix("^")
    if not body.endswith(("$", r"\Z")) or body.endswith(r"\$"):
        return None
    body = body[:-1] if body.endswith("$") else body[:-2]
    plain = re.sub(r"\\([^\w\s])", r"\1", body)
    return plain if re.fullmatch(r"(?:[\w-]|\\[^\w\s])*", body) else None


@dataclass(frozen=True)
class IntSchemes:
    """The schemes of a checkpoint. The first of the `rules` that matches a module's name wins; the others have the scheme `rest`
    (None: they are wide).

    `by_tensors`: the tensors of a weight show its form, and a name that no rule knows means nothing.
    """

    rest: IntScheme | None
    rules: tuple[Rule, ...] = ()
    by_tensors: bool = False

    def of(self, stem: str) -> IntScheme | None:
        """Return the scheme of the module `stem`, such as `model.layers.0.mlp.up_proj`; None if it is wide. A rule may name
        it with another of the prefixes that savers use."""
        if not self.rules:
            return self.rest
        rule_of, others = self._lookup
        names = names_in_settings(stem)
        place = min(rule_of.get(name, len(self.rules)) for name in names)
        first = next((i for i, one in others if i < place and any(map(one.match, names))), place)
        return self.rest if first == len(self.rules) else self.rules[first].scheme

    @cached_property
    def _lookup(self) -> tuple[dict[str, int], list[tuple[int, re.Pattern[str]]]]:
        """Places of the rules that match one name, by that name, and of the others. A file may have a rule for each of its
        modules, which are tens of thousands with experts."""
        rule_of: dict[str, int] = {}
        others = []
        for i, rule in enumerate(self.rules):
            if (name := only_match(rule.pattern)) is not None:
                rule_of.setdefault(name, i)
            else:
                others.append((i, re.compile(rule.pattern)))
        return rule_of, others

    def all(self) -> Iterator[IntScheme]:
        """Yield each scheme that a module may have, once."""
        schemes = (self.rest, *(rule.scheme for rule in self.rules))
        yield from dict.fromkeys(one for one in schemes if one is not None)

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
