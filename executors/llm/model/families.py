"""The decoder families as data: one row each, of the records of `family.py`. To add a family, add a row; if the family needs a
kind of layer that there is not, add a file to `layers/`; if a kind needs a switch, add it with a neutral default."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from executors.llm.model.family import (
    AttentionTraits,
    Family,
    FeedForwardTraits,
    MixerRule,
    StreamTraits,
    TensorNames,
)

_LAYER: Final = TensorNames().layer
_GELU: Final = ("gelu_pytorch_tanh", "gelu_new", "gelu", "relu", "silu")
_LLAMA: Final = Family(
    name="llama",
    architectures=("LlamaForCausalLM",),
    body="LlamaModel",
    model_types=("llama",),
    attention=AttentionTraits(qkv_bias="attention_bias", o_bias="attention_bias"),
    feed_forward=FeedForwardTraits(mlp_bias="mlp_bias"),
)
_MISTRAL: Final = Family(
    name="mistral",
    architectures=("MistralForCausalLM",),
    body="MistralModel",
    model_types=("mistral",),
    nullable=("sliding_window",),
    defaults={"sliding_window": 4096},
    attention=AttentionTraits(window="all"),
)
_MINISTRAL3: Final = Family(
    name="ministral3",
    architectures=("Ministral3ForCausalLM",),
    body="Ministral3Model",
    model_types=("ministral3",),
    defaults={
        "head_dim": 128,
        "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 1_000_000.0, "factor": 16.0, "original_max_position_embeddings": 16_384,
            "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1,
        },
    },
    attention=AttentionTraits(window="all", query_growth="llama_4_scaling_beta"),
)  # fmt: skip
_QWEN2: Final = Family(
    name="qwen2",
    architectures=("Qwen2ForCausalLM",),
    body="Qwen2Model",
    model_types=("qwen2",),
    nullable=("sliding_window",),
    defaults={"max_window_layers": 28, "sliding_window": 4096},
    attention=AttentionTraits(qkv_bias=True, window="tail", window_switch="use_sliding_window"),
)
_SHARED: Final = _LAYER + "mlp.shared_expert"
_QWEN2_MOE: Final = Family(
    name="qwen2_moe",
    architectures=("Qwen2MoeForCausalLM",),
    body="Qwen2MoeModel",
    model_types=("qwen2_moe",),
    names=TensorNames(
        shared_gate=_SHARED + ".gate_proj",
        shared_up=_SHARED + ".up_proj",
        shared_down=_SHARED + ".down_proj",
        shared_router=_SHARED + "_gate",
    ),
    nullable=("sliding_window",),
    defaults={"max_window_layers": 28, "sliding_window": 4096, "qkv_bias": True},
    attention=AttentionTraits(qkv_bias="qkv_bias", window="head", window_switch="use_sliding_window"),
    feed_forward=FeedForwardTraits(
        experts="shared_experts", shared="shared_expert_intermediate_size", sparse_layers=True
    ),
)
_QWEN3: Final = Family(
    name="qwen3",
    architectures=("Qwen3ForCausalLM",),
    body="Qwen3Model",
    model_types=("qwen3",),
    nullable=("sliding_window",),
    defaults={"max_window_layers": 28, "sliding_window": 4096, "head_dim": 128},
    attention=AttentionTraits(
        qk_norm="head",
        qkv_bias="attention_bias",
        o_bias="attention_bias",
        window="tail",
        window_switch="use_sliding_window",
    ),
)
_QWEN3_MOE: Final = Family(
    name="qwen3_moe",
    architectures=("Qwen3MoeForCausalLM",),
    body="Qwen3MoeModel",
    model_types=("qwen3_moe",),
    nullable=("sliding_window",),
    defaults={"sliding_window": 4096},
    attention=AttentionTraits(
        qk_norm="head",
        qkv_bias="attention_bias",
        o_bias="attention_bias",
        window="all",
        window_switch="use_sliding_window",
    ),
    feed_forward=FeedForwardTraits(experts="experts", sparse_layers=True),
)
_QWEN3_WITH_IMAGES: Final = replace(
    _QWEN3,
    name="qwen3_vl_text",
    architectures=("Qwen3VLForConditionalGeneration",),
    body="Qwen3VLModel",
    model_types=("qwen3_vl",),
    nested="text_config",
    nullable=(),
    defaults={"head_dim": 128},
    only={"model_type": ("qwen3_vl_text",)},
    names=TensorNames(other_parts=("*visual.*",)),
    # Its rotation is in three parts by place in an image, which are one for text.
    attention=AttentionTraits(
        qk_norm="head", qkv_bias="attention_bias", o_bias="attention_bias", theta=500_000.0
    ),
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
    nullable=("sliding_window",),
    attention=AttentionTraits(window="all", theta=1_000_000.0),
    feed_forward=FeedForwardTraits(experts="experts", normalized=True),
)
_OLMOE: Final = Family(
    name="olmoe",
    architectures=("OlmoeForCausalLM",),
    body="OlmoeModel",
    model_types=("olmoe",),
    fields={"moe_intermediate_size": "intermediate_size"},
    only={"clip_qkv": (None,)},
    attention=AttentionTraits(qk_norm="full", qkv_bias="attention_bias", o_bias="attention_bias"),
    feed_forward=FeedForwardTraits(experts="experts"),
)
_GPT_OSS: Final = Family(
    name="gpt_oss",
    architectures=("GptOssForCausalLM",),
    body="GptOssModel",
    model_types=("gpt_oss",),
    names=TensorNames(router=_LAYER + "mlp.router", sinks=_LAYER + "self_attn.sinks", alternating=True),
    fields={"num_experts": "num_local_experts", "moe_intermediate_size": "intermediate_size"},
    defaults={
        "head_dim": 64, "attention_bias": True, "sliding_window": 128, "swiglu_alpha": 1.702, "swiglu_limit": 7.0,
        "rope_parameters": {
            "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
            "original_max_position_embeddings": 4096,
        },
    },
    attention=AttentionTraits(
        qkv_bias="attention_bias", o_bias="attention_bias", window="alternate", theta=150_000.0
    ),
    feed_forward=FeedForwardTraits(
        computed="clamped_swiglu", experts="experts", normalized=True, biased=True, softmax_last=True
    ),
)  # fmt: skip
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
    defaults={"tie_word_embeddings": True, "head_dim": 256},
    only={"hidden_act": ("gelu", "gelu_pytorch_tanh"), "use_bidirectional_attention": (False,)},
    attention=AttentionTraits(qkv_bias="attention_bias", o_bias="attention_bias"),
    # Checkpoints say `hidden_act: gelu` and mean its tanh form, which a later field `hidden_activation` spells out.
    feed_forward=FeedForwardTraits(activation="hidden_activation", activations=("gelu_pytorch_tanh",)),
    stream=StreamTraits(norm="rms1", embed_scaled=True),
)
_GEMMA2: Final = Family(
    name="gemma2",
    architectures=("Gemma2ForCausalLM",),
    body="Gemma2Model",
    model_types=("gemma2",),
    names=_GEMMA_NAMES,
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
    attention=AttentionTraits(
        qkv_bias="attention_bias",
        o_bias="attention_bias",
        query_scale="query_pre_attn_scalar",
        attn_softcap="attn_logit_softcapping",
        window="alternate",
    ),
    feed_forward=FeedForwardTraits(activation="hidden_activation", activations=_GELU),
    stream=StreamTraits(norm="rms1", embed_scaled=True, final_softcap="final_logit_softcapping"),
)
_GEMMA3: Final = Family(
    name="gemma3",
    architectures=("Gemma3ForCausalLM",),
    body="Gemma3TextModel",
    model_types=("gemma3_text",),
    names=_GEMMA_NAMES,
    nullable=("sliding_window",),
    defaults={
        "tie_word_embeddings": True,
        "head_dim": 256,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "sliding_window_pattern": 6,
        "rope_local_base_freq": 10_000.0,
    },
    only={"use_bidirectional_attention": (False,)},
    attention=AttentionTraits(
        qk_norm="head",
        qkv_bias="attention_bias",
        o_bias="attention_bias",
        query_scale="query_pre_attn_scalar",
        attn_softcap="attn_logit_softcapping",
        window="pattern",
        stretched_positions=True,
        theta=1_000_000.0,
        local_theta="rope_local_base_freq",
    ),
    feed_forward=FeedForwardTraits(activation="hidden_activation", activations=_GELU),
    stream=StreamTraits(norm="rms1", embed_scaled=True, final_softcap="final_logit_softcapping"),
)
_GEMMA4_UNIFIED: Final = Family(
    name="gemma4_unified",
    architectures=("Gemma4UnifiedForCausalLM",),
    body="Gemma4UnifiedTextModel",
    model_types=("gemma4_unified_text",),
    names=replace(_GEMMA_NAMES, layer_scalar=_LAYER + "layer_scalar"),
    # Published checkpoints leave out what equals the defaults of transformers.
    defaults={
        "tie_word_embeddings": True, "vocab_size": 262_144, "hidden_size": 2304, "intermediate_size": 9216,
        "num_hidden_layers": 30, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "global_head_dim": 512,
        "max_position_embeddings": 262_144, "rms_norm_eps": 1e-6, "sliding_window": 1024,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
            "full_attention": {"rope_type": "proportional", "rope_theta": 1_000_000.0, "partial_rotary_factor": 0.25},
        },
    },
    # "vision": tokens of images see each other, and a text has none.
    only={"use_bidirectional_attention": (False, "vision")},
    attention=AttentionTraits(
        qk_norm="head",
        value_norm=True,
        full_heads=True,
        k_is_v="attention_k_eq_v",
        shared_kv="num_kv_shared_layers",
        unscaled=True,
        pattern=6,
        qkv_bias="attention_bias",
        o_bias="attention_bias",
        window="pattern",
        stretched_positions=True,
        theta=1_000_000.0,
        local_theta=10_000.0,
        rope_kinds=("default", "proportional"),
    ),
    feed_forward=FeedForwardTraits(
        activation="hidden_activation", activations=_GELU, wide_where_shared="use_double_wide_mlp"
    ),
    stream=StreamTraits(embed_scaled=True, final_softcap="final_logit_softcapping"),
)  # fmt: skip
_GEMMA4: Final = replace(
    _GEMMA4_UNIFIED,
    name="gemma4",
    architectures=("Gemma4ForCausalLM",),
    body="Gemma4TextModel",
    model_types=("gemma4_text",),
    fields={"num_experts_per_tok": "top_k_experts"},
    defaults={
        **_GEMMA4_UNIFIED.defaults, "max_position_embeddings": 131_072, "sliding_window": 512,
        "hidden_size_per_layer_input": 256, "vocab_size_per_layer_input": 262_144,
    },
    names=replace(
        _GEMMA4_UNIFIED.names,
        layer_embed="model.embed_tokens_per_layer",
        layer_projection="model.per_layer_model_projection",
        layer_projection_norm="model.per_layer_projection_norm",
        layer_input_gate=_LAYER + "per_layer_input_gate",
        layer_input_projection=_LAYER + "per_layer_projection",
        layer_input_norm=_LAYER + "post_per_layer_input_norm",
        router=_LAYER + "router.proj",
        router_scale=_LAYER + "router.scale",
        expert_scale=_LAYER + "router.per_expert_scale",
        expert_gate=_LAYER + "experts.{e}.gate_proj",
        expert_up=_LAYER + "experts.{e}.up_proj",
        expert_down=_LAYER + "experts.{e}.down_proj",
        dense_post_norm=_LAYER + "post_feedforward_layernorm_1",
        experts_norm=_LAYER + "pre_feedforward_layernorm_2",
        experts_post_norm=_LAYER + "post_feedforward_layernorm_2",
    ),
    feed_forward=replace(
        _GEMMA4_UNIFIED.feed_forward, experts="dense_and_experts", experts_switch="enable_moe_block", normalized=True
    ),
    stream=replace(
        _GEMMA4_UNIFIED.stream, layer_inputs="hidden_size_per_layer_input", layer_vocab="vocab_size_per_layer_input"
    ),
)  # fmt: skip
_GEMMA4_PARTS: Final = ("*vision_tower.*", "*audio_tower.*", "*embed_vision.*", "*embed_audio.*")
_GEMMA4_WITH_IMAGES: Final = replace(
    _GEMMA4,
    name="gemma4_text",
    architectures=("Gemma4ForConditionalGeneration",),
    body="Gemma4Model",
    model_types=("gemma4",),
    nested="text_config",
    only={**_GEMMA4.only, "model_type": ("gemma4_text",)},
    names=replace(_GEMMA4.names, other_parts=_GEMMA4_PARTS),
)
_GEMMA4_UNIFIED_WITH_IMAGES: Final = replace(
    _GEMMA4_UNIFIED,
    name="gemma4_unified_text",
    architectures=("Gemma4UnifiedForConditionalGeneration",),
    body="Gemma4UnifiedModel",
    model_types=("gemma4_unified",),
    nested="text_config",
    only={**_GEMMA4_UNIFIED.only, "model_type": ("gemma4_unified_text",)},
    names=replace(_GEMMA4_UNIFIED.names, other_parts=_GEMMA4_PARTS),
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
    names=replace(_GEMMA3.names, other_parts=_IMAGES),
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
    names=replace(_MISTRAL.names, other_parts=_IMAGES),
)
_MINISTRAL3_WITH_IMAGES: Final = replace(
    _MINISTRAL3,
    name="ministral3_text",
    architectures=_MISTRAL_WITH_IMAGES.architectures,
    body=_MISTRAL_WITH_IMAGES.body,
    model_types=_MISTRAL_WITH_IMAGES.model_types,
    nested="text_config",
    defaults={**_MINISTRAL3.defaults, "tie_word_embeddings": True},
    only={"model_type": ("ministral3",)},
    names=_MISTRAL_WITH_IMAGES.names,
)
_PHI3: Final = Family(
    name="phi3",
    architectures=("Phi3ForCausalLM",),
    body="Phi3Model",
    model_types=("phi3",),
    names=TensorNames(qkv=_LAYER + "self_attn.qkv_proj", gate_up=_LAYER + "mlp.gate_up_proj"),
    attention=AttentionTraits(
        window="all",
        partial_rotary=True,
        original_positions=4096,
        rope_kinds=("default", "longrope"),
        rope_aliases={"su": "longrope", "yarn": "longrope"},
    ),
)
_GLM4: Final = Family(
    name="glm4",
    architectures=("Glm4ForCausalLM",),
    body="Glm4Model",
    model_types=("glm4",),
    names=TensorNames(
        attn_post_norm=_LAYER + "post_self_attn_layernorm",
        mlp_post_norm=_LAYER + "post_mlp_layernorm",
        gate_up=_LAYER + "mlp.gate_up_proj",
    ),
    defaults={"attention_bias": True, "head_dim": 128, "partial_rotary_factor": 0.5},
    attention=AttentionTraits(qkv_bias="attention_bias", partial_rotary=True, neighbours=True),
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
    attention=AttentionTraits(qk_norm="full", qkv_bias="attention_bias", o_bias="attention_bias"),
)
_OLMO3: Final = replace(
    _OLMO2,
    name="olmo3",
    architectures=("Olmo3ForCausalLM",),
    body="Olmo3Model",
    model_types=("olmo3",),
    nullable=("sliding_window",),
    defaults={"sliding_window": 4096},
    # Where config.json has one `rope_theta` for all layers, transformers takes its default for the sliding ones.
    attention=replace(_OLMO2.attention, window="pattern", pattern=4, theta=500_000.0, local_theta=500_000.0),
)
_EXAONE4: Final = Family(
    name="exaone4",
    architectures=("Exaone4ForCausalLM",),
    body="Exaone4Model",
    model_types=("exaone4",),
    names=_OLMO2.names,
    nullable=("sliding_window",),
    defaults={"sliding_window": 4096, "sliding_window_pattern": 4},
    attention=AttentionTraits(qk_norm="head", window="pattern", rotated_windows=True),
)
_HUNYUAN: Final = Family(
    name="hunyuan_v1_dense",
    architectures=("HunYuanDenseV1ForCausalLM",),
    body="HunYuanDenseV1Model",
    model_types=("hunyuan_v1_dense",),
    names=TensorNames(q_norm=_LAYER + "self_attn.query_layernorm", k_norm=_LAYER + "self_attn.key_layernorm"),
    attention=AttentionTraits(
        qk_norm="head", norm_last=True, qkv_bias="attention_bias", o_bias="attention_bias", static_alpha=True
    ),
)
_SMOLLM3: Final = Family(
    name="smollm3",
    architectures=("SmolLM3ForCausalLM",),
    body="SmolLM3Model",
    model_types=("smollm3",),
    defaults={"tie_word_embeddings": True, "no_rope_layer_interval": 4},
    attention=AttentionTraits(
        qkv_bias="attention_bias",
        o_bias="attention_bias",
        window="nope",
        window_switch="use_sliding_window",
        rotated="no_rope_layers",
        theta=2_000_000.0,
    ),
    feed_forward=FeedForwardTraits(mlp_bias="mlp_bias"),
)
_GRANITE: Final = Family(
    name="granite",
    architectures=("GraniteForCausalLM",),
    body="GraniteModel",
    model_types=("granite",),
    defaults={"attention_multiplier": 1.0},
    attention=AttentionTraits(
        qkv_bias="attention_bias", o_bias="attention_bias", score_multiplier="attention_multiplier"
    ),
    feed_forward=FeedForwardTraits(mlp_bias="mlp_bias"),
    stream=StreamTraits(
        embed_multiplier="embedding_multiplier",
        residual_multiplier="residual_multiplier",
        logits_divisor="logits_scaling",
    ),
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
        transposed=True,
    ),
    fields={
        "hidden_size": "n_embd",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "max_position_embeddings": "n_positions",
        "intermediate_size": "n_inner",
    },
    defaults={"tie_word_embeddings": True, "layer_norm_epsilon": 1e-5},
    only={
        "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,),
        "add_cross_attention": (False,),
    },
    attention=AttentionTraits(qkv_bias=True, o_bias=True),
    feed_forward=FeedForwardTraits(
        mlp_bias=True,
        activation="activation_function",
        activations=("gelu_new", "gelu_pytorch_tanh", "gelu", "relu", "silu"),
    ),
    stream=StreamTraits(norm="layer", norm_eps="layer_norm_epsilon"),
)
_LFM2_FEED: Final = _LAYER + "feed_forward."
_LFM2: Final = Family(
    name="lfm2",
    architectures=("Lfm2ForCausalLM",),
    body="Lfm2Model",
    model_types=("lfm2",),
    names=TensorNames(
        final_norm="model.embedding_norm",
        attn_norm=_LAYER + "operator_norm",
        o=_LAYER + "self_attn.out_proj",
        q_norm=_LAYER + "self_attn.q_layernorm",
        k_norm=_LAYER + "self_attn.k_layernorm",
        mlp_norm=_LAYER + "ffn_norm",
        gate=_LFM2_FEED + "w1",
        up=_LFM2_FEED + "w3",
        down=_LFM2_FEED + "w2",
        conv_in=_LAYER + "conv.in_proj",
        conv=_LAYER + "conv.conv",
        conv_out=_LAYER + "conv.out_proj",
    ),
    mixers={"conv": "short_convolution"},
    mixer_rule=MixerRule("conv", indices="full_attn_idxs"),
    sizes=("conv_L_cache",),
    switches=("conv_bias",),
    older={"tie_word_embeddings": "tie_embedding", "intermediate_size": "block_ff_dim"},
    nullable=("block_ffn_dim_multiplier",),
    defaults={
        "tie_word_embeddings": True, "conv_L_cache": 3, "block_auto_adjust_ff_dim": True, "block_ffn_dim_multiplier": 1.0,
        "block_multiple_of": 256,
    },
    # Fields of the first checkpoints, with the only values that they have.
    only={"block_use_swiglu": (True,), "use_pos_enc": (True,)},
    attention=AttentionTraits(qk_norm="head", theta=1_000_000.0),
    feed_forward=FeedForwardTraits(adjusted="block_auto_adjust_ff_dim"),
    stream=StreamTraits(norm_eps="norm_eps"),
)  # fmt: skip
_LFM2_MOE: Final = replace(
    _LFM2,
    name="lfm2_moe",
    architectures=("Lfm2MoeForCausalLM",),
    body="Lfm2MoeModel",
    model_types=("lfm2_moe",),
    names=replace(
        _LFM2.names,
        router=_LFM2_FEED + "gate",
        choice_bias=_LFM2_FEED + "expert_bias",
        expert_gate=_LFM2_FEED + "experts.{e}.w1",
        expert_up=_LFM2_FEED + "experts.{e}.w3",
        expert_down=_LFM2_FEED + "experts.{e}.w2",
    ),
    mixer_rule=None,
    older={"tie_word_embeddings": "tie_embedding"},
    nullable=(),
    defaults={
        "tie_word_embeddings": True, "conv_L_cache": 3, "num_dense_layers": 2, "use_expert_bias": True, "norm_topk_prob": True,
    },
    only={},
    feed_forward=FeedForwardTraits(
        experts="sigmoid_experts",
        dense_layers="num_dense_layers",
        choice_bias="use_expert_bias",
        routed_scale="routed_scaling_factor",
    ),
)  # fmt: skip
_DELTA: Final = _LAYER + "linear_attn."
_QWEN3_NEXT: Final = Family(
    name="qwen3_next",
    architectures=("Qwen3NextForCausalLM",),
    body="Qwen3NextModel",
    model_types=("qwen3_next",),
    names=replace(
        _QWEN2_MOE.names,
        delta_qkvz=_DELTA + "in_proj_qkvz",
        delta_ba=_DELTA + "in_proj_ba",
        delta_conv=_DELTA + "conv1d",
        delta_a_log=_DELTA + "A_log",
        delta_dt_bias=_DELTA + "dt_bias",
        delta_norm=_DELTA + "norm",
        delta_out=_DELTA + "out_proj",
    ),
    mixers={"linear_attention": "gated_delta", "full_attention": "gated_attention"},
    mixer_rule=MixerRule("linear_attention", interval="full_attention_interval"),
    mtp="mtp.",
    sizes=(
        "linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim",
        "linear_conv_kernel_dim",
    ),
    defaults={
        "head_dim": 256, "partial_rotary_factor": 0.25, "full_attention_interval": 4, "linear_num_key_heads": 16,
        "linear_num_value_heads": 32, "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
        "norm_topk_prob": True,
    },
    only={"attn_output_gate": (True,), "mamba_ssm_dtype": ("float32",)},
    attention=AttentionTraits(
        qk_norm="head", qkv_bias="attention_bias", o_bias="attention_bias", partial_rotary=True
    ),
    feed_forward=FeedForwardTraits(
        experts="shared_experts", shared="shared_expert_intermediate_size", sparse_layers=True
    ),
    stream=StreamTraits(norm="rms1"),
)  # fmt: skip
_QWEN3_5_MOE: Final = replace(
    _QWEN3_NEXT,
    name="qwen3_5_moe",
    architectures=("Qwen3_5MoeForCausalLM",),
    body="Qwen3_5MoeTextModel",
    model_types=("qwen3_5_moe_text",),
    names=replace(
        _QWEN3_NEXT.names,
        delta_qkvz="",
        delta_ba="",
        delta_qkv=_DELTA + "in_proj_qkv",
        delta_z=_DELTA + "in_proj_z",
        delta_b=_DELTA + "in_proj_b",
        delta_a=_DELTA + "in_proj_a",
    ),
    # Its rotation is in three parts by place in an image, which are one for text.
    feed_forward=FeedForwardTraits(
        experts="shared_experts", shared="shared_expert_intermediate_size", normalized=True
    ),
)
_QWEN3_5: Final = replace(
    _QWEN3_5_MOE,
    name="qwen3_5",
    architectures=("Qwen3_5ForCausalLM",),
    body="Qwen3_5TextModel",
    model_types=("qwen3_5_text",),
    names=replace(_QWEN3_5_MOE.names, shared_gate="", shared_up="", shared_down="", shared_router=""),
    feed_forward=FeedForwardTraits(),
)
_QWEN3_5_WITH_IMAGES: Final = replace(
    _QWEN3_5,
    name="qwen3_5_text",
    architectures=("Qwen3_5ForConditionalGeneration",),
    body="Qwen3_5Model",
    model_types=("qwen3_5",),
    nested="text_config",
    only={**_QWEN3_5.only, "model_type": ("qwen3_5_text",)},
    names=replace(_QWEN3_5.names, other_parts=("*visual.*",)),
)
_QWEN3_5_MOE_WITH_IMAGES: Final = replace(
    _QWEN3_5_MOE,
    name="qwen3_5_moe_text",
    architectures=("Qwen3_5MoeForConditionalGeneration",),
    body="Qwen3_5MoeModel",
    model_types=("qwen3_5_moe",),
    nested="text_config",
    only={**_QWEN3_5_MOE.only, "model_type": ("qwen3_5_moe_text",)},
    names=replace(_QWEN3_5_MOE.names, other_parts=("*visual.*",)),
)

FAMILIES: Final = (
    _LLAMA, _MISTRAL, _MISTRAL_WITH_IMAGES, _MINISTRAL3, _MINISTRAL3_WITH_IMAGES, _MIXTRAL, _QWEN2, _QWEN2_MOE, _QWEN3,
    _QWEN3_WITH_IMAGES, _QWEN3_MOE, _GPT_OSS, _GEMMA, _GEMMA2, _GEMMA3, _GEMMA3_WITH_IMAGES, _GEMMA4, _GEMMA4_WITH_IMAGES,
    _GEMMA4_UNIFIED, _GEMMA4_UNIFIED_WITH_IMAGES, _PHI3, _GLM4, _OLMO2, _OLMO3, _OLMOE,
    _EXAONE4, _HUNYUAN, _SMOLLM3, _GRANITE, _LFM2, _LFM2_MOE, _QWEN3_NEXT, _QWEN3_5,
    _QWEN3_5_WITH_IMAGES, _QWEN3_5_MOE, _QWEN3_5_MOE_WITH_IMAGES, _GPT2,
)  # fmt: skip


def family_of(architecture: str) -> Family | None:
    """Return the family of an `architectures` entry, the first if there are several; None if there is no row for it."""
    return next(iter(families_of(architecture)), None)


def families_of(architecture: str) -> tuple[Family, ...]:
    """Return the families of an `architectures` entry: several where what a nested object describes may differ."""
    return tuple(family for family in FAMILIES if architecture in family.architectures)


def supported_architectures() -> str:
    """List all supported architectures, for messages."""
    return ", ".join(dict.fromkeys(name for family in FAMILIES for name in family.architectures))
