"""`kv_cache_dtype` int8 from the outside: what is refused, what the box shows, and a GGUF file beside the same with wide KV."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from executors.contract import (
    ConfigError,
    ExecutorAttentionConfig,
    ExecutorMemoryConfig,
    PrefillInput,
    Tensor,
)
from executors.llm.checkpoint import loader
from executors.llm.executor import LlmExecutor
from executors.llm.model.caches import kv_group
from executors.llm.tools.describe import describe
from executors.tiny import weights_dir
from tests.executors.checkpoints import write_checkpoint
from tests.executors.gguf_files import prepared
from tests.executors.llm.driver import config
from tests.small_gguf import write_small_gguf

INT8 = ExecutorMemoryConfig(kv_cache_memory_bytes=4 << 20, kv_cache_dtype="int8")
LLAMA = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 96, "max_position_embeddings": 256, "tie_word_embeddings": True,
    "dtype": "float32", "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "vocab_size": 128,
}  # fmt: skip


async def start(path: Path, memory: ExecutorMemoryConfig = INT8, **changes: Any) -> LlmExecutor:
    executor = LlmExecutor.from_config(config(path, memory=memory, **{"block_size": 16, **changes}))
    await executor.warmup()
    return executor


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"attention": ExecutorAttentionConfig(block_size=8)}, "block_size is 8; a multiple of 16 is needed"),
        ({"attention": ExecutorAttentionConfig(8, "torch")}, "block_size is 8; a multiple of 16 is needed"),
        ({"attention": ExecutorAttentionConfig(16, "varlen")}, "attention backend varlen does not read it"),
    ],
)
async def test_what_is_refused(tmp_path: Path, changes: dict[str, Any], why: str) -> None:
    path = write_checkpoint(tmp_path / "model", LLAMA)
    asked = replace(config(path, memory=INT8, block_size=16), **changes)
    executor = LlmExecutor.from_config(asked)
    with pytest.raises(ConfigError, match=why) as caught:
        await executor.warmup()
    assert str(caught.value).startswith("kv_cache_dtype int8: ")
    with pytest.raises(ConfigError, match=why):
        describe(asked)


@pytest.mark.parametrize("backend", ["auto", "torch", "triton"])
def test_a_gpu_reads_it(backend: str) -> None:
    asked = replace(config(weights_dir(), memory=INT8), attention=ExecutorAttentionConfig(16, backend))
    assert loader.kv_dtype(asked, torch.device("cuda:0")) is torch.int8
    with pytest.raises(
        ConfigError, match="kv_cache_dtype int8: attention backend flash-attn does not read it"
    ):
        loader.kv_dtype(
            replace(asked, attention=ExecutorAttentionConfig(16, "flash-attn")), torch.device("cuda:0")
        )


async def test_heads_without_a_kernel_are_refused_before_the_weights_are_loaded(tmp_path: Path) -> None:
    wide = {**LLAMA, "head_dim": 640}
    path = write_checkpoint(tmp_path / "model", wide)
    (path / "model.safetensors").write_bytes(b"")
    with pytest.raises(ConfigError, match="no code for 4 heads of 640 over 2; take auto"):
        loader.refuse_unreadable_kv(replace(_spec(path), kv_dtype=torch.int8))


def _spec(path: Path) -> Any:
    from executors.llm.model.config import read_config
    from executors.llm.model.decoder import Decoder

    decoder = Decoder(read_config(path), torch.float32, torch.device("meta"))
    return replace(kv_group(decoder), device=torch.device("cpu"))


async def test_the_same_memory_holds_nearly_twice_the_tokens() -> None:
    plain = replace(INT8, kv_cache_dtype="auto")
    capacity, notes = {}, {}
    for memory in (plain, INT8):
        # Blocks that are whole pages either way.
        executor = await start(weights_dir(), memory, dtype="bfloat16", block_size=64)
        capacity[memory.kv_cache_dtype] = executor.kv_layout().capacity_tokens
        notes[memory.kv_cache_dtype] = " ".join(executor.status().notes)
        await executor.shutdown()
        shown = describe(config(weights_dir(), block_size=64, memory=memory, dtype="bfloat16"))
        assert shown["kv"]["bytes_per_token"] * capacity[memory.kv_cache_dtype] <= 4 << 20
    assert 1.7 < capacity["int8"] / capacity["auto"] < 2
    assert "KV in int8, a scale per head and token" in notes["int8"] and "int8" not in notes["auto"]


async def test_a_gguf_file(tmp_path: Path) -> None:
    path = prepared(tmp_path / "served", write_small_gguf(tmp_path / "m.gguf"))
    found = []
    for memory in (replace(INT8, kv_cache_dtype="auto"), INT8):
        executor = await start(path, memory, dtype="float32")
        ids = Tensor.of([list(range(3, 60))], "int32")
        found.append(np.asarray((await executor.prefill(PrefillInput(ids))).last_token_logits()))
        await executor.shutdown()
    wide, narrow = found
    assert not np.array_equal(wide, narrow)
    assert np.abs(wide - narrow).max() < 0.1 * np.abs(wide).max()
