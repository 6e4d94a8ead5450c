"""Makes of a GGUF file's metadata what config.json of the same model would hold. No torch here.

Metadata leave out what llama.cpp has as constants of an architecture: the pattern of windows, the scale of scores, layers without
rotation. The rows of `_ROWS` have them. What a missing key stands for is what it stands for in llama.cpp, and in files that
Ollama's converters wrote what it stands for there.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from executors.contract.errors import ConfigError
from executors.gguf.file import GgufFile, GgufTensor
from executors.llm.model.families import family_of
from executors.llm.model.family import Family
from executors.llm.model.gguf_key_table import OTHER_TENSORS
from executors.llm.model.gguf_keys import GgufKeys, check_outside, shown
from executors.llm.model.nearest import advice

_EMBED, _HEAD = "token_embd.weight", "output.weight"
_ROPE_FACTORS, _LONG, _SHORT = "rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"
CLASSIFIER_TENSOR = "cls.output.weight"
"""The head of a reranker, [labels, hidden]."""
ROPE_TENSORS = frozenset({_ROPE_FACTORS, _LONG, _SHORT})
"""Tensors that the configuration takes its rotation from."""
_MOST_FACTORS = 4096
ARCHITECTURE_NAMES: Mapping[str, str] = {
    "gptoss": "gpt-oss", "qwen25vl": "qwen2vl", "deepseekocr": "deepseek2-ocr", "glmocr": "glm4", "glm4moelite": "deepseek2",
    "nemotron_h_omni": "nemotron_h", "gemma3-embedding": "gemma-embedding", "embeddinggemma": "gemma-embedding",
}  # fmt: skip
"""Names of architectures that Ollama's converters write or wrote, and llama.cpp's for the same."""


@dataclass(frozen=True, slots=True)
class Row:
    """One architecture of GGUF. `served`: the Hugging Face architecture that computes it.

    `interleaved`: rows of queries and keys are in the order for a rotation of neighbours, not of halves. `plus_one`: the norms
    are stored plus one. `variant(keys, row)` returns the row to take instead where the name stands for several models.
    `complete(keys)` sets what missing keys stand for. `fill(keys, values)` reads the keys that only this architecture has.
    """

    served: str
    interleaved: bool = False
    plus_one: bool = False
    variant: Callable[[GgufKeys, Row], Row] | None = None
    complete: Callable[[GgufKeys], None] | None = None
    fill: Callable[[GgufKeys, dict[str, Any]], None] | None = None
    constants: Mapping[str, Any] = field(default_factory=dict)


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
    arch = _architecture(gguf)
    row = None if arch is None else _ROWS.get(arch)
    if row is None:
        _refuse_architecture(gguf, arch)
    assert row is not None
    keys = GgufKeys(gguf, str(arch))
    if row.complete is not None:
        row.complete(keys)
    if row.variant is not None:
        row = row.variant(keys, row)
    family = family_of(row.served)
    assert family is not None
    biases, own = _biases(gguf), _own(gguf)
    values: dict[str, Any] = {
        "architectures": [row.served],
        "model_type": family.model_types[0],
        "dtype": "float32" if all(one.type == "F32" for one in own) else "bfloat16",
        "tie_word_embeddings": _HEAD not in gguf.tensors,
        **row.constants,
    }
    values.update(_sizes(keys, family))
    values.update(_bias_fields(biases, family))
    if family.feed_forward.experts:
        values.update(_experts(keys, family))
    if not family.names.positions:
        values.update(_rotation(keys, family, values))
    if row.fill is not None:
        row.fill(keys, values)
    keys.check_unread(values.get(family.feed_forward.activation, family.feed_forward.activations[0]))
    names = _as_written(family, gguf)
    return GgufConfig(
        values, row, biases, names, (*notes, *_left_out(gguf, own)), _reranker(keys, family, values)
    )


def _architecture(gguf: GgufFile) -> str | None:
    """Return the architecture by llama.cpp's name, as text; None if the file names none."""
    arch = gguf.metadata.get("general.architecture")
    if not isinstance(arch, str):
        return arch if arch is None else shown(arch)
    if arch == "gemma3" and "dense.0.weight" in gguf.tensors:
        return "gemma-embedding"  # Ollama's name for it is that of the model it was made from
    return ARCHITECTURE_NAMES.get(arch, arch)


def _own(gguf: GgufFile) -> list[GgufTensor]:
    """Return the tensors of the decoder."""
    return [one for one in gguf.tensors.values() if OTHER_TENSORS.fullmatch(one.name) is None]


def _left_out(gguf: GgufFile, own: list[GgufTensor]) -> tuple[str, ...]:
    """Return a note on tensors of parts that are not loaded, if there are any."""
    others = len(gguf.tensors) - len(own)
    return (f"text only: {others} tensors of other parts (v.*, mm.*) are left out",) if others else ()


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
    supported = ", ".join(_ROWS)
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
    r"blk\.\d+\.(?:(?P<qkv>attn_(?:q|k|v|qkv))|(?P<o>attn_output)|(?P<mlp>ffn_(?:gate|up|down|gate_up)))\.bias"
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


def _as_written(family: Family, gguf: GgufFile) -> Family:
    """Return the family with the names of separate tensors where it has merged ones and the file has not."""
    names, stems = family.names, {name.split(".")[2] for name in gguf.tensors if name.startswith("blk.")}
    if names.qkv and stems & {"attn_q", "attn_k", "attn_v"}:
        place = names.qkv.rpartition(".")[0]
        names = replace(names, qkv="", q=f"{place}.q_proj", k=f"{place}.k_proj", v=f"{place}.v_proj")
    if names.gate_up and "ffn_gate" in stems:
        place = names.gate_up.rpartition(".")[0]
        names = replace(names, gate_up="", gate=f"{place}.gate_proj", up=f"{place}.up_proj")
    return family if names is family.names else replace(family, names=names)


def _experts(keys: GgufKeys, family: Family) -> dict[str, Any]:
    count, used = keys.natural("expert_count"), keys.natural("expert_used_count")
    tensors = keys.gguf.tensors
    merged = tensors.get("blk.0.ffn_gate_exps.weight") or tensors.get("blk.0.ffn_gate_up_exps.weight")
    if merged is not None and merged.shape[0] != count:
        raise ConfigError(
            f"{keys.where}: {keys.name('expert_count')} is {count}; {merged.name} has {merged.shape[0]} experts"
        )
    if merged is None and f"blk.0.ffn_gate.{count - 1}.weight" not in keys.gguf.tensors:
        raise ConfigError(
            f"{keys.where}: {keys.name('expert_count')} is {count}; tensors of so many experts are missing"
        )
    down = tensors.get("blk.0.ffn_down_exps.weight")
    inner = keys.one(
        "expert_feed_forward_length", down.shape[-1] if down else keys.get("feed_forward_length")
    )
    name = family.fields.get("moe_intermediate_size", "moe_intermediate_size")
    counted = family.fields.get("num_experts", "num_experts")
    values = {counted: count, "num_experts_per_tok": used, name: inner}
    if shared := family.feed_forward.shared:
        values[shared] = keys.one("expert_shared_feed_forward_length", keys.get("feed_forward_length"))
    if keys.get("expert_gating_func", 1) not in (0, 1):
        keys.refuse("expert_gating_func", "1 (softmax)")
    if keys.real("expert_weights_scale", 1.0) not in (0.0, 1.0):
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
        divisors = _floats(keys, _ROPE_FACTORS, dim // 2)
        return {
            "rope_type": "longrope", "factor": 1.0, "original_max_position_embeddings": context, "attention_factor": 1.0,
            "short_factor": divisors, "long_factor": divisors,
        }  # fmt: skip
    if kind == "longrope" or _LONG in tensors or _SHORT in tensors:
        settings = {
            "rope_type": "longrope",
            "original_max_position_embeddings": original,
            "short_factor": _floats(keys, _SHORT, dim // 2),
            "long_factor": _floats(keys, _LONG, dim // 2),
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
    attention *= keys.real("rope.scaling.yarn_attn_factor", 1.0)
    mscale = keys.real("rope.scaling.mscale", 1.0)  # which counts beside the other one alone
    scale = keys.real("rope.scaling.yarn_log_multiplier", 0.0)
    if scale:
        if attention != 1.0:
            keys.refuse("rope.scaling.yarn_attn_factor", "1 beside yarn_log_multiplier")
        return settings | {"mscale": mscale, "mscale_all_dim": scale}
    if attention != 1.0:  # a factor of the usual one
        settings["attention_factor"] = attention * (0.1 * math.log(factor) + 1.0 if factor > 1.0 else 1.0)
    return settings


def _floats(keys: GgufKeys, name: str, count: int) -> list[float]:
    """Return the numbers of a small float32 tensor."""
    tensor = keys.gguf.tensors.get(name)
    if tensor is None or tensor.type != "F32" or tensor.shape != (count,) or count > _MOST_FACTORS:
        actual = "missing" if tensor is None else f"{tensor.type} of shape {list(tensor.shape)}"
        raise ConfigError(f"{keys.where}: tensor {name} is {actual}; F32 of shape [{count}] is needed")
    try:
        with tensor.path.open("rb") as file:
            file.seek(tensor.offset)
            raw = file.read(tensor.num_bytes)
    except OSError as error:
        raise ConfigError(f"{tensor.path}: cannot be read ({error})") from None
    numbers = np.frombuffer(raw, "<f4")
    if len(numbers) != count or not np.isfinite(numbers).all():
        raise ConfigError(f"{tensor.path}: tensor {name} is cut short or has numbers that are not finite")
    return [float(one) for one in numbers]


def _kind_of_llama(keys: GgufKeys, row: Row) -> Row:
    """Return the row for what is called llama or mistral3, and may be Mixtral, Mistral or Ministral 3."""
    if keys.get("expert_count", 0) not in (0, 1):
        return Row("MixtralForCausalLM", interleaved=True, fill=_window_if_given)
    keys.name("expert_count"), keys.name("expert_used_count")  # 0 or 1: without experts
    if keys.arch == "mistral3" and keys.real("attention.temperature_scale", 0.0) != 0.0:
        return Row("Ministral3ForCausalLM", interleaved=True, fill=_ministral3)
    if keys.has("attention.sliding_window"):
        return Row("MistralForCausalLM", interleaved=True, fill=_window_if_given)
    return row


def _ministral3(keys: GgufKeys, values: dict[str, Any]) -> None:
    _window_if_given(keys, values)
    original = keys.natural("rope.scaling.original_context_length", values["max_position_embeddings"])
    values["rope_scaling"] = {
        **values.get("rope_scaling", {"rope_type": "default"}),
        "original_max_position_embeddings": original,
        "llama_4_scaling_beta": keys.real("attention.temperature_scale"),
    }


def _kind_of_olmo2(keys: GgufKeys, row: Row) -> Row:
    """Return the row for what is called olmo2: OLMo 3 has windows."""
    return Row("Olmo3ForCausalLM", fill=_olmo3) if keys.get("attention.sliding_window", 0) != 0 else row


def _olmo3(keys: GgufKeys, values: dict[str, Any]) -> None:
    _window_if_given(keys, values)
    _pattern(keys, values, 4)
    theta = values.pop("rope_theta")
    values["rope_parameters"] = {
        "full_attention": {"rope_theta": theta, **values.pop("rope_scaling", {"rope_type": "default"})},
        "sliding_attention": {"rope_type": "default", "rope_theta": keys.real("rope.freq_base_swa", theta)},
    }


def _complete_exaone4(keys: GgufKeys) -> None:
    """Set the windows of the 32B model, which llama.cpp knows by its number of layers."""
    if keys.get("block_count") == 64:
        keys.supply("attention.sliding_window", 4096)


def _exaone4(keys: GgufKeys, values: dict[str, Any]) -> None:
    _window_if_given(keys, values)
    if values["sliding_window"] is not None:
        _pattern(keys, values, 4)


def _qwen3vl(keys: GgufKeys, values: dict[str, Any]) -> None:
    if keys.get("n_deepstack_layers", 0) != 0:  # after which features of images are added: a text has none
        keys.natural("n_deepstack_layers")


def _glm4(keys: GgufKeys, values: dict[str, Any]) -> None:
    """Refuse the text part of models with images, whose rows converters reorder for a rotation of halves."""
    sections = keys.get("rope.dimension_sections", 0)
    if sections != 0 and sections != [0] * len(sections if isinstance(sections, list) else ()):
        keys.refuse("rope.dimension_sections", "none: rotation in three parts is not supported for glm4")


def _hunyuan(keys: GgufKeys, values: dict[str, Any]) -> None:
    """Read alpha. llama.cpp's converter writes a freq_base that is stretched by it instead, and no alpha."""
    alpha = keys.real("rope.scaling.alpha", 0.0)
    if alpha > 0.0:
        if "rope_scaling" in values:
            keys.refuse("rope.scaling.alpha", "none beside another scaling")
        values["rope_scaling"] = {"rope_type": "dynamic", "alpha": alpha, "factor": 1.0}


def _window_if_given(keys: GgufKeys, values: dict[str, Any]) -> None:
    """Read a window for all layers. 0 means none, as does a key that is missing."""
    window = keys.get("attention.sliding_window", 0)
    values["sliding_window"] = None if window == 0 else keys.natural("attention.sliding_window")


def _gemma2(keys: GgufKeys, values: dict[str, Any]) -> None:
    values["sliding_window"] = keys.natural("attention.sliding_window", 4096)
    pattern = keys.get("attention.sliding_window_pattern", 2)
    if pattern not in (2, [i % 2 == 0 for i in range(values["num_hidden_layers"])]):
        keys.refuse("attention.sliding_window_pattern", "2: every second layer from the first on")
    for name, default in (("attn_logit_softcapping", 50.0), ("final_logit_softcapping", 30.0)):
        values[name] = keys.real(name, default) or None
    # The metadata do not have the scale of the 27B model's scores, which is not its head's.
    values["query_pre_attn_scalar"] = _query_scale(keys, values, wide=46)


def _query_scale(keys: GgufKeys, values: dict[str, Any], wide: int) -> int:
    """Return the number whose root divides the scores. The model of `wide` layers has hidden_size per head for it."""
    if keys.has("attention.scale"):
        scale = keys.positive("attention.scale") or 0.0
        number = round(scale**-2)
        if not 0 < number < 1 << 31 or not math.isclose(number**-0.5, scale, rel_tol=1e-6):
            keys.refuse("attention.scale", "one divided by the root of an integer")
        return number
    if values["num_hidden_layers"] == wide:
        return max(1, values["hidden_size"] // values["num_attention_heads"])
    return int(values["head_dim"])


_LONG_CONTEXT, _LONG_FACTOR = 131_072, 8.0


def _complete_gemma3(keys: GgufKeys) -> None:
    """Set what Ollama's Gemma 3 files leave out: its own constants, of which llama.cpp's converter writes all.

    The models of 131,072 tokens have their rotation stretched. Files of Ollama's converters do not say so; other files without
    the key mean none. https://github.com/ollama/ollama (llama/compat) tells them apart by the same marks.
    """
    tensors, metadata = keys.gguf.tensors, keys.gguf.metadata
    marks = ("gemma3.mm.tokens_per_image", "gemma3.rope.global.freq_base", "gemma3.rope.local.freq_base",
             "tokenizer.ggml.add_padding_token", "tokenizer.ggml.add_unknown_token")  # fmt: skip
    by_ollama = (
        any(mark in metadata for mark in marks)
        or not keys.has("attention.layer_norm_rms_epsilon")
        or any(name.startswith(("v.", "mm.")) for name in tensors)
    )
    keys.supply("attention.layer_norm_rms_epsilon", 1e-6)
    keys.supply("rope.freq_base", 1_000_000.0)
    keys.supply("rope.freq_base_swa", 10_000.0)
    context = keys.get("context_length")
    if by_ollama and isinstance(context, int) and context >= _LONG_CONTEXT:
        keys.supply("rope.scaling.type", "linear")
        keys.supply("rope.scaling.factor", _LONG_FACTOR)


def _gemma3(keys: GgufKeys, values: dict[str, Any]) -> None:
    _window_if_given(keys, values)
    values["query_pre_attn_scalar"] = _query_scale(keys, values, wide=62)
    values["rope_local_base_freq"] = keys.real("rope.freq_base_swa", 10_000.0)
    for name in ("attn_logit_softcapping", "final_logit_softcapping"):
        values[name] = keys.real(name, 0.0) or None
    _pattern(keys, values, 6)


def _pattern(keys: GgufKeys, values: dict[str, Any], usual: int) -> None:
    """Read which layers have a window: a flag for each, or the n of which every n-th has none; `usual`: what a missing key
    stands for."""
    name, count = "attention.sliding_window_pattern", values["num_hidden_layers"]
    if isinstance(keys.get(name), list):
        flags = keys.items(name, bool, count) or []
    else:
        interval = keys.natural(name, usual)
        flags = [(i + 1) % interval != 0 for i in range(count)]
    values["layer_types"] = ["sliding_attention" if flag else "full_attention" for flag in flags]


def _granite(keys: GgufKeys, values: dict[str, Any]) -> None:
    names = {
        "attention_multiplier": "attention.scale",
        "embedding_multiplier": "embedding_scale",
        "residual_multiplier": "residual_scale",
        "logits_scaling": "logit_scale",
    }
    for name, key in names.items():
        default = values["head_dim"] ** -0.5 if name == "attention_multiplier" else 1.0
        values[name] = keys.real(key, 0.0) or default
    if keys.switch("rope.scaling.finetuned", True) is False:  # with which llama.cpp switches rotation off
        keys.refuse("rope.scaling.finetuned", "true")


_ROWS: Mapping[str, Row] = {
    "llama": Row("LlamaForCausalLM", interleaved=True, variant=_kind_of_llama),
    "mistral3": Row("MistralForCausalLM", interleaved=True, variant=_kind_of_llama, fill=_window_if_given),
    "qwen2": Row("Qwen2ForCausalLM"),
    "qwen2moe": Row("Qwen2MoeForCausalLM"),
    "qwen3": Row("Qwen3ForCausalLM"),
    "qwen3vl": Row("Qwen3ForCausalLM", fill=_qwen3vl),
    "qwen3moe": Row("Qwen3MoeForCausalLM"),
    "gemma": Row("GemmaForCausalLM", plus_one=True),
    "gemma2": Row("Gemma2ForCausalLM", plus_one=True, fill=_gemma2),
    "gemma3": Row("Gemma3ForCausalLM", plus_one=True, complete=_complete_gemma3, fill=_gemma3),
    "phi3": Row("Phi3ForCausalLM", fill=_window_if_given),
    "glm4": Row("Glm4ForCausalLM", fill=_glm4),
    "olmo2": Row("Olmo2ForCausalLM", variant=_kind_of_olmo2),
    "olmoe": Row("OlmoeForCausalLM"),
    "exaone4": Row("Exaone4ForCausalLM", complete=_complete_exaone4, fill=_exaone4),
    "hunyuan-dense": Row("HunYuanDenseV1ForCausalLM", fill=_hunyuan),
    "smollm3": Row("SmolLM3ForCausalLM", interleaved=True, constants={"no_rope_layer_interval": 4}),
    "granite": Row("GraniteForCausalLM", interleaved=True, fill=_granite),
    "gpt2": Row("GPT2LMHeadModel", constants={"activation_function": "gelu_new"}),
}
"""The architectures by the value of `general.architecture`."""


def served_by(architecture: str) -> Row | None:
    """Return the row of an architecture of GGUF, None if it is not served."""
    return _ROWS.get(architecture)
