"""Reads `config.json` of a Hugging Face checkpoint into a `DecoderConfig`. No torch here.

Every fault is a ConfigError of one line that names the file, the field and what is supported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from executors.contract.errors import ConfigError
from executors.gguf.file import GgufFile
from executors.llm.model.architectures import find_family, is_classifier
from executors.llm.model.config_keys import CAUSAL, misplaced_notes, unread_notes
from executors.llm.model.family import Family, MixerRule
from executors.llm.model.fields import Fields, read_json
from executors.llm.model.gguf_config import GgufConfig, gguf_config
from executors.llm.model.gguf_source import config_path, is_gguf, read_source
from executors.llm.model.head_sizes import HeadSizes, layer_heads, sources_of_kv
from executors.llm.model.quantization import Fp8Scheme, IntSchemes, Quantization, quantization_of
from executors.llm.model.rope_config import RopeConfig, Ropes, context_lengths, parse_ropes
from executors.llm.model.transforms import Transforms

__all__ = [
    "DTYPES",
    "DecoderConfig",
    "LayerConfig",
    "MoeConfig",
    "RopeConfig",
    "check_length",
    "config_of_gguf",
    "parse_config",
    "read_config",
    "read_json",
]

DTYPES = ("float32", "bfloat16", "float16")
_MOST_LAYERS = 1000
_DEFAULT_LABELS = 2
"""Number of labels where config.json names none, in transformers."""
_DTYPE_FIELDS = ("dtype", "torch_dtype")
"""Names of the dtype field: transformers 5 writes the first, older versions the second."""
_TIES = "tie_word_embeddings"
_OF_THE_WHOLE = (*_DTYPE_FIELDS, "quantization_config", _TIES)
_SLIDING, _FULL = "sliding_attention", "full_attention"
ATTENTION, MLP = "attention", "mlp"
"""Kinds of most layers, see `layers/kinds.py`."""
_DENSE = (MLP, "dense_and_experts")
"""Kinds of layers with an MLP of `intermediate_size`."""


@dataclass(frozen=True, slots=True)
class MoeConfig:
    """A mixture of experts: each token goes through the `top_k` of `num_experts` with the highest router weights.

    `normalized`: those weights are scaled to sum to 1. `shared_size`: inner size of an expert that every token goes through, 0 if
    there is none. `biased`: router and experts have biases. `softmax_last`: weights are the softmax over the chosen logits alone;
    otherwise over all. `alpha`, `limit`: of the activation "clamped_swiglu", see `layers/activations.py`. `choice_bias`: a bias
    counts for the choice of experts. `scale`: factor of their weights.
    """

    num_experts: int
    top_k: int
    intermediate_size: int
    normalized: bool
    shared_size: int = 0
    biased: bool = False
    softmax_last: bool = False
    alpha: float = 0.0
    limit: float = 0.0
    choice_bias: bool = False
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class LayerConfig:
    """Per-layer settings. `window`: the number of tokens that a token sees, itself included (None: all before it).

    `rope`: index into `DecoderConfig.ropes`, None without rotation. `mixer`, `feed_forward`: names in `layers/kinds.py`. `heads`:
    sizes of its heads, None for those of the model. `kv_from`: the layer whose keys and values it reads, None for its own.
    `k_is_v`: values are what keys are before their norm. `inner`: inner size of its MLP, 0 for that of the model.
    `channels`: of its convolution, 0 for as many as hidden states have.
    """

    window: int | None = None
    rope: int | None = 0
    mixer: str = ATTENTION
    feed_forward: str = MLP
    heads: HeadSizes | None = None
    kv_from: int | None = None
    k_is_v: bool = False
    inner: int = 0
    channels: int = 0


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """Configuration of the generic decoder. Sizes in elements, lengths in tokens.

    `context_length` is the default context; `max_context_length` is the longest that can be requested. They differ for
    dynamic and long rope only, see `context_lengths`.
    """

    family: Family
    architecture: str
    vocab_size: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    norm_eps: float
    activation: str
    layers: tuple[LayerConfig, ...]
    ropes: tuple[RopeConfig, ...]
    """Rotary embeddings; empty if positions are learned."""
    moe: MoeConfig | None
    score_scale: float
    """Factor of the scores q k^T."""
    attn_softcap: float | None
    final_softcap: float | None
    context_length: int
    max_context_length: int
    tied: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    dtype: str | None
    """Dtype that the checkpoint names; None if it names none."""
    quantization: Quantization | None = None
    """How the checkpoint's linear layers are quantized; None if they are not."""
    embed_scale: float = 1.0
    """Factor of the embeddings."""
    residual_scale: float = 1.0
    """Factor of the outputs of attention and MLP, applied before they are added to the residual stream."""
    logits_divisor: float = 1.0
    """Divisor of the logits."""
    headless: bool = False
    """True if the checkpoint has no lm_head: the model only computes embeddings and the logits of its labels, and its other
    logits, computed with the embedding matrix, are meaningless."""
    num_labels: int = 0
    """Number of labels of its classification head; 0: it has none."""
    layer_input_size: int = 0
    """Elements of each layer's input of a token, see `layer_inputs.py`; 0: layers have none."""
    layer_input_vocab: int = 0
    """Rows of the table of these."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Values of the fields `Family.sizes`, which kinds of layers read."""
    switches: Mapping[str, bool] = field(default_factory=dict)
    """Values of the fields `Family.switches`."""
    notes: tuple[str, ...] = field(default=(), compare=False)
    """Keys of config.json that would change the output of other families and are not used, one sentence each."""

    @property
    def fp8(self) -> Fp8Scheme | None:
        """How linear layers are quantized to FP8; None if none is."""
        return None if self.quantization is None else self.quantization.fp8

    @property
    def integers(self) -> IntSchemes | None:
        """How linear layers are quantized to whole numbers; None if none is."""
        return None if self.quantization is None else self.quantization.integers

    @property
    def transforms(self) -> Transforms | None:
        """Hadamard products around linear layers; None if there are none."""
        return None if self.quantization is None else self.quantization.transforms

    @property
    def num_layers(self) -> int:
        """Number of layers."""
        return len(self.layers)

    @property
    def q_size(self) -> int:
        """Columns of all query heads together."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Columns of all key (or value) heads together."""
        return self.num_kv_heads * self.head_dim

    def heads_of(self, layer: LayerConfig) -> HeadSizes:
        """Return the sizes of a layer's heads."""
        return layer.heads or HeadSizes(self.num_heads, self.num_kv_heads, self.head_dim)


def read_config(directory: Path) -> DecoderConfig:
    """Read the checkpoint's configuration, from config.json or the metadata of a GGUF file. Raises ConfigError."""
    if is_gguf(directory):
        gguf = read_source(directory)
        return config_of_gguf(gguf, gguf_config(gguf))
    path = directory / "config.json"
    return parse_config(read_json(path), str(path), directory)


def config_of_gguf(gguf: GgufFile, derived: GgufConfig) -> DecoderConfig:
    """Return the configuration of a GGUF file whose metadata are `derived`: its tensors decide which biases there are. Raises
    ConfigError."""
    config = parse_config(derived.values, str(gguf.path))
    biases, notes = derived.biases, (*derived.notes, *config.notes)
    return replace(
        config, family=derived.family, qkv_bias=biases.qkv, o_bias=biases.o, mlp_bias=biases.mlp, notes=notes,
        num_labels=derived.labels,
    )  # fmt: skip


def check_length(max_model_len: int | None, config: DecoderConfig, directory: Path) -> None:
    """Raise ConfigError if max_model_len exceeds what the checkpoint in `directory` supports."""
    if max_model_len is not None and max_model_len > config.max_context_length:
        field = config.family.fields.get("max_position_embeddings", "max_position_embeddings")
        raise ConfigError(
            f"max_model_len {max_model_len} is longer than the model's {config.max_context_length} "
            f"({field} in {config_path(directory)})"
        )


def parse_config(
    values: dict[str, Any], where: str = "config.json", directory: Path | None = None
) -> DecoderConfig:
    """Do the same as `read_config`, given the parsed JSON; `where` is the name used in messages, `directory` the folder whose
    other files may say how weights are quantized."""
    architecture, family, notes = find_family(values, where)
    quantization, whole = quantization_of(directory, values, where), where
    if family.nested:
        outer = values
        values, where = _nested(values, family.nested, where), f"{where}: {family.nested}"
        notes += misplaced_notes(outer, values, family)
    # Null means missing, but where it says that there is none; what looks ahead does so for null as well.
    present = {k: v for k, v in values.items() if v is not None or k in family.nullable or k == CAUSAL}
    present |= {usual: present[older] for usual, older in family.older.items() if older in present}
    fields = Fields(where, {**family.defaults, **present}, family.fields)
    _refuse_unimplemented(fields, family)
    notes += unread_notes(fields.values, family, where)
    hidden_size, heads = fields.natural("hidden_size"), _heads(fields)
    max_positions = fields.natural("max_position_embeddings")
    layers = _layers(fields, family, heads, notes)
    full = next((one.heads for one in layers if one.window is None and one.heads), heads)
    rotation = _ropes(fields, family, max_positions, (full.head_dim, heads.head_dim))
    ropes = (
        () if rotation is None else (rotation.full, *(() if rotation.local is None else (rotation.local,)))
    )
    context_length, max_context_length = (
        context_lengths(ropes[0], max_positions, family.attention.stretched_positions)
        if ropes
        else (max_positions, max_positions)
    )
    moe = _moe(fields, family) if _experts(fields, family) else None
    dense = any(layer.feed_forward in _DENSE for layer in layers)
    num_labels = _num_labels(fields) if is_classifier(architecture) else 0
    return DecoderConfig(
        family=family,
        architecture=architecture,
        vocab_size=fields.natural("vocab_size"),
        hidden_size=hidden_size,
        num_heads=heads.num_heads,
        num_kv_heads=heads.num_kv_heads,
        head_dim=heads.head_dim,
        intermediate_size=_intermediate_size(fields, family, hidden_size) if dense else 0,
        norm_eps=_norm_eps(fields, family),
        activation=family.feed_forward.computed
        or fields.get(family.feed_forward.activation, family.feed_forward.activations[0]),
        layers=layers,
        ropes=ropes,
        moe=moe,
        score_scale=_score_scale(fields, family, heads.head_dim),
        attn_softcap=fields.positive(family.attention.attn_softcap)
        if family.attention.attn_softcap
        else None,
        final_softcap=fields.positive(family.stream.final_softcap) if family.stream.final_softcap else None,
        context_length=context_length,
        max_context_length=max_context_length,
        tied=fields.switch(_TIES) or num_labels > 0,
        qkv_bias=fields.switch(family.attention.qkv_bias),
        o_bias=fields.switch(family.attention.o_bias),
        mlp_bias=fields.switch(family.feed_forward.mlp_bias),
        dtype=_dtype(fields, whole),
        quantization=quantization,
        sizes={name: fields.natural(name) for name in family.sizes},
        switches={name: fields.switch(name) for name in family.switches},
        **_layer_inputs(fields, family),
        embed_scale=hidden_size**0.5
        if family.stream.embed_scaled
        else _factor(fields, family.stream.embed_multiplier),
        residual_scale=_factor(fields, family.stream.residual_multiplier),
        logits_divisor=_factor(fields, family.stream.logits_divisor),
        headless=num_labels > 0,
        num_labels=num_labels,
        notes=(
            *notes,
            *(() if rotation is None else rotation.notes),
            *(() if quantization is None else quantization.notes),
        ),
    )


def _heads(fields: Fields) -> HeadSizes:
    """Return the sizes of most layers' heads. Raises ConfigError."""
    num_heads, hidden_size = fields.natural("num_attention_heads"), fields.natural("hidden_size")
    num_kv_heads = fields.natural("num_key_value_heads", num_heads)
    head_dim = fields.natural("head_dim", hidden_size // num_heads or None)
    if num_heads % num_kv_heads:
        raise ConfigError(
            f"{fields.where}: num_attention_heads {num_heads} is not a multiple of num_key_value_heads {num_kv_heads}"
        )
    return HeadSizes(num_heads, num_kv_heads, head_dim)


def _nested(values: dict[str, Any], name: str, where: str) -> dict[str, Any]:
    """Return the object under `name`, merged with the outer fields that apply to the whole checkpoint.

    The outer value takes precedence: savers update it and leave the inner object as it was loaded. `tie_word_embeddings` may
    stand in either place: transformers 4 reads the inner one, transformers 5 the outer one, and the tensors in the files
    decide.
    """
    inner = values.get(name)
    if not isinstance(inner, dict):
        raise ConfigError(f"{where}: field {name} is missing or not an object")
    outer = {field: values[field] for field in _OF_THE_WHOLE if values.get(field) is not None}
    if _TIES in outer:
        outer[_TIES] = outer[_TIES] or inner.get(_TIES, outer[_TIES])
    stale = _DTYPE_FIELDS if any(field in outer for field in _DTYPE_FIELDS) else ()
    return {**{field: value for field, value in inner.items() if field not in stale}, **outer}


def _num_labels(fields: Fields) -> int:
    """Return the number of labels of a classification head. Raises ConfigError unless it is 1, a score: what several labels mean
    is known to their maker only."""
    labels = fields.get("id2label")
    count = len(labels) if isinstance(labels, dict) else fields.natural("num_labels", _DEFAULT_LABELS)
    if count != 1:
        raise ConfigError(
            f"{fields.where}: the classification head has {count} labels (id2label); a model with one, such as a reranker, is "
            "supported"
        )
    return count


def _factor(fields: Fields, name: str) -> float:
    """Return the positive number in a field, or 1 if the family has no such field or the checkpoint omits it."""
    return (fields.positive(name) if name else None) or 1.0


def _layer_inputs(fields: Fields, family: Family) -> dict[str, int]:
    stream = family.stream
    size = fields.count(stream.layer_inputs) if stream.layer_inputs else 0
    if not size:
        return {}
    rows, vocabulary = fields.natural(stream.layer_vocab), fields.natural("vocab_size")
    if rows < vocabulary:
        raise ConfigError(
            f"{fields.where}: {stream.layer_vocab} {rows} is less than vocab_size {vocabulary}: each token needs a row"
        )
    return {"layer_input_size": size, "layer_input_vocab": rows}


def _score_scale(fields: Fields, family: Family, head_dim: int) -> float:
    if family.attention.unscaled:
        return 1.0
    if family.attention.score_multiplier:
        return _factor(fields, family.attention.score_multiplier)
    return float(
        (fields.natural(family.attention.query_scale) if family.attention.query_scale else head_dim) ** -0.5
    )


def _refuse_unimplemented(fields: Fields, family: Family) -> None:
    activation = fields.get(family.feed_forward.activation, family.feed_forward.activations[0])
    if activation not in family.feed_forward.activations:
        supported = ", ".join(family.feed_forward.activations)
        raise ConfigError(
            f"{fields.where}: {family.feed_forward.activation} {activation!r} is not supported; supported: {supported}"
        )
    for name, allowed in family.only.items():
        value = fields.get(name)
        if value is not None and value not in allowed:
            supported = ", ".join(str(one).lower() for one in allowed)
            raise ConfigError(f"{fields.where}: {name} {value!r} is not supported; supported: {supported}")


def _norm_eps(fields: Fields, family: Family) -> float:
    epsilon = fields.real(family.stream.norm_eps)
    if epsilon < 0.0:
        raise ConfigError(f"{fields.where}: {family.stream.norm_eps} is {epsilon}; at least 0 is needed")
    return epsilon


def _dtype(fields: Fields, where: str) -> str | None:
    name = fields.get(_DTYPE_FIELDS[0], fields.get(_DTYPE_FIELDS[1]))
    if name is not None and name not in DTYPES:
        raise ConfigError(f"{where}: dtype {name!r} is not supported; supported: {', '.join(DTYPES)}")
    return name


def _intermediate_size(fields: Fields, family: Family, hidden_size: int) -> int:
    # GPT-2 leaves it out where it is four times the width.
    size = fields.natural("intermediate_size", None if family.names.gate else 4 * hidden_size)
    if not fields.switch(family.feed_forward.adjusted):
        return size
    factor, multiple = fields.positive("block_ffn_dim_multiplier"), fields.natural("block_multiple_of")
    # transformers' Lfm2MLP cuts to integers after each product.
    size = int(2 * size / 3)
    if factor is None:
        return size
    return -(-int(factor * size) // multiple) * multiple


def _ropes(fields: Fields, family: Family, max_positions: int, head_dims: tuple[int, int]) -> Ropes | None:
    """`head_dims`: of layers without a window, and of those with one."""
    if family.names.positions:
        return None
    for head_dim in head_dims:
        if head_dim % 2:
            raise ConfigError(
                f"{fields.where}: head_dim {head_dim} is odd; rotary embeddings need an even one"
            )
    return parse_ropes(fields, family, max_positions, head_dims)


def _experts(fields: Fields, family: Family) -> str:
    """Return the kind of the layers with experts; "" if there are none."""
    return family.feed_forward.experts if fields.switch(family.feed_forward.experts_switch) else ""


def _moe(fields: Fields, family: Family) -> MoeConfig:
    # transformers 5 saves the number of experts as `num_local_experts`.
    num_experts = fields.natural("num_experts", fields.get("num_local_experts"))
    if fields.get("num_local_experts", num_experts) != num_experts:
        other = fields.get("num_local_experts")
        raise ConfigError(f"{fields.where}: num_experts is {num_experts} and num_local_experts {other}")
    top_k = fields.natural("num_experts_per_tok")
    if top_k > num_experts:
        raise ConfigError(
            f"{fields.where}: num_experts_per_tok {top_k} is more than num_experts {num_experts}"
        )
    return MoeConfig(
        num_experts,
        top_k,
        fields.natural("moe_intermediate_size"),
        fields.switch(family.feed_forward.normalized),
        fields.natural(family.feed_forward.shared) if family.feed_forward.shared else 0,
        family.feed_forward.biased,
        family.feed_forward.softmax_last,
        *_clamp(fields, family),
        choice_bias=fields.switch(family.feed_forward.choice_bias),
        scale=_factor(fields, family.feed_forward.routed_scale),
    )


def _clamp(fields: Fields, family: Family) -> tuple[float, float]:
    """Return alpha and limit of a clamped SwiGLU, 0 for other activations."""
    if family.feed_forward.computed != "clamped_swiglu":
        return 0.0, 0.0
    numbers = fields.positive("swiglu_alpha"), fields.positive("swiglu_limit")
    if None in numbers:
        raise ConfigError(f"{fields.where}: swiglu_alpha and swiglu_limit are {numbers}; numbers are needed")
    return numbers[0] or 0.0, numbers[1] or 0.0


def _layers(fields: Fields, family: Family, heads: HeadSizes, notes: list[str]) -> tuple[LayerConfig, ...]:
    count = fields.natural("num_hidden_layers")
    if count > _MOST_LAYERS:
        raise ConfigError(
            f"{fields.where}: num_hidden_layers is {count}; at most {_MOST_LAYERS} are supported"
        )
    rotated = [False] * count if family.names.positions else _rotated(fields, family, count)
    sliding = _sliding(fields, family, count, rotated)
    if family.attention.full_heads:
        sliding[-1] = False
    if family.attention.rotated_windows and fields.get("sliding_window") is not None:
        rotated = sliding
    window = fields.natural("sliding_window") if any(sliding) else None
    types = fields.get("layer_types")
    if (
        not any(sliding)
        and family.attention.window not in ("", "all")
        and isinstance(types, list)
        and _SLIDING in types
    ):
        notes.append("layer_types names sliding layers, but there is no window: all layers see all tokens")
    experts = _experts(fields, family)
    sparse = _sparse(fields, family, count) if experts else [False] * count
    mixers = _mixers(fields, family, count)
    sizes, sources = layer_heads(fields, family, sliding, heads), sources_of_kv(fields, family, sliding)
    k_is_v = fields.switch(family.attention.k_is_v)
    wide = fields.switch(family.feed_forward.wide_where_shared)
    layers = []
    for i in range(count):
        rope = (1 if family.attention.local_theta and sliding[i] else 0) if rotated[i] else None
        kind = experts if sparse[i] else MLP
        inner = 2 * fields.natural("intermediate_size") if wide and sources[i] is not None else 0
        layers.append(
            LayerConfig(
                window if sliding[i] else None, rope, mixers[i], kind, sizes[i], sources[i], k_is_v and not sliding[i], inner,
            )
        )  # fmt: skip
    return tuple(layers)


def _mixers(fields: Fields, family: Family, count: int) -> list[str]:
    """Return the kind of each layer's mixer, according to `layer_types`."""
    if not family.mixers:
        return [ATTENTION] * count
    types = fields.items("layer_types", str, count)
    if types is None and family.mixer_rule is not None:
        types = _types_by_rule(fields, family.mixer_rule, count)
    if types is None:
        raise ConfigError(f"{fields.where}: layer_types is missing; a {family.name} model needs it")
    kinds = {_FULL: ATTENTION, **({_SLIDING: ATTENTION} if family.attention.window else {}), **family.mixers}
    unknown = sorted(set(types[:count]) - kinds.keys())
    if unknown:
        raise ConfigError(f"{fields.where}: layer_types has {unknown[0]!r}; supported: {', '.join(kinds)}")
    return [kinds[one] for one in types[:count]]


def _types_by_rule(fields: Fields, rule: MixerRule, count: int) -> list[str]:
    """Return what `layer_types` would be."""
    if rule.interval:
        interval = fields.natural(rule.interval)
        full = {i for i in range(count) if (i + 1) % interval == 0}
    else:
        indices = fields.items(rule.indices, int, 0)
        full = set(range(count) if indices is None else indices)
    return [_FULL if i in full else rule.other for i in range(count)]


def _rotated(fields: Fields, family: Family, count: int) -> list[bool]:
    if not family.attention.rotated:
        return [True] * count
    flags = fields.items(family.attention.rotated, int, count)
    if flags is not None:
        return [flag != 0 for flag in flags[:count]]
    interval = fields.natural("no_rope_layer_interval")
    return [(i + 1) % interval != 0 for i in range(count)]


def _sliding(fields: Fields, family: Family, count: int, rotated: list[bool]) -> list[bool]:
    """Return which layers have a window, according to `layer_types` or the family's rule."""
    if (
        not family.attention.window
        or not fields.switch(family.attention.window_switch)
        or fields.get("sliding_window") is None
    ):
        return [False] * count
    if family.attention.window == "all":
        return [True] * count
    types = fields.items("layer_types", str, count)
    if types is not None:
        unknown = sorted(set(types[:count]) - {_SLIDING, _FULL, *family.mixers})
        if unknown:
            raise ConfigError(
                f"{fields.where}: layer_types has {unknown[0]!r}; supported: {_SLIDING}, {_FULL}"
            )
        return [one == _SLIDING for one in types[:count]]
    match family.attention.window:
        case "alternate":
            return [i % 2 == 0 for i in range(count)]
        case "pattern":
            interval = _pattern(fields, family.attention.pattern)
            return [(i + 1) % interval != 0 for i in range(count)]
        case "tail" | "head":
            bound = fields.get("max_window_layers")
            if isinstance(bound, bool) or not isinstance(bound, int):
                raise ConfigError(f"{fields.where}: max_window_layers is {bound!r}; an integer is needed")
            tail = family.attention.window == "tail"
            return [i >= bound if tail else i < bound and i % 2 == 0 for i in range(count)]
        case _:
            return [not turned for turned in rotated]


def _pattern(fields: Fields, pattern: int | str) -> int:
    """Return a number, or the value of the field that it names; transformers 5 saves that with an underscore."""
    if isinstance(pattern, int):
        return pattern
    return fields.natural(f"_{pattern}", fields.natural(pattern))


def _sparse(fields: Fields, family: Family, count: int) -> list[bool]:
    if family.feed_forward.dense_layers:
        first = fields.count(family.feed_forward.dense_layers)
        return [i >= first for i in range(count)]
    if not family.feed_forward.sparse_layers:
        return [True] * count
    dense = set(fields.items("mlp_only_layers", int, 0) or [])
    step = fields.natural("decoder_sparse_step", 1)
    return [i not in dense and (i + 1) % step == 0 for i in range(count)]
