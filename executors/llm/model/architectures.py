"""Which family serves a checkpoint: chosen by `architectures` of its `config.json`, else by `model_type`. No torch here."""

from __future__ import annotations

from typing import Any

from executors.contract.errors import ConfigError
from executors.llm.model.families import FAMILIES, families_of, family_of, supported_architectures
from executors.llm.model.family import Family
from executors.llm.model.nearest import advice

CLASSIFIER = "ForSequenceClassification"
"""Ending of the name of a model whose head, one linear layer, gives the last token's hidden state a score for each label."""
_OTHER_HEADS = (
    "ForTokenClassification", "ForQuestionAnswering", "ForRewardModel", "ForProcessRewardModel",
    "DoubleHeadsModel", "ForMultipleChoice",
)  # fmt: skip
_WRAPPER = "FSDP"
"""Prefix of the class name of a model that was saved while wrapped by torch's FSDP."""


def find_family(values: dict[str, Any], where: str) -> tuple[str, Family, list[str]]:
    """Return the architecture that is served, its family, and notes on the choice. Raises ConfigError.

    The name of a body (`Qwen3Model`) selects the model with a head of the same family, and so does a `model_type` if
    `architectures` is empty. The name of a classifier (`Qwen3ForSequenceClassification`) stays, for `is_classifier` to judge. A
    head for another task is refused, because the output of that head is the purpose of such a model. Of families with one
    architecture, the `model_type` inside the nested object decides.
    """
    architectures, model_type = values.get("architectures"), values.get("model_type")
    if architectures is None or architectures == [] or architectures == [None]:
        family = _of_type(model_type)
        if family is None:
            fault = "is missing" if model_type is None else f"names nothing, and model_type is {model_type!r}"
            beside = "" if model_type is None else f"; {advice(str(model_type))}"
            raise ConfigError(
                f"{where}: field architectures {fault}; supported: {supported_architectures()}{beside}"
            )
        return family.architectures[0], _by_what_is_nested(family, values), []
    if not isinstance(architectures, list):
        raise ConfigError(f"{where}: architectures is {str(architectures)[:80]!r}; a list of names is needed")
    for architecture in architectures:
        family = _served(architecture)
        if family is not None:
            family = _by_what_is_nested(family, values)
            keeps_name = architecture in family.architectures or is_classifier(architecture)
            served = architecture if keeps_name else family.architectures[0]
            return served, family, _mismatch(served, family, model_type)
    raise ConfigError(_refusal(str(architectures[0])[:80], where))


def _by_what_is_nested(family: Family, values: dict[str, Any]) -> Family:
    inner = values.get(family.nested) if family.nested else None
    kind = inner.get("model_type") if isinstance(inner, dict) else None
    rivals = families_of(family.architectures[0])
    return next((one for one in rivals if kind in one.only.get("model_type", ())), family)


def is_classifier(architecture: str) -> bool:
    """Return whether this is a model with labels in place of a vocabulary, such as a reranker."""
    return architecture.endswith(CLASSIFIER)


def _of_type(model_type: object) -> Family | None:
    return next((family for family in FAMILIES if model_type in family.model_types), None)


def _served(architecture: object) -> Family | None:
    if not isinstance(architecture, str):
        return None
    architecture = architecture.removeprefix(_WRAPPER)
    if is_classifier(architecture):
        body = f"{architecture.removesuffix(CLASSIFIER)}Model"
        return next((one for one in FAMILIES if one.body == body and not one.nested), None)
    return family_of(architecture) or next((one for one in FAMILIES if architecture == one.body), None)


def _mismatch(architecture: str, family: Family, model_type: object) -> list[str]:
    if model_type is None or model_type in family.model_types or _of_type(model_type) is None:
        return []
    return [
        f"model_type {model_type!r} is not used: architectures names {architecture}, whose model_type differs"
    ]


def _refusal(name: str, where: str) -> str:
    supported = supported_architectures()
    for ending in (CLASSIFIER, *_OTHER_HEADS):
        stem = name.removesuffix(ending)
        family = next((one for one in FAMILIES if one.body == f"{stem}Model"), None)
        if stem != name and family is not None:
            return (
                f"{where}: architecture {name!r} has the head of another task, which is not supported; its body serves "
                f'embeddings where architectures is ["{family.architectures[0]}"]; supported: {supported}'
            )
    return f"{where}: architecture {name!r} is not supported; supported: {supported}; {advice(name)}"
