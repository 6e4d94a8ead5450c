"""Checkpoints whose weights are quantized in several ways, in a way that another file names, or not at all though a file says so:
each weight is the one of its format's definition."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from executors.contract import ConfigError
from executors.contract.config import ExecutorMemoryConfig
from executors.llm.checkpoint.files import Checkpoint
from executors.llm.checkpoint.loader import load_model
from executors.llm.model.fp8 import E4M3, widened
from executors.llm.model.quantization import quantization_of
from executors.llm.tools.describe import describe
from tests.executors.checkpoints import LLAMA, write_checkpoint
from tests.executors.llm.checkpoint.quantized_checkpoints import (
    FORMS,
    Tensors,
    awq,
    gptq,
    of_awq,
    of_gptq,
    of_packed,
    of_whole,
    packed,
    whole,
    write_mixed,
    write_quantized,
)
from tests.executors.llm.checkpoint.test_fp8_weights import distance, logits
from tests.executors.llm.checkpoint.test_quantized_tensors import INT8_ERROR
from tests.executors.llm.driver import config, start

ROWS, COLUMNS = 32, 256
UP, DOWN, Q = "model.layers.3.mlp.up_proj", "model.layers.3.mlp.down_proj", "model.layers.3.self_attn.q_proj"
Made = tuple[Tensors, np.ndarray]
"""Tensors by their suffixes, and the weight that they mean."""


def made_gptq(bits: int, size: int, zero: str, act_order: bool = False) -> Made:
    order = np.random.default_rng(2).permutation(COLUMNS)
    stored = gptq(bits, size, act_order=act_order)(ROWS, COLUMNS, np.random.default_rng(bits + size), order)
    return stored, of_gptq(stored, bits, zero)


def made_awq() -> Made:
    stored = awq(64)(ROWS, COLUMNS, np.random.default_rng(1), np.arange(COLUMNS))
    return stored, of_awq(stored)


def made_packed(bits: int, size: int) -> Made:
    stored = packed(bits, size, torch.bfloat16)(
        ROWS, COLUMNS, np.random.default_rng(bits), np.arange(COLUMNS)
    )
    return stored, of_packed(stored, bits)


def made_whole() -> Made:
    stored = whole(-1)(ROWS, COLUMNS, np.random.default_rng(4), np.arange(COLUMNS))
    return stored, of_whole(stored)


def check_weights(folder: Path, settings: Any, modules: dict[str, Made], **files: Any) -> None:
    """Write the modules and compare each with what it means. `settings`: config.json's quantization_config."""
    save_file(
        {
            f"{stem}.{suffix}": t.contiguous()
            for stem, (stored, _) in modules.items()
            for suffix, t in stored.items()
        },
        folder / "model.safetensors",
    )
    fields = {} if settings is None else {"quantization_config": settings}
    (folder / "config.json").write_text(json.dumps({**fields, **files.pop("fields", {})}))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    checkpoint = Checkpoint(folder)
    assert checkpoint.names() == {f"{stem}.weight" for stem in modules}
    for stem, (_, expected) in modules.items():
        result = torch.empty(expected.shape)
        checkpoint.file_of(f"{stem}.weight").copy_into(f"{stem}.weight", result)
        assert np.array_equal(result.numpy(), expected), stem
    checkpoint.close()


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": False, "desc_act": False}
WIDE = (
    {"weight": torch.arange(ROWS * COLUMNS).view(ROWS, COLUMNS).float()},
    np.arange(ROWS * COLUMNS, dtype=np.float32).reshape(ROWS, COLUMNS),
)


@pytest.mark.parametrize(
    ("dynamic", "up", "down"),
    [
        ({"+:.*down_proj.*": {"bits": 8, "group_size": 64}}, (4, 128, "plus"), (8, 64, "plus")),
        ({".*down_proj": {"bits": 8, "group_size": 64}}, (4, 128, "plus"), (8, 64, "plus")),
        # The first that matches counts, also if a later one would match, too; from the beginning of a name on.
        (
            {r"down_proj": {"bits": 8}, r"+:model\.layers\.[3-5]\.mlp\..*": {"sym": True}, "+:.*down_proj": {"bits": 8}},
            (4, 128, "half"), (4, 128, "half"),
        ),
        ({r"+:.*\.(?:3|4)\..*up": {"bits": "8", "desc_act": True, "sym": True}}, (8, 32, "half"), (4, 128, "plus")),
    ],
)  # fmt: skip
def test_dynamic_of_gptq(dynamic: Any, up: Any, down: Any, tmp_path: Path) -> None:
    modules = {UP: made_gptq(*up), DOWN: made_gptq(*down, act_order=True)}
    check_weights(tmp_path, {**GPTQ, "dynamic": dynamic}, modules)


def test_awq_of_symmetric_weights_has_its_zeros_too(tmp_path: Path) -> None:
    """As AutoRound and GPTQModel write it."""
    settings = {
        "quant_method": "awq",
        "bits": 4,
        "zero_point": False,
        "sym": True,
        "version": "gemm",
        "data_type": "int",
    }
    check_weights(tmp_path, {**settings, "dynamic": {"-:.*q_proj": {}}}, {UP: made_awq(), Q: WIDE})


def test_dynamic_leaves_modules_wide(tmp_path: Path) -> None:
    dynamic = {"-:.*q_proj": {}, "+:.*": {"bits": 8}}
    check_weights(tmp_path, {**GPTQ, "dynamic": dynamic}, {UP: made_gptq(8, 64, "plus"), Q: WIDE})
    with pytest.raises(
        ConfigError, match=r"q_proj.qweight is quantized; quantization_config leaves .*q_proj wide"
    ):
        check_weights(tmp_path, {**GPTQ, "dynamic": dynamic}, {Q: made_gptq(4, 128, "plus")})


@pytest.mark.parametrize("begin", ["language_model.model", "model.language_model", "model"])
@pytest.mark.parametrize("said", ["language_model.model", "model.language_model", "model"])
def test_rules_name_modules_with_any_prefix(begin: str, said: str, tmp_path: Path) -> None:
    """transformers names the modules of a multimodal model otherwise than it saves their tensors."""
    up, down = (f"{begin}.layers.3.mlp.{one}_proj" for one in ("up", "down"))
    head = "lm_head" if begin == "model" else "language_model.lm_head"
    modules = {up: made_gptq(4, 128, "plus"), down: made_gptq(8, 64, "plus"), head: made_gptq(8, 128, "plus")}
    pattern = re.escape(f"{said}.layers.3.mlp.down_proj")
    dynamic = {f"+:{pattern}": {"bits": 8}, "+:lm_head$": {"bits": 8}}
    (tmp_path / "gptq").mkdir()
    check_weights(tmp_path / "gptq", {**GPTQ, "dynamic": dynamic}, modules)
    settings = {"quant_method": "auto-round", "bits": 4, "sym": False, "group_size": 128}
    extra = {f"{said}.layers.3.mlp.down_proj": {"bits": 8}, "lm_head": {"bits": 8}}
    check_weights(tmp_path, {**settings, "extra_config": extra}, modules)


def group(form: str | None, targets: list[str], **weights: Any) -> dict[str, Any]:
    settings = {
        "num_bits": 4,
        "type": "int",
        "symmetric": True,
        "dynamic": False,
        "strategy": "group",
        **weights,
    }
    return {"targets": targets, "weights": settings, **({} if form is None else {"format": form})}


def compressed(form: str, groups: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    named = {f"group_{i}": one for i, one in enumerate(groups)}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": named,
        "ignore": ["lm_head"],
        **more,
    }


def test_numbers_of_4_bits_in_bytes(tmp_path: Path) -> None:
    """As compressed-tensors stores them where inputs are quantized, too."""
    stored, _ = made_whole()
    stored = {**stored, "weight": stored["weight"] >> 4}
    settings = compressed("int-quantized", [group(None, ["Linear"], strategy="channel")])
    check_weights(tmp_path, settings, {UP: (stored, of_whole(stored))})


def test_bytes_in_the_order_of_g_idx(tmp_path: Path) -> None:
    stored = whole(64, zeros=True)(ROWS, COLUMNS, np.random.default_rng(4), np.arange(COLUMNS))
    order = np.random.default_rng(6).permutation(COLUMNS)
    group_of = order // 64
    wide = stored["weight"].numpy().astype(np.int64) - stored["weight_zero_point"].numpy()[:, group_of]
    expected = stored["weight_scale"].float().numpy()[:, group_of] * wide.astype(np.float32)
    stored["weight_g_idx"] = torch.from_numpy(group_of.astype(np.int32))
    settings = compressed("int-quantized", [group(None, ["Linear"], num_bits=8, actorder="group")])
    check_weights(tmp_path, settings, {UP: (stored, expected)})


@pytest.mark.parametrize("named", [True, False])
def test_groups_of_formats_of_their_own(named: bool, tmp_path: Path) -> None:
    eight = {"num_bits": 8, "strategy": "channel"}
    groups = [
        group("pack-quantized" if named else None, ["re:.*up_proj"], group_size=64),
        group("pack-quantized" if named else None, [DOWN], **eight),
        {**group("int-quantized" if named else None, ["Linear"], **eight), "input_activations": {"num_bits": 8, "dynamic": True}},
        group("float-quantized" if named else None, ["re:.*k_proj"], num_bits=8, type="float", strategy="channel"),
    ]  # fmt: skip
    settings = compressed("mixed-precision", groups)
    check_weights(
        tmp_path,
        settings,
        {UP: made_packed(4, 64), DOWN: made_packed(8, -1), Q: made_whole(), "lm_head": WIDE},
    )
    result = quantization_of(None, {"quantization_config": settings}, "x")
    assert result is not None and result.fp8 is not None and result.integers is not None
    assert [scheme.form for scheme in map(result.integers.of, (UP, DOWN, Q)) if scheme] == [
        "pack-quantized", "pack-quantized", "int-quantized",
    ]  # fmt: skip


AUTO = {"quant_method": "auto-round", "bits": 4, "group_size": 128, "sym": False, "data_type": "int", "iters": 0,
        "autoround_version": "0.9.0", "low_gpu_mem_usage": True, "block_name_to_quantize": "model.layers"}  # fmt: skip


@pytest.mark.parametrize(
    ("packing", "zero"),
    [
        ("auto_round:auto_gptq", "plus"),
        ("auto_round:gptq", "plus"),
        (None, "plus"),
        ("auto_round", "stored"),
        ("auto_round:gptqmodel", "stored"),
        ("auto_round:exllamav2", "stored"),
        ("auto_round:auto_awq", None),
        ("auto_round:awq", None),
    ],
)
def test_packings_of_auto_round(packing: str | None, zero: str | None, tmp_path: Path) -> None:
    settings = {**AUTO, **({} if packing is None else {"packing_format": packing})}
    if zero is None:
        check_weights(tmp_path, settings, {UP: made_awq()})
        return
    extra = {
        DOWN: {"bits": 8, "group_size": 32, "sym": True}, r"lm_head|.*\.self_attn\..*": {"bits": 16, "data_type": "float"},
        r"layers\.3\.mlp\.(?:up|down)_proj": {"bits": 4},
    }  # fmt: skip
    modules = {UP: made_gptq(4, 128, zero), DOWN: made_gptq(8, 32, "half"), Q: WIDE}
    check_weights(tmp_path, {**settings, "extra_config": extra}, modules)


def test_auto_round_of_other_names(tmp_path: Path) -> None:
    older = {**AUTO, "quant_method": "intel/auto-round", "backend": "autoround:exllamav2"}
    check_weights(tmp_path, older, {UP: made_gptq(4, 128, "stored")})
    (tmp_path / "b").mkdir()
    older["backend"] = "auto_round:gptq:exllamav2"
    check_weights(tmp_path / "b", older, {UP: made_gptq(4, 128, "plus")})


SIDE = {key: value for key, value in GPTQ.items() if key != "quant_method"}
PACK = compressed("pack-quantized", [group(None, ["Linear"], group_size=64)])


@pytest.mark.parametrize(
    ("fields", "files", "made"),
    [
        ({}, {"quantize_config": SIDE}, made_gptq(4, 128, "plus")),
        ({}, {"quantize_config": {"bits": 8, "group_size": 32}}, made_gptq(8, 32, "plus")),
        ({}, {"quantize_config": {**SIDE, "quant_method": "gptq", "checkpoint_format": "gptq_v2", "dynamic": None}},
         made_gptq(4, 128, "stored")),
        ({}, {"quantize_config": {"bits": 4, "group_size": 64, "zero_point": True, "version": "GEMM"}}, made_awq()),
        ({}, {"quant_config": {"w_bit": 4, "q_group_size": 64, "zero_point": True, "version": "GEMM"}}, made_awq()),
        ({}, {"quantization_config": {**AUTO, "packing_format": "auto_round:auto_gptq"}}, made_gptq(4, 128, "plus")),
        ({"compression_config": PACK}, {}, made_packed(4, 64)),
        ({"compression_config": {"quantization_config": PACK, "sparsity_config": {"format": "dense"}}}, {}, made_packed(4, 64)),
        ({"text_config": {"compression_config": PACK}}, {}, made_packed(4, 64)),
        # config.json comes first.
        ({"quantization_config": GPTQ}, {"quantize_config": {**SIDE, "sym": True}}, made_gptq(4, 128, "plus")),
        ({"quantization_config": SIDE}, {}, made_gptq(4, 128, "plus")),
    ],
)  # fmt: skip
def test_quantization_that_is_said_elsewhere(fields: Any, files: Any, made: Made, tmp_path: Path) -> None:
    check_weights(tmp_path, None, {UP: made}, fields=fields, **files)


@pytest.mark.parametrize("algorithm", ["FP8", "fp8_per_channel_per_token", "FP8_PB_WO"])
def test_fp8_of_model_optimizer(algorithm: str, tmp_path: Path) -> None:
    """As hf_quant_config.json names it; scales of blocks have four dimensions."""
    source = write_checkpoint(tmp_path / "source", SMALL)
    stored, exact = {}, {}
    for name, tensor in load_file(source / "model.safetensors").items():
        stored[name] = exact[name] = tensor
        if not name.endswith("_proj.weight"):
            continue
        stem, data = name.removesuffix(".weight"), (tensor * 100).to(E4M3)
        rows, columns = tensor.shape
        shape = {"FP8": (), "FP8_PB_WO": (-(-rows // 128), 1, -(-columns // 128), 1)}.get(algorithm, (rows,))
        scales = torch.rand(shape, generator=torch.Generator().manual_seed(rows)) / 100 + 0.005
        by_rows = (
            scales.reshape(1, 1)
            if not shape
            else scales.view(rows, 1)
            if len(shape) == 1
            else scales[:, 0, :, 0]
        )
        each = by_rows.repeat_interleave(128, 0)[:rows] if len(shape) > 1 else by_rows
        stored |= {name: data, f"{stem}.weight_scale": scales, f"{stem}.input_scale": torch.tensor(0.5)}
        exact[name] = widened(data, each)
    claim = {"quant_algo": algorithm, "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}
    for folder, tensors in (("fp8", stored), ("wide", exact)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "config.json").write_text((source / "config.json").read_text())
        save_file(
            {key: t.contiguous() for key, t in tensors.items()}, tmp_path / folder / "model.safetensors"
        )
    claims = {"producer": {"name": "modelopt", "version": "0.29.0"}, "quantization": claim}
    (tmp_path / "fp8" / "hf_quant_config.json").write_text(json.dumps(claims))
    expected, _ = await_logits(tmp_path / "wide")
    result, notes = await_logits(tmp_path / "fp8")
    assert distance(result, expected) < 1e-5
    assert any("kv_cache_quant_algo is not applied" in note for note in notes)
    assert distance(expected, await_logits(source)[0]) > 1e-3, "the scales must count"


SMALL: dict[str, Any] = {
    **LLAMA, "hidden_size": 128, "intermediate_size": 160, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 211, "tie_word_embeddings": False,
}  # fmt: skip


def await_logits(path: Path) -> tuple[torch.Tensor, tuple[str, ...]]:
    """Logits and the warnings of the start; those of `cohort info` are the same."""
    result, _ = asyncio.run(logits(path))
    started = load_model(config(path), lambda *_: None).warnings
    facts = describe(config(path, memory=ExecutorMemoryConfig(kv_cache_memory_bytes=1 << 20)))
    assert facts["checkpoint"]["problem"] is None and tuple(facts["warnings"]) == started
    return result, started


MIXES: dict[str, tuple[dict[str, Any], dict[str, str], str]] = {
    "gptq of 4 and 8 bits": (
        {**GPTQ, "sym": True, "dynamic": {"+:.*down_proj": {"bits": 8}}}, {"": "gptq-64", "down_proj": "gptq-8"}, "int4-g64",
    ),
    "three formats in one layer": (
        compressed("mixed-precision", [
            group("pack-quantized", ["Linear"], group_size=128),
            group("int-quantized", ["re:.*down_proj", "re:.*k_proj"], num_bits=8, strategy="channel"),
            group("pack-quantized", ["re:.*o_proj"], num_bits=8, group_size=128),
        ]),
        {"": "packed-128", "down_proj": "int8-rows", "k_proj": "int8-rows", "o_proj": "packed-8"}, "Q8_0",
    ),
}  # fmt: skip
"""Settings, the form of modules by the ends of their names, and in what most numbers are held."""


@pytest.mark.parametrize("mix", MIXES)
async def test_layers_of_several_formats_stay_as_they_are(mix: str, tmp_path: Path) -> None:
    """Multiplied by the kernels, near the exact weights; `cohort info` tells the memory that a start takes."""
    settings, forms, kind = MIXES[mix]
    quantized, wide = write_mixed(tmp_path, settings, forms)
    expected, _ = await logits(wide)
    result, executor = await logits(quantized)
    assert 1e-4 < distance(result, expected) < INT8_ERROR
    assert executor.info().quantization == kind
    assert not any("widened" in note for note in executor.status().notes)
    assert distance((await logits(quantized, "torch"))[0], expected) < 1e-5
    facts = describe(config(quantized, memory=ExecutorMemoryConfig(kv_cache_memory_bytes=1 << 20)))
    loaded = (await start(quantized)).capabilities().memory.parameter_memory
    assert abs(facts["loaded_bytes"] - loaded) <= 4 * 64 * 512  # rotary tables


async def test_fp8_beside_whole_numbers(tmp_path: Path) -> None:
    """On a CPU FP8 is widened and whole numbers stay; where a GPU is stood in for, the other way round."""
    quantized, wide = write_quantized(tmp_path, FORMS["packed-128"])
    tensors, exact = load_file(quantized / "model.safetensors"), load_file(wide / "model.safetensors")
    for name in [name for name in exact if name.endswith(("k_proj.weight", "down_proj.weight"))]:
        stem, scale = name.removesuffix(".weight"), exact[name].abs().amax(1, keepdim=True) / 448
        tensors = {one: tensor for one, tensor in tensors.items() if not one.startswith(f"{stem}.")}
        data = (exact[name] / scale).to(E4M3)
        tensors |= {name: data, f"{stem}.weight_scale": scale}
        exact[name] = widened(data, scale)
    save_file(tensors, quantized / "model.safetensors")
    save_file(exact, wide / "model.safetensors")
    settings = compressed("mixed-precision", [
        group("float-quantized", ["re:.*k_proj", "re:.*down_proj"], num_bits=8, type="float", strategy="channel"),
        group("pack-quantized", ["Linear"], group_size=128),
    ])  # fmt: skip
    fields = json.loads((quantized / "config.json").read_text()) | {"quantization_config": settings}
    (quantized / "config.json").write_text(json.dumps(fields))
    expected, _ = await logits(wide)
    result, executor = await logits(quantized)
    assert 1e-4 < distance(result, expected) < INT8_ERROR
    assert executor.info().quantization == "int4-g128"
    assert any("FP8 weights were widened" in note for note in executor.status().notes)
    result, executor = await logits(quantized, "torch")
    assert 1e-4 < distance(result, expected) < 0.08
    notes = "; ".join(executor.status().notes)
    assert (
        "fp8: 2 of 9 linear layers" in notes
        and "pack-quantized weights were widened beside those in FP8" in notes
    )


KV = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}
STALE: dict[str, tuple[dict[str, Any], str]] = {
    "bitsandbytes of 4 bits": (
        {"quantization_config": {"quant_method": "bitsandbytes", "_load_in_4bit": True, "load_in_4bit": True,
                                 "bnb_4bit_quant_type": "nf4", "llm_int8_threshold": 6.0}},
        "says bitsandbytes, but all weights are wide",
    ),
    "hqq": ({"quantization_config": {"quant_method": "hqq", "quant_config": {}}}, "says hqq, but all weights are wide"),
    "bitsandbytes without its name": ({"quantization_config": {"load_in_8bit": True}}, "says bitsandbytes"),
    "gptq": ({"quantization_config": GPTQ}, "quantization_config says gptq, but all weights are wide"),
    "awq": ({"quantization_config": {"quant_method": "awq", "bits": 4}}, "says awq, but all weights are wide"),
    "fp8": ({"quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic"}}, "says fp8"),
    "a model before it was compressed": (
        {"quantization_config": {**PACK, "quantization_status": "frozen"}}, "says compressed-tensors, but all weights are wide",
    ),
    "keys and values alone": (
        {"quantization_config": compressed("dense", [], kv_cache_scheme=KV)}, "kv_cache_scheme is not applied: keys and values",
    ),
    "keys and values alone, of another format": (
        {"quantization_config": compressed("naive-quantized", [], kv_cache_scheme=KV)}, "kv_cache_scheme is not applied",
    ),
    "outputs of keys and values": (
        {"quantization_config": {**compressed("float-quantized", []), "config_groups": {
            "group_0": {"targets": ["re:.*k_proj", "re:.*v_proj"], "weights": None, "output_activations": KV}}}},
        "output_activations of 8 bits are not applied",
    ),
    "keys and values alone, in the file of Model Optimizer": (
        {"hf_quant_config": {"producer": {}, "quantization": {"quant_algo": None, "kv_cache_quant_algo": "FP8"}}},
        "kv_cache_quant_algo is not applied",
    ),
    "a file of gptq": ({"quantize_config": SIDE}, "quantize_config.json says gptq, but all weights are wide"),
    "a file of another program": (
        {"quant_config": {"dataset": "x", "target": "npu"}}, "quant_config.json says what is not supported, but all",
    ),
    "a file that is no object": (
        {"quantization_config.json": [1]}, "quantization_config.json says what is not supported, but all weights are wide",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, torch.Tensor]:
    source = write_checkpoint(tmp_path_factory.mktemp("plain"), SMALL)
    return source, await_logits(source)[0]


@pytest.mark.parametrize("case", STALE)
def test_wide_weights_are_computed_as_they_are(case: str, plain: Any, tmp_path: Path) -> None:
    source, expected = plain
    fields, note = STALE[case]
    tensors = load_file(source / "model.safetensors")
    attention = "model.layers.0.self_attn"
    if "output" in note:
        tensors |= {f"{attention}.{name}_proj.output_scale": torch.tensor([0.02]) for name in "kv"}
    elif "kv_cache" in note:
        tensors |= {f"{attention}.{name}_scale": torch.tensor([0.02]) for name in "kv"}
    save_file(tensors, tmp_path / "model.safetensors")
    config_json = json.loads((source / "config.json").read_text())
    settings = {name: value for name, value in fields.items() if name == "quantization_config"}
    (tmp_path / "config.json").write_text(json.dumps({**config_json, **settings}))
    for name in fields.keys() - {"quantization_config"}:
        (tmp_path / f"{name.removesuffix('.json')}.json").write_text(json.dumps(fields[name]))
    result, notes = await_logits(tmp_path)
    assert torch.equal(result, expected)
    assert len(notes) == 1 and note in notes[0]


async def test_scales_of_keys_and_values_over_wide_weights(plain: Any, tmp_path: Path) -> None:
    """Used where KV is stored in FP8."""
    source, expected = plain
    tensors = load_file(source / "model.safetensors")
    tensors |= {f"model.layers.0.self_attn.{one}_scale": torch.tensor([0.03]) for one in "kv"}
    save_file(tensors, tmp_path / "model.safetensors")
    settings = {"quantization_config": compressed("dense", [], kv_cache_scheme=KV)}
    fields = json.loads((source / "config.json").read_text()) | settings
    (tmp_path / "config.json").write_text(json.dumps(fields))
    result, executor = await logits(tmp_path, "torch", kv="fp8")
    assert executor._ready().runner.cache.spec.kv_scales == ((pytest.approx(0.03), pytest.approx(0.03)),)
    assert 1e-4 < distance(result, expected) < 0.08


BNB = {"quant_method": "bitsandbytes", "load_in_4bit": True}
UNSAID: dict[str, tuple[Any, Tensors, tuple[str, ...]]] = {
    "gptq": (None, made_gptq(4, 128, "plus")[0], (
        "o_proj.weight is missing; instead there are model.layers.0.self_attn.o_proj.qweight and", "so it is quantized",
        "nothing says how: config.json needs a quantization_config", "quantize_config.json", "hf_quant_config.json",
    )),
    "packed": (None, made_packed(4, 64)[0], ("o_proj.weight_packed", "nothing says how")),
    "bytes": (None, made_whole()[0], ("o_proj.weight has dtype I8, so it is quantized", "nothing says how")),
    "gptq that is called fp8": (
        {"quant_method": "fp8"}, made_gptq(4, 128, "plus")[0], ("o_proj.qweight", "quantization_config (fp8) does not say how"),
    ),
    "mlx": (
        None, {"weight": torch.zeros(128, 16, dtype=torch.uint32), "scales": torch.ones(128, 2), "biases": torch.ones(128, 2)},
        ("o_proj.weight has dtype U32", "nothing says how"),
    ),
    "another file": (
        {"quant_config": {"quant_method": "aqlm"}}, made_gptq(4, 128, "plus")[0],
        ("quant_config.json (aqlm) is not supported; supported: fp8",),
    ),
    "mlx that says so": ({"group_size": 64, "bits": 4}, {"weight": torch.zeros(128, 16, dtype=torch.uint32)},
                         ("quantization_config (no quant_method, as MLX writes it) is not supported",)),
    "bitsandbytes": (
        BNB, {"weight": torch.zeros(8192, 1, dtype=torch.uint8), "weight.absmax": torch.ones(4),
              "weight.quant_state.bitsandbytes__nf4": torch.zeros(8, dtype=torch.uint8)},
        ("quantization_config (bitsandbytes) is not supported: serve the wide checkpoint",),
    ),
    "fp8 that is called gptq": (
        GPTQ, {"weight": torch.zeros(128, 128).to(E4M3), "weight_scale": torch.ones(128)},
        ("o_proj.weight is in FP8", "quantization_config (gptq) does not say how"),
    ),
    "bitsandbytes of 8 bits": (
        BNB, {"weight": torch.zeros(128, 128, dtype=torch.int8), "SCB": torch.ones(128)},
        ("quantization_config (bitsandbytes) is not supported",),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", UNSAID)
async def test_quantized_tensors_that_nothing_explains(case: str, plain: Any, tmp_path: Path) -> None:
    settings, stored, words = UNSAID[case]
    tensors = load_file(plain[0] / "model.safetensors")
    stem = "model.layers.0.self_attn.o_proj"
    del tensors[f"{stem}.weight"]
    tensors |= {f"{stem}.{suffix}": tensor for suffix, tensor in stored.items()}
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, tmp_path / "model.safetensors")
    config_json = json.loads((plain[0] / "config.json").read_text())
    if settings is not None and "quant_config" in settings:
        (tmp_path / "quant_config.json").write_text(json.dumps(settings["quant_config"]))
    elif settings is not None:
        config_json |= {"quantization_config": settings}
    (tmp_path / "config.json").write_text(json.dumps(config_json))
    with pytest.raises(ConfigError) as caught:
        await start(tmp_path)
    message = str(caught.value)
    assert "\n" not in message and all(word in message for word in words), message
    small = config(tmp_path, memory=ExecutorMemoryConfig(kv_cache_memory_bytes=1 << 20))
    if "missing" in message:  # which is reported beside the sizes
        assert describe(small)["checkpoint"]["problem"] == message
    else:
        with pytest.raises(ConfigError) as of_info:
            describe(small)
        assert str(of_info.value) == message
