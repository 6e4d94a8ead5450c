"""The tensors of a GGUF file by the usual names: those of the model, and those of its MTP head. No torch here.

`block_count` has the layers of a head behind the model's own: blk.N of N layers, blk.N+1 for a second one. llama.cpp's converter
writes them of `mtp.*` (its class `_QwenMtpMixin`), under the names of any layer with full attention and

    blk.N.nextn.eh_proj           mtp.fc
    blk.N.nextn.enorm             mtp.pre_fc_norm_embedding, plus one as all norms
    blk.N.nextn.hnorm             mtp.pre_fc_norm_hidden, plus one
    blk.N.nextn.shared_head_norm  mtp.norm, plus one

The order of value heads that `gguf_hybrids.py` describes is that of linear attention; a head's layer has the usual order.
"""

from __future__ import annotations

import re
from dataclasses import replace

from executors.contract.errors import ConfigError
from executors.gguf.file import GgufFile, GgufTensor
from executors.llm.model.config import DecoderConfig
from executors.llm.model.gguf_config import ROPE_TENSORS
from executors.llm.model.gguf_key_table import OTHER_TENSORS
from executors.llm.model.gguf_names import Stored, file_name, names_of_weight
from executors.llm.model.gguf_rows import Row
from executors.llm.model.gguf_scales import weight_scales
from executors.llm.model.mtp_config import has_head_layer, head_config

_OF_LAYER = re.compile(r"blk\.(\d{1,5})\.(.+)")
_OWN_KV = re.compile(r"blk\.(\d{1,5})\.(?:attn_k|attn_v|attn_k_norm)\.(?:weight|bias|scale)")
_HEAD = {
    "nextn.eh_proj.weight": "fc.weight",
    "nextn.enorm.weight": "pre_fc_norm_embedding.weight",
    "nextn.hnorm.weight": "pre_fc_norm_hidden.weight",
    "nextn.shared_head_norm.weight": "norm.weight",
    "nextn.embed_tokens.weight": "embed_tokens.weight",
    "nextn.shared_head_head.weight": "lm_head.weight",
}
"""Names of a head's tensors beside those of its layer."""


def stored_tensors(gguf: GgufFile, config: DecoderConfig, row: Row) -> dict[str, Stored]:
    """Return the tensors of a file by their usual names, in the order of the file. Raises ConfigError for one that the
    architecture does not know, because llama.cpp would compute with it; one of an MTP head gets a name that no head has."""
    tensors: dict[str, Stored] = {}
    scales = weight_scales(gguf)
    heads = _layers_of_heads(gguf, config) if row.draft_heads else range(0)
    for tensor in sorted(gguf.tensors.values(), key=lambda one: (gguf.parts.index(one.path), one.offset)):
        if tensor.name in ROPE_TENSORS or tensor.name in scales.names or OTHER_TENSORS.fullmatch(tensor.name):
            continue
        if _of_another(tensor, config):
            continue
        if (layer := _layer_of(tensor)) in heads:
            parts = _of_head(tensor, layer, config, row, gguf)
        else:
            parts = names_of_weight(tensor, config, row, gguf.tensors)
        if not parts or tensors.keys() & parts.keys():
            label = tensor.name if tensor.name.isprintable() else ascii(tensor.name)
            why = "stands for what another one is" if parts else "is not supported"
            raise ConfigError(
                f"{tensor.path}: tensor {label} {why} for architecture {gguf.metadata['general.architecture']}"
            )
        if (of := scales.of.get(tensor.name)) is not None:
            parts = {name: replace(one, scale=of[(one.expert or 0) % len(of)]) for name, one in parts.items()}
        tensors.update(parts)
    return tensors


def own_name(usual: str, config: DecoderConfig, row: Row) -> str:
    """Return the name in a GGUF file of the tensor with this usual name, for messages."""
    begin = config.family.mtp
    if not row.draft_heads or not begin or not usual.startswith(begin):
        return file_name(usual, config.family, row)
    own, first = usual.removeprefix(begin), config.num_layers
    for name, of_head in _HEAD.items():
        if own == of_head:
            return f"blk.{first}.{name}"
    match = re.fullmatch(r"layers\.(\d+)\.(.+)", own)
    if match is None:
        return f"blk.{first}.{own}"
    layer, of_layer = first + int(match[1]), ""
    if has_head_layer(config):
        name = file_name(f"{begin}layers.0.{match[2]}", head_config(config).family, row)
        of_layer = name.removeprefix("blk.0.") if name.startswith("blk.0.") else ""
    return f"blk.{layer}.{of_layer or match[2]}"


def _of_another(tensor: GgufTensor, config: DecoderConfig) -> bool:
    """Return whether a tensor is for keys and values of a layer that reads those of another: llama.cpp ignores it, too."""
    match = _OWN_KV.fullmatch(tensor.name)
    number = int(match[1]) if match else config.num_layers
    return number < config.num_layers and config.layers[number].kv_from is not None


def _layers_of_heads(gguf: GgufFile, config: DecoderConfig) -> range:
    """Return the numbers of the layers behind the model's last that guess tokens. More layers than these are of no model that
    the metadata describe, and are refused."""
    heads = gguf.metadata.get(f"{gguf.metadata['general.architecture']}.nextn_predict_layers", 0)
    return range(config.num_layers, config.num_layers + heads)


def _layer_of(tensor: GgufTensor) -> int:
    """Return the number of the layer that a tensor is of, -1 if it is of none."""
    match = _OF_LAYER.fullmatch(tensor.name)
    return int(match[1]) if match else -1


def _of_head(
    tensor: GgufTensor, layer: int, config: DecoderConfig, row: Row, gguf: GgufFile
) -> dict[str, Stored]:
    """Return what a tensor of an MTP head's layer is by the usual names."""
    begin, place = config.family.mtp, layer - config.num_layers
    before = f"blk.{layer}."
    own = tensor.name.removeprefix(before)
    if (of_head := _HEAD.get(own)) is not None and place == 0:
        return {
            f"{begin}{of_head}": Stored(tensor, tensor.shape, plus_one=row.plus_one and "norm" in of_head)
        }
    parts: dict[str, Stored] = {}
    if has_head_layer(config):
        beside = [f"blk.0.{name.removeprefix(before)}" for name in gguf.tensors if name.startswith(before)]
        parts = names_of_weight(replace(tensor, name=f"blk.0.{own}"), head_config(config), row, beside)
    if not parts:
        unknown = own if own.startswith("nextn.") else f"layers.{place}.{own}"
        return {f"{begin}{unknown}": Stored(tensor, tensor.shape)}
    first = f"{begin}layers.0."
    return {
        f"{begin}layers.{place}.{name.removeprefix(first)}": replace(one, tensor=tensor)
        for name, one in parts.items()
    }
