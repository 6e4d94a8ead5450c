"""What llama.cpp is asked to compute: every shape of tests/executors/llm/models.py, and what it cannot take of some.

A new shape is judged as it stands, so a row is needed only where llama.cpp, or its converter, has less than the family.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.executors.llm.models import MINISTRAL_ROPE, SHAPES


@dataclass(frozen=True)
class Row:
    """How a shape is judged.

    `instead`: fields of the configuration that replace the shape's, because llama.cpp has a constant or a limit there;
    `limit` says which. `lost`: what the converter leaves out of the file: file and checkpoint are two models, and only what
    is computed from the file is compared. `unknown`: why there is nothing to compare. `exact`: the bound of a logprob in
    float32, where llama.cpp itself computes less exactly. `flips`: whether that makes other experts the chosen ones at near
    ties, so that only most positions can be compared. `least`: the shortest prompt.
    """

    instead: dict[str, Any] = field(default_factory=dict)
    limit: str = ""
    lost: str = ""
    unknown: str = ""
    exact: float = 2e-4
    flips: bool = False
    share: float = 0.99
    cap: float = 5e-2
    least: int = 5

    def limits(self) -> list[str]:
        """Return what llama.cpp does not compute of the shape."""
        return [text for text in (self.limit, self.lost, self.unknown) if text]


_TABLE = 5e-3
"""llama.cpp reads GELU from a table of float16."""
_NO_WINDOW = "no windows"
_HEADS = "all heads together are as wide as the model"
_NO_DENSE = "no dense layers among those of experts"
_SIZES = "keys and values of linear attention have one size"


def _one_size(size: int) -> dict[str, int]:
    return {"linear_key_head_dim": size, "linear_value_head_dim": size}


ROWS: dict[str, Row] = {
    "qwen3-window-on-last-layers": Row(lost=_NO_WINDOW),
    "qwen2-window-on-last-layers-yarn": Row(lost=_NO_WINDOW),
    "mistral-window": Row(lost=_NO_WINDOW),
    "mixtral-window-one-kv-head": Row(lost=_NO_WINDOW),
    "qwen3-moe-some-dense-layers": Row(unknown=_NO_DENSE),
    "qwen2-moe-windows-some-dense-layers": Row(unknown=_NO_DENSE),
    "qwen2-moe-shared-expert": Row({"head_dim": 12}, _HEADS),
    "olmoe": Row({"num_key_value_heads": 4}, "KV heads are as many as heads"),
    "olmoe-normalized-no-gqa": Row(lost="weights of experts are never normalized"),
    "gemma-one-kv-head": Row(exact=_TABLE),
    "gemma2-caps-alternating-windows": Row(
        {"query_pre_attn_scalar": 20}, "scores are scaled by the width of a head", exact=_TABLE
    ),
    "gemma2-no-caps-untied": Row(unknown="scores and logits are always capped"),
    "gemma3-two-ropes": Row({"query_pre_attn_scalar": 20}, "scores are scaled by the width of a head", exact=_TABLE),
    "gemma3-beside-images": Row(
        {"query_pre_attn_scalar": 20}, "scores are scaled by the width of a head", exact=_TABLE
    ),
    **dict.fromkeys(
        (
            "gemma4-inputs-of-layers-and-shared-kv", "gemma4-keys-that-are-values", "gemma4-beside-images",
        ),
        Row(exact=_TABLE),
    ),
    "gemma4-experts-beside-mlp": Row(
        {"top_k_experts": 6}, "its table of GELU decides near ties of experts, so each token goes through all", exact=_TABLE
    ),
    "gemma4-unified": Row(unknown="the class of the text part alone"),
    "gemma4-unified-beside-images": Row(unknown="a configuration without sizes of experts, as transformers 5.23 saves it"),
    "phi3-window": Row({"sliding_window": None}, _NO_WINDOW),
    "phi3-longrope": Row(least=65),
    "phi4-mini-tied-longrope-of-a-part": Row({"sliding_window": None}, _NO_WINDOW, least=65),
    "exaone4-windows-rotated-alone": Row(
        {"num_hidden_layers": 64, "head_dim": 12}, f"windows in models of 64 layers alone; {_HEADS}"
    ),
    "hunyuan-norms-last-alpha": Row(
        {
            "max_position_embeddings": 32768,
            "rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "alpha": 50.0, "factor": 1.0},
        },
        "alpha with rope_theta 10,000 and 32,768 positions alone",
    ),
    "hunyuan-biases-one-kv-head": Row({"attention_bias": False}, "no biases of attention"),
    "smollm3-some-layers-without-rope": Row({"no_rope_layer_interval": 4}, "each fourth layer is not rotated"),
    "gpt-oss-sinks-windows": Row(
        {
            "swiglu_limit": 7.0,
            "rope_parameters": {
                "rope_type": "yarn", "rope_theta": 2.0, "factor": 8.0, "original_max_position_embeddings": 32, "truncate": False,
            },
        },
        "YaRN's bounds are rounded, and the activation's constants are the published ones",
    ),
    "gpt-oss-one-kv-head-no-biases-of-attention": Row(
        {
            "attention_bias": True, "swiglu_alpha": 1.702, "swiglu_limit": 7.0,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
        },
        "attention has biases, every second layer a window",
    ),
    "lfm2-biases-kernel-of-5-untied": Row({"conv_bias": False}, "no biases of convolutions", share=0.9),
    "lfm2-moe-sigmoid-router": Row({"routed_scaling_factor": 1.0}, "weights of experts are not scaled"),
    "lfm2-moe-no-bias-of-choice": Row(
        {"use_expert_bias": True, "norm_topk_prob": True, "tie_word_embeddings": True},
        "the head is the embedding; experts have a bias of choice, and their weights add up to 1",
    ),
    "qwen3-next": Row(_one_size(12), _SIZES, share=0.3),
    "qwen3-next-some-dense-layers-biases-one-kv-head": Row(
        {**_one_size(16), "mlp_only_layers": [], "attention_bias": False, "norm_topk_prob": True},
        f"{_NO_DENSE}; no biases of attention; weights of experts add up to 1",
    ),
    **dict.fromkeys(("qwen3.5", "qwen3.5-beside-images", "qwen3.5-wide"), Row(_one_size(16), _SIZES, share=0.9, cap=0.1)),
    **dict.fromkeys(("qwen3.5-moe", "qwen3.5-moe-beside-images"), Row(_one_size(16), _SIZES, share=0.4)),
    "qwen3.5-attention-alone": Row(unknown="no models without linear attention"),
    "gpt2": Row({"n_ctx": 256}, exact=_TABLE),
    "gpt2-untied-n-inner": Row(unknown="an activation other than GELU"),
}  # fmt: skip

_LONG = {"max_position_embeddings": 4352}
LONG: dict[str, dict[str, Any]] = {
    "qwen3-tied-gqa": _LONG,
    "lfm2-short-convolutions": _LONG,
    "qwen3.5": _LONG,
    "gemma2-caps-alternating-windows": _LONG,
    "gemma3-two-ropes": _LONG,
    "gemma4-inputs-of-layers-and-shared-kv": _LONG,
    "olmo3-windows-yarn": {
        **_LONG,
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 500000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 500000.0},
        },
    },
    "ministral3-growing-queries": {
        **_LONG,
        "rope_parameters": {**MINISTRAL_ROPE, "original_max_position_embeddings": 544, "max_position_embeddings": 4352},
    },
}  # fmt: skip
"""Shapes that prompts of 4,200 tokens are tried with, and the fields that give them room. EXAONE 4 is left out: 64 layers of such
a prompt take minutes."""


def row(name: str) -> Row:
    """How the shape of this name is judged."""
    return ROWS.get(name, Row())


def judged() -> list[str]:
    """The names of the shapes that llama.cpp computes, in the order of their families."""
    return [name for name in SHAPES if not row(name).unknown]
