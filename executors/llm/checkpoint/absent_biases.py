"""Biases that a model has by its configuration and a checkpoint does not have: they are zeros.

transformers, which sets a bias that is missing to zero, and servers of merged matrices load checkpoints where attention has
biases of queries, keys and values and none of its output, although one field of config.json stands for all four. A kind of bias
that some layers have and others lack is a fault there. In a GGUF file each tensor decides for itself.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from executors.llm.model.family import Family
from executors.llm.model.names import WrittenNames

_ROLES = ("qkv", "q", "k", "v", "o", "gate_up", "gate", "up", "down")
_LAYER = re.compile(r"\.\d+\.")


def absent_biases(
    family: Family, needed: Collection[str], listed: Collection[str], one_by_one: bool
) -> frozenset[str]:
    """Return which of the `needed` names are biases of linear layers that are missing and may be.

    Names are as the checkpoint has them; `listed` are all that it has or claims to have. `one_by_one`: each tensor may be missing
    by itself; otherwise those that no layer has.
    """
    missing = [name for name in needed if name.endswith(".bias") and name not in listed]
    if not missing:
        return frozenset()
    names = WrittenNames(family, listed)
    linear = {getattr(family.names, role).replace(".{i}.", ".", 1) for role in _ROLES} - {""}

    def kind(name: str) -> str:
        return _LAYER.sub(".", names.usual(name).removesuffix(".bias"), count=1)

    present = set() if one_by_one else {kind(name) for name in listed if name.endswith(".bias")}
    return frozenset(name for name in missing if kind(name) in linear - present)


def note_on(absent: Collection[str]) -> str | None:
    """Return a sentence on biases that are zeros, None if there are none."""
    if not absent:
        return None
    kinds = sorted({name.removesuffix(".bias").rpartition(".")[2] for name in absent})
    return f"{len(absent)} biases ({', '.join(kinds)}) are missing and are zeros"
