"""Every known key of a GGUF header: what its value means where an architecture does not read it. No torch here.

Names below the architecture's prefix (`llama.`) are those of the `gguf` package, of llama.cpp's list of keys and of Ollama's
converters. A name is in `HARMLESS`, with the reason; or in `REFUSED`, with a test for the values that change nothing; or
belongs to parts that are not loaded (`OTHER_PARTS`); or is an older name of another one (`OLDER`). Keys outside the prefix have
tables of their own, because most of them describe the file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

Neutral = Callable[[Any], bool]
"""Returns whether a value leaves the output unchanged."""


def _only(*values: object) -> Neutral:
    def neutral(value: Any) -> bool:
        if isinstance(value, list):
            return all(neutral(one) for one in value)
        return any(value == one for one in values)

    return neutral


def _reasons(reason: str, *names: str) -> dict[str, str]:
    return dict.fromkeys(names, reason)


OLDER: Final[Mapping[str, str]] = {
    "rope.global.freq_base": "rope.freq_base",
    "rope.local.freq_base": "rope.freq_base_swa",
    "rope.freq_base_local": "rope.freq_base_swa",
    "rope.swa.freq_base": "rope.freq_base_swa",
    "rope.mrope_section": "rope.dimension_sections",
    "rope.scaling.beta_fast": "rope.scaling.yarn_beta_fast",
    "rope.scaling.beta_slow": "rope.scaling.yarn_beta_slow",
    "rope.scaling.extrapolation_factor": "rope.scaling.yarn_ext_factor",
    "rope.scaling.mscale_all_dim": "rope.scaling.yarn_log_multiplier",
    "rope.scaling_beta": "attention.temperature_scale",
    "attention.head_dim": "attention.key_length",
    "norm_top_k_prob": "expert_weights_norm",
}
"""Names that Ollama's converters write or wrote, and llama.cpp's for the same."""

ZERO_IS_MISSING: Final = frozenset({
    "attention.key_length", "attention.value_length", "rope.dimension_count", "rope.freq_base", "rope.freq_base_swa",
    "rope.scaling.original_context_length",
})  # fmt: skip
"""Names for which Ollama's converters write 0 where config.json leaves the field out, and for which 0 means nothing else."""

OTHER_PARTS: Final = re.compile(
    r"(vision|audio|image|video|mm|projector|clip)[._].+|spatial_merge_size|clip|has_vision_encoder"
)
"""Names below the prefix that describe parts of a model which are not loaded, or the tokens that stand for their outputs."""

OTHER_TENSORS: Final = re.compile(r"(v|mm|a|vision|audio|mmproj)\..+")
"""Names of such parts' tensors, which Ollama's files hold beside the model's."""

_STANDS_IN_TENSORS = "the tensors say it"
_OF_ROTATION = "rotation of another kind does not use it"
_OF_TENSORS = (
    "describes tensors, which are refused by their names; dense files of Granite 4 have the keys without them"
)
_OF_EXPERTS = "counts only where expert_count is above 1, which is refused"
HARMLESS: Final[Mapping[str, str]] = {
    **_reasons(_STANDS_IN_TENSORS, "vocab_size", "tensor_data_layout"),
    **_reasons("the norms of this architecture are of the other kind",
               "attention.layer_norm_epsilon", "attention.layer_norm_rms_epsilon", "attention.group_norm_epsilon"),
    **_reasons(_OF_ROTATION, "rope.scaling.original_context_length", "rope.scaling.yarn_beta_fast",
               "rope.scaling.yarn_beta_slow", "rope.scaling.mscale"),
    **_reasons("positions are learned, or the other names of the scaling hold it",
               "rope.dimension_count", "rope.freq_base", "rope.scaling.factor", "rope.scaling.type", "rope.scale_linear",
               "rope.freq_scale"),
    **_reasons("says how the model was made", "rope.scaling.finetuned", "source_quantization", "source_fp8_tensors"),
    **_reasons(_OF_TENSORS, "expert_shared_feed_forward_length", "ssm.conv_kernel", "ssm.inner_size", "ssm.state_size",
               "ssm.time_step_rank", "ssm.group_count"),
    **_reasons("all axes of a text's positions are the same", "rope.dimension_sections"),
    **_reasons("the experts have a size of their own", "feed_forward_length"),
    **_reasons(_OF_EXPERTS, "expert_feed_forward_length", "expert_weights_scale", "expert_weights_norm", "expert_gating_func",
               "expert_group_used_count", "expert_group_scale", "experts_per_group"),
    **_reasons("how hidden states become an embedding is read elsewhere (model_defaults/pooling)", "pooling_type"),
    **_reasons("names of the scores of a classification head", "classifier.output_labels"),
    **_reasons("counts only beside a positive attention.temperature_scale, which is refused", "attention.temperature_length"),
    **_reasons("embeddings are scaled to length 1 or not by the request", "normalize_embeddings"),
    **_reasons("read from the tensors, in the order of heads that they have",
               "attention.use_gqa", "attention.gqa_group_size"),
}  # fmt: skip
"""Names whose values change nothing where an architecture does not read them, with the reason."""

_ZERO: Final = _only(0)
_UNIT: Final = _only(0, 1)
REFUSED: Final[Mapping[str, Neutral]] = {
    # numbers that scale or bound
    **dict.fromkeys(("logit_scale", "embedding_scale", "residual_scale"), _UNIT),
    **dict.fromkeys(("attention.output_scale", "attention.value_scale"), _UNIT),
    **dict.fromkeys(("rope.scaling.attn_factor", "rope.scaling.yarn_attn_factor"), _UNIT),
    "rope.scaling.yarn_ext_factor": _only(0, -1),
    **dict.fromkeys(("rope.scaling.alpha", "rope.scaling.yarn_log_multiplier"), _ZERO),
    **dict.fromkeys(("attention.scale", "attention.temperature_scale", "attention.clamp_kqv"), _ZERO),
    **dict.fromkeys(("attn_logit_softcapping", "final_logit_softcapping", "router_logit_softcapping"), _ZERO),
    **dict.fromkeys(("attention.max_alibi_bias", "swiglu_clamp_exp", "swiglu_clamp_shexp", "activation_sparsity_scale"), _ZERO),
    "hidden_activation": lambda value: False,
    # what a token sees, and with what heads
    "attention.causal": _only(True),
    **dict.fromkeys(("attention.sliding_window", "attention.chunk_size"), _ZERO),
    "attention.sliding_window_pattern": lambda value: False,
    **dict.fromkeys(("rope.freq_base_swa", "rope.dimension_count_swa", "attention.key_length_swa", "attention.value_length_swa"),
                    _ZERO),
    **dict.fromkeys(("full_attention_interval", "attention.shared_kv_layers", "attention.recurrent_layers"), _ZERO),
    **dict.fromkeys(("attention.relative_buckets_count", "attention.cross_attention_layers", "attention.use_qk_norm",
                     "use_qk_norm", "attention.sink_enabled", "attention.gating_type", "attention.layer_types"), _ZERO),
    **dict.fromkeys(("attention.q_lora_rank", "attention.kv_lora_rank", "attention.key_length_mla", "attention.value_length_mla",
                     "attention.output_lora_rank", "attention.output_group_count"), _ZERO),
    **dict.fromkeys(("attention.decay_lora_rank", "attention.iclr_lora_rank", "attention.value_residual_mix_lora_rank",
                     "attention.gate_lora_rank", "attention.group_norm_groups"), _ZERO),
    **dict.fromkeys(("attention.indexer.head_count", "attention.indexer.key_length", "attention.indexer.top_k",
                     "attention.compress_ratios", "attention.compress_rope_freq_base"), _ZERO),
    # layers and experts of other kinds
    **dict.fromkeys(("expert_count", "expert_used_count", "expert_shared_count", "expert_group_count"), _ZERO),
    **dict.fromkeys(("expert_chunk_feed_forward_length", "moe_latent_size"), _ZERO),
    **dict.fromkeys(("interleave_moe_layer_step", "moe_every_n_layers", "decoder_sparse_step"), _UNIT),
    **dict.fromkeys(("leading_dense_block_count", "nextn_predict_layers", "n_deepstack_layers", "deepstack_mapping",
                     "hash_layer_count", "dense_layers"), _ZERO),
    **dict.fromkeys(("use_parallel_residual", "swin_norm", "norm_before_residual", "rescale_every_n_layers"), _ZERO),
    **dict.fromkeys(("hyper_connection.count", "hyper_connection.sinkhorn_iterations", "hyper_connection.epsilon"), _ZERO),
    **dict.fromkeys(("altup.active_idx", "altup.num_inputs", "altup.correct_scale", "altup.lr_multiplier"), _ZERO),
    "ssm.dt_b_c_rms": _ZERO,
    **dict.fromkeys(("wkv.head_size", "kda.head_dim", "shortconv.l_cache", "token_shift_count", "time_mix_extra_dim",
                     "time_decay_extra_dim"), _ZERO),
    # other inputs and outputs
    **dict.fromkeys(("embedding_length_out", "embedding_length_per_layer_input", "features_length"), _ZERO),
    **dict.fromkeys(("decoder_start_token_id", "decoder_block_count", "target_layers", "target_hidden_size"), _ZERO),
    **dict.fromkeys(("posnet.embedding_length", "posnet.block_count"), _ZERO),
    **dict.fromkeys(("convnext.embedding_length", "convnext.block_count"), _ZERO),
    **dict.fromkeys(("dense_2_feat_in", "dense_2_feat_out", "dense_3_feat_in", "dense_3_feat_out"), _ZERO),
}  # fmt: skip
"""Names whose values change the result where an architecture does not read them, with a test for values that do not. A window of
the whole context and a pattern without a window change nothing, either (`gguf_keys.py`)."""

OTHER_MODELS: Final[Mapping[tuple[str, str], str]] = {
    ("", "attention.causal"): "bert",
}
"""Models that converters write under the name of another architecture, by that name ("": any) and a refused key that only they
have."""

SAME_AS: Final[Mapping[str, str]] = {
    "embedding_length_out": "embedding_length",
    "attention.key_length_swa": "attention.key_length",
    "attention.value_length_swa": "attention.value_length",
    "rope.dimension_count_swa": "rope.dimension_count",
    "rope.freq_base_swa": "rope.freq_base",
}
"""Names of `REFUSED` that change nothing, either, where they repeat what another key says."""

ACTIVATIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "silu": ("silu", "swish", "swiglu"),
    "gelu_pytorch_tanh": ("gelu_pytorch_tanh", "gelu_new", "gelu", "geglu"),
    "gelu_new": ("gelu_new", "gelu_pytorch_tanh", "gelu"),
}
"""Values of `hidden_activation` that name the activation which is computed."""

FILE_TYPES: Final[Mapping[str, str]] = {
    "adapter": "an adapter, not a model: serve its model, and name the adapter beside it",
    "mmproj": "the image encoder of a model, not the model; take the file beside it",
    "imatrix": "what a quantization measured, not a model; take the quantized file",
    "vocab": "a tokenizer without a model",
}
"""What is not a model, by `general.type`."""

_SAMPLING: Final = (
    "sequence", "xtc_probability", "xtc_threshold", "penalty_last_n", "mirostat", "mirostat_tau", "mirostat_eta",
)  # fmt: skip
UNUSED_SAMPLING: Final[Mapping[str, Neutral]] = {
    **{f"general.sampling.{name}": lambda value: False for name in _SAMPLING},
    "general.sampling.xtc_probability": _ZERO,
    "general.sampling.mirostat": _ZERO,
}
"""Recommended sampling settings that are not served, which a note tells; the tokenizer's reader takes the others."""

OUTSIDE: Final[Mapping[str, str]] = {
    "general": "describes the file; the keys that do more are read or checked",
    "split": "the parts of a model, read with the header",
    "quantize": "says how the file was quantized",
    "imatrix": "says what the quantization measured",
    "clip": "describes an image encoder, which is not loaded",
}
"""Namespaces of keys outside the architecture's prefix, with the reason why the model's reader takes nothing else from them.
Namespaces that the format does not know, such as those of people who quantize, are taken for descriptions, too."""

OF_OTHERS: Final[Mapping[str, Neutral]] = {
    "adapter.type": lambda value: False,
    "adapter.lora.alpha": lambda value: False,
    "adapter.lora.task_name": lambda value: False,
    "adapter.lora.prompt_prefix": lambda value: False,
    "adapter.alora.invocation_tokens": lambda value: False,
    **dict.fromkeys(
        ("xielu.alpha_p", "xielu.alpha_n", "xielu.beta", "xielu.eps", "diffusion.shift_logits"), _ZERO
    ),
}
"""Keys outside the prefix that change the computation of models that are not served, with a test for values that do not."""

_BY_TOKENIZER = "read by the tokenizer's reader (engine.text.gguf)"
_FOR_CODE = "marks the gap of a text to be filled in, which the endpoint's template writes by its text"
TOKENIZER: Final[Mapping[str, str]] = {
    **{f"tokenizer.ggml.{name}": _BY_TOKENIZER for name in (
        "model", "pre", "tokens", "token_type", "scores", "merges", "bos_token_id", "eos_token_id", "eot_token_id",
        "eom_token_id", "unknown_token_id", "seperator_token_id", "padding_token_id", "mask_token_id", "cls_token_id",
        "add_bos_token", "add_eos_token", "add_space_prefix", "normalizer.lowercase", "normalizer.strip_accents", "eos_token_ids",
        "eot_token_ids", "eom_token_ids", "eog_token_ids", "fim_pad_token_id", "fim_rep_token_id", "fim_sep_token_id",
    )},
    "tokenizer.chat_template": _BY_TOKENIZER,
    "tokenizer.chat_templates": "the names of the templates, which stand in their keys",
    **{f"tokenizer.ggml.{name}_token_id": _FOR_CODE for name in (
        "fim_pre", "fim_suf", "fim_mid", "prefix", "suffix", "middle",
    )},
    **{f"tokenizer.ggml.{name}": "bert's, whose texts end in a separator in any case" for name in (
        "add_sep_token", "token_type_count",
    )},
    **{f"tokenizer.ggml.{name}": _BY_TOKENIZER for name in ("remove_extra_whitespaces", "precompiled_charsmap")},
    **{f"tokenizer.ggml.{name}": "the first id, which stands in a key of its own, counts" for name in (
        "bos_token_ids", "unknown_token_ids", "seperator_token_ids", "padding_token_ids", "mask_token_ids", "cls_token_ids",
    )},
    **{f"tokenizer.ggml.add_{name}_token": "such a token is never added to a text" for name in (
        "unknown", "seperator", "padding", "mask", "cls", "eot", "eom", "pad", "unk",
    )},
    "tokenizer.ggml.added_tokens": "they stand in the list of tokens, too",
    "tokenizer.ggml.separator_token_id": "of BERT's tokenizers, whose key is spelled otherwise",
    "tokenizer.ggml.suppress_tokens": "llama.cpp applies it to Gemma 4 alone, where a note names it",
    "tokenizer.ggml.pretokenizer": "the pattern, whose name is in tokenizer.ggml.pre",
    "tokenizer.huggingface.json": "the original tokenizer, which the lists beside it repeat",
    "tokenizer.rwkv.world": "a vocabulary of an architecture that is refused",
}  # fmt: skip
"""Keys of the tokenizer, with who reads each or why nothing does."""
TEMPLATE: Final = "tokenizer.chat_template."
"""Beginning of the keys of named templates, which the tokenizer's reader takes."""
