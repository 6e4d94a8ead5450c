"""Encoders whose positions are rotations of queries and keys: ModernBERT, nomic-bert and EmbeddingGemma. No torch here.

A family is a function from `config.json` to a `RotaryConfig`; what they share is one model, `RotaryEncoder`. Keys count as in
transformers 5.23. A key of `_ONLY` with another value than those listed is refused; a key that is neither read nor known to be
harmless is named in a note.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from executors.contract.errors import ConfigError
from executors.llm.encoder.config import (
    ACTIVATIONS,
    HEAD,
    EncoderConfig,
    EncoderFamily,
    HeadConfig,
    read_labels,
)
from executors.llm.model.config import DTYPES, parse_config
from executors.llm.model.family import AttentionTraits, Family
from executors.llm.model.fields import Fields
from executors.llm.model.rope_config import RopeConfig, parse_ropes

_FULL, _LOCAL = "full_attention", "sliding_attention"
_MOST_LAYERS = 1000
_ROPE_KINDS = ("default", "linear", "llama3", "yarn")
"""Kinds whose frequencies do not depend on the length of a text."""
BIDIRECTIONAL: Final = "use_bidirectional_attention"
"""Key that makes an encoder of a Gemma 3."""

MODERNBERT = EncoderFamily(
    "modernbert", ("ModernBertModel", "ModernBertForMaskedLM", "ModernBertForSequenceClassification"), "model.",
    defaults={
        "vocab_size": 50_368, "hidden_size": 768, "intermediate_size": 1152, "num_hidden_layers": 22, "num_attention_heads": 12,
        "max_position_embeddings": 8192, "norm_eps": 1e-5, "local_attention": 128, "global_attn_every_n_layers": 3,
        "local_rope_theta": 10_000.0,
    },
)  # fmt: skip
NOMIC = EncoderFamily(
    "nomic_bert", ("NomicBertModel", "NomicBertForMaskedLM", "NomicBertForPreTraining", "NomicBertForSequenceClassification"),
    "nomic_bert.",
    defaults={
        "vocab_size": 30_528, "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
        "max_position_embeddings": 2048, "layer_norm_eps": 1e-12, "type_vocab_size": 2,
    },
)  # fmt: skip
GEMMA = EncoderFamily("gemma3_text", ("Gemma3TextModel",), "model.")


@dataclass(frozen=True, slots=True)
class EncoderLayer:
    """One layer. `reach`: the most positions between two tokens that see each other, None if all do. `rope`: index into
    `RotaryConfig.ropes`.

    `norms`: places of its norms. `attention_in` is applied to what attention reads, `attention_out` to what it gives before that
    is added to the stream, `attention_sum` to the sum; `mlp_in`, `mlp_out` and `mlp_sum` likewise.
    """

    reach: int | None
    rope: int
    norms: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RotaryConfig(EncoderConfig):
    """Configuration of an encoder with rotary positions. Its MLP is gated: down(act(gate(x)) * up(x))."""

    layers: tuple[EncoderLayer, ...]
    ropes: tuple[RopeConfig, ...]
    num_kv_heads: int
    head_size: int
    """Elements of a head."""
    score_scale: float
    """Factor of the scores q k^T."""
    norm: Literal["layer", "rms1"] = "layer"
    """LayerNorm, or RMS norm whose weight is stored less 1."""
    norm_bias: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    embed_norm: bool = True
    final_norm: bool = True
    head_norms: bool = False
    """Whether queries and keys have a norm over each head, before they are rotated."""
    embed_scale: float = 1.0
    """Factor of the embeddings of words."""

    @property
    def head_dim(self) -> int:
        """Elements of a head."""
        return self.head_size

    @property
    def kv_heads(self) -> int:
        """Number of heads of keys and values."""
        return self.num_kv_heads


_HARMLESS = frozenset(
    {
        "_name_or_path", "architectures", "model_type", "transformers_version", "torch_dtype", "dtype", "id2label", "label2id",
        "pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id", "mask_token_id", "gradient_checkpointing",
        "initializer_range", "use_cache", "chunk_size_feed_forward", "tie_word_embeddings", "problem_type", "output_attentions",
        "output_hidden_states", "return_dict", "finetuning_task", "auto_map", "sentence_transformers", "num_labels",
        "torchscript", "is_encoder_decoder",
    }
)  # fmt: skip
"""Keys that change nothing of what these encoders compute."""
_HARMLESS_TO: Final[Mapping[str, frozenset[str]]] = {
    "modernbert": frozenset(
        {
            "attention_dropout", "embedding_dropout", "mlp_dropout", "classifier_dropout", "classifier_pooling",
            "classifier_bias", "classifier_activation", "decoder_bias", "deterministic_flash_attn", "initializer_cutoff_factor",
            "reference_compile",            "repad_logits_with_grad", "sparse_pred_ignore_index", "sparse_prediction",
            # Published files have these, which no class of ModernBERT reads.
            "layer_norm_eps", "position_embedding_type",
        }
    ),
    "nomic_bert": frozenset(
        {
            "attn_pdrop", "embd_pdrop", "resid_pdrop", "hidden_dropout_prob", "attention_probs_dropout_prob",
            "classifier_dropout", "dense_seq_output", "fused_bias_fc", "fused_dropout_add_ln", "pad_vocab_size_multiple",
            "reorder_and_upcast_attn", "summary_activation", "summary_first_dropout", "summary_proj_to_labels",
            "summary_type", "summary_use_proj", "use_flash_attn", "use_xentropy", "last_layer_subset", "mlp_checkpoint_lvl",
            "moe_top_k", "moe_normalize_expert_weights", "moe_impl", "moe_resid_pdrop", "expert_choice_router", "ffn_div",
            "num_shared_experts",
        }
    ),
}  # fmt: skip
_ONLY: Final[Mapping[str, Mapping[str, tuple[object, ...]]]] = {
    "modernbert": {},
    "nomic_bert": {
        **dict.fromkeys(("qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias"), (False,)),
        **dict.fromkeys(("prenorm", "causal", "is_decoder", "add_cross_attention", "use_rms_norm"), (False,)),
        **dict.fromkeys(("parallel_block", "parallel_block_tied_norm", "rotary_emb_interleaved"), (False,)),
        "rotary_emb_fraction": (1.0,),
        **dict.fromkeys(("rotary_emb_scale_base", "rotary_scaling_factor"), ()),
        "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,),
        "moe_every_n_layers": (0,),
        **dict.fromkeys(("num_experts", "num_local_experts"), (0, 1)),
    },
}
"""Keys of a family that would change its vectors, with the values that are served; null always is."""
_READ: Final[Mapping[str, frozenset[str]]] = {
    "modernbert": frozenset(
        {
            "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "hidden_activation",
            "max_position_embeddings", "norm_eps", "norm_bias", "attention_bias", "mlp_bias", "layer_types", "local_attention",
            "global_attn_every_n_layers", "rope_parameters", "rope_scaling", "global_rope_theta", "local_rope_theta",
            "quantization_config",
        }
    ),
    "nomic_bert": frozenset(
        {
            "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "hidden_act",
            "head_dim", "max_position_embeddings", "layer_norm_eps", "type_vocab_size", "rope_parameters", "rope_scaling",
            "rope_theta", "max_trained_positions", "quantization_config",
        }
    ),
}  # fmt: skip
_GPT2_NAMES: Final[Mapping[str, str]] = {
    "n_embd": "hidden_size", "n_head": "num_attention_heads", "n_layer": "num_hidden_layers", "n_inner": "intermediate_size",
    "n_positions": "max_position_embeddings", "layer_norm_epsilon": "layer_norm_eps", "activation_function": "hidden_act",
    "rotary_emb_base": "rope_theta",
}  # fmt: skip
"""Fields of nomic-embed's published files, and what transformers calls them."""
_GPT2_DEFAULTS: Final[Mapping[str, Any]] = {
    "prenorm": True, "qkv_proj_bias": True, "mlp_fc1_bias": True, "mlp_fc2_bias": True, "rotary_emb_fraction": 0.0,
    "activation_function": "gelu_new",
}  # fmt: skip
"""What fields stand for that such files leave out."""
_GATED = {"swiglu": "silu", "geglu": "gelu"}
"""Activations of a gated MLP by their names in such files."""
_ROPES_OF_MODERNBERT: Final = Family(
    name="modernbert", architectures=(), body="", model_types=(),
    attention=AttentionTraits(theta=160_000.0, local_theta="local_rope_theta", rope_kinds=_ROPE_KINDS),
)  # fmt: skip
_ROPES_OF_NOMIC: Final = Family(
    name="nomic_bert", architectures=(), body="", model_types=(),
    attention=AttentionTraits(theta=1000.0, rope_kinds=_ROPE_KINDS),
)  # fmt: skip


def parse_modernbert(family: EncoderFamily, values: Mapping[str, Any], where: str) -> RotaryConfig:
    """Parse config.json of a ModernBERT (Warner et al., arXiv:2412.13663). Raises ConfigError."""
    fields, architecture = _fields(family, values, where, {"rope_theta": "global_rope_theta"})
    if scaling := values.get("rope_scaling"):
        raise ConfigError(
            f"{where}: rope_scaling {scaling!r} is not supported; rope_parameters has one for each kind of layer"
        )
    hidden, heads, head = _heads(fields)
    positions = fields.natural("max_position_embeddings")
    ropes = parse_ropes(fields, _ROPES_OF_MODERNBERT, positions, (head, head))
    # The window is of so many tokens in all, and transformers halves it downwards.
    reach = fields.natural("local_attention") // 2
    layers = tuple(
        EncoderLayer(
            reach if kind == _LOCAL else None,
            int(kind == _LOCAL),
            # The embeddings have passed a norm already.
            ("attention_in", "mlp_in") if number else ("mlp_in",),
        )
        for number, kind in enumerate(_layer_types(fields))
    )
    labels = read_labels(fields) if architecture.endswith(HEAD) else ()
    return RotaryConfig(
        family, architecture, fields.natural("vocab_size"), hidden, len(layers), heads, fields.natural("intermediate_size"),
        _activation(fields, "hidden_activation", "gelu"), _epsilon(fields, "norm_eps"), positions, 0, 0, _dtype(fields),
        labels, _head_of_modernbert(fields) if labels else None,
        notes=_notes(family, values, where, ropes.notes), layers=layers, ropes=_both(ropes.full, ropes.local),
        num_kv_heads=heads, head_size=head, score_scale=head**-0.5, norm_bias=fields.switch("norm_bias"),
        attention_bias=fields.switch("attention_bias"), mlp_bias=fields.switch("mlp_bias"),
    )  # fmt: skip


def _head_of_modernbert(fields: Fields) -> HeadConfig:
    pooling = fields.get("classifier_pooling", "cls")
    if pooling not in ("cls", "mean"):
        raise ConfigError(
            f"{fields.where}: classifier_pooling {pooling!r} is not supported; supported: cls, mean"
        )
    return HeadConfig(
        ("head.dense", "classifier"), _activation(fields, "classifier_activation", "gelu"), fields.switch("classifier_bias"),
        "head.norm", fields.switch("norm_bias"), _epsilon(fields, "norm_eps"), pooling,
    )  # fmt: skip


def parse_nomic(family: EncoderFamily, values: Mapping[str, Any], where: str) -> RotaryConfig:
    """Parse config.json of a nomic-bert (Nussbaum et al., arXiv:2402.01613), in the names of its published files, which are those
    of GPT-2, or in transformers'. Raises ConfigError."""
    values = _renamed(values, where)
    fields, architecture = _fields(family, values, where)
    hidden, heads, head = _heads(fields)
    positions, notes = fields.natural("max_position_embeddings"), []
    trained = fields.natural("max_trained_positions", positions)
    if trained < positions:
        notes.append(
            f"{where}: texts have at most {trained} tokens (max_trained_positions), though positions reach {positions}"
        )
    ropes = parse_ropes(fields, _ROPES_OF_NOMIC, positions, (head, head))
    layer = EncoderLayer(None, 0, ("attention_sum", "mlp_sum"))
    count = _count(fields)
    return RotaryConfig(
        family, architecture, fields.natural("vocab_size"), hidden, count, heads, fields.natural("intermediate_size"),
        _activation(fields, "hidden_act", "silu"), _epsilon(fields, "layer_norm_eps"), min(trained, positions), 0,
        fields.natural("type_vocab_size"), _dtype(fields),
        notes=_notes(family, values, where, (*notes, *ropes.notes)), layers=(layer,) * count, ropes=(ropes.full,),
        num_kv_heads=heads, head_size=head, score_scale=head**-0.5, norm_bias=True, final_norm=False,
    )  # fmt: skip


def parse_gemma(family: EncoderFamily, values: Mapping[str, Any], where: str) -> RotaryConfig:
    """Parse config.json of a Gemma 3 whose attention is bidirectional: the decoder's reader reads it, and windows reach to both
    sides. Raises ConfigError."""
    if values.get("is_causal") is not None:
        raise ConfigError(
            f"{where}: is_causal {values['is_causal']} is not supported beside {BIDIRECTIONAL}, whose windows it would change"
        )
    decoder = parse_config({**values, BIDIRECTIONAL: False}, where)
    if decoder.quantization is not None:
        raise ConfigError(_QUANTIZED.format(where=where))
    if decoder.attn_softcap is not None:
        raise ConfigError(f"{where}: attn_logit_softcapping {decoder.attn_softcap} is not supported")
    layers = tuple(
        EncoderLayer(
            # A window of w tokens reaches w // 2 to each side in transformers.
            None if one.window is None else one.window // 2,
            one.rope or 0,
            ("attention_in", "attention_out", "mlp_in", "mlp_out"),
        )
        for one in decoder.layers
    )
    if decoder.qkv_bias != decoder.o_bias:
        raise ConfigError(f"{where}: biases of a part of attention are not supported")
    return RotaryConfig(
        family, "Gemma3TextModel", decoder.vocab_size, decoder.hidden_size, len(layers), decoder.num_heads,
        decoder.intermediate_size, ACTIVATIONS[decoder.activation], decoder.norm_eps, decoder.context_length, 0, 0, decoder.dtype,
        notes=decoder.notes, layers=layers, ropes=_checked_kinds(decoder.ropes, where), num_kv_heads=decoder.num_kv_heads,
        head_size=decoder.head_dim, score_scale=decoder.score_scale, norm="rms1", attention_bias=decoder.qkv_bias,
        embed_norm=False, head_norms=True, embed_scale=decoder.embed_scale,
    )  # fmt: skip


_QUANTIZED = (
    "{where}: quantization_config of an encoder is not supported; --quantization int8 quantizes at load"
)


def _fields(
    family: EncoderFamily, values: Mapping[str, Any], where: str, aliases: Mapping[str, str] | None = None
) -> tuple[Fields, str]:
    """Return the fields with the family's defaults, and the architecture. Raises ConfigError for what is refused by name."""
    architectures = values.get("architectures") or family.architectures
    architecture = next(
        (one for one in architectures if one in family.architectures), family.architectures[0]
    )
    if architecture.endswith(HEAD) and family is not MODERNBERT:
        raise ConfigError(
            f"{where}: the head of {architecture} is not supported: this encoder makes embeddings alone"
        )
    if values.get("quantization_config"):
        raise ConfigError(_QUANTIZED.format(where=where))
    for name, served in _ONLY[family.model_type].items():
        value = values.get(name)
        if value is None or any(
            value == one and isinstance(value, bool) == isinstance(one, bool) for one in served
        ):
            continue
        supported = ", ".join(str(one).lower() for one in served) or "null"
        raise ConfigError(f"{where}: {name} {str(value).lower()} is not supported; supported: {supported}")
    present = {name: value for name, value in values.items() if value is not None}
    return Fields(where, {**family.defaults, **present}, aliases), architecture


def _heads(fields: Fields) -> tuple[int, int, int]:
    """Return hidden size, number of heads, and elements of a head."""
    hidden, heads = fields.natural("hidden_size"), fields.natural("num_attention_heads")
    if fields.get("head_dim") is None and hidden % heads:
        raise ConfigError(
            f"{fields.where}: hidden_size {hidden} is no multiple of num_attention_heads {heads}"
        )
    head = fields.natural("head_dim", hidden // heads)
    if head % 2:
        raise ConfigError(f"{fields.where}: head_dim {head} is odd; rotary embeddings need an even one")
    return hidden, heads, head


def _count(fields: Fields) -> int:
    count = fields.natural("num_hidden_layers")
    if count > _MOST_LAYERS:
        raise ConfigError(
            f"{fields.where}: num_hidden_layers is {count}; at most {_MOST_LAYERS} are supported"
        )
    return count


def _layer_types(fields: Fields) -> Sequence[str]:
    """Return the kind of each layer: `layer_types`, or all layers with a window but each n-th from the first on."""
    count = _count(fields)
    types = fields.items("layer_types", str, count)
    if types is None:
        every = fields.natural("global_attn_every_n_layers")
        return [_LOCAL if number % every else _FULL for number in range(count)]
    if unknown := sorted({*types} - {_FULL, _LOCAL}):
        raise ConfigError(f"{fields.where}: layer_types has {unknown[0]!r}; supported: {_FULL}, {_LOCAL}")
    return types[:count]


def _renamed(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the values under transformers' names. Raises ConfigError for a size that is there twice and differs."""
    if not any(name in values for name in ("n_embd", "n_head", "n_layer")):
        return {**values}
    values = {**_GPT2_DEFAULTS, **values}
    if values.get("n_inner") is None and isinstance(values.get("n_embd"), int):
        values["n_inner"] = 4 * values["n_embd"]
    activation = values["activation_function"]
    if activation not in _GATED:
        raise ConfigError(
            f"{where}: activation_function {activation!r} is not supported; supported: {', '.join(_GATED)}"
        )
    values["activation_function"] = _GATED[activation]
    multiple, rows = values.get("pad_vocab_size_multiple"), values.get("vocab_size")
    if isinstance(multiple, int) and isinstance(rows, int) and multiple > 1:
        values["vocab_size"] = -(-rows // multiple) * multiple
    for older, name in _GPT2_NAMES.items():
        value = values.pop(older, None)
        if value is None:
            continue
        if values.get(name, value) != value:
            raise ConfigError(
                f"{where}: {older} is {value!r} and {name} {values[name]!r}; one of them is needed"
            )
        values[name] = value
    return values


def _activation(fields: Fields, name: str, default: str) -> str:
    activation = fields.get(name, default)
    if activation not in ACTIVATIONS:
        raise ConfigError(
            f"{fields.where}: {name} {activation!r} is not supported; supported: {', '.join(ACTIVATIONS)}"
        )
    return ACTIVATIONS[activation]


def _epsilon(fields: Fields, name: str) -> float:
    epsilon = fields.real(name)
    if epsilon < 0.0:
        raise ConfigError(f"{fields.where}: {name} is {epsilon}; at least 0 is needed")
    return epsilon


def _dtype(fields: Fields) -> str | None:
    dtype = fields.get("dtype", fields.get("torch_dtype"))
    return dtype if dtype in DTYPES else None


def _both(full: RopeConfig, local: RopeConfig | None) -> tuple[RopeConfig, ...]:
    return (full,) if local is None else (full, local)


def _checked_kinds(ropes: tuple[RopeConfig, ...], where: str) -> tuple[RopeConfig, ...]:
    for rope in ropes:
        if rope.kind not in _ROPE_KINDS:
            raise ConfigError(
                f"{where}: rope of type {rope.kind!r} is not supported for an encoder; supported: {', '.join(_ROPE_KINDS)}"
            )
    return ropes


def _notes(
    family: EncoderFamily, values: Mapping[str, Any], where: str, more: Sequence[str] = ()
) -> tuple[str, ...]:
    kind = family.model_type
    unknown = sorted(set(values) - _HARMLESS - _HARMLESS_TO[kind] - _READ[kind] - _ONLY[kind].keys())
    return (*more, *((f"{where}: not used: {', '.join(unknown)}",) if unknown else ()))
