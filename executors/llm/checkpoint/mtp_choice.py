"""Whether the MTP head of a model's own checkpoint is loaded: where it is asked for, or where it can be used."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

from executors.contract.config import ExecutorConfig
from executors.contract.errors import ConfigError
from executors.llm.checkpoint.files import Checkpoint
from executors.llm.model.config import DecoderConfig
from executors.llm.model.families import FAMILIES
from executors.llm.model.gguf_source import is_gguf
from executors.llm.model.mtp_head import head_config


def takes_head(config: ExecutorConfig, model: DecoderConfig, device: str) -> bool:
    """Return whether the head of a model on `device` is loaded. With `mtp`, raises ConfigError for a device or a file without
    support for heads, for a model without one, and for a head of another form."""
    wish = config.optimization
    if wish.mtp:
        _refuse(config, model, device)
        return True
    # Weights that are made up have no head that has learned anything.
    beside = wish.draft_model or config.parallel.world_size > 1 or config.load_format == "dummy"
    if not wish.mtp_if_usable or beside or model.headless:
        return False
    try:
        _refuse(config, model, device)
    except ConfigError:
        return False
    return True


def refuse_family(name: str) -> NoReturn:
    """Raise the ConfigError for a family without heads."""
    families = ", ".join(one.name for one in FAMILIES if one.mtp)
    raise ConfigError(f"mtp: no MTP head is known of {name} models; supported: {families}")


def _refuse(config: ExecutorConfig, model: DecoderConfig, device: str) -> None:
    if device != "cpu":
        raise ConfigError(
            f"mtp: MTP heads are computed on a CPU only, and this model is on {device}; take drafts from n-grams"
        )
    if not model.family.mtp:
        refuse_family(model.family.name)
    if config.load_format != "dummy":
        _check_head(Path(config.model), model.family.mtp)
    head_config(model)


def _check_head(directory: Path, begin: str) -> None:
    """Raise ConfigError for a checkpoint without an MTP head, and for forms of heads that are not supported."""
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
