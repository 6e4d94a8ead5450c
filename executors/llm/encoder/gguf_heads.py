"""What a GGUF file says of a classification head: `cls.*` tensors, as llama.cpp's converter writes rerankers. No torch here.

    cls         hidden -> hidden, then tanh, of ModernBERT the activation of the model
    cls.norm    ModernBERT alone
    cls.output  hidden -> labels

The converter leaves the pooler of a BERT out: files of `BertForSequenceClassification` have `cls.output` alone, and llama.cpp
makes their logits of the first token's hidden state. So does Cohort, and a note tells it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from executors.contract.errors import ConfigError
from executors.llm.model.gguf_keys import GgufKeys

_LABELS, _POOLING = "classifier.output_labels", "classifier.pooling_type"
_OUTPUT: Final = "cls.output.weight"
_LABELS_ALONE: Final = frozenset({_OUTPUT, "cls.output.bias"})
_WITH_LAYER: Final = _LABELS_ALONE | {"cls.weight", "cls.bias"}
_MODERN: Final = _LABELS_ALONE | {"cls.weight", "cls.norm.weight"}
_SETS: Final[Mapping[str, tuple[frozenset[str], ...]]] = {
    "bert": (_LABELS_ALONE, _WITH_LAYER),
    "modern-bert": (_MODERN, _MODERN | {"cls.bias"}),
}
"""Tensors that a head may consist of, by the value of `general.architecture`."""
_MEAN, _FIRST = 1, 2
"""Values of `classifier.pooling_type`."""


@dataclass(frozen=True, slots=True)
class GgufHead:
    """`values`: the fields of config.json that describe the head. `direct`: no layer comes before its labels."""

    values: Mapping[str, Any]
    direct: bool = False


def read_head(keys: GgufKeys, hidden: int) -> GgufHead | None:
    """Return what a file says of its head; None without one. Raises ConfigError for tensors that no head of this architecture
    has, for one that is missing, and for labels that do not fit."""
    own = {name for name in keys.gguf.tensors if name.startswith("cls.")}
    if not own:
        keys.name(_POOLING)  # of a head that the file does not have
        return None
    _check_names(keys, own)
    shape = keys.gguf.tensors[_OUTPUT].shape
    if len(shape) not in (1, 2) or shape[-1] != hidden:
        raise ConfigError(
            f"{keys.where}: tensor {_OUTPUT} has shape {list(shape)}; a matrix of {hidden} columns is needed"
        )
    values: dict[str, Any] = {"id2label": _labels(keys, shape[0] if len(shape) == 2 else 1)}
    if keys.arch == "bert":
        if keys.natural(_POOLING, _FIRST) != _FIRST:
            keys.refuse(_POOLING, f"{_FIRST}, the first token")
        return GgufHead(values | {"architectures": ["BertForSequenceClassification"]}, own == _LABELS_ALONE)
    pooling = keys.natural(_POOLING, _MEAN)
    if pooling not in (_MEAN, _FIRST):
        keys.refuse(_POOLING, f"{_MEAN}, the mean, and {_FIRST}, the first token")
    values |= {
        "architectures": ["ModernBertForSequenceClassification"],
        "classifier_pooling": "mean" if pooling == _MEAN else "cls",
        "classifier_bias": "cls.bias" in own,
    }
    return GgufHead(values)


def note_of(keys: GgufKeys) -> str:
    """Return what to tell of a head without a layer before its labels."""
    return (
        f"{keys.where}: the head has no layer before {_OUTPUT}, because llama.cpp's converter leaves the pooler of a BERT out: "
        "its logits are llama.cpp's, and may differ from those of the original model"
    )


def _check_names(keys: GgufKeys, own: set[str]) -> None:
    sets = _SETS.get(keys.arch, ())
    if own in sets:
        return
    larger = [one for one in sets if own < one]
    if not larger:
        supported = frozenset[str]().union(*sets)
        other = min(own - supported or own)
        raise ConfigError(f"{keys.where}: tensor {other} is not supported for architecture {keys.arch}")
    raise ConfigError(
        f"{keys.where}: tensor {min(larger[0] - own)} is missing, a part of the classification head"
    )


def _labels(keys: GgufKeys, count: int) -> dict[str, str]:
    """Names of the labels, as config.json has them; numbers where the file has no names."""
    names = keys.get(_LABELS)
    keys.name(_LABELS)
    if names is None:
        return {str(number): f"LABEL_{number}" for number in range(count)}
    if not isinstance(names, list) or len(names) != count:
        listed = f"{len(names)} names" if isinstance(names, list) else "no list"
        raise ConfigError(
            f"{keys.where}: {keys.name(_LABELS)} has {listed}; tensor {_OUTPUT} has {count} row{'s' * (count != 1)}"
        )
    return {str(number): str(name) for number, name in enumerate(names)}
