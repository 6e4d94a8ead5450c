"""Makes of a GGUF file's metadata what config.json of the same model would hold, by the rows of `gguf_rows.py`. No torch here."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from executors.contract.errors import ConfigError
from executors.gguf.file import GgufFile, GgufTensor
from executors.llm.model.families import family_of
from executors.llm.model.family import Family
from executors.llm.model.gguf_key_table import OTHER_TENSORS
from executors.llm.model.gguf_keys import GgufKeys, check_outside, shown, small_floats
from executors.llm.model.gguf_rows import ROWS, Row
from executors.llm.model.nearest import advice

_EMBED, _HEAD = "token_embd.weight", "output.weight"
_ROPE_FACTORS, _LONG, _SHORT = "rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"
CLASSIFIER_TENSOR = "cls.output.weight"
"""The head of a reranker, [labels, hidden]."""
ROPE_TENSORS = frozenset({_ROPE_FACTORS, _LONG, _SHORT})
"""Tensors that the configuration takes its rotation from."""
ARCHITECTURE_NAMES: Mapping[str, str] = {
    "gptoss": "gpt-oss", "qwen25vl": "qwen2vl", "deepseekocr": "deepseek2-ocr", "glmocr": "glm4", "glm4moelite": "deepseek2",
    "nemotron_h_omni": "nemotron_h", "gemma3-embedding": "gemma-embedding", "embeddinggemma": "gemma-embedding",
}  # fmt: skip
"""Names of architectures that Ollama's converters write or wrote, and llama.cpp's for the same."""


@dataclass(frozen=True, slots=True)
class GgufConfig:
    """`values`: the fields of config.json; `row`: how the file differs from a Hugging Face checkpoint; `biases`: the layers'
    linear modules of which some tensor has one; `family`: the family with the names that the file's tensors get; `notes`:
    sentences on what is not used."""

    values: dict[str, Any]
    row: Row
    biases: Biases
    family: Family
    notes: tuple[str, ...]
    labels: int = 0
    """Number of labels of a reranker's head; 0: the file has none."""


@dataclass(frozen=True, slots=True)
class Biases:
    """Which linear modules have a bias in a file: of queries, keys and values; of attention's output; of the MLP. A module has
    one if any layer's part has one: other parts have zeros then."""

    qkv: bool
    o: bool
    mlp: bool


def gguf_config(gguf: GgufFile) -> GgufConfig:
    """Return the configuration of a GGUF file. Raises ConfigError, which names the file and the key."""
    notes = check_outside(gguf)
    arch = architecture_of(gguf)
    row = None if arch is None else ROWS.get(arch)
    if row is None:
        _refuse_architecture(gguf, arch)
    assert row is not None
    keys = GgufKeys(gguf, str(arch), written_name(gguf))
    if row.complete is not None:
        row.complete(keys)
    if row.variant is not None:
        row = row.variant(keys, row)
    if row.draft_heads:
        _without_draft_heads(keys)
    family = family_of(row.served)
    assert family is not None
    biases, own = _biases(gguf), _own(gguf)
    values: dict[str, Any] = {
        "architectures": [row.served],
        "model_type": family.model_types[0],
        "dtype": dtype_of(own),
        "tie_word_embeddings": _HEAD not in gguf.tensors,
        **row.constants,
    }
    values.update(_sizes(keys, family))
    values.update(_bias_fields(biases, family))
    always = family.feed_forward.experts_switch is True
    if family.feed_forward.experts and (always or keys.get("expert_count", 0)):
        values.update(_experts(keys, family))
    if row.rotation is not None:
        values.update(row.rotation(keys, values))
    elif not family.names.positions:
        values.update(_rotation(keys, family, values))
    if row.fill is not None:
        row.fill(keys, values)
    keys.check_unread(values.get(family.feed_forward.activation, family.feed_forward.activations[0]))
    names = _as_written(family, gguf, row)
    notes = (*notes, *_left_out(gguf, own))
    return GgufConfig(values, row, biases, names, notes, _reranker(keys, family, values))


def dtype_of(own: Iterable[GgufTensor]) -> str:
    """Return the dtype that holds the file's plain numbers exactly; bfloat16 beside quantized ones."""
    types = {one.type for one in own}
    return "float32" if types == {"F32"} else "float16" if types <= {"F32", "F16"} else "bfloat16"


def architecture_of(gguf: GgufFile) -> str | None:
    """Return the architecture by llama.cpp's name, as text; None if the file names none."""
    arch = gguf.metadata.get("general.architecture")
    if not isinstance(arch, str):
        return arch if arch is None else shown(arch)
    if arch == "gemma3" and "dense.0.weight" in gguf.tensors:
        return "gemma-embedding"  # Ollama's name for it is that of the model it was made from
    return ARCHITECTURE_NAMES.get(arch, arch)


def written_name(gguf: GgufFile) -> str | None:
    """Return the architecture's name in the file, where it is Ollama's; None for llama.cpp's."""
    name = gguf.metadata.get("general.architecture")
    return name if isinstance(name, str) and name in ARCHITECTURE_NAMES else None


def _own(gguf: GgufFile) -> list[GgufTensor]:
    """Return the tensors of the decoder."""
    return [one for one in gguf.tensors.values() if OTHER_TENSORS.fullmatch(one.name) is None]


def _left_out(gguf: GgufFile, own: list[GgufTensor]) -> tuple[str, ...]:
    """Return a note on tensors of parts that are not loaded, if there are any."""
    others = len(gguf.tensors) - len(own)
    return (f"text only: {others} tensors of other parts (v.*, mm.*) are left out",) if others else ()


def _without_draft_heads(keys: GgufKeys) -> None:
    """Take the layers that guess the tokens after the next one away from the number of layers, see `gguf_stored.py`."""
    heads, layers = keys.count("nextn_predict_layers"), keys.natural("block_count")
    if not heads:
        return
    if heads >= layers:
        keys.refuse("nextn_predict_layers", f"less than {keys.name('block_count')}, which is {layers}")
    if not any(name.startswith("blk.0.") for name in keys.gguf.tensors):
        raise ConfigError(
            f"{keys.where}: the MTP head of a model (nextn_predict_layers), not the model; take the file beside it"
        )
    keys.replace("block_count", layers - heads)


def _reranker(keys: GgufKeys, family: Family, values: dict[str, Any]) -> int:
    """Return the number of labels of a reranker's head, whose architecture and head `values` get; 0 for other files.

    llama.cpp writes such files with `pooling_type` 4 and the names of the labels in `classifier.output_labels`: the score is the
    first label's logit, or its softmax over two. How hidden states are pooled is for the server to read.
    """
    head = keys.gguf.tensors.get(CLASSIFIER_TENSOR)
    if head is None:
        return 0
    if len(head.shape) != 2 or head.shape[0] not in (1, 2) or head.shape[1] != values[_width(family)]:
        raise ConfigError(
            f"{keys.where}: tensor {head.name} has shape {list(head.shape)}; supported: one label or two, of "
            f"{values[_width(family)]} columns"
        )
    values["architectures"] = [f"{family.body.removesuffix('Model')}ForSequenceClassification"]
    values["num_labels"] = 1
    return head.shape[0]


def _width(family: Family) -> str:
    return family.fields.get("hidden_size", "hidden_size")


def _refuse_architecture(gguf: GgufFile, arch: object) -> None:
    if arch is None:
        raise ConfigError(f"{gguf.path}: metadata general.architecture is missing")
    if arch in ("clip", "mmproj"):
        raise ConfigError(
            f"{gguf.path}: the image encoder of a model ({arch}), not the model; take the file beside it"
        )
    supported = ", ".join(ROWS)
    raise ConfigError(
        f"{gguf.path}: general.architecture {shown(arch)!r} is not supported; supported: {supported}; {advice(str(arch))}"
    )


def _sizes(keys: GgufKeys, family: Family) -> dict[str, Any]:
    embed = keys.gguf.tensors.get(_EMBED)
    if embed is None or len(embed.shape) != 2:
        raise ConfigError(f"{keys.where}: tensor {_EMBED} is missing or not a matrix")
    hidden, heads, layers = (
        keys.natural("embedding_length"),
        keys.one("attention.head_count"),
        keys.natural("block_count"),
    )
    if embed.shape[1] != hidden:
        raise ConfigError(
            f"{keys.where}: {keys.name('embedding_length')} is {hidden}; {_EMBED} has {embed.shape[1]} columns"
        )
    if not any(name.startswith(f"blk.{layers - 1}.") for name in keys.gguf.tensors):
        raise ConfigError(
            f"{keys.where}: {keys.name('block_count')} is {layers}; no tensor of blk.{layers - 1} is there"
        )
    head_dim = keys.natural("attention.key_length", _head_dim(keys, heads) or hidden // heads or None)
    if keys.natural("attention.value_length", head_dim) != head_dim:
        keys.refuse("attention.value_length", f"{keys.name('attention.key_length')}, which is {head_dim}")
    eps = (
        "attention.layer_norm_epsilon"
        if family.stream.norm == "layer"
        else "attention.layer_norm_rms_epsilon"
    )
    values = {
        "vocab_size": embed.shape[0],
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "max_position_embeddings": keys.natural("context_length"),
        family.stream.norm_eps: keys.real(eps),
    }
    kv_heads = keys.one("attention.head_count_kv", heads)
    if family.names.positions:
        if kv_heads != heads or head_dim * heads != hidden:
            keys.refuse("attention.head_count_kv", f"{heads} heads of {hidden // heads} elements")
    else:
        values |= {"num_key_value_heads": kv_heads, "head_dim": head_dim}
    # Of experts beside dense layers each has a size of its own; of experts alone one of the two keys holds it.
    if not family.feed_forward.experts or keys.has("feed_forward_length"):
        values["intermediate_size"] = keys.one("feed_forward_length")
    return {family.fields.get(name, name): value for name, value in values.items()}


def _head_dim(keys: GgufKeys, heads: int) -> int | None:
    """Return how many rows of queries a head has, None if no tensor tells."""
    queries = keys.gguf.tensors.get("blk.0.attn_q.weight")
    return queries.shape[0] // heads if queries is not None and queries.shape[0] % heads == 0 else None


_BIAS = re.compile(
    r"blk\.\d+\.(?:(?P<qkv>attn_(?:q|k|v|qkv))|(?P<o>attn_out(?:put)?)|(?P<mlp>ffn_(?:gate|up|down|gate_up)))\.bias"
)


def _biases(gguf: GgufFile) -> Biases:
    modules = {match.lastgroup for name in gguf.tensors if (match := _BIAS.fullmatch(name))}
    return Biases("qkv" in modules, "o" in modules, "mlp" in modules)


def _bias_fields(biases: Biases, family: Family) -> dict[str, Any]:
    """Return the fields of config.json that switch biases on, of which one may stand for several modules."""
    present = (
        (family.attention.qkv_bias, biases.qkv),
        (family.attention.o_bias, biases.o),
        (family.feed_forward.mlp_bias, biases.mlp),
    )
    fields: dict[str, Any] = {}
    for switch, there in present:
        if isinstance(switch, str):
            fields[switch] = there or fields.get(switch, False)
    return fields


def _as_written(family: Family, gguf: GgufFile, row: Row) -> Family:
    """Return the family with the names of separate tensors where it has merged ones and the file has not, and with the order of
    heads that the file has."""
    names, parts = family.names, [name.split(".") for name in gguf.tensors]
    stems = {part[2] for part in parts if part[0] == "blk" and len(part) > 2}
    if names.qkv and stems & {"attn_q", "attn_k", "attn_v"}:
        place = names.qkv.rpartition(".")[0]
        names = replace(names, qkv="", q=f"{place}.q_proj", k=f"{place}.k_proj", v=f"{place}.v_proj")
    if names.gate_up and "ffn_gate" in stems:
        place = names.gate_up.rpartition(".")[0]
        names = replace(names, gate_up="", gate=f"{place}.gate_proj", up=f"{place}.up_proj")
    if names.delta_qkvz and "ssm_in" not in stems:
        place = names.delta_qkvz.rpartition(".")[0]
        names = replace(names, delta_qkvz="", delta_qkv=f"{place}.in_proj_qkv", delta_z=f"{place}.in_proj_z")
    if row.tiled:
        names = replace(names, delta_tiled=True)
    return family if names is family.names else replace(family, names=names)


def _experts(keys: GgufKeys, family: Family) -> dict[str, Any]:
    count, used = keys.natural("expert_count"), keys.natural("expert_used_count")
    tensors = keys.gguf.tensors
    first = f"blk.{keys.count('leading_dense_block_count') if family.feed_forward.dense_layers else 0}."
    merged = tensors.get(f"{first}ffn_gate_exps.weight") or tensors.get(f"{first}ffn_gate_up_exps.weight")
    if merged is not None and merged.shape[0] != count:
        raise ConfigError(
            f"{keys.where}: {keys.name('expert_count')} is {count}; {merged.name} has {merged.shape[0]} experts"
        )
    if merged is None and f"{first}ffn_gate.{count - 1}.weight" not in keys.gguf.tensors:
        raise ConfigError(
            f"{keys.where}: {keys.name('expert_count')} is {count}; tensors of so many experts are missing"
        )
    down = tensors.get(f"{first}ffn_down_exps.weight")
    inner = keys.one(
        "expert_feed_forward_length", down.shape[-1] if down else keys.get("feed_forward_length")
    )
    name = family.fields.get("moe_intermediate_size", "moe_intermediate_size")
    counted = family.fields.get("num_experts", "num_experts")
    per_token = family.fields.get("num_experts_per_tok", "num_experts_per_tok")
    values: dict[str, Any] = {counted: count, per_token: used, name: inner}
    if shared := family.feed_forward.shared:
        values[shared] = keys.one("expert_shared_feed_forward_length", keys.get("feed_forward_length"))
    gating, what = (3, "softmax over the chosen") if family.feed_forward.softmax_last else (1, "softmax")
    if family.feed_forward.experts == "sigmoid_experts":
        gating, what = 2, "sigmoid"
    if keys.get("expert_gating_func", gating) not in (0, gating):
        keys.refuse("expert_gating_func", f"{gating} ({what})")
    if family.feed_forward.routed_scale:
        values[family.feed_forward.routed_scale] = keys.real("expert_weights_scale", 0.0) or 1.0
    elif keys.real("expert_weights_scale", 1.0) not in (0.0, 1.0):
        keys.refuse("expert_weights_scale", "1")
    if isinstance(family.feed_forward.normalized, str):
        values[family.feed_forward.normalized] = keys.switch(
            "expert_weights_norm", family.name not in ("olmoe", "qwen2_moe")
        )
    elif keys.switch("expert_weights_norm", True) is not family.feed_forward.normalized:
        keys.refuse("expert_weights_norm", str(family.feed_forward.normalized).lower())
    return values


def _rotation(keys: GgufKeys, family: Family, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields on rotary embeddings."""
    head_dim = values["head_dim"]
    dim = keys.natural("rope.dimension_count", head_dim)
    if dim > head_dim or (dim != head_dim and not family.attention.partial_rotary):
        keys.refuse("rope.dimension_count", f"{head_dim}, all of a head")
    settings: dict[str, Any] = {"rope_theta": keys.real("rope.freq_base", 10_000.0)}
    original = "rope.scaling.original_context_length"
    if family.attention.original_positions is not None and keys.has(
        original
    ):  # read beside the rope object there
        settings["original_max_position_embeddings"] = keys.natural(original)
    if dim != head_dim:
        # Half an element more: the share is multiplied by head_dim again, and cut to an integer.
        settings["partial_rotary_factor"] = (dim + 0.5) / head_dim
    elif "partial_rotary_factor" in family.defaults:
        settings["partial_rotary_factor"] = 1.0
    scaling = _scaling(keys, family, dim, values["max_position_embeddings"])
    return settings | ({"rope_scaling": scaling} if scaling else {})


_SCALINGS = {"": "none", "default": "none", "su": "longrope"}
"""Other names of kinds of scaling, which converters copied from config.json."""


def _inverse(keys: GgufKeys, name: str) -> float:
    """Return one divided by a number; 1 if it is missing or 0."""
    return 1.0 / (keys.real(name, 0.0) or 1.0)


def _scaling(keys: GgufKeys, family: Family, dim: int, context: int) -> dict[str, Any]:
    factor = keys.real(
        "rope.scaling.factor", keys.real("rope.scale_linear", _inverse(keys, "rope.freq_scale"))
    )
    kind = keys.get("rope.scaling.type", "linear" if factor not in (0.0, 1.0) else "none")
    kind = _SCALINGS.get(kind, kind) if isinstance(kind, str) else kind
    original = keys.natural("rope.scaling.original_context_length", context)
    attention = keys.real("rope.scaling.attn_factor", 1.0)
    tensors = keys.gguf.tensors
    if _ROPE_FACTORS in tensors:
        if kind not in ("none", "linear") or factor not in (0.0, 1.0):
            keys.refuse("rope.scaling.type", f"none beside tensor {_ROPE_FACTORS}")
        # A divisor for each frequency: longrope says the same with two equal lists and no factor of attention.
        divisors = small_floats(keys, _ROPE_FACTORS, dim // 2)
        return {
            "rope_type": "longrope", "factor": 1.0, "original_max_position_embeddings": context, "attention_factor": 1.0,
            "short_factor": divisors, "long_factor": divisors,
        }  # fmt: skip
    if kind == "longrope" or _LONG in tensors or _SHORT in tensors:
        settings = {
            "rope_type": "longrope",
            "original_max_position_embeddings": original,
            "short_factor": small_floats(keys, _SHORT, dim // 2),
            "long_factor": small_floats(keys, _LONG, dim // 2),
        }
        return settings | _longrope_attention(keys, context / original, original)
    if attention != 1.0 and kind != "yarn":
        keys.refuse("rope.scaling.attn_factor", "1")
    if kind == "none" or (kind == "linear" and factor in (0.0, 1.0)):
        return {}
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    if kind == "yarn":
        return _yarn(keys, factor, original, attention)
    keys.refuse("rope.scaling.type", "none, linear, yarn, longrope")
    return {}


def _longrope_attention(keys: GgufKeys, factor: float, original: int) -> dict[str, float]:
    """Return the factor of cosines and sines; {} if it is the usual one, which has more digits where it is computed."""
    if not keys.has("rope.scaling.attn_factor"):
        return {}
    attention = keys.real("rope.scaling.attn_factor")
    usual = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1.0 and original > 1 else 1.0
    return {} if math.isclose(attention, usual, rel_tol=1e-6) else {"attention_factor": attention}


def _yarn(keys: GgufKeys, factor: float, original: int, attention: float) -> dict[str, Any]:
    if keys.real("rope.scaling.yarn_ext_factor", 1.0) not in (1.0, -1.0):
        keys.refuse("rope.scaling.yarn_ext_factor", "1")
    settings = {
        "rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original,
        "beta_fast": keys.real("rope.scaling.yarn_beta_fast", 32.0), "beta_slow": keys.real("rope.scaling.yarn_beta_slow", 1.0),
    }  # fmt: skip
    # What config.json has as attention_factor, which llama.cpp's converter copies, and its program reads for Grok alone.
    copied = keys.real("rope.scaling.yarn_attn_factor", 0.0)
    if copied:
        if attention != 1.0:
            keys.refuse("rope.scaling.attn_factor", "1 beside yarn_attn_factor")
        return settings | {"attention_factor": copied}
    mscale = keys.real("rope.scaling.mscale", 1.0)  # which counts beside the other one alone
    scale = keys.real("rope.scaling.yarn_log_multiplier", 0.0)
    if scale:
        if attention != 1.0:
            keys.refuse("rope.scaling.attn_factor", "1 beside yarn_log_multiplier")
        return settings | {"mscale": mscale, "mscale_all_dim": scale}
    if attention != 1.0:  # a factor of the usual one
        settings["attention_factor"] = attention * (0.1 * math.log(factor) + 1.0 if factor > 1.0 else 1.0)
    return settings
