"""`LlmExecutor` over the Triton kernels gives what it gives over torch: families, chunks, mixed batches, decode steps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from executors.contract.batch import SamplingParams
from executors.contract.config import ExecutorAttentionConfig, OptimizationConfig
from executors.llm.attention.by_heads import AttentionByHeads
from executors.llm.executor import LlmExecutor
from executors.llm.fused.triton_experts import TritonExperts
from executors.llm.fused.triton_forward import TritonForward
from executors.llm.model.decoder import Decoder
from executors.llm.model.layers.mlp import Mlp
from tests.executors.checkpoints import LLAMA, QWEN3, write_checkpoint
from tests.executors.llm.checkpoint.gpt_oss_files import PACKED, in_mxfp4
from tests.executors.llm.driver import Driver, config
from tests.tiers import sweep

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore:overflow encountered in exp")]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SMALL: dict[str, Any] = {
    **QWEN3,
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "intermediate_size": 40,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3": SMALL,
    "qwen3, window": {**SMALL, "use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1},
    "llama, untied": {
        **LLAMA, "num_hidden_layers": 2, "tie_word_embeddings": False, "num_attention_heads": 3, "num_key_value_heads": 1,
    },
    "gemma2": {
        **SMALL, "architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "sliding_window": 6,
        "query_pre_attn_scalar": 20, "attn_logit_softcapping": 20.0, "final_logit_softcapping": 15.0,
        "hidden_activation": "gelu_pytorch_tanh",
    },
    "granite": {
        **SMALL, "architectures": ["GraniteForCausalLM"], "model_type": "granite", "embedding_multiplier": 6.0,
        "attention_multiplier": 0.2, "residual_multiplier": 0.3, "logits_scaling": 3.0,
    },
    "moe, one layer dense": {
        **SMALL, "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_experts": 8,
        "num_experts_per_tok": 3, "moe_intermediate_size": 24, "norm_topk_prob": False, "decoder_sparse_step": 1,
        "mlp_only_layers": [1],
    },
    "expert of every token": {
        **SMALL, "architectures": ["Qwen2MoeForCausalLM"], "model_type": "qwen2_moe", "num_experts": 8,
        "num_experts_per_tok": 3, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 28,
    },
    "queries that grow": {
        **SMALL, "architectures": ["Ministral3ForCausalLM"], "model_type": "ministral3",
        "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 1000.0, "factor": 8.0, "original_max_position_embeddings": 8,
            "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.4,
        },
    },
    "no norms before, windows": {
        **SMALL, "architectures": ["Exaone4ForCausalLM"], "model_type": "exaone4", "sliding_window": 6,
        "sliding_window_pattern": 2,
    },
    "norms over all heads": {
        **SMALL, "architectures": ["Olmo3ForCausalLM"], "model_type": "olmo3", "sliding_window": 6,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "norms over all heads, experts": {
        **SMALL, "architectures": ["OlmoeForCausalLM"], "model_type": "olmoe", "num_experts": 8, "num_experts_per_tok": 3,
        "intermediate_size": 24, "norm_topk_prob": False,
    },
    "neighbours rotated": {**SMALL, "architectures": ["Glm4ForCausalLM"], "model_type": "glm4", "attention_bias": True},
    "gpt-oss": {
        **SMALL, "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "num_local_experts": 8,
        "num_experts_per_tok": 3, "intermediate_size": 24, "sliding_window": 6, "attention_bias": True, "swiglu_limit": 1.5,
        "tie_word_embeddings": False, "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 1000.0, "factor": 8.0, "original_max_position_embeddings": 16,
            "truncate": False,
        },
    },
    "norms last": {
        **SMALL, "architectures": ["HunYuanDenseV1ForCausalLM"], "model_type": "hunyuan_v1_dense",
        "rope_scaling": {"type": "dynamic", "alpha": 9.0},
    },
}  # fmt: skip
GEMMA4: dict[str, Any] = {
    **SMALL, "architectures": ["Gemma4ForCausalLM"], "model_type": "gemma4_text", "num_hidden_layers": 5, "head_dim": 16,
    "global_head_dim": 32, "sliding_window": 19, "num_kv_shared_layers": 2, "use_double_wide_mlp": True,
    "layer_types": [f"{'full' if i in (2, 4) else 'sliding'}_attention" for i in range(5)],
    "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 211, "hidden_activation": "gelu_pytorch_tanh",
}  # fmt: skip
PROMPTS = [[5, 9, 100, 3, 17], [1], list(range(20, 50))]
"""Of steps with these some have more than 16 tokens, and some have not."""
ASKED = SamplingParams(temperature=0.0, logprobs=3)


async def heard(
    path: Path, backend: str, device: str, block_size: int = 16, dtype: str = "auto", eager: bool = False
) -> tuple[list[tuple[int, float]], LlmExecutor]:
    """(token, logprob) of everything sampled: a prompt at once, another beside it in chunks, decode steps of all."""
    how = OptimizationConfig(num_threads=1, enforce_eager=eager)
    settings = config(path, device=device, dtype=dtype, optimization=how)
    executor = LlmExecutor.from_config(
        replace(settings, attention=ExecutorAttentionConfig(block_size, backend))
    )
    await executor.warmup()
    await executor.begin_epoch(1)
    driver, found = Driver(executor), []
    first, second, third = (driver.add(prompt, ASKED) for prompt in PROMPTS)
    for items in (
        [(first, first.tokens, True, 0)],
        [(first, None, True, 0), (third, third.tokens[:9], False, 0), (second, second.tokens, True, 0)],
        [(third, third.tokens[9:], True, 0), (second, None, True, 0), (first, None, True, 0)],
        [(first, None, True, 0), (second, None, True, 0), (third, None, True, 0)],
    ):
        output = await driver.step(
            [(s, s.tokens[s.computed :] if q is None else q, f, d) for s, q, f, d in items]
        )
        sampled = [output[item] for item in range(len(items))]
        found += [(one.token_id, one.logprob) for item in sampled if item is not None for one in item.tokens]
    return found, executor


@pytest.mark.long(full=True)
@pytest.mark.timeout(300)
async def test_experts_in_mxfp4(tmp_path: Path) -> None:
    """Kept as the file has them, and computed by the kernels: what torch gives of the widened ones."""
    fields = {
        **PACKED, "num_hidden_layers": 2, "intermediate_size": 32, "num_local_experts": 4, "num_experts_per_tok": 2,
        "vocab_size": 131,
    }  # fmt: skip
    packed, _ = in_mxfp4(tmp_path, fields)
    expected, _ = await heard(packed, "torch", "cpu")
    found, executor = await heard(packed, "triton", DEVICE)
    fused = executor._ready().runner.model._fused
    assert isinstance(fused, TritonForward)
    assert all(isinstance(mlp, TritonExperts) for mlp in fused._mlps)
    assert executor.info().quantization == "MXFP4"
    assert [token for token, _ in found] == [token for token, _ in expected]
    assert [value for _, value in found] == pytest.approx([value for _, value in expected], abs=1e-4)


@pytest.mark.long(every=6)
@sweep(every=3)
@pytest.mark.parametrize("family", FAMILIES)
async def test_triton_gives_what_torch_gives(family: str, tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "model", FAMILIES[family])
    expected, _ = await heard(path, "torch", "cpu")
    found, executor = await heard(path, "triton", DEVICE)
    runner = executor._ready().runner
    assert runner.attention.name == "cohort-triton"
    assert isinstance(runner.model._fused, TritonForward)
    if "moe" in family:
        assert [type(mlp) for mlp in runner.model._fused._mlps] == [TritonExperts, Mlp]
    assert [token for token, _ in found] == [token for token, _ in expected]
    assert [value for _, value in found] == pytest.approx([value for _, value in expected], abs=1e-4)


@pytest.mark.long(extended=True)
async def test_each_size_of_heads_has_its_kernels_under_torchs_layers(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "model", GEMMA4)
    expected, _ = await heard(path, "torch", "cpu")
    found, executor = await heard(path, "triton", DEVICE)
    runner = executor._ready().runner
    assert isinstance(runner.attention, AttentionByHeads) and runner.attention.name == "cohort-triton"
    assert isinstance(runner.model, Decoder) and not runner.model.fused
    assert [token for token, _ in found] == [token for token, _ in expected]
    assert [value for _, value in found] == pytest.approx([value for _, value in expected], abs=1e-4)
