"""Loads what drafts beside a model: a draft model, or the MTP head of the model's own checkpoint."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from executors.contract.config import ExecutorConfig
from executors.contract.errors import ConfigError
from executors.contract.status import ModelInfo
from executors.llm.checkpoint.files import Checkpoint
from executors.llm.checkpoint.loader import activation_bytes, load_model
from executors.llm.checkpoint.weights import Progress, fill_dummy, load_weights, stored_formats
from executors.llm.memory.state_limits import refuse_states
from executors.llm.model.api import LoadedModel
from executors.llm.model.config import read_config
from executors.llm.model.decoder import Decoder
from executors.llm.model.families import FAMILIES
from executors.llm.model.gguf_source import is_gguf
from executors.llm.model.mtp_head import MtpHead


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


def load_mtp(config: ExecutorConfig, source: LoadedModel, progress: Progress) -> LoadedModel | None:
    """Load the MTP head of the checkpoint that the model `source` comes from; None unless `mtp` asks for it. Raises ConfigError
    for a device or a file without support for it, for a model without a head, and for a head of another form; and as
    `load_weights`."""
    if not config.optimization.mtp:
        return None
    model, info = source.model, source.info
    if info.device != "cpu":
        raise ConfigError(
            f"mtp: MTP heads are computed on a CPU only, and this model is on {info.device}; take drafts from n-grams"
        )
    if not isinstance(model, Decoder) or not model.config.family.mtp:
        families = ", ".join(one.name for one in FAMILIES if one.mtp)
        raise ConfigError(f"mtp: no MTP head is known of {info.family} models; supported: {families}")
    if not info.generates:
        raise ConfigError("mtp: the model generates nothing, so there is nothing to draft")
    directory = Path(config.model)
    dummy = config.load_format == "dummy"
    if not dummy:
        _check_head(directory, model)
    stored = stored_formats(directory, model.config.family) if model.keeps_stored else None
    head = MtpHead(model, stored)
    if config.optimization.deterministic:
        head.be_steady()

    def of_head(stage: str, done: int, total: int) -> None:
        progress(f"MTP head: {stage}", done, total)

    if dummy:
        fill_dummy(head, config.seed + 1, of_head)
    else:
        unused = load_weights(head, directory, of_head)
        if unused is not None:
            raise ConfigError(f"mtp: {directory}: {unused}")
    num_bytes = head.num_bytes() + head.pack_onednn()
    return LoadedModel(head, info, num_bytes, activation_bytes(head, head.kernels))


def _check_head(directory: Path, model: Decoder) -> None:
    """Raise ConfigError for a checkpoint without an MTP head, and for forms of heads that are not supported."""
    begin = model.config.family.mtp
    if is_gguf(directory):
        raise ConfigError(
            f"mtp: {directory}: the MTP head of a GGUF file (nextn_predict_layers) is not supported; take the checkpoint in "
            "safetensors, or drafts from n-grams"
        )
    checkpoint = Checkpoint(directory)
    try:
        names = [name for name in checkpoint.listed() if name.startswith(begin)]
    finally:
        checkpoint.close()
    if not names:
        raise ConfigError(
            f"mtp: {directory}: there are no tensors {begin}*: the checkpoint was saved without its MTP head; take drafts from "
            "n-grams"
        )
    if any(name.startswith(f"{begin}embed_tokens.") for name in names):
        raise ConfigError(
            f"mtp: {directory}: {begin}embed_tokens: an MTP head with an embedding of its own is not supported"
        )
    layers = {int(name.split(".")[2]) for name in names if name.startswith(f"{begin}layers.")}
    if layers != {0}:
        raise ConfigError(
            f"mtp: {directory}: the MTP head has {len(layers)} layers; heads of one layer are supported"
        )
