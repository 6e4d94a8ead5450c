"""The decoder families as data: one row each, read by `config.py`, `decoder.py`, `parameters.py` and `weights.py`.

A family defines the names of its tensors and sets the decoder's switches. A switch is either a constant or the name of the
`config.json` field that holds it. To add a family, add a row; if the family needs something that the decoder lacks, add a
switch with a neutral default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal

Switch = bool | str
"""True, False, or the name of a boolean field of config.json (a missing field means False)."""
NormKind = Literal["rms", "rms1", "layer"]
"""RMS norm; RMS norm that stores its weight minus one and is computed in fp32 (Gemma); LayerNorm with bias."""
WindowRule = Literal["", "all", "alternate", "pattern", "tail", "nope"]
"""Rule for layers with a sliding window if `layer_types` is missing: none; all; the even ones; all but every n-th (the field
`sliding_window_pattern`); those from `max_window_layers` on; those without rotation."""

_LAYER: Final = "model.layers.{i}."


@dataclass(frozen=True, slots=True)
class TensorNames:
    """Checkpoint names, without `.weight` or `.bias`; `{i}` is the layer's index, `{e}` the expert's. Empty: the tensor does
    not exist.

    `qkv` and `gate_up` name merged tensors and replace `q`, `k`, `v` and `gate`, `up`.
    """

    embed: str = "model.embed_tokens"
    positions: str = ""
    """Learned position embeddings; a family that has them has no rotary embeddings."""
    final_norm: str = "model.norm"
    lm_head: str = "lm_head"
    classifier: str = "score"
    """Head of a model with labels in place of a vocabulary."""
    attn_norm: str = _LAYER + "input_layernorm"
    attn_post_norm: str = ""
    """Norm of the output of attention, before it is added."""
    qkv: str = ""
    q: str = _LAYER + "self_attn.q_proj"
    k: str = _LAYER + "self_attn.k_proj"
    v: str = _LAYER + "self_attn.v_proj"
    o: str = _LAYER + "self_attn.o_proj"
    q_norm: str = _LAYER + "self_attn.q_norm"
    k_norm: str = _LAYER + "self_attn.k_norm"
    mlp_norm: str = _LAYER + "post_attention_layernorm"
    mlp_post_norm: str = ""
    gate_up: str = ""
    gate: str = _LAYER + "mlp.gate_proj"
    """Gate projection; empty: the MLP is up, activation, down, without a gate."""
    up: str = _LAYER + "mlp.up_proj"
    down: str = _LAYER + "mlp.down_proj"
    router: str = _LAYER + "mlp.gate"
    expert_gate: str = _LAYER + "mlp.experts.{e}.gate_proj"
    expert_up: str = _LAYER + "mlp.experts.{e}.up_proj"
    expert_down: str = _LAYER + "mlp.experts.{e}.down_proj"

    @property
    def beginning(self) -> str:
        """Common prefix of all names except the head's."""
        return self.embed[: self.embed.index(".") + 1]


@dataclass(frozen=True, slots=True)
class Family:
    """Differences between one family of decoder-only models and the others."""

    name: str
    architectures: tuple[str, ...]
    """Values of `architectures` in config.json."""
    body: str
    """Value of `architectures` for the model without a head."""
    model_types: tuple[str, ...]
    """Values of `model_type`."""
    names: TensorNames = field(default_factory=TensorNames)
    nested: str = ""
    """Field that holds the decoder's fields if the checkpoint contains more than the decoder; its other parts are not
    loaded."""
    fields: Mapping[str, str] = field(default_factory=dict)
    """Map from the usual name of a field in config.json to this family's name."""
    norm: NormKind = "rms"
    qk_norm: Literal["", "head", "full"] = ""
    """RMS norm of queries and keys before rotation: over head_dim of each head, or over all heads together."""
    qkv_bias: Switch = False
    o_bias: Switch = False
    mlp_bias: Switch = False
    transposed: bool = False
    """True if linear weights are stored as [in, out]."""
    norm_eps: str = "rms_norm_eps"
    """Field that holds the norms' epsilon."""
    activation: str = "hidden_act"
    """Field that names the MLP's activation."""
    activations: tuple[str, ...] = ("silu",)
    """Supported values of the activation field; the first is the default."""
    embed_scaled: bool = False
    """True if embeddings are multiplied by the square root of hidden_size."""
    embed_multiplier: str = ""
    """Field with the factor of the embeddings, used instead of `embed_scaled`."""
    residual_multiplier: str = ""
    """Field with the factor of the outputs of attention and MLP, applied before they are added."""
    score_multiplier: str = ""
    """Field with the factor of the scores."""
    logits_divisor: str = ""
    """Field with the divisor of the logits."""
    query_scale: str = ""
    """Field whose square root divides the scores, instead of the square root of head_dim."""
    attn_softcap: str = ""
    final_softcap: str = ""
    """Fields with the bound c of c * tanh(x / c), for scores and for logits."""
    window: WindowRule = ""
    window_switch: Switch = True
    rotated: str = ""
    """Field with one integer per layer: 0 for a layer without rotation."""
    local_theta: str = ""
    """Field with the rope theta of sliding layers; rope scaling does not apply to them then."""
    theta: float = 10_000.0
    """Rope theta if config.json names none."""
    partial_rotary: bool = False
    """True if the family reads `partial_rotary_factor`."""
    original_positions: int | None = None
    """Default of `original_max_position_embeddings`; None: the rope object holds it."""
    rope_kinds: tuple[str, ...] = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")
    rope_aliases: Mapping[str, str] = field(default_factory=dict)
    """Other names for kinds of rope."""
    experts: bool = False
    normalized: Switch = "norm_topk_prob"
    """True if the weights of a token's experts are scaled to sum to 1."""
    sparse_layers: bool = False
    """True if `mlp_only_layers` and `decoder_sparse_step` select the layers with experts; otherwise all layers have experts."""
    stretched_positions: bool = False
    """True if `max_position_embeddings` is the length after scaling, for every kind of rope."""
    nullable: tuple[str, ...] = ()
    """Fields that null switches off although their default is not null."""
    defaults: Mapping[str, object] = field(default_factory=dict)
    """Values of fields that checkpoints of the family omit."""
    only: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    """Fields that must be missing or have one of these values, because other values are not implemented."""
    other_parts: tuple[str, ...] = ()
    """Patterns of tensors that belong to the other parts of a nested checkpoint."""


_GELU: Final = ("gelu_pytorch_tanh", "gelu_new", "gelu", "relu", "silu")
_LLAMA: Final = Family(
    name="llama",
    architectures=("LlamaForCausalLM",),
    body="LlamaModel",
    model_types=("llama",),
    qkv_bias="attention_bias",
    o_bias="attention_bias",
    mlp_bias="mlp_bias",
)
_MISTRAL: Final = Family(
    name="mistral",
    architectures=("MistralForCausalLM",),
    body="MistralModel",
    model_types=("mistral",),
    window="all",
    nullable=("sliding_window",),
    defaults={"sliding_window": 4096},
)
_QWEN2: Final = Family(
    name="qwen2",
    architectures=("Qwen2ForCausalLM",),
    body="Qwen2Model",
    model_types=("qwen2",),
    qkv_bias=True,
    window="tail",
    window_switch="use_sliding_window",
    nullable=("sliding_window",),
    defaults={"max_window_layers": 28, "sliding_window": 4096},
)
_QWEN3: Final = Family(
    name="qwen3",
    architectures=("Qwen3ForCausalLM",),
    body="Qwen3Model",
    model_types=("qwen3",),
    qk_norm="head",
    qkv_bias="attention_bias",
    o_bias="attention_bias",
    window="tail",
    window_switch="use_sliding_window",
    nullable=("sliding_window",),
    defaults={"max_window_layers": 28, "sliding_window": 4096, "head_dim": 128},
)
_QWEN3_MOE: Final = Family(
    name="qwen3_moe",
    architectures=("Qwen3MoeForCausalLM",),
    body="Qwen3MoeModel",
    model_types=("qwen3_moe",),
    qk_norm="head",
    qkv_bias="attention_bias",
    o_bias="attention_bias",
    window="all",
    window_switch="use_sliding_window",
    experts=True,
    sparse_layers=True,
    nullable=("sliding_window",),
    defaults={"sliding_window": 4096},
)
_MIXTRAL: Final = Family(
    name="mixtral",
    architectures=("MixtralForCausalLM",),
    body="MixtralModel",
    model_types=("mixtral",),
    names=TensorNames(
        router=_LAYER + "block_sparse_moe.gate",
        expert_gate=_LAYER + "block_sparse_moe.experts.{e}.w1",
        expert_up=_LAYER + "block_sparse_moe.experts.{e}.w3",
        expert_down=_LAYER + "block_sparse_moe.experts.{e}.w2",
    ),
    fields={"num_experts": "num_local_experts", "moe_intermediate_size": "intermediate_size"},
    window="all",
    nullable=("sliding_window",),
    experts=True,
    theta=1_000_000.0,
    normalized=True,
)
_OLMOE: Final = Family(
    name="olmoe",
    architectures=("OlmoeForCausalLM",),
    body="OlmoeModel",
    model_types=("olmoe",),
    fields={"moe_intermediate_size": "intermediate_size"},
    qk_norm="full",
    qkv_bias="attention_bias",
    o_bias="attention_bias",
    experts=True,
    only={"clip_qkv": (None,)},
)
_GEMMA_NAMES: Final = TensorNames(
    attn_post_norm=_LAYER + "post_attention_layernorm",
    mlp_norm=_LAYER + "pre_feedforward_layernorm",
    mlp_post_norm=_LAYER + "post_feedforward_layernorm",
)
_GEMMA: Final = Family(
    name="gemma",
    architectures=("GemmaForCausalLM",),
    body="GemmaModel",
    model_types=("gemma",),
    norm="rms1",
    qkv_bias="attention_bias",
    o_bias="attention_bias",
    # Checkpoints say `hidden_act: gelu` and mean its tanh form, which a later field `hidden_activation` spells out.
    activation="hidden_activation",
    activations=("gelu_pytorch_tanh",),
    embed_scaled=True,
    defaults={"tie_word_embeddings": True, "head_dim": 256},
    only={"hidden_act": ("gelu", "gelu_pytorch_tanh"), "use_bidirectional_attention": (False,)},
)
_GEMMA2: Final = Family(
    name="gemma2",
    architectures=("Gemma2ForCausalLM",),
    body="Gemma2Model",
    model_types=("gemma2",),
    names=_GEMMA_NAMES,
    norm="rms1",
    qkv_bias="attention_bias",
    o_bias="attention_bias",
    activation="hidden_activation",
    activations=_GELU,
    embed_scaled=True,
    query_scale="query_pre_attn_scalar",
    attn_softcap="attn_logit_softcapping",
    final_softcap="final_logit_softcapping",
    window="alternate",
    nullable=("sliding_window", "attn_logit_softcapping", "final_logit_softcapping"),
    defaults={
        "tie_word_embeddings": True,
        "head_dim": 256,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    },
    only={"use_bidirectional_attention": (False,)},
)
_GEMMA3: Final = Family(
    name="gemma3",
    architectures=("Gemma3ForCausalLM",),
    body="Gemma3TextModel",
    model_types=("gemma3_text",),
    names=_GEMMA_NAMES,
    norm="rms1",
    qk_norm="head",
    qkv_bias="attention_bias",
    o_bias="attention_bias",
    activation="hidden_activation",
    activations=_GELU,
    embed_scaled=True,
    query_scale="query_pre_attn_scalar",
    attn_softcap="attn_logit_softcapping",
    final_softcap="final_logit_softcapping",
    window="pattern",
    stretched_positions=True,
    nullable=("sliding_window",),
    theta=1_000_000.0,
    local_theta="rope_local_base_freq",
    defaults={
        "tie_word_embeddings": True,
        "head_dim": 256,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "sliding_window_pattern": 6,
        "rope_local_base_freq": 10_000.0,
    },
    only={"use_bidirectional_attention": (False,)},
)
_IMAGES: Final = ("*vision_tower.*", "*multi_modal_projector.*")
_GEMMA3_WITH_IMAGES: Final = replace(
    _GEMMA3,
    name="gemma3_text",
    architectures=("Gemma3ForConditionalGeneration",),
    body="Gemma3Model",
    model_types=("gemma3",),
    nested="text_config",
    # Published checkpoints leave out what equals the defaults of transformers.
    defaults={
        **_GEMMA3.defaults, "vocab_size": 262_208, "num_attention_heads": 8, "num_key_value_heads": 4,
        "max_position_embeddings": 131_072, "rms_norm_eps": 1e-6,
    },
    only={**_GEMMA3.only, "model_type": ("gemma3_text",)},
    other_parts=_IMAGES,
)  # fmt: skip
_MISTRAL_WITH_IMAGES: Final = replace(
    _MISTRAL,
    name="mistral3_text",
    architectures=("Mistral3ForConditionalGeneration",),
    body="Mistral3Model",
    model_types=("mistral3",),
    nested="text_config",
    defaults={**_MISTRAL.defaults, "tie_word_embeddings": True},
    only={"model_type": ("mistral",)},
    other_parts=_IMAGES,
)
_PHI3: Final = Family(
    name="phi3",
    architectures=("Phi3ForCausalLM",),
    body="Phi3Model",
    model_types=("phi3",),
    names=TensorNames(qkv=_LAYER + "self_attn.qkv_proj", gate_up=_LAYER + "mlp.gate_up_proj"),
    window="all",
    partial_rotary=True,
    original_positions=4096,
    rope_kinds=("default", "longrope"),
    rope_aliases={"su": "longrope", "yarn": "longrope"},
)
_OLMO2: Final = Family(
    name="olmo2",
    architectures=("Olmo2ForCausalLM",),
    body="Olmo2Model",
    model_types=("olmo2",),
    names=TensorNames(
        attn_norm="",
        attn_post_norm=_LAYER + "post_attention_layernorm",
        mlp_norm="",
        mlp_post_norm=_LAYER + "post_feedforward_layernorm",
    ),
    qk_norm="full",
    qkv_bias="attention_bias",
    o_bias="attention_bias",
)
_SMOLLM3: Final = Family(
    name="smollm3",
    architectures=("SmolLM3ForCausalLM",),
    body="SmolLM3Model",
    model_types=("smollm3",),
    qkv_bias="attention_bias",
    o_bias="attention_bias",
    mlp_bias="mlp_bias",
    window="nope",
    window_switch="use_sliding_window",
    rotated="no_rope_layers",
    theta=2_000_000.0,
    defaults={"tie_word_embeddings": True, "no_rope_layer_interval": 4},
)
_GRANITE: Final = Family(
    name="granite",
    architectures=("GraniteForCausalLM",),
    body="GraniteModel",
    model_types=("granite",),
    qkv_bias="attention_bias",
    o_bias="attention_bias",
    mlp_bias="mlp_bias",
    embed_multiplier="embedding_multiplier",
    residual_multiplier="residual_multiplier",
    score_multiplier="attention_multiplier",
    logits_divisor="logits_scaling",
    defaults={"attention_multiplier": 1.0},
)
_GPT2_LAYER: Final = "transformer.h.{i}."
_GPT2: Final = Family(
    name="gpt2",
    architectures=("GPT2LMHeadModel",),
    body="GPT2Model",
    model_types=("gpt2",),
    names=TensorNames(
        embed="transformer.wte",
        positions="transformer.wpe",
        final_norm="transformer.ln_f",
        attn_norm=_GPT2_LAYER + "ln_1",
        qkv=_GPT2_LAYER + "attn.c_attn",
        o=_GPT2_LAYER + "attn.c_proj",
        mlp_norm=_GPT2_LAYER + "ln_2",
        gate="",
        up=_GPT2_LAYER + "mlp.c_fc",
        down=_GPT2_LAYER + "mlp.c_proj",
    ),
    fields={
        "hidden_size": "n_embd",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "max_position_embeddings": "n_positions",
        "intermediate_size": "n_inner",
    },
    norm="layer",
    qkv_bias=True,
    o_bias=True,
    mlp_bias=True,
    transposed=True,
    norm_eps="layer_norm_epsilon",
    activation="activation_function",
    activations=("gelu_new", "gelu_pytorch_tanh", "gelu", "relu", "silu"),
    defaults={"tie_word_embeddings": True, "layer_norm_epsilon": 1e-5},
    only={
        "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,),
        "add_cross_attention": (False,),
    },
)

FAMILIES: Final = (
    _LLAMA, _MISTRAL, _MISTRAL_WITH_IMAGES, _MIXTRAL, _QWEN2, _QWEN3, _QWEN3_MOE, _GEMMA, _GEMMA2, _GEMMA3, _GEMMA3_WITH_IMAGES,
    _PHI3, _OLMO2, _OLMOE, _SMOLLM3, _GRANITE, _GPT2,
)  # fmt: skip


def family_of(architecture: str) -> Family | None:
    """Return the family of an `architectures` entry, or None if there is no row for it."""
    return next((family for family in FAMILIES if architecture in family.architectures), None)


def supported_architectures() -> str:
    """List all supported architectures, for messages."""
    return ", ".join(name for family in FAMILIES for name in family.architectures)
