"""LoRA adapters in the LLM executor: many in one batch, beside each one merged into its model, by the formula of LoRA."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from executors.contract import (
    ConfigError,
    DecodeInput,
    ExecutorAttentionConfig,
    InvalidInput,
    KvCacheHandle,
    LoraExecutor,
    OptimizationConfig,
    OutOfMemory,
    PrefillInput,
    Tensor,
)
from executors.llm.checkpoint.loader import load_model
from executors.llm.executor import LlmExecutor
from executors.llm.factory import LlmFactory
from executors.llm.lora import loaded
from executors.llm.lora.loaded import LoadedLora
from executors.llm.memory.sizing import claims
from executors.llm.model.decoder import Decoder
from executors.lora import LoraFile, pack, read_adapter
from tests.executors.checkpoints import write_checkpoint
from tests.executors.llm.attention.test_cpu_attention import ISAS
from tests.executors.llm.driver import config as small_config
from tests.executors.lora.peft_files import write_peft

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 96, "max_position_embeddings": 256, "tie_word_embeddings": True,
    "dtype": "float32", "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "vocab_size": 128,
}  # fmt: skip
LINEARS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj",
           "mlp.down_proj")  # fmt: skip
ASKEW = {
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 10,
    "hidden_size": 60,
    "intermediate_size": 43,
}
"""Sizes at which weights begin and end within the groups of columns that the kernels read."""
GEMMA4 = {
    "architectures": ["Gemma4ForCausalLM"], "model_type": "gemma4_text", "num_hidden_layers": 5, "sliding_window": 7,
    "layer_types": ["sliding_attention", "full_attention"] * 2 + ["full_attention"], "head_dim": 10, "global_head_dim": 24,
    "num_kv_shared_layers": 2, "use_double_wide_mlp": True, "attention_k_eq_v": True, "num_global_key_value_heads": 1,
    "hidden_size_per_layer_input": 20, "vocab_size_per_layer_input": 128, "rope_parameters": None, "vocab_size": 128,
}  # fmt: skip
RANKS = (1, 4, 8, 16, 3, 64, 2, 5)


def shapes(path: Path, chosen: tuple[str, ...] = LINEARS, layers: int = 2) -> dict[str, tuple[int, int]]:
    tensors = load_file(path / "model.safetensors")
    names = [f"model.layers.{layer}.{linear}" for layer in range(layers) for linear in chosen]
    present = [
        name for name in names if f"{name}.weight" in tensors
    ]  # layers that borrow KV have no keys and values
    return {name: tuple(tensors[f"{name}.weight"].shape) for name in present}  # type: ignore[misc]


def merged(path: Path, made: dict[str, tuple[torch.Tensor, torch.Tensor]], scale: float, to: Path) -> Path:
    """The model with an adapter in its weights."""
    to.mkdir()
    tensors = load_file(path / "model.safetensors")
    for module, (a, b) in made.items():
        tensors[f"{module}.weight"] += scale * (b.float() @ a.float())
    save_file(tensors, to / "model.safetensors", {"format": "pt"})
    (to / "config.json").write_text((path / "config.json").read_text())
    return to


async def start(path: Path, most: int = 0, **changes: Any) -> LlmExecutor:
    optimization = OptimizationConfig(num_threads=1, max_loras=most, **changes.pop("optimization", {}))
    executor = LlmFactory().create_executor(
        small_config(path, optimization=optimization, max_model_len=128, **{"dtype": "float32", **changes})
    )
    await executor.warmup()
    return executor


def prompt(number: int, length: int = 9) -> list[int]:
    return [(7 * number + 3 * i) % 120 for i in range(length)]


async def logits(executor: LlmExecutor, asked: list[tuple[list[int], str | None]]) -> list[np.ndarray]:
    """Of the last token of each prompt, in one forward."""
    inputs = [PrefillInput(Tensor.of([ids], "int32"), adapter=adapter) for ids, adapter in asked]
    return [np.asarray(one.last_token_logits()) for one in await executor.batch_prefill(inputs)]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "model", LLAMA)


async def with_adapters(
    tmp_path: Path,
    model: Path,
    ranks: tuple[int, ...] = RANKS,
    chosen: tuple[str, ...] = LINEARS,
    layers: int = 2,
    **changes: Any,
) -> tuple[LlmExecutor, list[dict[str, tuple[torch.Tensor, torch.Tensor]]]]:
    executor = await start(model, len(ranks), **changes)
    assert isinstance(executor, LoraExecutor)
    (tmp_path / "packed").mkdir(exist_ok=True)
    made = []
    for number, rank in enumerate(ranks):
        # Some leave a layer out, some a linear.
        targets = shapes(model, chosen if number % 3 else chosen[:-1], layers=layers if number % 2 else 1)
        made.append(write_peft(tmp_path / f"a{number}", targets, rank=rank, seed=number))
        packed = pack(tmp_path / f"a{number}", tmp_path / "packed", 256)
        await executor.load_adapter(f"a{number}", str(packed.path), packed.digest)
    return executor, made


@pytest.mark.long(every=5)
@pytest.mark.parametrize("backend", ["torch", *ISAS])
@pytest.mark.parametrize("fields", [{}, ASKEW, GEMMA4], ids=["even", "askew", "gemma4"])
async def test_many_in_one_batch_equal_each_merged_model(
    tmp_path: Path, fields: dict[str, Any], backend: str
) -> None:
    """On torch, and in one call of the kernels for each of this machine's instruction sets."""
    model = write_checkpoint(tmp_path / "model", {**LLAMA, **fields})
    kernels = backend != "torch"
    attention = {"attention": ExecutorAttentionConfig(block_size=4, backend="auto" if kernels else "torch")}
    executor, made = await with_adapters(
        tmp_path, model, layers=fields.get("num_hidden_layers", 2),
        optimization={"cpu_isa": backend} if kernels else {}, **attention,
    )  # fmt: skip
    note = " ".join(executor.status().notes)
    assert ("in one call" in note) == kernels
    asked = [(prompt(n, 3 + n), f"a{n}") for n in range(8)] + [(prompt(9), None), (prompt(2), "a5")]
    found = await logits(executor, asked)
    await executor.shutdown()
    for number, (ids, adapter) in enumerate(asked):
        path = model
        if adapter is not None:
            path = merged(model, made[int(adapter[1:])], 2.0, tmp_path / f"merged{number}")
        alone = await start(path)
        [expected] = await logits(alone, [(ids, None)])
        await alone.shutdown()
        assert np.abs(found[number] - expected).max() < 1e-4 * max(1.0, np.abs(expected).max()), adapter
    plain = await start(model)
    [base] = await logits(plain, [(prompt(2), None)])
    await plain.shutdown()
    assert np.abs(found[-1] - base).max() > 0.01, "the adapter changes something"


async def test_float16_is_close_to_float32(tmp_path: Path, model: Path) -> None:
    asked = [(prompt(n, 3 + n), f"a{n}") for n in range(len(RANKS))] + [(prompt(9), None)]
    found = []
    for dtype in ("float32", "float16"):
        executor, _ = await with_adapters(tmp_path, model, dtype=dtype)
        assert executor.info().dtype == dtype
        found.append(await logits(executor, asked))
        await executor.shutdown()
    for exact, rounded in zip(*found, strict=True):
        assert 0 < np.abs(rounded - exact).max() < 2**-7 * np.abs(exact).max()


async def test_rows_without_an_adapter_are_bit_for_bit_those_of_a_server_without(
    tmp_path: Path, model: Path
) -> None:
    executor, _ = await with_adapters(tmp_path, model, RANKS[:3])
    beside = await logits(executor, [(prompt(0), "a0"), (prompt(1), None), (prompt(2), "a2")])
    alone = await logits(executor, [(prompt(1), None)])
    await executor.shutdown()
    plain = await start(model)
    [expected] = await logits(plain, [(prompt(1), None)])
    await plain.shutdown()
    assert np.array_equal(beside[1], expected) and np.array_equal(alone[0], expected)


async def test_a_row_does_not_depend_on_its_batch(tmp_path: Path, model: Path) -> None:
    executor, _ = await with_adapters(tmp_path, model, RANKS[:4], optimization={"deterministic": True})
    asked = [(prompt(n, 5 + 3 * n), f"a{n % 4}") for n in range(6)] + [(prompt(7), None)]
    together = await logits(executor, asked)
    for one, expected in zip(asked, together, strict=True):
        assert np.array_equal((await logits(executor, [one]))[0], expected)
    # A prompt in chunks and by single tokens is the whole.
    ids = prompt(3, 12)
    [whole] = await logits(executor, [(ids, "a2")])
    handle = KvCacheHandle(5, (np.arange(4, dtype=np.int32),))
    first = PrefillInput(Tensor.of([ids[:7]], "int32"), kv_cache=handle, adapter="a2")
    await executor.prefill(first)
    for at in range(7, 12):
        output = await executor.decode(DecodeInput(Tensor.of([[ids[at]]], "int32"), handle, at, adapter="a2"))
    assert output.logits is not None
    assert np.array_equal(np.asarray(output.logits.numpy()).reshape(-1), whole)
    await executor.shutdown()


@pytest.mark.parametrize("quantization", ["int8", "int4"])
async def test_over_a_quantized_model(tmp_path: Path, model: Path, quantization: str) -> None:
    """What it adds is the same as over the wide model, and about so large."""
    executor, _ = await with_adapters(tmp_path, model, (8,), optimization={"quantization": quantization})
    [base, adapted] = await logits(executor, [(prompt(1), None), (prompt(1), "a0")])
    await executor.shutdown()
    wide, _ = await with_adapters(tmp_path, model, (8,))
    [exact_base, exact] = await logits(wide, [(prompt(1), None), (prompt(1), "a0")])
    await wide.shutdown()
    added = exact - exact_base
    assert np.abs((adapted - base) - added).mean() < 0.25 * np.abs(added).mean()


async def test_loading_and_unloading(tmp_path: Path, model: Path) -> None:
    executor, _ = await with_adapters(tmp_path, model, (4, 2))
    assert isinstance(executor, LoraExecutor)
    packed = pack(tmp_path / "a0", tmp_path / "packed", 256)
    await executor.load_adapter("a0", str(packed.path), packed.digest)  # again
    with pytest.raises(OutOfMemory, match="as many as there is room for"):
        await executor.load_adapter("more", str(packed.path), packed.digest)
    snapshot = executor.lora_metrics_snapshot()
    assert snapshot is not None and (snapshot["loaded"], snapshot["highest_rank"]) == (2, 4)
    await executor.unload_adapter("a0")
    await executor.unload_adapter("nobody")
    with pytest.raises(InvalidInput, match="not loaded"):
        await logits(executor, [(prompt(1), "a0")])
    with pytest.raises(ConfigError, match="not what was loaded before"):
        await executor.load_adapter("a0", str(packed.path), "0" * 64)
    await executor.load_adapter("a0", str(packed.path), packed.digest)
    await logits(executor, [(prompt(1), "a0")])
    await executor.shutdown()


@pytest.mark.parametrize(
    ("name", "shape", "why"),
    [
        ("model.layers.7.self_attn.q_proj", (64, 64), "no such weight"),
        ("model.layers.0.self_attn.q_proj", (64, 32), "the model's has 64 x 64"),
        ("model.layers.0.self_attn.k_proj", (64, 64), "the model's has 32 x 64"),
        ("model.embed_tokens", (128, 64), "not supported"),
        ("model.layers.0.input_layernorm", (64, 1), "not supported"),
    ],
)
async def test_adapters_of_another_model(
    tmp_path: Path, model: Path, name: str, shape: tuple[int, int], why: str
) -> None:
    executor = await start(model, 2)
    assert isinstance(executor, LoraExecutor)
    (tmp_path / "packed").mkdir()
    write_peft(tmp_path / "bad", {name: shape})
    packed = pack(tmp_path / "bad", tmp_path / "packed", 64)
    with pytest.raises(ConfigError, match=why) as caught:
        await executor.load_adapter("bad", str(packed.path), packed.digest)
    assert name in str(caught.value)
    await logits(executor, [(prompt(1), None)])
    await executor.shutdown()


async def test_without_adapters_it_is_no_adapter_executor(model: Path) -> None:
    executor = await start(model)
    assert not isinstance(executor, LoraExecutor)
    await executor.shutdown()


async def test_loads_beside_steps(tmp_path: Path, model: Path) -> None:
    executor, _ = await with_adapters(tmp_path, model, (4, 2, 3))
    assert isinstance(executor, LoraExecutor)
    packed = pack(tmp_path / "a2", tmp_path / "packed", 256)
    expected = await logits(executor, [(prompt(1), "a0")])

    async def churn() -> None:
        for _ in range(20):
            await executor.unload_adapter("a2")
            await executor.load_adapter("a2", str(packed.path), packed.digest)

    results = await asyncio.gather(churn(), *(logits(executor, [(prompt(1), "a0")]) for _ in range(20)))
    assert all(np.array_equal(one[0], expected[0]) for one in results[1:] if one is not None)
    await executor.shutdown()


async def test_preparing_reads_and_loading_does_not(tmp_path: Path, model: Path) -> None:
    executor, _ = await with_adapters(tmp_path, model, (4, 2, 8))
    assert isinstance(executor, LoraExecutor)
    packed = pack(tmp_path / "a2", tmp_path / "packed", 256)
    [expected] = await logits(executor, [(prompt(1), "a2")])
    await executor.unload_adapter("a2")
    await executor.prepare_adapter("a2", str(packed.path), packed.digest)
    packed.path.rename(tmp_path / "away")
    await executor.load_adapter("a2", str(packed.path), packed.digest)
    assert np.array_equal((await logits(executor, [(prompt(1), "a2")]))[0], expected)
    # What is loaded already is not read, and what no longer fits is told at once.
    await executor.prepare_adapter("a2", "/nowhere", packed.digest)
    with pytest.raises(OutOfMemory):
        await executor.prepare_adapter("more", str(tmp_path / "away"), packed.digest)
    await executor.unload_adapter("a2")
    with pytest.raises(ConfigError):
        await executor.prepare_adapter("a2", "/nowhere", packed.digest)
    # Another one in between takes its place, and loading reads the first one again.
    await executor.prepare_adapter("a2", str(tmp_path / "away"), packed.digest)
    other = pack(tmp_path / "a1", tmp_path / "packed", 256)
    await executor.prepare_adapter("other", str(other.path), other.digest)
    await executor.load_adapter("a2", str(tmp_path / "away"), packed.digest)
    assert np.array_equal((await logits(executor, [(prompt(1), "a2")]))[0], expected)
    await executor.shutdown()


async def test_steps_run_on_while_an_adapter_is_read(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor, _ = await with_adapters(tmp_path, model, (4, 2))
    assert isinstance(executor, LoraExecutor)
    packed = pack(tmp_path / "a1", tmp_path / "packed", 256)
    await executor.unload_adapter("a1")
    may_read, reading = threading.Event(), threading.Event()

    def slowly(file: Path, digest: str) -> LoraFile:
        reading.set()
        assert may_read.wait(30)
        return read_adapter(file, digest)

    monkeypatch.setattr(loaded, "read_adapter", slowly)
    loading = asyncio.create_task(executor.load_adapter("a1", str(packed.path), packed.digest))
    try:
        assert await asyncio.to_thread(reading.wait, 30)
        for _ in range(3):
            await logits(executor, [(prompt(1), "a0")])
        assert not loading.done()
    finally:
        may_read.set()
    await loading
    await logits(executor, [(prompt(1), "a1")])
    # A caller that gives up leaves nothing loaded, and nothing in the way.
    await executor.unload_adapter("a1")
    may_read.clear(), reading.clear()
    loading = asyncio.create_task(executor.load_adapter("a1", str(packed.path), packed.digest))
    assert await asyncio.to_thread(reading.wait, 30)
    loading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await loading
    may_read.set()
    with pytest.raises(InvalidInput, match="not loaded"):
        await logits(executor, [(prompt(1), "a1")])
    await executor.load_adapter("a1", str(packed.path), packed.digest)
    await logits(executor, [(prompt(1), "a1")])
    await executor.shutdown()


async def test_memory_for_adapters_is_kept_free_of_kv(tmp_path: Path, model: Path) -> None:
    """As many as may be loaded, all of the highest rank, take what is claimed for them."""
    optimization = OptimizationConfig(max_loras=3, max_lora_rank=16)
    config = small_config(model, optimization=optimization, dtype="float32")
    source = load_model(config, lambda stage, done, total: None)
    claim = next(one for one in claims(config, source) if one.setting == "max_loras")
    (tmp_path / "packed").mkdir()
    write_peft(tmp_path / "a", shapes(model), rank=16)
    packed = pack(tmp_path / "a", tmp_path / "packed", 16)
    assert isinstance(source.model, Decoder)
    one = LoadedLora(source.model, read_adapter(packed.path))
    assert claim.num_bytes == 3 * one.num_bytes
    without = replace(config, optimization=replace(optimization, max_loras=0))
    assert sum(one.num_bytes for one in claims(config, source)) == claim.num_bytes + sum(
        one.num_bytes for one in claims(without, source)
    )
