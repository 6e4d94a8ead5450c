"""Which tensors of a GGUF file are which of an encoder's, under the names of its published files. No torch here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from executors.contract.errors import ConfigError
from executors.gguf.file import GgufFile, GgufTensor
from executors.llm.encoder.config import EncoderConfig
from executors.llm.encoder.gguf_values import DENSE_NAMES
from executors.llm.encoder.rotary_config import RotaryConfig
from executors.llm.model.gguf_key_table import OTHER_TENSORS
from executors.llm.model.gguf_names import Stored

_PARTS = re.compile(r"blk\.(?P<layer>\d{1,5})\.(?P<stem>\w+)\.(?P<part>weight|bias)")
_OTHER = re.compile(r"(?P<stem>\w+(?:\.\w+)?)\.(?P<part>weight|bias)")
_BERT: Final[Mapping[str, str]] = {
    "token_embd": "embeddings.word_embeddings", "position_embd": "embeddings.position_embeddings",
    "token_types": "embeddings.token_type_embeddings", "token_embd_norm": "embeddings.LayerNorm",
    "attn_q": "encoder.layer.{i}.attention.self.query", "attn_k": "encoder.layer.{i}.attention.self.key",
    "attn_v": "encoder.layer.{i}.attention.self.value", "attn_output": "encoder.layer.{i}.attention.output.dense",
    "attn_output_norm": "encoder.layer.{i}.attention.output.LayerNorm", "ffn_up": "encoder.layer.{i}.intermediate.dense",
    "ffn_down": "encoder.layer.{i}.output.dense", "layer_output_norm": "encoder.layer.{i}.output.LayerNorm",
    "cls": "pooler.dense", "cls.output": "classifier",
}  # fmt: skip
_NOMIC: Final[Mapping[str, str]] = {
    "token_embd": "embeddings.word_embeddings", "token_types": "embeddings.token_type_embeddings", "token_embd_norm": "emb_ln",
    "attn_qkv": "encoder.layers.{i}.attn.Wqkv", "attn_output": "encoder.layers.{i}.attn.out_proj",
    "attn_output_norm": "encoder.layers.{i}.norm1", "ffn_up": "encoder.layers.{i}.mlp.fc11",
    "ffn_gate": "encoder.layers.{i}.mlp.fc12", "ffn_down": "encoder.layers.{i}.mlp.fc2",
    "layer_output_norm": "encoder.layers.{i}.norm2",
}  # fmt: skip
_MODERNBERT: Final[Mapping[str, str]] = {
    "token_embd": "embeddings.tok_embeddings", "token_embd_norm": "embeddings.norm", "output_norm": "final_norm",
    "attn_norm": "layers.{i}.attn_norm", "attn_qkv": "layers.{i}.attn.Wqkv", "attn_output": "layers.{i}.attn.Wo",
    "ffn_norm": "layers.{i}.mlp_norm", "ffn_up": "layers.{i}.mlp.Wi", "ffn_down": "layers.{i}.mlp.Wo",
    "cls": "head.dense", "cls.norm": "head.norm", "cls.output": "classifier",
}  # fmt: skip
_GEMMA: Final[Mapping[str, str]] = {
    "token_embd": "embed_tokens", "output_norm": "norm", "attn_norm": "layers.{i}.input_layernorm",
    "attn_q": "layers.{i}.self_attn.q_proj", "attn_k": "layers.{i}.self_attn.k_proj", "attn_v": "layers.{i}.self_attn.v_proj",
    "attn_output": "layers.{i}.self_attn.o_proj", "attn_q_norm": "layers.{i}.self_attn.q_norm",
    "attn_k_norm": "layers.{i}.self_attn.k_norm", "post_attention_norm": "layers.{i}.post_attention_layernorm",
    "ffn_norm": "layers.{i}.pre_feedforward_layernorm", "ffn_gate": "layers.{i}.mlp.gate_proj",
    "ffn_up": "layers.{i}.mlp.up_proj", "ffn_down": "layers.{i}.mlp.down_proj",
    "post_ffw_norm": "layers.{i}.post_feedforward_layernorm",
    **{name: f"{name}.linear" for name in DENSE_NAMES},
}  # fmt: skip
_NAMES: Final[Mapping[str, Mapping[str, str]]] = {
    "bert": _BERT,
    "nomic_bert": _NOMIC,
    "modernbert": _MODERNBERT,
    "gemma3_text": _GEMMA,
}
"""The names of modules by those in the file, for each family; `{i}` is the layer's number."""
_TABLES: Final = ("token_types", "cls.output")
"""Matrices that are written as a vector if they have one row."""
_MERGED: Final = ("attn_q", "attn_k", "attn_v")
"""The parts of `attn_qkv`, in the order of its rows."""


def stored_tensors(gguf: GgufFile, config: EncoderConfig) -> dict[str, Stored]:
    """Return a file's tensors by their published names. Raises ConfigError for one that the architecture does not know, because
    it would be computed with elsewhere."""
    tensors: dict[str, Stored] = {}
    for tensor in gguf.tensors.values():
        if OTHER_TENSORS.fullmatch(tensor.name):
            continue
        parts = _named(tensor, config)
        if not parts or tensors.keys() & parts.keys():
            name = tensor.name if tensor.name.isprintable() else ascii(tensor.name)
            why = "stands for what another one is" if parts else "is not supported"
            raise ConfigError(
                f"{tensor.path}: tensor {name} {why} for architecture {gguf.metadata['general.architecture']}"
            )
        tensors.update(parts)
    return tensors


def file_name(usual: str, config: EncoderConfig) -> str:
    """Return the name in a GGUF file of the tensor with this published name, for messages."""
    stem, _, part = usual.rpartition(".")
    for own, template in _NAMES[config.family.model_type].items():
        match = re.fullmatch(re.escape(template).replace(r"\{i\}", r"(\d+)"), stem)
        if match is not None:
            return f"blk.{match[1]}.{own}.{part}" if match.groups() else f"{own}.{part}"
    return usual


def _named(tensor: GgufTensor, config: EncoderConfig) -> dict[str, Stored]:
    """Return what a tensor is, {} if it is nothing; a merged one is its parts where the family has them apart."""
    names = _NAMES[config.family.model_type]
    match = _PARTS.fullmatch(tensor.name)
    layer = "" if match is None else match["layer"]
    match = match or _OTHER.fullmatch(tensor.name)
    if match is None or (layer and int(layer) >= config.num_layers):
        return {}
    stem, part = match["stem"], match["part"]
    if stem == "attn_qkv" and stem not in names:
        return _apart(tensor, config, [f"{names[one].replace('{i}', layer)}.{part}" for one in _MERGED])
    if stem not in names or ("{i}" in names[stem]) != bool(layer):
        return {}
    usual = f"{names[stem].replace('{i}', layer)}.{part}"
    shape = tensor.shape
    if stem in _TABLES and part == "weight" and len(shape) == 1:
        shape = (1, *shape)
    less_one = isinstance(config, RotaryConfig) and config.norm == "rms1" and stem.endswith("norm")
    return {usual: Stored(tensor, shape, plus_one=less_one)}


def _apart(tensor: GgufTensor, config: EncoderConfig, names: list[str]) -> dict[str, Stored]:
    heights = [config.head_dim * heads for heads in (config.num_heads, config.kv_heads, config.kv_heads)]
    if not tensor.shape or sum(heights) != tensor.shape[0]:
        raise ConfigError(
            f"{tensor.path}: tensor {tensor.name} has shape {list(tensor.shape)}; {sum(heights)} rows are needed"
        )
    parts, first = {}, 0
    for name, height in zip(names, heights, strict=True):
        parts[name] = Stored(tensor, (height, *tensor.shape[1:]), rows=(first, first + height))
        first += height
    return parts
