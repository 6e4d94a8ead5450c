"""Which attention a model gets, and that the status and the log say so."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from executors.contract.config import ExecutorAttentionConfig
from executors.kernels import compiler
from executors.kernels.compiler import library, usable_isas
from executors.kernels.cpu import cpu_kernels
from executors.llm.attention.plain_torch import TorchAttention
from executors.llm.kernel_support.kernel_choice import choose_attention
from tests.executors.kernels.steps import Sequences, spec
from tests.executors.llm.driver import Driver, start

BF16 = torch.bfloat16


def _best() -> list[str]:
    """The instruction set that is taken here; none without a compiler."""
    try:
        return [isa.name for isa in usable_isas()[:1] if compiler.find_compiler()]
    except compiler.KernelUnavailable:
        return []


with_kernel = pytest.mark.parametrize("best", _best())


@with_kernel
@pytest.mark.parametrize("dtype", [BF16, torch.float16, torch.float32])
def test_the_kernel_where_it_runs(best: str, dtype: torch.dtype) -> None:
    assert choose_attention(spec(4, 2, 64, dtype)).note == f"attention: cohort-cpu {best}"


def test_torch_where_the_kernel_has_no_code_or_is_not_wanted() -> None:
    for chosen in (
        choose_attention(spec(4, 2, 640, BF16)),
        choose_attention(spec(4, 2, 64, BF16), "torch"),
    ):
        assert chosen.note == "attention: torch (gathers KV before each call)"


@pytest.mark.parametrize("past", [130, 137, 2000])
def test_masks_begin_where_a_gpus_kernels_can_read_them(past: int) -> None:
    """A slice of the band begins at any address, and they read 16 bytes at a time. The same values on a CPU, without a copy."""
    on_cpu = TorchAttention()._causal_mask(9, past, past + 9, spec(4, 2, 64, BF16))
    elsewhere = replace(spec(4, 2, 64, BF16), device=torch.device("meta"))
    mask = TorchAttention()._causal_mask(9, past, past + 9, elsewhere)
    assert mask.storage_offset() == 0 and mask.is_contiguous() and mask.shape == on_cpu.shape
    query, key = torch.arange(9)[:, None], torch.arange(past + 9)
    assert torch.equal(on_cpu[0, 0] == 0, key <= past + query)
    assert on_cpu.storage_offset() > 0


async def test_without_a_compiler_it_is_torch_and_said(
    qwen3: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    library.cache_clear()
    cpu_kernels.cache_clear()
    with caplog.at_level(logging.WARNING):
        executor = await start(qwen3)
    note = next(note for note in executor.status().notes if note.startswith("attention: "))
    assert note.startswith("attention: torch (gathers KV before each call); no ")
    reason = note.partition("; ")[2]
    assert reason in caplog.text
    if usable_isas():
        assert reason == "no C++ compiler found (install g++)"
        assert any(
            note.startswith("linear layers: torch") and reason in note for note in executor.status().notes
        )


@with_kernel
async def test_the_settings_can_ask_for_torch(best: str, qwen3: Path) -> None:
    prompt, tokens, notes = [3, 1, 4, 1, 5, 9, 2, 6] * 9, [], []
    for backend in ("auto", "torch"):
        executor = await start(qwen3, attention=ExecutorAttentionConfig(backend=backend, block_size=4))
        driver = Driver(executor)
        tokens.append(await driver.generate([driver.add(prompt), driver.add(prompt[:5])], 12, chunk=7))
        notes.append(executor.status().notes[0])
    assert notes[0] == f"attention: cohort-cpu {best}" and notes[1].startswith("attention: torch ")
    assert tokens[0] == tokens[1]


@with_kernel
@pytest.mark.parametrize("dtype", [BF16, torch.float32])
@pytest.mark.parametrize(("window", "softcap"), [(None, None), (40, None), (None, 4.0)])
def test_both_agree(best: str, dtype: torch.dtype, window: int | None, softcap: float | None) -> None:
    shape = spec(6, 2, 20, dtype, windows=(window,), softcap=softcap)
    seqs = Sequences(shape, [300, 1, 200, 77])
    items = [(0, 299, 1), (1, 0, 1), (2, 50, 150), (3, 0, 77)]
    cache = seqs.cache([299, 0, 50, 0])
    cache.layers[0].nan_to_num_(0.0)  # torch's reads padding, with weight 0
    ours = seqs.run(items, choose_attention(shape), cache)
    theirs = seqs.run(items, TorchAttention(), cache)
    tolerance = 2**-6 if dtype is BF16 else 1e-5
    assert torch.allclose(ours.float(), theirs.float(), atol=tolerance)


_TORCH_ONLY = """
import asyncio, sys
from executors.contract import DecodeInput, PrefillInput, SamplingParams, Tensor
from executors.contract.config import ExecutorAttentionConfig, ExecutorConfig
from executors.llm.executor import LlmExecutor

async def main():
    config = ExecutorConfig("llm", model=sys.argv[1], dtype="bfloat16", max_num_seqs=4,
                            attention=ExecutorAttentionConfig(backend="torch"))
    executor = LlmExecutor.from_config(config)
    await executor.warmup()
    output = await executor.prefill(PrefillInput(Tensor.of([[3, 1, 4, 1, 5]], "int32"), sampling=SamplingParams(0.0)))
    print(output.sampled.token_id, *executor.status().notes, sep="|")

asyncio.run(main())
"""


@pytest.mark.long(every=2)
@pytest.mark.parametrize("limit", ["AVX2", "ALL"])
def test_torch_alone_with_less_of_onednn(limit: str, qwen3: Path) -> None:
    """A oneDNN that may not use AVX512 has no bf16 products: they are not packed for it, and the notes tell."""
    done = subprocess.run(
        [sys.executable, "-c", _TORCH_ONLY, str(qwen3)], capture_output=True, text=True, timeout=55, check=False,
        env={**os.environ, "ONEDNN_MAX_CPU_ISA": limit},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    token, *notes = done.stdout.strip().split("|")
    linears = next(note for note in notes if note.startswith("linear layers: torch"))
    assert int(token) >= 0 and "slower than Cohort's CPU kernels" in linears
    if limit == "AVX2":
        assert "packed for oneDNN" not in linears
