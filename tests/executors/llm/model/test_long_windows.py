"""Models beside transformers at real lengths: windows of 4,096 tokens left behind, and queries that have grown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from executors.contract import DecodeInput, KvGroup, LogitsMode, PrefillInput, Tensor
from executors.contract.batch import KvCacheHandle
from tests.executors.llm import models
from tests.executors.llm.driver import logprobs_in_steps, start

pytestmark = [pytest.mark.long, pytest.mark.timeout(180)]

LENGTH, CHUNK, BLOCK = 4300, 512, 16
FAR = 1e-3
"""transformers' angles are float32 products, off by 2e-4 at 4,300. With float64 angles there gpt-oss' logits differ by 1.1e-5."""
_DELTA: dict[str, Any] = {
    "head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 8, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention"],
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000000.0, "partial_rotary_factor": 0.25},
}  # fmt: skip
_SMALL: dict[str, Any] = {
    "vocab_size": 131, "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 2, "num_key_value_heads": 1,
    "intermediate_size": 40, "max_position_embeddings": 8192, "tie_word_embeddings": False, "pad_token_id": 0,
}  # fmt: skip
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "olmo3": (
        "Olmo3",
        {
            **_SMALL, "sliding_window": 4096,
            "rope_parameters": {
                "full_attention": {
                    "rope_type": "yarn", "rope_theta": 500000.0, "factor": 8.0, "original_max_position_embeddings": 1024,
                },
                "sliding_attention": {"rope_type": "default", "rope_theta": 500000.0},
            },
        },
    ),
    "exaone4": ("Exaone4", {**_SMALL, "sliding_window": 4096}),
    "gemma4": (
        "Gemma4",
        {
            **_SMALL, "head_dim": 16, "global_head_dim": 24, "tie_word_embeddings": True, "sliding_window": 512,
            "num_hidden_layers": 6, "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
            "num_kv_shared_layers": 3, "use_double_wide_mlp": True, "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": 131, "rope_parameters": models.GEMMA4["rope_parameters"],
        },
    ),
    "gemma4-unified": (
        "Gemma4Unified",
        {
            **_SMALL, "head_dim": 16, "global_head_dim": 24, "tie_word_embeddings": True, "sliding_window": 1024,
            "attention_k_eq_v": True, "num_global_key_value_heads": 1,
            "layer_types": ["sliding_attention", "full_attention"] * 2, "rope_parameters": models.GEMMA4["rope_parameters"],
        },
    ),
    "ministral3": (
        "Ministral3",
        {
            **_SMALL, "head_dim": 16, "rope_parameters": {**models.MINISTRAL_ROPE, "original_max_position_embeddings": 1024},
        },
    ),
    # Tokens at the end stand far beyond YaRN's bounds, and 128 before them in every other layer.
    "gpt-oss": (
        "GptOss",
        {
            **_SMALL, "head_dim": 16, "intermediate_size": 16, "num_local_experts": 4, "num_experts_per_tok": 2,
            "pad_token_id": None, "sliding_window": 128, "max_position_embeddings": 8192,
            "rope_parameters": {
                "rope_type": "yarn", "rope_theta": 150000.0, "factor": 8.0, "original_max_position_embeddings": 1024,
                "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
            },
        },
    ),
    "glm4": ("Glm4", {**_SMALL, "head_dim": 16}),
    "hunyuan": (
        "HunYuanDenseV1",
        {
            **_SMALL, "head_dim": 16,
            "rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "alpha": 50.0, "factor": 1.0},
        },
    ),
    "qwen2-moe": (
        "Qwen2Moe",
        {
            **_SMALL, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
            "shared_expert_intermediate_size": 24, "use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 3,
        },
    ),
}  # fmt: skip


WITH_STATES: dict[str, tuple[str, dict[str, Any]]] = {
    "lfm2": (
        "Lfm2", {**_SMALL, "block_multiple_of": 8, "layer_types": ["conv", "full_attention", "conv", "conv"]},
    ),
    "qwen3-next": (
        "Qwen3Next",
        {
            **_SMALL, **_DELTA, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
            "shared_expert_intermediate_size": 24,
        },
    ),
    "qwen3.5": ("Qwen3_5Text", {**_SMALL, **_DELTA}),
}  # fmt: skip
"""Heads forget half within 1 to 10,000 tokens, see `models.decays`."""


@pytest.mark.parametrize("name", WITH_STATES)
async def test_logits_of_a_long_prompt_in_steps_with_states(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In chunks, then token after token: a state that is stale by any number of tokens shows."""
    monkeypatch.setitem(models.SHAPES, name, WITH_STATES[name])
    ref = models.build(name, tmp_path / "model")
    ids = np.random.default_rng(3).integers(1, 131, LENGTH).tolist()
    expected = torch.from_numpy(ref.logits(ids)).log_softmax(-1).numpy()[:-1]
    executor = await start(ref.path, max_model_len=LENGTH + BLOCK, block_size=BLOCK)
    chunks = [CHUNK] * (LENGTH // CHUNK)
    [found] = await logprobs_in_steps(executor, [ids], [[*chunks, LENGTH - sum(chunks) - 4, 1, 1, 1, 1]])
    await executor.shutdown()
    assert np.abs(found - expected).max() < FAR
    assert (found.argmax(-1) == expected.argmax(-1)).mean() > 0.999


def _table(group: KvGroup) -> np.ndarray:
    """Blocks of a sequence, int32: in no order, or in a circle where a window leaves blocks behind."""
    places = np.arange(LENGTH // BLOCK + 2, dtype=np.int32)
    return np.random.default_rng(4).permutation(places) if group.window is None else places % group.num_blocks


@pytest.mark.long(every=3)
@pytest.mark.parametrize("name", SHAPES)
async def test_logits_of_a_long_prompt_and_of_tokens_behind_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(models.SHAPES, name, SHAPES[name])
    ref = models.build(name, tmp_path / "model")
    ids = np.random.default_rng(3).integers(1, 131, LENGTH).tolist()
    expected = ref.logits(ids)
    executor = await start(ref.path, max_model_len=LENGTH + BLOCK, block_size=BLOCK)
    tables = tuple(_table(group) for group in executor.kv_layout().groups)
    found = []
    for begin in range(0, LENGTH - 4, CHUNK):
        part = ids[begin : min(begin + CHUNK, LENGTH - 4)]
        kv = KvCacheHandle(1, tables, begin)
        given = PrefillInput(Tensor.of([part], "int32"), kv_cache=kv, pos_offset=begin, logits=LogitsMode.ALL)
        found.append((await executor.prefill(given)).logits.numpy()[0])
    for at in range(LENGTH - 4, LENGTH):
        kv = KvCacheHandle(1, tables, at)
        [output] = await executor.batch_decode([DecodeInput(Tensor.of([[ids[at]]], "int32"), kv, at)])
        found.append(output.last_token_logits()[None])
    await executor.shutdown()

    rows = np.concatenate(found)
    assert np.abs(rows - expected).max() < FAR
    assert (rows.argmax(-1) == expected.argmax(-1)).mean() > 0.999
