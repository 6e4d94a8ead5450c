"""Weights in 8 and 4 bits, rounded as they are loaded or in a GGUF file, in families with something of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from executors.contract import LogitsMode, OptimizationConfig, PrefillInput, Tensor
from tests.executors.checkpoints import write_checkpoint
from tests.executors.gguf_files import Metadata, converted_checkpoint, prepared, sizes, write_gguf
from tests.executors.llm.driver import start

IDS = [5 * i * i % 127 + 1 for i in range(40)]
_BASE: dict[str, Any] = {
    "vocab_size": 160, "hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 32, "intermediate_size": 192, "max_position_embeddings": 256, "tie_word_embeddings": False, "dtype": "float32",
    "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
}  # fmt: skip
_GROWTH = {
    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "original_max_position_embeddings": 16, "mscale": 1.0,
    "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.2,
}  # fmt: skip
_YARN: Metadata = {
    "rope.scaling.type": "yarn", "rope.scaling.factor": 8.0, "rope.scaling.original_context_length": 16,
    "rope.scaling.yarn_log_multiplier": 1.0, "attention.temperature_scale": 0.2,
}  # fmt: skip
# By the architecture of GGUF: the class, what differs from the base, metadata beside the sizes.
MODELS: dict[str, tuple[str, dict[str, Any], Metadata]] = {
    "llama": ("LlamaForCausalLM", {}, {"rope.dimension_count": 32}),
    "mistral3": ("Ministral3ForCausalLM", {"rope_parameters": _GROWTH}, _YARN),
    "glm4": ("Glm4ForCausalLM", {"attention_bias": True}, {"rope.dimension_count": 16}),
    "hunyuan-dense": ("HunYuanDenseV1ForCausalLM", {}, {}),
    "olmo2": ("Olmo3ForCausalLM", {"sliding_window": 9, "rope_theta": 500000.0}, {"attention.sliding_window": 9}),
    "exaone4": ("Exaone4ForCausalLM", {"sliding_window": 9}, {"attention.sliding_window": 9}),
    "qwen2moe": (
        "Qwen2MoeForCausalLM",
        {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "shared_expert_intermediate_size": 96},
        {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 64, "expert_shared_feed_forward_length": 96},
    ),
}  # fmt: skip
_OWN_YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 16, "truncate": False}
MODELS["gpt-oss"] = (
    "GptOssForCausalLM",
    {
        "num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 64, "attention_bias": True, "sliding_window": 9,
        "rope_scaling": _OWN_YARN,
    },
    {
        "expert_count": 4, "expert_used_count": 2, "attention.sliding_window": 9, "rope.scaling.type": "yarn",
        "rope.scaling.factor": 8.0, "rope.scaling.original_context_length": 16,
    },
)  # fmt: skip
MOST = {"int8": 0.06, "Q8_0": 0.06, "int4": 0.45, "Q4_0": 0.45}
"""Share of the logits' deviation that is off, at most twice what it is for Llama at this size: rows of few random numbers, real
models are closer."""


async def logits(path: Path, quantization: str | None = None) -> np.ndarray:
    executor = await start(path, optimization=OptimizationConfig(num_threads=1, quantization=quantization))
    output = await executor.prefill(PrefillInput(Tensor.of([IDS], "int32"), logits=LogitsMode.ALL))
    await executor.shutdown()
    return np.asarray(output.logits.numpy()[0])


@pytest.mark.long(every=3)
@pytest.mark.parametrize("form", MOST)
@pytest.mark.parametrize("arch", MODELS)
async def test_logits_are_near_those_of_wide_weights(arch: str, form: str, tmp_path: Path) -> None:
    name, fields, metadata = MODELS[arch]
    fields = {**_BASE, "architectures": [name], **fields}
    wide = write_checkpoint(tmp_path / "wide", fields)
    expected = await logits(wide)
    if form.startswith("int"):
        found = await logits(wide, form)
    else:
        tensors = converted_checkpoint(wide, arch)
        exact = ("router", "gate_inp", "_exps.bias")  # as files have them
        file = write_gguf(
            tmp_path / "m.gguf", arch, {**sizes(fields), **metadata}, tensors,
            lambda tensor: "F32" if any(one in tensor for one in exact) else form,
        )  # fmt: skip
        found = await logits(prepared(tmp_path / "gguf", file))

    off = np.linalg.norm(found - expected) / np.linalg.norm(expected - expected.mean(-1, keepdims=True))
    assert 1e-4 < off < MOST[form], off
