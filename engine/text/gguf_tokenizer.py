"""The tokenizer of a GGUF file, as the files that `engine.text.tokenizer.Tokenizer.load` reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

from engine.text.gguf.completed import completed
from engine.text.gguf.metadata import MAX_TEMPLATE_CHARS, Metadata, wrong
from engine.text.gguf.models import ADD_BOS, ADD_EOS, MODELS
from engine.text.gguf.vocabulary import TEMPLATE, Vocabulary, read_vocabulary
from engine.text.tokenizer_files import DEFAULT, NOTES
from executors.contract import ConfigError

MODEL = "tokenizer.ggml.model"

_ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
_SAMPLING = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}
"""Names in generation_config.json by the format's (`general.sampling.NAME`)."""


def tokenizer_files(metadata: Mapping[str, Any]) -> dict[str, bytes]:
    """tokenizer.json, tokenizer_config.json and generation_config.json of a GGUF file, by name.

    `metadata`: the file's metadata by key, of which `tokenizer.ggml.*`, `tokenizer.chat_template*`, `general.*` and
    `ARCHITECTURE.context_length` are read; strings, Python's or NumPy's scalars, and for arrays NumPy's, lists or tuples.

    The tokenizer gives the ids that the one before conversion gives. Kept are its special tokens, the tokens before and behind a
    text, its chat templates, the ids that end an answer, and the sampling settings. The format does not hold whether added tokens
    strip the white space around them, and marks some added tokens as special that were not (`Vocabulary.added_tokens`).

    Raises ConfigError, one line that names the metadata key, for what is missing, malformed or not supported. Values that are
    wrong and that a start does not need become notes in tokenizer_config.json (NOTES).
    """
    values = Metadata(completed(metadata))
    model = values.text(MODEL)
    make = MODELS.get(model or "")
    if model is None or make is None:
        problem = "missing" if model is None else f"tokenizer model {ascii(model)[:40]} is not supported"
        raise ConfigError(f"{MODEL}: {problem}; supported are {', '.join(MODELS)}")
    vocabulary = read_vocabulary(values, model)
    tokenizer = make(values, vocabulary)
    config = _tokenizer_config(values, vocabulary, cleanup=model == "bert")
    generation = _generation_config(values, vocabulary)
    if values.notes:
        config[NOTES] = values.notes
    files = {
        "tokenizer.json": tokenizer,
        "tokenizer_config.json": config,
        "generation_config.json": generation,
    }
    return {name: json.dumps(content, ensure_ascii=False).encode() for name, content in files.items()}


def _tokenizer_config(values: Metadata, vocabulary: Vocabulary, cleanup: bool) -> dict[str, Any]:
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": cleanup,
    }
    config |= {f"{role}_token": text for role in _ROLES if (text := vocabulary.role_text(role)) is not None}
    for key in (ADD_BOS, ADD_EOS):
        if (flag := values.flag(key)) is not None:
            config[key.rpartition(".")[2]] = flag
    length = f"{values.text('general.architecture')}.context_length"
    context = values.unless_wrong(lambda: values.integer(length))
    if context is not None:
        config["model_max_length"] = context
    templates = _chat_templates(values)
    if templates:
        only = list(templates) == [DEFAULT]
        listed = [{"name": name, "template": text} for name, text in templates.items()]
        config["chat_template"] = templates[DEFAULT] if only else listed
    return config


def _chat_templates(values: Metadata) -> dict[str, str]:
    """Templates by name; the one without a name is called `default`."""
    templates = {}
    for key in values.values:
        if key == TEMPLATE or key.startswith(TEMPLATE + "."):
            name = key.removeprefix(TEMPLATE).removeprefix(".") or DEFAULT
            text = values.text(key, MAX_TEMPLATE_CHARS)
            if text:
                templates[name] = text
    return templates


def _generation_config(values: Metadata, vocabulary: Vocabulary) -> dict[str, Any]:
    config: dict[str, Any] = {}
    if vocabulary.ends:
        config["eos_token_id"] = list(vocabulary.ends)
    for role in ("bos", "pad"):
        if role in vocabulary.roles:
            config[f"{role}_token_id"] = vocabulary.roles[role]
    for name, ours in _SAMPLING.items():
        number = values.unless_wrong(partial(_sampling_number, values, name))
        if number is not None:
            config[ours] = number
    return config


def _sampling_number(values: Metadata, name: str) -> float | int | None:
    key = f"general.sampling.{name}"
    number = values.number(key)
    if number is not None and number < 0 and name != "top_k":
        raise wrong(key, "a number from 0", number)
    return number
