"""Whether the MTP head of a model's own checkpoint is loaded: where it is asked for, or where it can be used."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, NoReturn

import torch

from executors.contract.config import ExecutorConfig
from executors.contract.errors import ConfigError
from executors.llm.checkpoint.files import Checkpoint
from executors.llm.checkpoint.weights import check_load
from executors.llm.model.config import DecoderConfig
from executors.llm.model.decoder import Decoder
from executors.llm.model.families import FAMILIES
from executors.llm.model.gguf_source import model_path
from executors.llm.model.mtp_config import head_config
from executors.llm.model.mtp_head import MtpHead


class HeadChoice(NamedTuple):
    """Whether a head is `used`, and the `fault` of one that was wished for and cannot be."""

    used: bool
    fault: str | None = None


def choose_head(config: ExecutorConfig, model: DecoderConfig, device: str) -> HeadChoice:
    """Return whether the head of a model on `device` is loaded. With `mtp`, raises ConfigError for a device without support for
    heads, for a model without one, and for a head of another form or without all of its tensors. Reads headers only."""
    wish = config.optimization
    if wish.mtp:
        _refuse(config, model, device)
        return HeadChoice(True)
    # Weights that are made up have no head that has learned anything.
    beside = wish.draft_model or config.parallel.world_size > 1 or config.load_format == "dummy"
    if not wish.mtp_if_usable or beside or model.headless:
        return HeadChoice(False)
    try:
        _refuse(config, model, device)
    except ConfigError as error:
        return HeadChoice(False, str(error))
    return HeadChoice(True)


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
    head_config(model)
    if config.load_format != "dummy":
        directory = Path(config.model)
        _check_form(directory, model.family.mtp)
        _check_tensors(directory, model)


def _check_tensors(directory: Path, model: DecoderConfig) -> None:
    """Raise ConfigError unless the checkpoint has every tensor of the head, in a shape and format that can be loaded, and no
    other."""
    # Of the model the head's own layer is enough: thousands of experts take seconds to make.
    least = replace(model, layers=head_config(model).layers)
    head = MtpHead(Decoder(least, torch.float32, torch.device("meta")))
    try:
        unused = check_load(head, directory)
    except ConfigError as error:
        raise ConfigError(f"mtp: {error}") from None
    if unused is not None:
        raise ConfigError(f"mtp: {directory}: {unused}")


def _check_form(directory: Path, begin: str) -> None:
    """Raise ConfigError for a checkpoint without an MTP head, and for forms of heads that are not supported."""
    where = model_path(directory)
    checkpoint = Checkpoint(directory)
    try:
        names = [name for name in checkpoint.listed() if name.startswith(begin)]
        own = {part: checkpoint.own_name(f"{begin}{part}") for part in _OF_MODEL}
        names_of_heads = f"{begin}*" if not checkpoint.exact else "blk.*.nextn.* (nextn_predict_layers)"
    finally:
        checkpoint.close()
    if not names:
        raise ConfigError(
            f"mtp: {where}: there are no tensors {names_of_heads}: the checkpoint was saved without its MTP head; take drafts "
            "from n-grams"
        )
    for part, what in _OF_MODEL.items():
        if f"{begin}{part}" in names:
            raise ConfigError(
                f"mtp: {where}: {own[part]}: an MTP head with {what} of its own is not supported"
            )
    layers = {name.split(".")[2] for name in names if name.startswith(f"{begin}layers.")}
    if layers != {"0"}:
        raise ConfigError(
            f"mtp: {where}: the MTP head has {len(layers)} layers; heads of one layer are supported"
        )


_OF_MODEL = {"embed_tokens.weight": "an embedding", "lm_head.weight": "an lm_head"}
"""What a head has of the model, by the names of tensors that it may not have."""
