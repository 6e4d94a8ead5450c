"""Loads the draft model that stands beside a model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from executors.contract.config import ExecutorConfig
from executors.contract.errors import ConfigError
from executors.contract.status import ModelInfo
from executors.llm.checkpoint.loader import load_model
from executors.llm.checkpoint.weights import Progress
from executors.llm.memory.state_limits import refuse_states
from executors.llm.model.api import LoadedModel
from executors.llm.model.config import read_config


def load_draft(config: ExecutorConfig, info: ModelInfo, progress: Progress) -> LoadedModel | None:
    """Load `draft_model` for the model with these facts; None if there is none. Raises ConfigError for a device without support
    for drafts, and for a model of another vocabulary or without a head; and as `load_model`.

    The draft model's context is the model's, as far as its own can be stretched: rotations that depend on the context, as
    longrope's do, are those of the same length then."""
    directory = config.optimization.draft_model
    if not directory:
        return None
    if info.device != "cpu":
        raise ConfigError(
            f"draft_model: draft models are computed on a CPU only, and this model is on {info.device}; "
            "take drafts from n-grams"
        )
    if not info.generates:
        raise ConfigError("draft_model: the model generates nothing, so there is nothing to draft")
    own = replace(
        config,
        model=directory,
        max_model_len=min(info.max_model_len, read_config(Path(directory)).max_context_length),
        shrink_length=True,
        memory=replace(config.memory, kv_cache_memory_bytes=None),
        optimization=replace(config.optimization, draft_model="", max_loras=0),
    )
    draft = load_model(own, lambda stage, done, total: progress(f"draft model: {stage}", done, total))
    refuse_states(draft.model, config)
    if not draft.info.generates:
        raise ConfigError(f"draft_model {directory}: this model has no lm_head and generates nothing")
    if draft.info.vocab_size != info.vocab_size:
        raise ConfigError(
            f"draft_model {directory}: its vocabulary has {draft.info.vocab_size} tokens, the model's {info.vocab_size}; "
            "both must have the same tokens"
        )
    return draft
