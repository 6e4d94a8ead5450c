"""Quantized checkpoints of hybrids: their numbers are those of the formats' definitions, and the convolution is wide."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from executors.contract import ConfigError
from executors.contract.config import ExecutorAttentionConfig, ExecutorMemoryConfig, OptimizationConfig
from executors.kernels.cpu import KINDS
from executors.llm.executor import LlmExecutor
from executors.llm.model.fp8 import GROUP, widened
from executors.llm.model.linear import Linear
from tests.executors.llm.checkpoint.hybrid_checkpoints import SHAPES, write_hybrid_checkpoint
from tests.executors.llm.checkpoint.quantized_checkpoints import FORMS as INTEGERS
from tests.executors.llm.checkpoint.quantized_checkpoints import exact_weight
from tests.executors.llm.checkpoint.test_fp8_weights import FORMS, distance
from tests.executors.llm.driver import logprobs_in_steps, start
from tests.tiers import sweep

IDS = [7 * i * i % 211 for i in range(40)]
STEPS = [17, 1, 22]
LINEAR = re.compile(r"\.(\w+_proj|in_proj_(qkvz|qkv|z)|w[123])\.weight$")
"""What published checkpoints have quantized: of linear attention neither rates nor convolutions."""
RATES = re.compile(r"\.in_proj_(ba|b|a)\.weight$")


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("sources")
    return {shape: write_hybrid_checkpoint(root / shape, shape) for shape in SHAPES}


async def logprobs(
    path: Path, backend: str = "auto", kv: str = "auto", **changes: Any
) -> tuple[torch.Tensor, LlmExecutor]:
    """[len(IDS) - 1, vocabulary], computed in STEPS."""
    executor = await start(
        path, attention=ExecutorAttentionConfig(block_size=4, backend=backend),
        memory=ExecutorMemoryConfig(kv_cache_memory_bytes=16 << 20, kv_cache_dtype=kv), **changes,
    )  # fmt: skip
    [found] = await logprobs_in_steps(executor, [IDS], [STEPS])
    return torch.from_numpy(found), executor


def write(
    source: Path, target: Path, scheme: dict[str, Any], stored: dict[str, torch.Tensor], exact: dict[str, torch.Tensor],
    published: bool = False,
) -> tuple[Path, Path]:  # fmt: skip
    """A quantized checkpoint, and one with the same numbers in float32. `published`: names as beside a part for images."""
    fields = json.loads((source / "config.json").read_text())
    for folder, tensors, more in (
        (target / "narrow", stored, {"quantization_config": scheme}),
        (target / "wide", exact, {}),
    ):
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(fields | more))
        if published:
            tensors = {re.sub("^model.", "model.language_model.", name): one for name, one in tensors.items()}
        save_file(
            {name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors"
        )
    return target / "narrow", target / "wide"


def write_fp8(
    source: Path, target: Path, form: str, linear: str = LINEAR.pattern, **extra: torch.Tensor
) -> tuple[Path, Path]:
    """A checkpoint whose `linear` weights are in FP8, other matrices in bf16, and one with the same numbers in float32."""
    scheme, suffix, rounded = FORMS[form]
    stored, exact = dict[str, torch.Tensor](), dict[str, torch.Tensor]()
    for name, tensor in load_file(source / "model.safetensors").items():
        stored[name] = exact[name] = tensor
        if re.search(linear, name):
            data, scales = rounded(tensor)
            stored[name], stored[f"{name.removesuffix('weight')}{suffix}"] = data, scales
            rows = scales.float()
            rows = rows.repeat_interleave(GROUP, 0)[: len(data)] if "blocks" in form else rows
            exact[name] = widened(data, rows.reshape(1, 1) if rows.numel() == 1 else rows)
        elif tensor.dim() > 1:
            stored[name] = tensor.bfloat16()
            exact[name] = stored[name].float()
    images = "vision_config" in json.loads((source / "config.json").read_text())
    return write(source, target, scheme, {**stored, **extra}, exact, published=images)


def linears(mixer: Any) -> dict[str, Linear]:
    return {name: one for name, one in vars(mixer).items() if isinstance(one, Linear)}


def held(executor: LlmExecutor) -> dict[str, set[str]]:
    """By kind of mixer: which of its linear layers hold e4m3."""
    found: dict[str, set[str]] = {}
    for layer in executor._ready().runner.model.layers:
        names = {name for name, one in linears(layer.mixer).items() if one.fp8 is not None}
        found.setdefault(layer.config.mixer, set()).update(names)
    return found


IN_FP8 = {
    "attention": {"qkv", "o"}, "gated_attention": {"qkv", "o"}, "short_convolution": {"inward", "outward"},
    "gated_delta": {"inward", "outward"},
}  # fmt: skip


@sweep(every=3)
@pytest.mark.parametrize("form", ["blocks", "rows", "compressed blocks", "one number"])
@pytest.mark.parametrize("shape", SHAPES)
async def test_fp8_means_its_numbers(sources: dict[str, Path], tmp_path: Path, shape: str, form: str) -> None:
    """Widened on a CPU, exactly; where a GPU is stood in for, activations are rounded too and the linears hold e4m3."""
    narrow, wide = write_fp8(sources[shape], tmp_path, form)
    expected, plain = await logprobs(wide)
    found, executor = await logprobs(narrow)
    assert distance(found, expected) < 1e-5
    assert any("FP8 weights were widened" in note for note in executor.status().notes)
    rounding = distance(expected, (await logprobs(sources[shape]))[0])
    assert rounding > 1e-3, "the form must round"

    found, executor = await logprobs(narrow, "torch")
    # Activations lose as many bits as the weights did. Layers multiply inputs by inputs, so both errors are larger than without.
    assert 1e-4 < distance(found, expected) < 1.5 * rounding
    assert executor.info().quantization == "fp8"
    of_mixers = held(executor)
    assert of_mixers == {mixer: IN_FP8[mixer] for mixer in of_mixers}
    needed = [one.capabilities().memory.parameter_memory for one in (executor, plain)]
    assert needed[0] < needed[1]


@pytest.mark.parametrize("shape", ["qwen3_next", "qwen3_5"])
async def test_rates_in_fp8_are_read_too(sources: dict[str, Path], tmp_path: Path, shape: str) -> None:
    """b and a of Qwen3.5 share a block of rows in memory and none in the file."""
    narrow, wide = write_fp8(sources[shape], tmp_path, "blocks", f"{LINEAR.pattern}|{RATES.pattern}")
    expected, _ = await logprobs(wide)
    assert distance((await logprobs(narrow))[0], expected) < 1e-5
    found, executor = await logprobs(narrow, "torch")
    assert held(executor)["gated_delta"] == {"inward", "rates", "outward"}
    rounding = distance(expected, (await logprobs(sources[shape]))[0])
    assert 1e-4 < distance(found, expected) < 1.5 * rounding


@pytest.mark.parametrize("shape", SHAPES)
async def test_plain_weights_are_rounded_but_for_rates(sources: dict[str, Path], shape: str) -> None:
    """With --quantization fp8 and int8: rates decide what is forgotten."""
    fp8 = OptimizationConfig(num_threads=1, quantization="fp8")
    expected, _ = await logprobs(sources[shape])
    found, executor = await logprobs(sources[shape], "torch", optimization=fp8)
    of_mixers = held(executor)
    assert of_mixers == {mixer: IN_FP8[mixer] for mixer in of_mixers}
    error = distance(found, expected)
    int8 = OptimizationConfig(num_threads=1, quantization="int8")
    found, executor = await logprobs(sources[shape], optimization=int8)
    assert 1e-4 < distance(found, expected) < error / 2
    kinds = {
        name: one.packed.struct.kind
        for layer in executor._ready().runner.model.layers
        for name, one in linears(layer.mixer).items()
        if one.packed is not None
    }
    assert kinds.pop("rates", KINDS["float32"]) == KINDS["float32"]
    assert set(kinds.values()) == {KINDS["int8"]}
    int4 = OptimizationConfig(num_threads=1, quantization="int4")
    assert error / 2 < distance((await logprobs(sources[shape], optimization=int4))[0], expected) < 1.1


async def test_scales_of_keys_and_values_belong_to_their_layer(
    sources: dict[str, Path], tmp_path: Path
) -> None:
    """Layers without attention have none, so the second layer's are the first of the memory."""
    extra = {
        f"model.layers.1.self_attn.{name}": torch.tensor(value)
        for name, value in (("k_scale", 0.03), ("v_scale", 0.04))
    }
    narrow, wide = write_fp8(sources["qwen3_5"], tmp_path, "blocks", **extra)
    expected, _ = await logprobs(wide)
    found, executor = await logprobs(narrow, kv="fp8")
    assert executor._ready().runner.cache.spec.kv_scales == ((pytest.approx(0.03), pytest.approx(0.04)),)
    assert 1e-3 < distance(found, expected) < 0.08


async def test_what_is_beside_a_published_checkpoint_is_left_out(
    sources: dict[str, Path], tmp_path: Path
) -> None:
    """A head that guesses tokens and a part for images, with scales of their own."""
    extra = {
        "mtp.layers.0.self_attn.q_proj.weight": torch.ones(256, 160).to(torch.float8_e4m3fn),
        "mtp.layers.0.self_attn.q_proj.weight_scale_inv": torch.ones(2, 2),
        "model.visual.merger.linear_fc1.weight": torch.ones(4, 4, dtype=torch.bfloat16),
    }
    narrow, wide = write_fp8(sources["qwen3_5_moe, beside images"], tmp_path, "blocks", **extra)
    found, executor = await logprobs(narrow)
    assert distance(found, (await logprobs(wide))[0]) < 1e-5
    [note] = [one for one in executor.status().notes if "mtp" in one]
    assert note.startswith("the MTP head (2 tensors, mtp.*) is not used")


async def test_a_convolution_in_fp8_is_refused_by_name(sources: dict[str, Path], tmp_path: Path) -> None:
    tensors = load_file(sources["qwen3_5"] / "model.safetensors")
    name = "model.layers.2.linear_attn.conv1d.weight"
    narrow, _ = write_fp8(sources["qwen3_5"], tmp_path, "blocks")
    stored = load_file(narrow / "model.safetensors")
    stored |= {name: tensors[name].to(torch.float8_e4m3fn), f"{name}_scale_inv": torch.ones(1)}
    save_file(stored, narrow / "model.safetensors")
    with pytest.raises(ConfigError, match=f"tensor {name} is in FP8, which is not supported for this kind"):
        await start(narrow)


@sweep(every=3)
@pytest.mark.parametrize("form", ["gptq-32", "gptq-zeros-32", "awq-32", "int8-rows"])
@pytest.mark.parametrize("shape", SHAPES)
async def test_whole_numbers_stay_as_the_file_has_them(
    sources: dict[str, Path], tmp_path: Path, shape: str, form: str
) -> None:
    stored, exact = dict[str, torch.Tensor](), dict[str, torch.Tensor]()
    rng = np.random.default_rng(3)
    for name, tensor in load_file(sources[shape] / "model.safetensors").items():
        if not LINEAR.search(name) or tensor.shape[1] % 32:
            stored[name] = exact[name] = tensor
            continue
        made = INTEGERS[form].make(*tensor.shape, rng, np.arange(tensor.shape[1]))
        stored |= {f"{name.removesuffix('weight')}{suffix}": one for suffix, one in made.items()}
        exact[name] = torch.from_numpy(exact_weight(INTEGERS[form].scheme, made))
    nested = "vision_config" in json.loads((sources[shape] / "config.json").read_text())
    narrow, wide = write(sources[shape], tmp_path, INTEGERS[form].scheme, stored, exact, published=nested)
    expected, _ = await logprobs(wide)
    assert distance((await logprobs(narrow, "torch"))[0], expected) < 1e-5
    found, executor = await logprobs(narrow)
    assert 1e-4 < distance(found, expected) < 0.12, "activations in int8"
    for layer in executor._ready().runner.model.layers:
        kept = {name for name, one in linears(layer.mixer).items() if one.stored}
        assert kept == IN_FP8[layer.config.mixer]
