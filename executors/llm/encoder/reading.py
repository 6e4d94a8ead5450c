"""Which encoder a directory holds, and its configuration, from config.json or the metadata of a GGUF file. No torch here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from executors.contract.errors import ConfigError
from executors.llm.encoder import gguf_values, rotary_config
from executors.llm.encoder.config import FAMILIES as WITH_TABLES
from executors.llm.encoder.config import EncoderConfig, EncoderFamily, parse_bert
from executors.llm.encoder.modules import max_seq_length, read_dense
from executors.llm.model.fields import read_json
from executors.llm.model.gguf_source import is_gguf, read_source

Parser = Callable[[EncoderFamily, Mapping[str, Any], str], EncoderConfig]
"""Makes a configuration of the values of config.json, whose name for messages is the last argument. Raises ConfigError."""
FAMILIES: tuple[tuple[EncoderFamily, Parser], ...] = (
    *((family, parse_bert) for family in WITH_TABLES),
    (rotary_config.MODERNBERT, rotary_config.parse_modernbert),
    (rotary_config.NOMIC, rotary_config.parse_nomic),
    (rotary_config.GEMMA, rotary_config.parse_gemma),
)
"""The families of encoders, each with its parser."""


def family_in(directory: Path) -> EncoderFamily | None:
    """Return the family of encoders that serves a directory; None if none does, or its files cannot be read."""
    try:
        if is_gguf(directory):
            return family_of(gguf_values.served_by(read_source(directory)))
        return family_of(read_json(directory / "config.json"))
    except ConfigError:
        return None


def family_of(values: Mapping[str, Any]) -> EncoderFamily | None:
    """Return the family that the values of config.json name, None if it is no encoder's."""
    architectures = values.get("architectures")
    names = (
        {one for one in architectures if isinstance(one, str)} if isinstance(architectures, list) else set()
    )
    for family, _ in FAMILIES:
        if family is rotary_config.GEMMA and values.get(rotary_config.BIDIRECTIONAL) is not True:
            continue  # a decoder of the same name
        if names.intersection(family.architectures) or (
            not names and values.get("model_type") == family.model_type
        ):
            return family
    return None


def read_encoder(directory: Path) -> EncoderConfig:
    """Read the configuration of an encoder. Raises ConfigError."""
    if is_gguf(directory):
        gguf = read_source(directory)
        read = gguf_values.values_of(gguf)
        config = _parsed(read.values, str(gguf.path))
        head = config.head
        if head is not None and read.direct_head:
            head = replace(head, names=("", head.names[1]))
        return replace(config, notes=(*read.notes, *config.notes), dense=read.dense, head=head)
    path = directory / "config.json"
    config = _parsed(read_json(path), str(path))
    dense = read_dense(directory, config.hidden_size)
    return replace(config, dense=dense, max_seq_length=max_seq_length(directory))


def _parsed(values: Mapping[str, Any], where: str) -> EncoderConfig:
    family = family_of(values)
    parse = next((parse for one, parse in FAMILIES if one is family), None)
    if family is None or parse is None:
        raise ConfigError(
            f"{where}: architectures {values.get('architectures')}: this is no encoder that is served"
        )
    return parse(family, values, where)
