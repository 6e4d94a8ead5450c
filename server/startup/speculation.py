"""`--speculative-config` and `--num-speculative-tokens`: where drafts come from, and how many."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from engine.text.tokenizer import Tokenizer
from executors.contract import ConfigError
from server.settings.load import SettingsError
from server.settings.table import Settings
from server.startup.model_source import Source, find_source

_FLAG = "--speculative-config"
_KEYS = ("method", "model", "num_speculative_tokens", "prompt_lookup_max", "prompt_lookup_min")
_MOST_TOKENS, _LONGEST_RUN = 32, 32
_TOKENS = 5
"""Drafts of a draft model where their number is not given."""
_MTP_METHODS = ("mtp", "qwen3_next_mtp", "qwen3_5_mtp")
"""What vLLM calls the method of drafts by an MTP head: today, and by the model's family."""
_MTP_TOKENS, _MOST_MTP_TOKENS = 2, 3
"""Drafts of an MTP head where their number is not given, and the most: it has learned to guess one token, and each further
guess builds on its own."""


@dataclass(frozen=True, slots=True)
class Speculation:
    """How drafts are made. `num_tokens`: most drafts of a sequence in a step, 0 for none. `model`: of method draft_model."""

    method: Literal["ngram", "draft_model", "mtp"] = "ngram"
    num_tokens: int = 0
    model: str = ""
    prompt_lookup_max: int = 3
    prompt_lookup_min: int = 1
    if_usable: bool = False
    """Of method mtp: whether a model without a head that can be used is served without drafts."""


def read_speculation(settings: Settings) -> Speculation:
    """Read the two settings. Raises SettingsError naming the key that is unknown, missing or wrong."""
    config = settings.speculative_config
    if not config:
        if "num_speculative_tokens" in settings.explicit or "speculative_config" in settings.explicit:
            return Speculation(num_tokens=settings.num_speculative_tokens)
        # One stream is faster with the head of its model, and the engine drafts only where that pays.
        return Speculation("mtp", _MTP_TOKENS, if_usable=True)
    if unknown := sorted(set(config) - set(_KEYS)):
        raise SettingsError(
            f"{_FLAG}: {unknown[0]!r} is not supported; supported: {', '.join(sorted(_KEYS))}"
        )
    method = config.get("method") or ("draft_model" if config.get("model") else None)
    if method not in ("ngram", "draft_model", *_MTP_METHODS):
        raise SettingsError(
            f"{_FLAG}: method {method!r} is not supported; supported: ngram, draft_model, mtp"
        )
    tokens = _integer(config, "num_speculative_tokens", _MOST_TOKENS)
    if settings.num_speculative_tokens and tokens not in (None, settings.num_speculative_tokens):
        raise SettingsError(
            f"{_FLAG}: num_speculative_tokens {tokens}, and --num-speculative-tokens {settings.num_speculative_tokens}; "
            "leave one of them out"
        )
    tokens = tokens or settings.num_speculative_tokens or None
    if method in _MTP_METHODS:
        return _mtp(config, tokens)
    return _ngram(config, tokens) if method == "ngram" else _draft_model(config, tokens)


def _ngram(config: Mapping[str, Any], tokens: int | None) -> Speculation:
    if config.get("model") not in (None, "ngram", "[ngram]"):
        raise SettingsError(f"{_FLAG}: method ngram takes no model; leave it out, or take draft_model")
    if tokens is None:
        raise SettingsError(f"{_FLAG}: method ngram needs num_speculative_tokens")
    most, least = (_integer(config, key, _LONGEST_RUN) for key in ("prompt_lookup_max", "prompt_lookup_min"))
    if most is None and least is None:
        return Speculation("ngram", tokens)
    # As vLLM has it: one of the two stands for both.
    most, least = most or least or 1, least or most or 1
    if least > most:
        raise SettingsError(f"{_FLAG}: prompt_lookup_min {least} is more than prompt_lookup_max {most}")
    return Speculation("ngram", tokens, prompt_lookup_max=most, prompt_lookup_min=least)


def _draft_model(config: Mapping[str, Any], tokens: int | None) -> Speculation:
    model = config.get("model")
    if not isinstance(model, str) or not model.strip():
        raise SettingsError(
            f"{_FLAG}: method draft_model needs a model: a directory, a GGUF file or a hub name"
        )
    _refuse_lookup(config)
    return Speculation("draft_model", tokens or _TOKENS, model.strip())


def _mtp(config: Mapping[str, Any], tokens: int | None) -> Speculation:
    if config.get("model") is not None:
        raise SettingsError(
            f"{_FLAG}: method mtp takes no model: the head lies in the model's own checkpoint; leave it out, or take draft_model"
        )
    _refuse_lookup(config)
    if tokens is not None and tokens > _MOST_MTP_TOKENS:
        raise SettingsError(
            f"{_FLAG}: num_speculative_tokens {tokens}: an MTP head makes at most {_MOST_MTP_TOKENS} drafts"
        )
    return Speculation("mtp", tokens or _MTP_TOKENS)


def _refuse_lookup(config: Mapping[str, Any]) -> None:
    for key in ("prompt_lookup_max", "prompt_lookup_min"):
        if config.get(key) is not None:
            raise SettingsError(f"{_FLAG}: {key} belongs to method ngram; leave it out")


def _integer(config: Mapping[str, Any], key: str, most: int) -> int | None:
    value = config.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise SettingsError(f"{_FLAG}: {key} should be an integer from 1 to {most}, not {str(value)[:40]!r}")
    return value


def draft_source(settings: Settings, speculation: Speculation, embedded: Path) -> Source:
    """Where the draft model is: a directory, a GGUF file, or a model of the hub. Raises SettingsError."""
    try:
        return find_source(replace(settings, model=speculation.model, revision=None), embedded)
    except SettingsError as error:
        raise SettingsError(f"{_FLAG}: model {error}") from None


def check_vocabularies(tokenizer: Tokenizer, draft: Path, name: str) -> None:
    """Raise ConfigError if the draft model's tokenizer has other tokens than the model's. A draft model without a tokenizer is
    taken as it is."""
    try:
        other = Tokenizer.load(draft)
    except ConfigError:
        return
    if not tokenizer.has_tokens_of(other):
        raise ConfigError(
            f"{_FLAG}: model {name} has another vocabulary than the model: its drafts would mean other tokens"
        )
