"""The configuration of the layer that an MTP head has beside a model. No torch here."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from executors.contract.errors import ConfigError
from executors.llm.model.config import DecoderConfig, LayerConfig
from executors.llm.model.family import TensorNames

_FULL = "full_attention"


def has_head_layer(config: DecoderConfig) -> bool:
    """Return whether a model has a layer with full attention, as its head has."""
    return _full_layer(config) is not None


def head_config(config: DecoderConfig) -> DecoderConfig:
    """Return the configuration of a head of one layer beside a model: the layer is as the model's last one with full attention,
    under the names of a head. Raises ConfigError for a model without such a layer, and for one with transforms."""
    if config.transforms is not None:
        raise ConfigError(
            f"mtp: {config.transforms.where}: an MTP head beside layers with transforms is not supported"
        )
    family = config.family
    layer = _full_layer(config)
    if layer is None:
        raise ConfigError(
            f"mtp: the {family.name} model has no layer with full attention, as its MTP head has"
        )
    names = replace(family, names=_names(family.names, family.mtp))
    # Embedding and lm_head are the model's: a decoder that is tied has none of its own but a table, here of one row.
    return replace(config, family=names, layers=(layer,), vocab_size=1, tied=True, num_labels=0)


def _full_layer(config: DecoderConfig) -> LayerConfig | None:
    kind = config.family.mixers[_FULL]
    return next((one for one in reversed(config.layers) if one.mixer == kind), None)


def _names(names: TensorNames, begin: str) -> TensorNames:
    """Return the names of layers that lie below `begin` in place of the model."""
    usual, own = names.layer, f"{begin}layers.{{i}}."
    values = {field.name: getattr(names, field.name) for field in fields(names)}
    renamed: dict[str, Any] = {
        role: own + value.removeprefix(usual)
        for role, value in values.items()
        if isinstance(value, str) and value.startswith(usual)
    }
    return replace(names, **renamed)
