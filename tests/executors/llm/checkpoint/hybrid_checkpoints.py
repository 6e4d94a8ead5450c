"""Checkpoints of hybrids, written without transformers, of sizes where blocks of 128 end within heads and within parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from tests.executors.checkpoints import write_checkpoint
from tests.executors.llm.models import LFM2, QWEN3_NEXT, QWEN3_NEXT_MOE, decays

# q, k and v of Qwen3.5's linear attention have 368 rows, so that z begins within a block of 128; so do key heads of Qwen3-Next.
# Inputs are whole groups of 32, so that kernels keep whole numbers.
_QWEN: dict[str, Any] = {
    "vocab_size": 211, "hidden_size": 160, "num_attention_heads": 4, "head_dim": 32, "intermediate_size": 144,
    "max_position_embeddings": 512, "linear_num_key_heads": 2, "linear_num_value_heads": 6, "linear_key_head_dim": 20,
    "linear_value_head_dim": 48, "hidden_act": "silu", "rms_norm_eps": 1e-6, "dtype": "float32",
}  # fmt: skip
_EXPERTS = {"moe_intermediate_size": 48, "shared_expert_intermediate_size": 64, "num_experts": 4}
_NEXT = {
    **QWEN3_NEXT_MOE, **_QWEN, **_EXPERTS, "architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next",
}  # fmt: skip
_DENSE = {
    **QWEN3_NEXT, **_QWEN, "architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text",
}  # fmt: skip
_NESTED = {
    "architectures": ["Qwen3_5MoeForConditionalGeneration"], "model_type": "qwen3_5_moe", "tie_word_embeddings": False,
    "dtype": "float32", "vision_config": {},
    "text_config": {**QWEN3_NEXT_MOE, **_QWEN, **_EXPERTS, "model_type": "qwen3_5_moe_text"},
}  # fmt: skip
_LFM2 = {
    **LFM2, "architectures": ["Lfm2ForCausalLM"], "model_type": "lfm2", "vocab_size": 211, "hidden_size": 160,
    "num_attention_heads": 5, "num_key_value_heads": 1, "intermediate_size": 240, "block_ffn_dim_multiplier": 1.0,
    "conv_L_cache": 3, "conv_bias": False, "norm_eps": 1e-5, "dtype": "float32",
}  # fmt: skip
SHAPES: dict[str, dict[str, Any]] = {
    "qwen3_next": _NEXT, "qwen3_5": _DENSE, "qwen3_5_moe, beside images": _NESTED, "lfm2": _LFM2,
}  # fmt: skip


def write_hybrid_checkpoint(directory: Path, shape: str) -> Path:
    """The checkpoint of a shape, in float32. Half-lives of linear attention run from 1 to 10,000 tokens."""
    write_checkpoint(directory, SHAPES[shape])
    tensors = load_file(directory / "model.safetensors")
    for name, tensor in tensors.items():
        if name.endswith("A_log"):
            tensors[name] = decays(len(tensor))
        elif name.endswith("dt_bias"):
            tensor.zero_()
    save_file(tensors, directory / "model.safetensors")
    return directory
