"""Makes of a GGUF file's metadata what config.json of the same encoder would hold. No torch here.

Keys and their defaults are those of llama.cpp, whose converter writes the files. A key that is not read here is judged as for
decoders (`model/gguf_keys.py`): without effect, refused by name, or unknown and refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from executors.contract.errors import ConfigError
from executors.gguf.file import GgufFile
from executors.llm.encoder.gguf_heads import note_of, read_head
from executors.llm.encoder.modules import DenseConfig
from executors.llm.model.gguf_config import architecture_of, dtype_of, written_name
from executors.llm.model.gguf_keys import GgufKeys, check_outside

DENSE_NAMES: Final = ("dense_2", "dense_3")
"""Layers of vectors of EmbeddingGemma, in the order in which they are applied."""
_EMBED, _TYPES = "token_embd.weight", "token_types.weight"
_WINDOW, _PATTERN = "attention.sliding_window", "attention.sliding_window_pattern"
_FULL, _LOCAL = "full_attention", "sliding_attention"
_MOST_LAYERS = 1000


@dataclass(frozen=True, slots=True)
class GgufValues:
    """`values`: the fields of config.json; `notes`: sentences on what is not used; `dense`: layers of vectors. `direct_head`: the
    classification head is one layer."""

    values: dict[str, Any]
    notes: tuple[str, ...]
    dense: tuple[DenseConfig, ...]
    direct_head: bool = False


def _bert(keys: GgufKeys) -> dict[str, Any]:
    """BERT, and RoBERTa without the rows of positions before the first token's, which the converter cuts away."""
    return {
        "architectures": ["BertModel"],
        "model_type": "bert",
        "layer_norm_eps": keys.real("attention.layer_norm_epsilon"),
        "hidden_act": "gelu",
        "type_vocab_size": _types(keys),
    }


def _nomic(keys: GgufKeys) -> dict[str, Any]:
    _check_scaling(keys)
    return {
        "architectures": ["NomicBertModel"],
        "model_type": "nomic_bert",
        "layer_norm_eps": keys.real("attention.layer_norm_epsilon"),
        "hidden_act": "silu",
        "type_vocab_size": _types(keys),
        "rope_theta": keys.real("rope.freq_base", 10_000.0),
    }


def _modern(keys: GgufKeys) -> dict[str, Any]:
    _check_scaling(keys)
    # Checkpoints that were saved by transformers 5 have the one name, and published ones both.
    epsilon = keys.get("attention.layer_norm_rms_epsilon")
    values = {
        "architectures": ["ModernBertModel"],
        "model_type": "modernbert",
        "norm_eps": keys.real("attention.layer_norm_epsilon", epsilon),
        "hidden_activation": keys.get("hidden_activation", "gelu"),
        "global_rope_theta": keys.real("rope.freq_base", 10_000.0),
        "local_rope_theta": keys.real("rope.freq_base_swa", 10_000.0),
    }
    if keys.get(_WINDOW, 0) == 0:
        keys.name(_PATTERN)  # selects nothing
        return values | {"layer_types": [_FULL] * keys.natural("block_count")}
    return values | {
        "local_attention": keys.natural(_WINDOW),
        "layer_types": _layer_types(keys, 3, lambda number, every: number % every != 0),
    }


def _gemma(keys: GgufKeys) -> dict[str, Any]:
    _check_scaling(keys)
    head = keys.natural("attention.key_length")
    return {
        "architectures": ["Gemma3TextModel"],
        "model_type": "gemma3_text",
        "use_bidirectional_attention": True,
        "num_key_value_heads": keys.one("attention.head_count_kv", keys.one("attention.head_count")),
        "head_dim": head,
        "query_pre_attn_scalar": head,
        "rms_norm_eps": keys.real("attention.layer_norm_rms_epsilon"),
        "rope_theta": keys.real("rope.freq_base", 10_000.0),
        "rope_local_base_freq": keys.real("rope.freq_base_swa", 10_000.0),
        "sliding_window": keys.natural(_WINDOW),
        "layer_types": _layer_types(keys, 6, lambda number, every: (number + 1) % every != 0),
    }


_READERS: Final[Mapping[str, tuple[str, Callable[[GgufKeys], dict[str, Any]]]]] = {
    "bert": ("gelu", _bert),
    "nomic-bert": ("silu", _nomic),
    "modern-bert": ("gelu", _modern),
    "gemma-embedding": ("gelu_pytorch_tanh", _gemma),
}
"""By the value of `general.architecture`: the activation, and what reads its own keys."""


def served_by(gguf: GgufFile) -> Mapping[str, Any]:
    """Return the fields of config.json that name the family of a file's encoder; {} for a file of another model."""
    names = {
        "bert": "BertModel", "nomic-bert": "NomicBertModel", "modern-bert": "ModernBertModel",
        "gemma-embedding": "Gemma3TextModel",
    }  # fmt: skip
    name = names.get(architecture_of(gguf) or "")
    return {} if name is None else {"architectures": [name], "use_bidirectional_attention": True}


def values_of(gguf: GgufFile) -> GgufValues:
    """Return the configuration of a file. Raises ConfigError, which names the file and the key."""
    notes = check_outside(gguf)
    architecture = architecture_of(gguf)
    if architecture is None or architecture not in _READERS:
        raise ConfigError(
            f"{gguf.path}: general.architecture {architecture!r}: this is no encoder that is served"
        )
    layer_names = DENSE_NAMES if architecture == "gemma-embedding" else ()
    for name in sorted(gguf.tensors):
        if name.startswith("dense") and name not in [f"{one}.weight" for one in layer_names]:
            raise ConfigError(
                f"{gguf.path}: tensor {name} is not supported: dense modules behind the pooling would change the vectors"
            )
    activation, read = _READERS[architecture]
    keys = GgufKeys(gguf, architecture, written_name(gguf))
    if keys.switch("attention.causal"):
        keys.refuse("attention.causal", "false")
    values = {"dtype": dtype_of(gguf.tensors.values()), **_sizes(keys), **read(keys)}
    head = read_head(keys, values["hidden_size"])
    dense = _dense(keys, values["hidden_size"]) if layer_names else ()
    keys.check_unread(activation)
    if head is None:
        return GgufValues(values, notes, dense)
    if head.direct:
        notes = (*notes, note_of(keys))
    return GgufValues({**values, **head.values}, notes, dense, head.direct)


def _dense(keys: GgufKeys, width: int) -> tuple[DenseConfig, ...]:
    """Return the layers of vectors, whose tensors the converter writes if it is asked for the modules of sentence-transformers:
    linear, without biases. Raises ConfigError."""
    layers = []
    for name in DENSE_NAMES:
        tensor = keys.gguf.tensors.get(f"{name}.weight")
        if tensor is None:
            continue  # its keys are refused then
        if len(tensor.shape) != 2 or tensor.shape[1] != width:
            raise ConfigError(
                f"{keys.where}: tensor {name}.weight has shape {list(tensor.shape)}; vectors of {width} come in"
            )
        for key, size in (
            (f"{name}_feat_in", tensor.shape[1]),
            (f"{name}_feat_out", tensor.shape[0]),
        ):
            if keys.natural(key, size) != size:
                keys.refuse(key, f"{size}, as of the tensor")
        layers.append(DenseConfig(name, width, tensor.shape[0], False, "identity"))
        width = tensor.shape[0]
    return tuple(layers)


def _sizes(keys: GgufKeys) -> dict[str, Any]:
    """Return the sizes that all encoders have. Raises ConfigError."""
    embed = keys.gguf.tensors.get(_EMBED)
    hidden, heads = keys.natural("embedding_length"), keys.one("attention.head_count")
    if embed is None or len(embed.shape) != 2 or embed.shape[1] != hidden:
        shape = "missing" if embed is None else f"of shape {list(embed.shape)}"
        raise ConfigError(f"{keys.where}: tensor {_EMBED} is {shape}; a matrix of {hidden} columns is needed")
    layers = keys.natural("block_count")
    if layers > _MOST_LAYERS:
        keys.refuse("block_count", f"up to {_MOST_LAYERS}")
    head = keys.natural("attention.key_length", hidden // heads or None)
    if keys.arch != "gemma-embedding":
        if head * heads != hidden:
            keys.refuse("attention.key_length", f"{hidden // heads}, a part of {hidden}")
        if keys.one("attention.head_count_kv", heads) != heads:
            keys.refuse("attention.head_count_kv", f"{heads}, as many as of queries")
    if keys.natural("attention.value_length", head) != head:
        keys.refuse("attention.value_length", f"{head}, as of keys")
    if keys.natural("rope.dimension_count", head) != head:
        keys.refuse("rope.dimension_count", f"{head}, all of a head")
    return {
        "vocab_size": embed.shape[0],
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": keys.one("feed_forward_length"),
        "max_position_embeddings": keys.natural("context_length"),
    }


def _types(keys: GgufKeys) -> int:
    """Return the rows of the table of token types."""
    types = keys.gguf.tensors.get(_TYPES)
    if types is None or len(types.shape) not in (1, 2):
        raise ConfigError(
            f"{keys.where}: tensor {_TYPES} is missing; models without token types are not supported"
        )
    return types.shape[0] if len(types.shape) == 2 else 1


def _check_scaling(keys: GgufKeys) -> None:
    """Raise ConfigError for a rotation that is scaled."""
    if keys.get("rope.scaling.type", "none") not in ("none", ""):
        keys.refuse("rope.scaling.type", "none")
    for name in ("rope.scaling.factor", "rope.scale_linear", "rope.freq_scale"):
        if keys.real(name, 0.0) not in (0.0, 1.0):
            keys.refuse(name, "1")


def _layer_types(keys: GgufKeys, usual: int, has_window: Callable[[int, int], bool]) -> list[str]:
    """Return which layers have a window: a flag for each, or the n of `has_window(number, n)`; `usual`: what a missing key stands
    for."""
    count = keys.natural("block_count")
    if isinstance(keys.get(_PATTERN), list):
        flags = keys.items(_PATTERN, bool, count) or []
    else:
        every = keys.natural(_PATTERN, usual)
        flags = [has_window(number, every) for number in range(count)]
    return [_LOCAL if flag else _FULL for flag in flags[:count]]
