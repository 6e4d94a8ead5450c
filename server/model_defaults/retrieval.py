"""How a model is used for retrieval: the prompts before its texts, and how it scores a query and a document.

An embedding model of sentence-transformers lists its prompts in config_sentence_transformers.json. A reranker says what it is
in one of these ways, the first of which counts:

    a classification head              architectures ["...ForSequenceClassification"], whose one logit is the score, or of a GGUF
                                       file cls.output.weight, with one logit or two, of which the first is for yes
    --classifier-from-token NO,YES     the logits of two tokens, chosen by the operator
    a module LogitScore                true_token_id and false_token_id in its config.json (sentence-transformers)
    classifier_from_token              in config.json, as vLLM reads it
    its name                           Qwen3-Reranker's published files are those of a chat model and say nothing else
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from executors.contract import ConfigError, ModelInfo
from server.model_defaults.pooling import DefaultPooling, modules, read_file
from server.model_files.prepared import model_file

_TOKENS_FIELD = "classifier_from_token"
_SETTINGS = "config_sentence_transformers.json"
_DEFAULT_PROMPT = "default_prompt_name"
_SIMILARITY = "similarity_fn_name"
SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")
"""Similarities of sentence-transformers; the last two are distances below 0."""
_ACTIVATION, _OLD_ACTIVATION = "activation_fn", "sbert_ce_default_activation_function"
_MOST_NAMED = 100
"""Characters of names from a model's files that a message shows."""
_QWEN3_NAME = re.compile(r"qwen3[-_. ]reranker", re.IGNORECASE)
_QWEN3_TOKENS = ("no", "yes")
_INSTRUCTED = re.compile(r"(Instruct: ?).+?(\n ?Query: ?)", re.DOTALL)

TokenId = Callable[[str], int | None]
"""Returns the id of a text that is one token of the vocabulary, else None."""


@dataclass(frozen=True, slots=True)
class EmbeddingPrompts:
    """Texts that an embedding model was trained to see before an input."""

    by_name: Mapping[str, str] = field(default_factory=dict)
    """Prompts by their names, such as `query` and `document`."""
    instructed: tuple[str, str] | None = None
    """Texts before and after an instruction, in front of a query; None: the model has no such form."""
    default: str | None = None
    """Name of the prompt that is put before every text unless the request names another; None: there is none."""


@dataclass(frozen=True, slots=True)
class Scoring:
    """How the model scores a query and a document.

    With `label_ids` the score is a logit of the prompt's last token, or the first less the second: they are token ids, or
    labels of a classification head. Without, the score is the similarity of two embeddings if `by_vectors`; otherwise the model
    scores nothing, and `reason` says why. `similarity`: one of SIMILARITIES, of vectors that have length 1 if `unit_length`.
    `as_logits`: the model's own activation is none, so a score is the logit itself.
    """

    label_ids: tuple[int, ...] = ()
    by_vectors: bool = False
    similarity: str = "cosine"
    unit_length: bool = True
    as_logits: bool = False
    reason: str = "nothing in its files says that it is a reranker or an embedding model"

    @property
    def kind(self) -> str:
        """ "reranker", "embedding", or "" for a model that scores nothing."""
        return "reranker" if self.label_ids else "embedding" if self.by_vectors else ""


def embedding_prompts(directory: Path) -> EmbeddingPrompts:
    """The prompts that a model directory lists. Raises ConfigError, naming the file, if it cannot be read."""
    path = directory / _SETTINGS
    config = read_file(path, dict) or {}
    listed = config.get("prompts")
    prompts = {
        str(name): text
        for name, text in (listed.items() if isinstance(listed, dict) else ())
        if isinstance(text, str)
    }
    forms = (_INSTRUCTED.fullmatch(text) for text in prompts.values())
    form = next(filter(None, forms), None)
    default = config.get(_DEFAULT_PROMPT)
    if default is not None and default not in prompts:
        raise ConfigError(f"{path}: {_DEFAULT_PROMPT} is {default!r}, and 'prompts' has no such name")
    return EmbeddingPrompts(prompts, None if form is None else (form[1], form[2]), default)


def scoring(
    directory: Path,
    names: Iterable[str],
    info: ModelInfo,
    pooling: DefaultPooling,
    token_id: TokenId,
    tokens: str | None = None,
) -> Scoring:
    """How the model in `directory` scores. `names`: those it is known by; `tokens`: the value of --classifier-from-token.

    Raises ConfigError for a file that cannot be read, and for tokens that the model does not have.
    """
    if info.num_labels:
        if tokens is not None:
            raise ConfigError("--classifier-from-token: this model has a classification head; leave it out")
        return _of_head(directory, info)
    if tokens is not None:
        if not info.generates:
            raise ConfigError("--classifier-from-token: this model has no lm_head, so no logits of tokens")
        return Scoring(_ids(tokens.split(","), token_id, "--classifier-from-token"))
    if not info.generates:
        return _by_vectors(pooling, directory)
    if (folder := modules(directory).get("LogitScore")) is not None:
        labels = _of_module(directory / folder / "config.json", info.logits_width)
        return _activated(Scoring(labels), directory)
    config = read_file(directory / "config.json", dict) or {}
    if (listed := config.get(_TOKENS_FIELD)) is not None:
        where = f"{directory / 'config.json'}: {_TOKENS_FIELD}"
        return Scoring(_ids(listed if isinstance(listed, list) else [listed], token_id, where))
    if pooling.declared:
        return _by_vectors(pooling, directory)
    if any(map(_QWEN3_NAME.search, names)) and None not in (label_ids := [*map(token_id, _QWEN3_TOKENS)]):
        return Scoring(tuple(one for one in reversed(label_ids) if one is not None))
    return (
        Scoring()
        if pooling.kind is not None
        else Scoring(reason=f"{pooling.reason}, and it has no head for labels")
    )


def _of_head(directory: Path, info: ModelInfo) -> Scoring:
    """How a classification head scores. A decoder's GGUF file with two labels says that the first is for yes; of other heads with
    several labels none is known to be a score. GGUF files name no activation, so scores are probabilities."""
    num_labels = info.num_labels
    if model_file(directory) is not None and (num_labels == 1 or info.generates or not info.token_types):
        return Scoring(tuple(range(num_labels)))
    if num_labels > 1:
        names = (read_file(directory / "config.json", dict) or {}).get("id2label")
        listed = ", ".join(map(str, names.values()))[:_MOST_NAMED] if isinstance(names, dict) else ""
        labels = f"{num_labels} labels ({listed})" if listed else f"{num_labels} labels"
        return Scoring(reason=f"its classification head has {labels}, and a score is made of one")
    settings = read_file(directory / _SETTINGS, dict) or {}
    if settings.get(_DEFAULT_PROMPT) is not None:
        return Scoring(reason=f"its {_SETTINGS} puts a prompt before pairs ({_DEFAULT_PROMPT})")
    return _activated(Scoring((0,)), directory)


def _activated(how: Scoring, directory: Path) -> Scoring:
    """The scoring with the activation that a cross-encoder of sentence-transformers names: the sigmoid if it names none."""
    config = read_file(directory / "config.json", dict) or {}
    settings = read_file(directory / _SETTINGS, dict) or {}
    nested = config.get("sentence_transformers")
    activation = (
        settings.get(_ACTIVATION)
        or (nested.get(_ACTIVATION) if isinstance(nested, dict) else None)
        or config.get(_OLD_ACTIVATION)
    )
    match str(activation or "Sigmoid").rpartition(".")[2]:
        case "Sigmoid":
            return how
        case "Identity":
            return replace(how, as_logits=True)
    return Scoring(
        reason=f"its activation of scores is {str(activation)[:_MOST_NAMED]}; supported: Sigmoid, Identity"
    )


def _by_vectors(pooling: DefaultPooling, directory: Path) -> Scoring:
    if pooling.kind is None:
        return Scoring(reason=pooling.reason)
    settings = read_file(directory / _SETTINGS, dict) or {}
    name = settings.get(_SIMILARITY) or "cosine"
    if name not in SIMILARITIES:
        supported = ", ".join(SIMILARITIES)
        return Scoring(reason=f"its {_SIMILARITY} is {str(name)[:_MOST_NAMED]}; supported: {supported}")
    # As sentence-transformers compares them: what the model's last step makes.
    return Scoring(
        by_vectors=True,
        similarity=name,
        unit_length=name == "cosine" or "Normalize" in modules(directory),
    )


def _ids(texts: list[Any], token_id: TokenId, where: str) -> tuple[int, ...]:
    """Ids of the tokens for yes and no, given in the other order."""
    if len(texts) != 2 or not all(isinstance(text, str) and text for text in texts):
        raise ConfigError(f"{where}: two tokens are needed, that for no and that for yes")
    ids = [token_id(text) for text in texts]
    for text, one in zip(texts, ids, strict=True):
        if one is None:
            raise ConfigError(f"{where}: {text[:50]!r} is not one token of this model")
    return tuple(one for one in reversed(ids) if one is not None)


def _of_module(path: Path, width: int) -> tuple[int, ...]:
    config = read_file(path, dict) or {}
    values = [config.get("true_token_id"), config.get("false_token_id")]
    ids = [one for one in values if one is not None]
    if values[0] is None or not all(type(one) is int and 0 <= one < width for one in ids):
        raise ConfigError(
            f"{path}: true_token_id and false_token_id are {values[0]!r} and {values[1]!r}; ids below {width} are needed"
        )
    return tuple(ids)
