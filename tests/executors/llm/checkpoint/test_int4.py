"""`--quantization int4` for wide checkpoints and for others."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from executors.contract import ConfigError
from executors.contract.config import (
    ExecutorAttentionConfig,
    ExecutorConfig,
    ExecutorMemoryConfig,
    OptimizationConfig,
)
from executors.llm.checkpoint.loader import load_model
from executors.llm.model.decoder import Decoder
from executors.llm.tools.describe import describe
from tests.executors.checkpoints import LLAMA, QWEN3, write_checkpoint
from tests.executors.llm.checkpoint.quantized_checkpoints import FORMS, SIZES, write_quantized
from tests.executors.llm.checkpoint.test_fp8_weights import distance, logits
from tests.executors.llm.driver import config

INT4 = OptimizationConfig(num_threads=1, quantization="int4")


def settings(path: Path) -> ExecutorConfig:
    return config(path, optimization=INT4, memory=ExecutorMemoryConfig(kv_cache_memory_bytes=1 << 20))


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
async def test_a_wide_checkpoint(tied: bool, tmp_path: Path) -> None:
    """4 bits in the layers, 8 in the head: about a sixth of float32, and logits that are off by what 4 bits cost."""
    path = write_checkpoint(tmp_path / "wide", {**LLAMA, **SIZES, "tie_word_embeddings": tied})
    expected, _ = await logits(path)
    found, executor = await logits(path, optimization=INT4)
    assert 0.02 < distance(found, expected) < 0.3
    assert executor.info().quantization == "int4"
    assert any(", int4; layers: in one call" in note for note in executor.status().notes)

    loaded = load_model(settings(path), lambda *_: None)
    assert isinstance(loaded.model, Decoder)
    kinds = [linear.packed.struct.kind for linear in loaded.model.linears() if linear.packed is not None]
    assert kinds == [17] * 8 + [2]
    elements = sum(linear.weight.numel() for linear in loaded.model.linears() if linear.weight is not None)
    held = sum(linear.num_bytes for linear in loaded.model.linears())
    assert held < elements * 4 / 5.5
    assert loaded.parameter_bytes == describe(settings(path))["loaded_bytes"]
    assert describe(settings(path))["quantization"] == "int4"


async def test_layers_of_no_whole_blocks_are_int8(tmp_path: Path) -> None:
    """Their columns are no multiple of 32; torch computes around such a mixture."""
    path = write_checkpoint(tmp_path / "wide", {**QWEN3, **SIZES, "intermediate_size": 200})
    expected, _ = await logits(path)
    found, executor = await logits(path, optimization=INT4)
    assert 0.02 < distance(found, expected) < 0.3
    assert any("some are in 4 bits" in note for note in executor.status().notes)


@pytest.mark.parametrize("form", ["gptq-zeros-32", "int8-rows"])
async def test_a_checkpoint_in_whole_numbers(form: str, tmp_path: Path) -> None:
    """Groups of 32 with 16 codes are what int4 finds again, up to the float16 of its minimum; 8 bits are rounded."""
    quantized, wide = write_quantized(tmp_path, FORMS[form])
    expected, _ = await logits(wide)
    found, executor = await logits(quantized, optimization=INT4)
    assert executor.info().quantization == "int4"
    limits = (1e-3, 0.06) if form == "gptq-zeros-32" else (0.03, 0.3)
    assert limits[0] < distance(found, expected) < limits[1]


async def test_the_same_bits_in_other_chunks(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "wide", {**QWEN3, **SIZES})
    steady = OptimizationConfig(num_threads=1, quantization="int4", deterministic=True)
    first, *others = [
        (await logits(path, chunks=chunks, optimization=steady))[0]
        for chunks in ((20,), (9, 1, 10), (1,) * 20)
    ]
    for other in others:
        assert torch.equal(first, other)


async def test_without_kernels_it_is_refused(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "wide", {**QWEN3, **SIZES})
    with pytest.raises(ConfigError, match=r"^quantization int4: needs Cohort's own kernels"):
        load_model(
            config(path, optimization=INT4, attention=ExecutorAttentionConfig(backend="torch")),
            lambda *_: None,
        )
