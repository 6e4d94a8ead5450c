"""GPTQ, AWQ and compressed-tensors checkpoints: weights are those of the formats' definitions, widened or kept by the kernels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from executors.contract import ConfigError
from executors.contract.config import ExecutorAttentionConfig, ExecutorMemoryConfig, OptimizationConfig
from executors.kernels.cpu import PackedWeight, cpu_kernels
from executors.llm.checkpoint.claims import refuse_claim
from executors.llm.checkpoint.files import Checkpoint
from executors.llm.checkpoint.loader import load_model
from executors.llm.finite import not_finite
from executors.llm.model.quantization import IntScheme, parse_quantization
from executors.llm.tools.describe import describe
from tests.executors.llm.checkpoint.quantized_checkpoints import (
    AWQ,
    FORMS,
    GPTQ,
    ZEROS,
    Form,
    compressed,
    exact_weight,
    gptq,
    of_gptq,
    write_quantized,
)
from tests.executors.llm.checkpoint.test_fp8_weights import distance, logits
from tests.executors.llm.driver import config, start
from tests.executors.usable_isas import USABLE_ISAS
from tests.tiers import sweep

every_form = pytest.mark.parametrize("form", FORMS)
INT8_ERROR = 0.06
"""Share of the logits' deviation that activations in int8 may change: 0.005 to 0.044 were measured. Random zeros make weights
whose mean is far from 0, so that sums of large numbers are small."""


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    root = tmp_path_factory.mktemp("quantized")
    return {
        name: write_quantized(root / name, form, "llama" if "zeros" in name else "qwen3")
        for name, form in FORMS.items()
    }


@every_form
def test_weights_are_those_of_the_definition(form: str, checkpoints: dict[str, tuple[Path, Path]]) -> None:
    """Bit for bit, as tensors of the usual names, shapes and rows."""
    quantized, wide = checkpoints[form]
    checkpoint, exact = Checkpoint(quantized), load_file(wide / "model.safetensors")
    assert checkpoint.names() == set(exact)
    for name, expected in exact.items():
        file = checkpoint.file_of(name)
        assert file.shape(name) == tuple(expected.shape)
        if not name.endswith("_proj.weight"):
            continue
        found = torch.empty(expected.shape)
        file.copy_into(name, found)
        assert torch.equal(found, expected), name
        [(begin, turned)] = file.rows(name, turned=True)
        assert begin == 0 and torch.equal(turned.T, expected)
    checkpoint.close()
    assert not_finite(quantized) is None


@pytest.mark.parametrize("case", ZEROS)
def test_zeros_of_gptq(case: str, tmp_path: Path) -> None:
    """Those of symmetric weights are half of the range; others are a word plus 1 of every number, carries included."""
    form = ZEROS[case]
    made = form.make(16, 128, np.random.default_rng(3), np.arange(128))
    save_file({f"a.{suffix}": tensor for suffix, tensor in made.items()}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": form.scheme}))
    checkpoint = Checkpoint(tmp_path)
    file, found = checkpoint.file_of("a.weight"), torch.empty(16, 128)
    file.copy_into("a.weight", found)
    assert torch.equal(found, torch.from_numpy(exact_weight(form.scheme, made)))
    assert file.stored_kind("a.weight") == form.kind
    checkpoint.close()


@sweep(every=3)
@every_form
@pytest.mark.parametrize("isa", USABLE_ISAS)
def test_kernels_hold_the_same_weights(
    form: str, isa: str, checkpoints: dict[str, tuple[Path, Path]]
) -> None:
    """One weight at a time: 127 times it, over 127."""
    quantized, wide = checkpoints[form]
    checkpoint, exact = Checkpoint(quantized), load_file(wide / "model.safetensors")
    for name in ("model.layers.1.self_attn.k_proj.weight", "model.layers.0.mlp.down_proj.weight"):
        file, expected = checkpoint.file_of(name), exact[name]
        assert file.stored_kind(name) == FORMS[form].kind
        weight = PackedWeight(cpu_kernels(isa), *expected.shape, FORMS[form].kind)
        for begin, rows in file.raw_rows(name):
            weight.fill_blocks(rows.numpy(), begin)
        x = torch.eye(expected.shape[1]) * 127.0
        order = file.stored_order(name)
        assert (order is not None) is ("act-order" in form)
        if order is not None:
            weight.set_order(order)
        got = weight(x).T / 127.0
        assert torch.allclose(got, expected, rtol=3e-7, atol=1e-7 * float(expected.abs().max()))
    checkpoint.close()


@sweep(every=3)
@every_form
async def test_logits(form: str, checkpoints: dict[str, tuple[Path, Path]]) -> None:
    """Against the same weights in float32: kept, up to the rounding of activations; widened, exactly."""
    quantized, wide = checkpoints[form]
    expected, plain = await logits(wide)
    for name in {USABLE_ISAS[0], USABLE_ISAS[-1]}:
        kept, executor = await logits(quantized, optimization=OptimizationConfig(num_threads=1, cpu_isa=name))
        assert 5e-5 < distance(kept, expected) < INT8_ERROR
    assert executor.info().quantization == FORMS[form].kind
    [speed] = [note for note in executor.status().notes if "CPU kernels" in note]
    assert "in one call" in speed
    assert not any("were widened" in note for note in executor.status().notes)
    needed = [one.capabilities().memory.parameter_memory for one in (executor, plain)]
    assert needed[0] < (0.55 if "8" in FORMS[form].kind.split("-")[0] else 0.4) * needed[1]

    widened, executor = await logits(quantized, "torch")
    assert distance(widened, expected) < 1e-5
    assert executor.info().quantization is None
    assert any("weights were widened: attention backend torch" in note for note in executor.status().notes)


@pytest.mark.parametrize("form", ["gptq-zeros-64", "gptq-act-order", "packed-float32"])
async def test_deterministic(form: str, checkpoints: dict[str, tuple[Path, Path]]) -> None:
    """The same bits in other chunks."""
    steady = OptimizationConfig(num_threads=1, deterministic=True)
    quantized, _ = checkpoints[form]
    first, *others = [
        (await logits(quantized, chunks=chunks, optimization=steady))[0]
        for chunks in ((20,), (9, 1, 10), (1,) * 20)
    ]
    for other in others:
        assert torch.equal(first, other)


def rewrite(path: Path, change: Any) -> None:
    tensors = load_file(path / "model.safetensors")
    change(tensors)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path / "model.safetensors")


async def test_modules_that_are_not_quantized_stay_wide(tmp_path: Path) -> None:
    """A whole kind of layers, and one of three parts of a layer."""
    for ends, more in ((("down_proj",), "as their file has them"), (("k_proj",), "as their file has them")):
        quantized, wide = write_quantized(tmp_path / ends[0], FORMS["gptq-64"], wide=ends)
        expected, _ = await logits(wide)
        found, executor = await logits(quantized)
        assert 1e-4 < distance(found, expected) < INT8_ERROR
        assert any(more in note for note in executor.status().notes)


async def test_parts_in_different_orders_are_widened(tmp_path: Path) -> None:
    """The columns of queries, keys and values are put in order once, for all."""
    quantized, wide = write_quantized(tmp_path, FORMS["gptq-act-order"])

    def turn(tensors: dict[str, torch.Tensor]) -> None:
        for name in [name for name in tensors if name.endswith("k_proj.g_idx")]:
            tensors[name] = tensors[name].flip(0)

    rewrite(quantized, turn)
    checkpoint, exact = Checkpoint(quantized), load_file(wide / "model.safetensors")
    for name in exact:
        if name.endswith("k_proj.weight"):
            checkpoint.file_of(name).copy_into(name, exact[name])
    checkpoint.close()
    save_file(exact, wide / "model.safetensors")
    expected, _ = await logits(wide)
    found, executor = await logits(quantized)
    assert 1e-4 < distance(found, expected) < INT8_ERROR
    assert executor.info().quantization == "uint4-g128"


async def test_groups_of_no_whole_blocks_are_widened(tmp_path: Path) -> None:
    form = Form(GPTQ, gptq(4, 16), "")
    quantized, wide = write_quantized(tmp_path, form)
    found, executor = await logits(quantized)
    assert distance(found, (await logits(wide))[0]) < 1e-5
    assert any("gptq int4 weights were widened: their groups" in note for note in executor.status().notes)


async def test_a_quantized_head_and_a_split_checkpoint(tmp_path: Path) -> None:
    """GPTQ quantizes the head if asked to; the numbers of a weight and its scales may lie in two files."""
    quantized, wide = write_quantized(tmp_path, FORMS["gptq-zeros-32"], "llama", vocab_size=216)
    made = gptq(4, 32)(216, 256, np.random.default_rng(1), np.arange(256))
    tensors, exact = load_file(quantized / "model.safetensors"), load_file(wide / "model.safetensors")
    del tensors["lm_head.weight"]
    tensors |= {f"lm_head.{suffix}": tensor for suffix, tensor in made.items()}
    exact["lm_head.weight"] = torch.from_numpy(of_gptq(made, 4))
    save_file(exact, wide / "model.safetensors")
    (quantized / "model.safetensors").unlink()
    parts = {"a.safetensors": "scales", "b.safetensors": ""}
    where = {name: next(file for file, end in parts.items() if name.endswith(end)) for name in tensors}
    for file in parts:
        save_file(
            {name: t.contiguous() for name, t in tensors.items() if where[name] == file}, quantized / file
        )
    index = {"metadata": {}, "weight_map": where}
    (quantized / "model.safetensors.index.json").write_text(json.dumps(index))
    expected, _ = await logits(wide)
    found, executor = await logits(quantized)
    assert 1e-4 < distance(found, expected) < INT8_ERROR
    assert any("in one call" in note for note in executor.status().notes)


@pytest.mark.parametrize("form", ["gptq-128", "awq-128", "packed-act-order", "int8-rows"])
async def test_experts(form: str, tmp_path: Path) -> None:
    quantized, wide = write_quantized(tmp_path, FORMS[form], "experts")
    expected, plain = await logits(wide)
    found, executor = await logits(quantized)
    assert 1e-4 < distance(found, expected) < INT8_ERROR
    assert executor.info().quantization == FORMS[form].kind
    needed = [one.capabilities().memory.parameter_memory for one in (executor, plain)]
    assert needed[0] < 0.5 * needed[1]


def test_biases_of_zeros_are_left_out_in_silence(tmp_path: Path) -> None:
    """AutoGPTQ has written one for every layer. Others are told."""
    quantized, _ = write_quantized(tmp_path, FORMS["gptq-128"])
    stem = "model.layers.{}.mlp.down_proj.bias"

    def warnings(value: float) -> tuple[str, ...]:
        rewrite(
            quantized,
            lambda tensors: tensors.update({stem.format(i): torch.full((256,), value) for i in (0, 1)}),
        )
        return load_model(config(quantized), lambda *_: None).warnings

    assert warnings(0.0) == ()
    [told] = warnings(0.5)
    assert "2 tensors" in told and stem.format(0) in told


async def test_float16_is_computed_in_bfloat16_on_a_cpu(tmp_path: Path) -> None:
    """Most of these checkpoints name float16, whatever they were made from, and bfloat16 has the quicker attention."""
    quantized, wide = write_quantized(tmp_path, FORMS["awq-32"], dtype="float16")
    expected, _ = await logits(wide, dtype="float32")
    found, executor = await logits(quantized)
    assert executor.info().dtype == "bfloat16" and executor.info().quantization == "uint4-g32"
    assert distance(found, expected) < 2 * INT8_ERROR
    told = describe(config(quantized, memory=ExecutorMemoryConfig(kv_cache_memory_bytes=1 << 20)))
    assert told["dtype"] == "bfloat16"


@pytest.mark.parametrize(
    "form",
    ["gptq-128", "gptq-zeros-32", "gptq-act-order", "gptq-8-zeros", "awq-128", "packed-float32", "int8-rows"],
)
async def test_sizes_are_told_before_loading(form: str, checkpoints: dict[str, tuple[Path, Path]]) -> None:
    quantized, _ = checkpoints[form]
    told = describe(config(quantized, memory=ExecutorMemoryConfig(kv_cache_memory_bytes=1 << 20)))
    executor = await start(quantized)
    loaded = executor.capabilities().memory.parameter_memory
    tables = 4 * 64 * 512 * (2 if "llama" in str(quantized) else 1)
    assert abs(told["loaded_bytes"] - loaded) <= tables
    assert told["checkpoint"]["bytes"] <= (quantized / "model.safetensors").stat().st_size


FAULTS: dict[str, tuple[str, Any, list[str]]] = {
    "no scales": ("gptq-128", lambda t, at: t.pop(at + "scales"), ["q_proj.scales is missing", "gptq needs it"]),
    "no zeros": ("awq-32", lambda t, at: t.pop(at + "qzeros"), ["q_proj.qzeros is missing", "awq needs it"]),
    "no shape": ("packed-128", lambda t, at: t.pop(at + "weight_shape"), ["q_proj.weight_shape is missing"]),
    "no scale": ("int8-rows", lambda t, at: t.pop(at + "weight_scale"), ["q_proj.weight_scale is missing"]),
    "scales of another dtype": (
        "gptq-128", lambda t, at: t.update({at + "scales": t[at + "scales"].to(torch.int32)}),
        ["q_proj.scales has dtype I32", "F16, BF16, F32"],
    ),
    "numbers of another dtype": (
        "awq-32", lambda t, at: t.update({at + "qweight": t[at + "qweight"].short()}), ["q_proj.qweight has dtype I16"],
    ),
    "zeros of another shape": (
        "gptq-64", lambda t, at: t.update({at + "qzeros": t[at + "qzeros"][:, :3]}),
        ["q_proj.qzeros has shape [4, 3]; [4, 32]"],
    ),
    "a matrix of another shape": (
        "packed-128", lambda t, at: t.update({at + "weight_shape": torch.tensor([256, 40])}),
        ["q_proj.weight_packed has shape [256, 32]", "[256, 40]"],
    ),
    "3 bits": (
        "gptq-128", lambda t, at: t.update({at + "qweight": t[at + "qweight"][:24]}), ["q_proj.g_idx has shape [256]; [192]"],
    ),
    "scales of other columns": (
        "awq-32", lambda t, at: t.update({at + "scales": t[at + "scales"][:3], at + "qzeros": t[at + "qzeros"][:3]}),
        ["q_proj.scales", "3 groups", "256 columns"],
    ),
    "scales of other rows": (
        "packed-64", lambda t, at: t.update({at + "weight_scale": t[at + "weight_scale"][:7]}),
        ["q_proj.weight_scale has shape [7, 4]"],
    ),
    "a group that is not there": (
        "gptq-act-order", lambda t, at: t[at + "g_idx"].__setitem__(3, 2), ["q_proj.g_idx names groups beyond the 2"],
    ),
    "zeros out of range": (
        "packed-int8-zeros", lambda t, at: t[at + "weight_zero_point"].__setitem__((0, 0), 9),
        ["q_proj.weight_zero_point has zeros beyond 4 bits"],
    ),
    "zeros of other rows": (
        "packed-zeros", lambda t, at: t.update({at + "weight_zero_point": t[at + "weight_zero_point"][:3]}),
        ["q_proj.weight_zero_point has shape [3, 4]; [32, 4]"],
    ),
    "a scale that is no number": (
        "packed-128", lambda t, at: t[at + "weight_scale"].__setitem__((5, 0), torch.inf), ["q_proj.weight_scale", "not finite"],
    ),
    "another matrix": (
        "awq-128",
        lambda t, at: t.update({at + name: t[at + name][:, :16] for name in ("qweight", "qzeros")}
                               | {at + "scales": t[at + "scales"][:, :128]}),
        ["q_proj.weight has shape [128, 256]", "[256, 256]"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("backend", ["auto", "torch"])
async def test_each_fault_names_file_and_tensor(fault: str, backend: str, tmp_path: Path) -> None:
    form, change, words = FAULTS[fault]
    found = FORMS.get(form) or Form(compressed("pack-quantized", 4), FORMS["packed-zeros"].make, "")
    quantized, _ = write_quantized(tmp_path, found)
    rewrite(quantized, lambda tensors: change(tensors, "model.layers.1.self_attn.q_proj."))
    with pytest.raises(ConfigError) as caught:
        await start(quantized, attention=ExecutorAttentionConfig(block_size=4, backend=backend))
    message = str(caught.value)
    assert "\n" not in message and str(quantized / "model.safetensors") in message
    assert all(word in message for word in words), message


PACKED = compressed("pack-quantized", 4)
REFUSED: dict[str, tuple[Any, str]] = {
    "3 bits": ({**GPTQ, "bits": 3}, "gptq with bits 3 is not supported; supported: 4, 8"),
    "no bits": ({"quant_method": "gptq"}, "gptq with bits None"),
    "marlin": (
        {**GPTQ, "checkpoint_format": "marlin"},
        "'marlin' is not supported; supported: gptq, gptq_v2",
    ),
    "marlin by its flag": ({**GPTQ, "is_marlin_format": True}, "'marlin'"),
    "other words": ({**GPTQ, "pack_dtype": "int16"}, "pack_dtype 'int16'"),
    "gemv": ({**AWQ, "version": "GEMV"}, "awq with version 'gemv' is not supported; supported: gemm"),
    "3 bits of awq": ({**AWQ, "bits": 3}, "awq with bits 3"),
    "bitsandbytes": (
        {"quant_method": "bitsandbytes", "load_in_4bit": True},
        "(bitsandbytes) is not supported: serve the wide checkpoint that it was made from, with --quantization int4 or "
        "int8 if memory is short; supported: fp8, gptq, awq",
    ),
    "hqq": ({"quant_method": "hqq"}, "(hqq) is not supported; supported: fp8, gptq, awq, compressed-tensors"),
    "eetq": ({"quant_method": "eetq"}, "(eetq)"),
    "aqlm": ({"quant_method": "aqlm"}, "(aqlm)"),
    "a marlin of compressed-tensors": ({**PACKED, "format": "marlin-24"}, "'marlin-24'"),
    "half of the weights": (
        {**PACKED, "sparsity_config": {"format": "sparse-24-bitmask"}},
        "'sparse-24-bitmask'",
    ),
    "2 bits": (compressed("pack-quantized", 2), "num_bits 2 is not supported; supported: 4, 8"),
    "16 bits in bytes": (
        compressed("int-quantized", 16),
        "num_bits 16 is not supported; supported: 2, 3, 4, 5, 6, 7, 8",
    ),
    "blocks": (compressed("int-quantized", 8, "block"), "strategy 'block'"),
    "a method that is no name": ({"quant_method": ["gptq"]}, "(['gptq'])"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_supported_is_named(case: str) -> None:
    value, words = REFUSED[case]
    with pytest.raises(ConfigError) as caught:
        refuse_claim(parse_quantization(value, "a/config.json"))
    message = str(caught.value)
    assert (
        message.startswith("a/config.json: quantization_config") and words in message and "\n" not in message
    )


@pytest.mark.parametrize("form", FORMS)
def test_schemes(form: str) -> None:
    scheme = FORMS[form].scheme
    read = parse_quantization(scheme, "x")
    assert read is not None and read.integers is not None
    found = read.integers.of("model.layers.0.mlp.up_proj")
    assert isinstance(found, IntScheme)
    assert found.bits == scheme.get("bits") and found.form in (scheme["quant_method"], scheme.get("format"))
    plus = "stored" if "checkpoint_format" in scheme else "plus_one"
    assert scheme["quant_method"] != "gptq" or found.zeros == ("half" if scheme.get("sym") else plus)
