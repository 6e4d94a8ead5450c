"""The architectures of GGUF that are served: a row each, with what llama.cpp knows of them and their metadata leave out. No torch
here.

Metadata leave out what llama.cpp has as constants of an architecture: the pattern of windows, the scale of scores, layers without
rotation. What a missing key stands for is what it stands for in llama.cpp, and in files that Ollama's converters wrote what it
stands for there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from executors.llm.model.gguf_gemma4 import complete_gemma4, gemma4, rotation_of_gemma4
from executors.llm.model.gguf_hybrids import complete_lfm2, lfm2, lfm2_moe, linear_attention
from executors.llm.model.gguf_keys import GgufKeys


@dataclass(frozen=True, slots=True)
class Row:
    """One architecture of GGUF. `served`: the Hugging Face architecture that computes it.

    `interleaved`: rows of queries and keys are in the order for a rotation of neighbours, not of halves. `plus_one`: the norms
    are stored plus one. `variant(keys, row)` returns the row to take instead where the name stands for several models.
    `complete(keys)` sets what missing keys stand for. `fill(keys, values)` reads the keys that only this architecture has,
    `rotation(keys, values)` returns its fields on rotary embeddings where they are not the usual ones. `roles`: roles of tensors
    by the middle of their names, where they are other than in `gguf_names.py`. `tiled`: value heads of linear attention are in
    the order of `gguf_hybrids.py`. `draft_heads`: `block_count` has the layers of `nextn_predict_layers`, which are an MTP head.
    """

    served: str
    interleaved: bool = False
    plus_one: bool = False
    variant: Callable[[GgufKeys, Row], Row] | None = None
    complete: Callable[[GgufKeys], None] | None = None
    fill: Callable[[GgufKeys, dict[str, Any]], None] | None = None
    rotation: Callable[[GgufKeys, dict[str, Any]], dict[str, Any]] | None = None
    constants: Mapping[str, Any] = field(default_factory=dict)
    roles: Mapping[str, str] = field(default_factory=dict)
    tiled: bool = False
    draft_heads: bool = False


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
    """Read alpha. llama.cpp's converter writes a freq_base that is stretched by it instead, and no alpha. One expert, of which
    older files speak, is the MLP."""
    if keys.get("expert_count", 0) not in (0, 1):
        keys.refuse("expert_count", "0 and 1")
    keys.name("expert_used_count")
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


def _complete_gpt_oss(keys: GgufKeys) -> None:
    """Set what files under Ollama's older name `gptoss` leave out: the kind of scaling, which its program has as a constant."""
    if keys.prefix == "gptoss." and keys.has("rope.scaling.factor"):
        keys.supply("rope.scaling.type", "yarn")


def _gpt_oss(keys: GgufKeys, values: dict[str, Any]) -> None:
    """Read windows and pattern. Bounds of YaRN are not rounded, as the model was made; no key says so, and llama.cpp rounds."""
    values["sliding_window"] = keys.natural("attention.sliding_window")
    _pattern(keys, values, 2)
    scaling = values.pop("rope_scaling", {"rope_type": "default"})
    values["rope_parameters"] = {
        "rope_theta": values["rope_theta"], **scaling, **({"truncate": False} if scaling["rope_type"] == "yarn" else {}),
    }  # fmt: skip


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


_QWEN35 = Row(
    "Qwen3_5ForCausalLM",
    plus_one=True,
    fill=linear_attention,
    roles={"post_attention_norm": "mlp_norm"},
    tiled=True,
    draft_heads=True,
)
ROWS: Mapping[str, Row] = {
    "llama": Row("LlamaForCausalLM", interleaved=True, variant=_kind_of_llama),
    "mistral3": Row("MistralForCausalLM", interleaved=True, variant=_kind_of_llama, fill=_window_if_given),
    "qwen2": Row("Qwen2ForCausalLM"),
    "qwen2moe": Row("Qwen2MoeForCausalLM"),
    "qwen3": Row("Qwen3ForCausalLM"),
    "qwen3vl": Row("Qwen3ForCausalLM", fill=_qwen3vl),
    "qwen3moe": Row("Qwen3MoeForCausalLM"),
    "gpt-oss": Row(
        "GptOssForCausalLM",
        complete=_complete_gpt_oss,
        fill=_gpt_oss,
        # Files of Ollama's converters have ffn_norm and attn_out.
        roles={"post_attention_norm": "mlp_norm", "attn_output": "o", "attn_out": "o"},
    ),
    "gemma": Row("GemmaForCausalLM", plus_one=True),
    "gemma2": Row("Gemma2ForCausalLM", plus_one=True, fill=_gemma2),
    "gemma3": Row("Gemma3ForCausalLM", plus_one=True, complete=_complete_gemma3, fill=_gemma3),
    "gemma4": Row(
        "Gemma4ForCausalLM",
        complete=complete_gemma4,
        fill=gemma4,
        rotation=rotation_of_gemma4,
        constants={"use_bidirectional_attention": None},
    ),
    "phi3": Row("Phi3ForCausalLM", fill=_window_if_given),
    "glm4": Row("Glm4ForCausalLM", fill=_glm4),
    "olmo2": Row("Olmo2ForCausalLM", variant=_kind_of_olmo2),
    "olmoe": Row("OlmoeForCausalLM"),
    "exaone4": Row("Exaone4ForCausalLM", complete=_complete_exaone4, fill=_exaone4),
    "hunyuan-dense": Row("HunYuanDenseV1ForCausalLM", fill=_hunyuan),
    "smollm3": Row("SmolLM3ForCausalLM", interleaved=True, constants={"no_rope_layer_interval": 4}),
    "granite": Row("GraniteForCausalLM", interleaved=True, fill=_granite),
    "lfm2": Row(
        "Lfm2ForCausalLM",
        complete=complete_lfm2,
        fill=lfm2,
        constants={"block_auto_adjust_ff_dim": False},
        roles={"token_embd_norm": "final_norm"},
    ),
    "lfm2moe": Row(
        "Lfm2MoeForCausalLM", complete=complete_lfm2, fill=lfm2_moe, roles={"token_embd_norm": "final_norm"}
    ),
    "qwen3next": Row(
        "Qwen3NextForCausalLM",
        plus_one=True,
        fill=linear_attention,
        roles={"post_attention_norm": "mlp_norm"},
        draft_heads=True,
    ),
    "qwen35": _QWEN35,
    "qwen35moe": replace(_QWEN35, served="Qwen3_5MoeForCausalLM"),
    "gpt2": Row("GPT2LMHeadModel", constants={"activation_function": "gelu_new"}),
}
"""The architectures by the value of `general.architecture`."""


def served_by(architecture: str) -> Row | None:
    """Return the row of an architecture of GGUF, None if it is not served."""
    return ROWS.get(architecture)
