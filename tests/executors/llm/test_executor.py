"""Facts, life, KV sizing, and models without a unified forward."""

import gc
import subprocess
import sys
import weakref

import numpy as np
import pytest
import torch

from executors.contract import (
    AttentionType,
    ConfigError,
    DecodeInput,
    ExecutorState,
    InvalidInput,
    LogitsMode,
    NotReady,
    PrefillInput,
    Tensor,
    Unavailable,
    Unsupported,
    replace,
)
from executors.contract.batch import KvCacheHandle, SamplingParams
from executors.contract.config import ExecutorMemoryConfig
from executors.llm.checkpoint.loader import load_model
from executors.llm.device.table import find_device
from executors.llm.executor import LlmExecutor
from executors.llm.model.api import DecoderOnlyLLM, UnifiedModel
from executors.llm.model.linear import padded_rows
from tests.executors.llm.driver import Driver, config, start

IDS = Tensor.of([[1, 2, 3]], "int32")


async def test_facts(qwen3):
    executor = await start(qwen3)
    info, capabilities, layout = executor.info(), executor.capabilities(), executor.kv_layout()
    assert (info.num_heads, info.num_kv_heads, info.head_dim, info.logits_width) == (6, 2, 20, 211)
    assert capabilities.paged and AttentionType.GROUPED_QUERY in capabilities.attention_types
    assert capabilities.max_batch_size == executor.optimal_batch_size() == 16
    assert executor.supports_batch_size(16) and not executor.supports_batch_size(17)
    # 3 layers, keys and values, 2 heads of 20, 4 bytes, 4 tokens: 3,840 bytes, rounded up to a page.
    assert layout.groups[0].bytes_per_block == 4096
    assert capabilities.memory.kv_memory_per_token_per_layer == 2 * 2 * 20 * 4
    assert capabilities.memory.calculate_total_memory(2, 10, 3) > capabilities.memory.parameter_memory > 0
    # 16 MiB would hold more, but 16 sequences of 512 tokens can use no more than this.
    assert layout.num_blocks == 16 * 512 // 4
    assert executor.lora_metrics_snapshot() is None and executor.kv_capacity() is None
    assert executor.cache_metrics_snapshot()["blocks_total"] == layout.num_blocks
    assert executor.supports_native_unified_decode()
    assert any(note.startswith("attention: ") for note in executor.status().notes)


async def test_status_and_metrics_count(qwen3):
    executor = await start(qwen3)
    driver = Driver(executor)
    await driver.generate([driver.add([1, 2, 3]), driver.add([4, 5])], 4)
    status, metrics = executor.status(), executor.metrics()
    assert status.state is ExecutorState.READY and status.is_ready
    assert (status.prefill_count, status.decode_count, status.current_batch_size) == (2, 6, 0)
    assert status.mean_decode_ms > 0 and status.last_operation == "unified_decode"
    assert status.memory.total_bytes >= status.memory.peak_bytes > 0
    assert (metrics.total_steps, metrics.total_prefill_tokens, metrics.total_decode_tokens) == (4, 5, 6)
    assert metrics.total_sampled_tokens == 8 and metrics.p95_step_ms > 0
    assert metrics.batch_utilization == 2 / 16 and 0 < metrics.memory_efficiency < 0.01


async def test_life(qwen3):
    executor = LlmExecutor.from_config(config(qwen3))
    assert executor.status().state is ExecutorState.INITIALIZING and not executor.status().is_ready
    assert executor.cache_metrics_snapshot() is None and executor.metrics().total_steps == 0
    for call in (executor.info, executor.capabilities, executor.kv_layout):
        with pytest.raises(NotReady):
            call()
    executor.release_cache(1)
    await executor.warmup()
    await executor.prefill(PrefillInput(IDS))
    await executor.shutdown()
    await executor.shutdown()
    assert executor.status().state is ExecutorState.SHUTDOWN
    with pytest.raises(NotReady):
        await executor.prefill(PrefillInput(IDS))
    with pytest.raises(NotReady):
        await executor.warmup()


async def test_kv_is_free_as_soon_as_the_executor_is_shut_down(qwen3):
    """Nothing refers to it in a circle, which would keep it until the next collection."""
    executor = await start(qwen3)
    driver = Driver(executor)
    await driver.generate([driver.add([5, 9])], 2)
    await executor.prefill(PrefillInput(IDS))
    cache = weakref.ref(executor._runtime.runner.cache)
    gc.disable()
    try:
        await executor.shutdown()
        assert cache() is None
    finally:
        gc.enable()


async def test_a_failed_warmup_is_an_error_state(qwen3, tmp_path):
    executor = LlmExecutor.from_config(config(tmp_path))
    with pytest.raises(ConfigError):
        await executor.warmup()
    assert executor.status().state is ExecutorState.ERROR


@pytest.mark.parametrize(("knows_cuda", "fault"), [(False, ConfigError), (True, Unavailable)])
def test_a_gpu_that_is_not_there_may_come_where_torch_knows_gpus(knows_cuda, fault, monkeypatch):
    """In a machine's first seconds its driver is not loaded."""
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: knows_cuda)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for name in ("cuda", "cuda:1"):
        with pytest.raises(ConfigError, match="no CUDA device is available") as caught:
            find_device(name)
        assert type(caught.value) is fault


async def test_kv_that_is_too_small_is_refused_with_the_numbers(qwen3):
    with pytest.raises(
        ConfigError, match=r"max_model_len 512: one sequence needs 524,288 bytes .* 100,000 bytes"
    ):
        await start(qwen3, kv_bytes=100_000)
    executor = await start(qwen3, kv_bytes=100_000, max_model_len=64)
    assert executor.kv_layout().num_blocks == 100_000 // 4096 and executor.info().max_model_len == 64


async def test_kv_is_sized_from_what_the_box_allows(qwen3, monkeypatch):
    from executors import cgroup
    from executors.llm.memory import kv_plan

    plain = replace(config(qwen3), memory=ExecutorMemoryConfig())
    executor = LlmExecutor.from_config(plain)
    await executor.warmup()
    assert executor.kv_layout().num_blocks == 16 * 512 // 4
    # So little that not even one sequence fits: the length is reduced, and status says so.
    monkeypatch.setattr(kv_plan, "memory_limit", lambda: cgroup.MemoryLimit(1 << 40, 1_600_000))
    executor = LlmExecutor.from_config(plain)
    await executor.warmup()
    reduced = executor.info().max_model_len
    assert 0 < reduced < 512 and executor.kv_layout().capacity_tokens == reduced
    assert executor.capabilities().max_sequence_length == reduced
    assert any("max_model_len reduced from 512" in note for note in executor.status().notes)
    # Not when the length was asked for.
    with pytest.raises(ConfigError, match="free memory"):
        await LlmExecutor.from_config(replace(plain, max_model_len=512)).warmup()
    # A default length may shrink as the model's own does.
    executor = LlmExecutor.from_config(replace(plain, max_model_len=500, shrink_length=True))
    await executor.warmup()
    assert executor.info().max_model_len == reduced


class WithoutUnifiedForward:
    """A model that offers only prefill and batch_decode, and counts."""

    def __init__(self, inner):
        self.inner, self.calls = inner, []

    @property
    def cache_specs(self):
        return self.inner.cache_specs

    def prefill(self, inputs):
        self.calls.append(("prefill", len(inputs.token_ids)))
        return self.inner.prefill(inputs)

    def batch_decode(self, inputs):
        self.calls.append(("batch_decode", len(inputs.token_ids)))
        return self.inner.batch_decode(inputs)

    def logits(self, hidden):
        return self.inner.logits(hidden)


async def test_a_model_without_unified_forward_falls_back(qwen3):
    settings = config(qwen3)
    loaded = load_model(settings, lambda *report: None)
    stub = WithoutUnifiedForward(loaded.model)
    assert isinstance(stub, DecoderOnlyLLM) and not isinstance(stub, UnifiedModel)
    results = []
    for model in (loaded.model, stub):
        executor = LlmExecutor(model, loaded.info, settings)
        await executor.warmup()
        await executor.begin_epoch(1)
        stub.calls.clear()
        driver = Driver(executor)
        sampling = SamplingParams(seed=3)
        seqs = [driver.add(list(range(n)), sampling) for n in (5, 1, 9, 1)]
        results.append(await driver.generate(seqs, 5, chunk=4))
    assert results[0] == results[1]
    assert stub.calls[:3] == [("prefill", 4), ("prefill", 4), ("batch_decode", 2)]
    with pytest.raises(InvalidInput):
        LlmExecutor(None, None)


async def test_direct_calls_are_checked(qwen3):
    executor = await start(qwen3)
    handle = KvCacheHandle(1, (np.arange(2, dtype=np.int32),))
    refused = [
        PrefillInput(Tensor.of([[211]], "int32")),
        PrefillInput(Tensor.of([[1], [2]], "int32")),
        PrefillInput(IDS, pos_offset=3),
        PrefillInput(IDS, kv_cache=handle, pos_offset=510),
        PrefillInput(IDS, kv_cache=handle, pos_offset=6),
        PrefillInput(IDS, kv_cache=KvCacheHandle(1)),
        PrefillInput(IDS, kv_cache=KvCacheHandle(1, (np.array([70_000], np.int32),))),
        PrefillInput(IDS, attention_mask=Tensor.of([[1, 1]], "int32")),
        PrefillInput(IDS, position_ids=Tensor.of([[0, 1, 512]], "int32")),
    ]
    for request in refused:
        with pytest.raises(InvalidInput):
            await executor.prefill(request)
    for request in (
        PrefillInput(IDS, attention_mask=Tensor.of([[0, 1, 1]], "int32")),
        PrefillInput(IDS, want_attention_weights=True),
        PrefillInput(IDS, adapter="a"),
    ):
        with pytest.raises(Unsupported):
            await executor.prefill(request)
    with pytest.raises(InvalidInput):
        await executor.decode(DecodeInput(IDS, handle, 0))
    with pytest.raises(Unsupported):
        await executor.forward(IDS)
    assert await executor.batch_prefill([]) == [] and await executor.batch_decode([]) == []


async def test_direct_calls_give_what_was_asked(qwen3):
    executor = await start(qwen3)
    handle = KvCacheHandle(1, (np.arange(4, dtype=np.int32),))
    sampling = SamplingParams(seed=4, logprobs=2)
    out = await executor.prefill(
        PrefillInput(IDS, kv_cache=handle, logits=LogitsMode.NONE, sampling=sampling)
    )
    assert out.logits is None and out.sampled.logprob is not None and len(out.sampled.top_logprobs) == 2
    assert out.kv_cache.num_tokens == 3
    with pytest.raises(InvalidInput):
        out.last_token_logits()
    step = DecodeInput(Tensor.of([[9]], "int32"), out.kv_cache, 3, logits=LogitsMode.NONE, sampling=sampling)
    decoded = await executor.decode(step)
    assert decoded.logits is None and decoded.sampled is not None and decoded.kv_cache.num_tokens == 4
    mask, positions = Tensor.of([[1, 1, 1]], "int32"), Tensor.of([[0, 1, 2]], "int32")
    plain = await executor.prefill(PrefillInput(IDS))
    said = await executor.prefill(PrefillInput(IDS, attention_mask=mask, position_ids=positions))
    assert np.array_equal(plain.last_token_logits(), said.last_token_logits())
    moved = await executor.prefill(PrefillInput(IDS, position_ids=Tensor.of([[0, 5, 9]], "int32")))
    assert not np.allclose(plain.last_token_logits(), moved.last_token_logits())


async def test_kv_memory_is_taken_when_it_is_written(qwen3):
    from executors.cgroup import resident_bytes

    settings = replace(config(qwen3, kv_bytes=4 << 30), max_num_seqs=4000)
    before = resident_bytes()
    executor = LlmExecutor.from_config(settings)
    await executor.warmup()
    assert executor._runtime.runner.cache.num_bytes > 1 << 30
    assert resident_bytes() - before < 200 << 20


def test_the_executor_imports_nothing_heavy():
    code = (
        "import sys, executors.llm.executor; "
        "print([m for m in ('transformers', 'torch._dynamo', 'torch._inductor', 'safetensors', 'scipy') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=50
    )
    assert done.stdout.strip() == "[]"


def test_the_factory_needs_no_torch():
    code = "import sys, executors.llm.factory; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=50
    )
    assert done.stdout.strip() == "False"


def test_few_sizes_of_steps_are_computed():
    sizes = {padded_rows(rows) for rows in range(1, 2049)}
    assert len(sizes) < 70
    assert all(rows <= padded_rows(rows) <= max(rows, 4 * rows / 3) for rows in range(1, 2049))
    assert all(padded_rows(size) == size for size in sizes)


def test_packed_linears_equal_plain_ones(qwen3):
    settings = config(qwen3, dtype="bfloat16")
    packed = load_model(settings, lambda *report: None).model.layers[0].feed_forward
    from executors.llm.checkpoint.weights import load_weights
    from executors.llm.model.config import read_config
    from executors.llm.model.decoder import Decoder

    decoder = Decoder(read_config(qwen3), torch.bfloat16, torch.device("cpu"))
    load_weights(decoder, qwen3, lambda *report: None)
    for rows in (1, 2, 7, 9, 33, 64):
        x = torch.randn(rows, 48).bfloat16()
        assert torch.allclose(
            packed(x).float(), decoder.layers[0].feed_forward(x).float(), rtol=0.03, atol=0.03
        )


async def test_bf16_decode_in_a_batch_equals_alone(qwen3):
    executor = await start(qwen3, dtype="bfloat16")
    assert executor._runtime.runner.cache.spec.bytes_per_token() == 3 * 2 * 2 * 20 * 2
    driver = Driver(executor)
    seqs = [driver.add(list(range(n)), SamplingParams(temperature=0.0)) for n in (3, 40, 17)]
    tokens = await driver.generate(seqs, 6)
    assert all(len(t) == 6 for t in tokens) and torch.isfinite(executor._runtime.runner.cache.layers[0]).all()
