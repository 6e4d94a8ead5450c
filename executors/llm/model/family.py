"""`Family`: the differences between one family of decoder-only models and the others, in four records.

    names           what a checkpoint calls its tensors, and how it stores them
    attention       heads, scores, windows and rotation of the layers with attention
    feed_forward    the activation, biases and experts
    stream          what runs through the layers: embeddings, norms, residuals, logits

A field is a constant or the name of the field of `config.json` that holds it. Rows are in `families.py`; `config.py` reads a
checkpoint's configuration by them. No torch here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

Switch = bool | str
"""True, False, or the name of a boolean field of config.json (a missing field means False)."""
NormKind = Literal["rms", "rms1", "layer"]
"""RMS norm; RMS norm that stores its weight minus one and is computed in fp32 (Gemma); LayerNorm with bias."""
WindowRule = Literal["", "all", "alternate", "pattern", "head", "tail", "nope"]
"""Rule for layers with a sliding window: none; all, whatever `layer_types` says. The others count if `layer_types` is missing:
the even ones; all but every n-th (`pattern`); the even ones before `max_window_layers`; those from
`max_window_layers` on; those without rotation."""

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
    sinks: str = ""
    """Logits of the heads' sinks, see `layers/attention.py`; the whole name, because they are no weight of a module."""
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
    shared_gate: str = ""
    """Gate projection of the expert that every token goes through; there is none in most families."""
    shared_up: str = ""
    shared_down: str = ""
    shared_router: str = ""
    """Row of weights whose product with a token scales that expert's output."""

    choice_bias: str = ""
    """What is added to the router's scores for the choice of experts alone, [experts]; the whole name."""

    conv_in: str = ""
    """Projections of a short convolution, see `layers/short_convolution.py`, and its weights [hidden, 1, kernel]."""
    conv: str = ""
    conv_out: str = ""

    delta_qkvz: str = ""
    """Projections of linear attention by key head, see `layers/gated_delta.py`; they replace the four below."""
    delta_ba: str = ""
    delta_qkv: str = ""
    delta_z: str = ""
    delta_b: str = ""
    delta_a: str = ""
    delta_conv: str = ""
    delta_a_log: str = ""
    """Logarithms of decays [value heads], and what is added to the time steps; the whole names."""
    delta_dt_bias: str = ""
    delta_norm: str = ""
    delta_out: str = ""
    delta_tiled: bool = False
    """True if value head j reads key head j modulo their number, as files of llama.cpp's converter have them; otherwise the
    value heads of a key head follow each other."""

    layer_embed: str = ""
    """Embedding of which each token gets a row for all layers, see `layer_inputs.py`."""
    layer_projection: str = ""
    layer_projection_norm: str = ""
    layer_input_gate: str = ""
    layer_input_projection: str = ""
    layer_input_norm: str = ""
    layer_scalar: str = ""
    """Factor of a layer's result, [1]. Like the two scales below, its name has no ending."""
    router_scale: str = ""
    """Factors of what a router gets, [hidden]."""
    expert_scale: str = ""
    """Factors of the experts' weights, [experts]."""
    dense_post_norm: str = ""
    """Norm of the output of an MLP beside experts; the next two are those around the experts."""
    experts_norm: str = ""
    experts_post_norm: str = ""

    alternating: bool = False
    """True if gate and up of all experts lie in one tensor in alternation: in the columns of [experts, in, out], or in the rows
    of quantized ones."""
    transposed: bool = False
    """True if linear weights are stored as [in, out]."""
    other_parts: tuple[str, ...] = ()
    """Patterns of tensors that belong to the other parts of a nested checkpoint."""

    @property
    def beginning(self) -> str:
        """Common prefix of all names except the head's."""
        return self.embed[: self.embed.index(".") + 1]

    @property
    def layer(self) -> str:
        """Common prefix of the names of a layer's tensors, which kinds of layers put before names of their own."""
        return self.o[: self.o.index("{i}.") + len("{i}.")]


@dataclass(frozen=True, slots=True)
class AttentionTraits:
    """Attention: heads, scores, what a token sees, and positions."""

    qk_norm: Literal["", "head", "full"] = ""
    """RMS norm of queries and keys before rotation: over head_dim of each head, or over all heads together."""
    norm_last: bool = False
    """True if the norm of each head comes after rotation."""
    value_norm: bool = False
    """True if values have an RMS norm over head_dim, without a weight."""
    full_heads: bool = False
    """True if the layers without a window have heads of their own sizes (`head_sizes.py`). The last layer has no window then,
    whatever `layer_types` says."""
    k_is_v: Switch = False
    """In layers without a window: True if values are what keys are before their norm."""
    shared_kv: str = ""
    """Field with the number of last layers that read the keys and values of a layer before them."""
    unscaled: bool = False
    """True if scores have no factor."""
    qkv_bias: Switch = False
    o_bias: Switch = False
    score_multiplier: str = ""
    """Field with the factor of the scores."""
    query_scale: str = ""
    """Field whose square root divides the scores, instead of the square root of head_dim."""
    attn_softcap: str = ""
    """Field with the bound c of c * tanh(score / c)."""
    window: WindowRule = ""
    window_switch: Switch = True
    pattern: int | str = "sliding_window_pattern"
    """The n of the rule "pattern", or the field that holds it."""
    rotated: str = ""
    """Field with one integer per layer: 0 for a layer without rotation."""
    rotated_windows: bool = False
    """True if only the layers with a window are rotated, unless the model has no window (`sliding_window` is null)."""
    local_theta: float | str = ""
    """Rope theta of sliding layers, or the field that holds it; rope scaling does not apply to them then."""
    theta: float = 10_000.0
    """Rope theta if config.json names none."""
    partial_rotary: bool = False
    """True if the family reads `partial_rotary_factor`."""
    neighbours: bool = False
    """True if elements 2 j and 2 j + 1 of a head are rotated together, not j and the one half of the rotated elements later."""
    query_growth: str = ""
    """Key of the rope object with the beta of `RopeConfig.query_beta`."""
    original_positions: int | None = None
    """Default of `original_max_position_embeddings`; None: the rope object holds it."""
    stretched_positions: bool = False
    """True if `max_position_embeddings` is the length after scaling, for every kind of rope."""
    rope_kinds: tuple[str, ...] = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")
    static_alpha: bool = False
    """True if rope of type dynamic with a key `alpha` means a theta that is multiplied by a power of it, and nothing else."""
    rope_aliases: Mapping[str, str] = field(default_factory=dict)
    """Other names for kinds of rope."""


@dataclass(frozen=True, slots=True)
class FeedForwardTraits:
    """The feed-forward: an MLP, or experts in all or some layers."""

    mlp_bias: Switch = False
    activation: str = "hidden_act"
    """Field that names the activation."""
    activations: tuple[str, ...] = ("silu",)
    """Supported values of the activation field; the first is the default."""
    computed: str = ""
    """Activation that is computed, whatever the supported value of that field is called; empty: the one it names."""
    experts: str = ""
    """Kind of the layers with experts, see `layers/kinds.py`; empty: there are none."""
    experts_switch: Switch = True
    """False if there are no experts although the family has a kind with some."""
    wide_where_shared: Switch = False
    """True if the MLP of layers that read the KV of others is twice as wide."""
    shared: str = ""
    """Field with the inner size of an expert that every token goes through."""
    normalized: Switch = "norm_topk_prob"
    """True if the weights of a token's experts are scaled to sum to 1."""
    biased: bool = False
    """True if router and experts have biases."""
    softmax_last: bool = False
    """True if a token's experts are chosen by the router's logits, and weighted with the softmax over the chosen ones."""
    choice_bias: Switch = False
    """True if a bias counts for the choice of experts, and not for their weights."""
    routed_scale: str = ""
    """Field with the factor of the weights of a token's experts."""
    dense_layers: str = ""
    """Field with the number of first layers without experts."""
    adjusted: Switch = False
    """True if the MLP has two thirds of `intermediate_size`, times `block_ffn_dim_multiplier`, rounded up to a multiple of
    `block_multiple_of` (LFM2)."""
    sparse_layers: bool = False
    """True if `mlp_only_layers` and `decoder_sparse_step` select the layers with experts; otherwise all layers have experts."""


@dataclass(frozen=True, slots=True)
class StreamTraits:
    """What runs through the layers: embeddings, norms, residuals and logits."""

    norm: NormKind = "rms"
    norm_eps: str = "rms_norm_eps"
    """Field that holds the norms' epsilon."""
    embed_scaled: bool = False
    """True if embeddings are multiplied by the square root of hidden_size."""
    embed_multiplier: str = ""
    """Field with the factor of the embeddings, used instead of `embed_scaled`."""
    residual_multiplier: str = ""
    """Field with the factor of the outputs of attention and MLP, applied before they are added."""
    logits_divisor: str = ""
    """Field with the divisor of the logits."""
    final_softcap: str = ""
    """Field with the bound c of c * tanh(logit / c)."""
    layer_inputs: str = ""
    """Field with the size of each layer's input of a token, see `layer_inputs.py`; a missing field and 0 mean none."""
    layer_vocab: str = ""
    """Field with the number of rows of their table."""


@dataclass(frozen=True, slots=True)
class MixerRule:
    """What `layer_types` is where config.json leaves it out."""

    other: str
    """Value of `layer_types` for the layers without attention."""
    indices: str = ""
    """Field with the numbers of the layers with attention; missing: all have attention."""
    interval: str = ""
    """Field with the n of which every n-th layer has attention."""


@dataclass(frozen=True, slots=True)
class Family:
    """A family: its names, how its config.json is read, the kinds of its layers, and the four records."""

    name: str
    architectures: tuple[str, ...]
    """Values of `architectures` in config.json."""
    body: str
    """Value of `architectures` for the model without a head."""
    model_types: tuple[str, ...]
    """Values of `model_type`."""
    names: TensorNames = field(default_factory=TensorNames)
    attention: AttentionTraits = field(default_factory=AttentionTraits)
    feed_forward: FeedForwardTraits = field(default_factory=FeedForwardTraits)
    stream: StreamTraits = field(default_factory=StreamTraits)
    mixers: Mapping[str, str] = field(default_factory=dict)
    """Kinds of mixers (see `layers/kinds.py`) by values of `layer_types`, where some layers have no attention. `full_attention`
    is known, and `sliding_attention` if `attention.window` has a rule."""
    mixer_rule: MixerRule | None = None
    """None: config.json has to have `layer_types`, if there are `mixers`."""
    mtp: str = ""
    """Beginning of the names of the tensors of an MTP head, see `mtp_head.py`; empty: checkpoints of the family have none."""
    sizes: tuple[str, ...] = ()
    """Fields with natural numbers that kinds of layers need beside those of every decoder, see `DecoderConfig.sizes`."""
    switches: tuple[str, ...] = ()
    """Fields with true or false that they need, see `DecoderConfig.switches`."""
    nested: str = ""
    """Field that holds the decoder's fields if the checkpoint contains more than the decoder; its other parts are not
    loaded."""
    fields: Mapping[str, str] = field(default_factory=dict)
    """Map from the usual name of a field in config.json to this family's name."""
    older: Mapping[str, str] = field(default_factory=dict)
    """Map from the usual name of a field to an older one, which counts where both are there."""
    nullable: tuple[str, ...] = ()
    """Fields that null switches off although their default is not null."""
    defaults: Mapping[str, object] = field(default_factory=dict)
    """Values of fields that checkpoints of the family omit."""
    only: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    """Fields that must be missing or have one of these values, because other values are not implemented."""
