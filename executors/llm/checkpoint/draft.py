"""Loads what drafts beside a model: a draft model, or the MTP head of the model's own checkpoint."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

from executors.contract.config import ExecutorConfig
from executors.contract.errors import ConfigError
from executors.contract.status import ModelInfo
from executors.llm.checkpoint.loader import activation_bytes, load_model
from executors.llm.checkpoint.mtp_choice import choose_head, refuse_family
from executors.llm.checkpoint.weights import Progress, fill_dummy, load_weights, stored_formats
from executors.llm.memory.state_limits import refuse_states
from executors.llm.model.api import LoadedModel
from executors.llm.model.config import read_config
from executors.llm.model.decoder import Decoder
from executors.llm.model.mtp_head import MtpHead

_log = logging.getLogger(__name__)


def load_draft(config: ExecutorConfig, info: ModelInfo, progress: Progress) -> LoadedModel | None:
    """Load `draft_model` for the model with these facts; None if there is none. Raises ConfigError for a model of another
    vocabulary or without a head; and as `load_model`.

    The draft model's context is the model's, as far as its own can be stretched: rotations that depend on the context, as
    longrope's do, are those of the same length then."""
    if not config.optimization.draft_model:
        return None
    own = draft_config(config, info)
    draft = load_model(own, lambda stage, done, total: progress(f"draft model: {stage}", done, total))
    refuse_states(draft.model, config)
    refuse_draft(own.model, draft.info, info)
    return draft


def draft_config(config: ExecutorConfig, info: ModelInfo) -> ExecutorConfig:
    """Return the configuration by which `draft_model` is loaded for the model with these facts. Raises ConfigError if that
    generates nothing."""
    if not info.generates:
        raise ConfigError("draft_model: the model generates nothing, so there is nothing to draft")
    directory = config.optimization.draft_model
    return replace(
        config,
        model=directory,
        max_model_len=min(info.max_model_len, read_config(Path(directory)).max_context_length),
        shrink_length=True,
        memory=replace(config.memory, kv_cache_memory_bytes=None),
        optimization=replace(config.optimization, draft_model="", max_loras=0),
    )


def refuse_draft(directory: str, draft: ModelInfo, info: ModelInfo) -> None:
    """Raise ConfigError for a draft model that cannot draft for the model: another vocabulary, or no head."""
    if not draft.generates:
        raise ConfigError(f"draft_model {directory}: this model has no lm_head and generates nothing")
    if draft.vocab_size != info.vocab_size:
        raise ConfigError(
            f"draft_model {directory}: its vocabulary has {draft.vocab_size} tokens, the model's {info.vocab_size}; "
            "both must have the same tokens"
        )


def load_mtp(config: ExecutorConfig, source: LoadedModel, progress: Progress) -> LoadedModel | None:
    """Load the MTP head of the checkpoint that the model `source` comes from; None unless `mtp` asks for it, or `mtp_if_usable`
    and it can be used. With `mtp`, raises ConfigError as `choose_head` and `load_weights`, and for a model without answers."""
    model, info = source.model, source.info
    if config.optimization.mtp and not isinstance(model, Decoder):
        refuse_family(info.family)
    if not isinstance(model, Decoder) or not choose_head(config, model.config, info.device).used:
        return None
    if config.optimization.mtp:
        return _load_head(config, model, info, progress)
    try:
        return _load_head(config, model, info, progress)
    except ConfigError as error:
        _log.warning("the MTP head is not used: %s", error)
        return None


def _load_head(config: ExecutorConfig, model: Decoder, info: ModelInfo, progress: Progress) -> LoadedModel:
    if not info.generates:
        raise ConfigError("mtp: the model generates nothing, so there is nothing to draft")
    directory, dummy = Path(config.model), config.load_format == "dummy"
    stored = stored_formats(directory, model.config.family) if model.keeps_stored else None
    head = MtpHead(model, stored)
    if config.optimization.deterministic:
        head.be_steady()

    def of_head(stage: str, done: int, total: int) -> None:
        progress(f"MTP head: {stage}", done, total)

    if dummy:
        fill_dummy(head, config.seed + 1, of_head)
    else:
        load_weights(head, directory, of_head)
    num_bytes = head.num_bytes() + head.pack_onednn()
    return LoadedModel(head, info, num_bytes, activation_bytes(head, head.kernels))
