"""Weights in FP4 with scales of groups: compressed-tensors' two formats and Model Optimizer's, beside their definitions."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from executors.contract import ConfigError
from executors.contract.config import OptimizationConfig
from executors.kernels.cpu import STORED_KINDS, PackedWeight, cpu_kernels
from executors.llm.checkpoint.files import Checkpoint
from executors.llm.checkpoint.loader import load_model
from executors.llm.finite import not_finite
from executors.llm.model.quantization import parse_quantization
from executors.llm.tools.describe import describe
from tests.executors.checkpoints import write_checkpoint
from tests.executors.llm.checkpoint.quantized_checkpoints import SHAPES, Tensors
from tests.executors.llm.checkpoint.test_fp8_weights import distance, logits
from tests.executors.llm.checkpoint.test_quantized_tensors import INT8_ERROR
from tests.executors.llm.driver import config
from tests.executors.usable_isas import USABLE_ISAS


def e2m1(code: int) -> float:
    """One bit of sign, two of exponent with bias 1, one of mantissa."""
    sign, exponent, mantissa = code >> 3, code >> 1 & 3, code & 1
    size = mantissa / 2 if exponent == 0 else (1 + mantissa / 2) * 2 ** (exponent - 1)
    return -size if sign else size


def e4m3(code: int) -> float:
    """One bit of sign, four of exponent with bias 7, three of mantissa."""
    sign, exponent, mantissa = code >> 7, code >> 3 & 15, code & 7
    size = mantissa / 8 * 2**-6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)
    return -size if sign else size


FP4_VALUES = np.array([e2m1(code) for code in range(16)], np.float32)
E4M3_VALUES = np.array([e4m3(code) for code in range(256)], np.float32)


def numbers(packed: torch.Tensor) -> np.ndarray:
    """float32 [rows, columns]: a byte has two columns, the first in its low half."""
    codes = packed.numpy()
    return np.stack([FP4_VALUES[codes & 15], FP4_VALUES[codes >> 4]], 2).reshape(len(codes), -1)


def mxfp4(rows: int, columns: int, rng: np.random.Generator) -> Tensors:
    top = 127 - int(np.log2(columns) / 2)
    exponents = rng.integers(top - 4, top, (rows, columns // 32), dtype=np.uint8)
    exponents[0, 0] = 1  # 2 to -126: almost nothing
    return {
        "weight_packed": torch.from_numpy(rng.integers(0, 256, (rows, columns // 2), dtype=np.uint8)),
        "weight_scale": torch.from_numpy(exponents),
    }


def of_mxfp4(tensors: Tensors) -> np.ndarray:
    scales = np.ldexp(np.float32(1), tensors["weight_scale"].numpy().astype(np.int32) - 127)
    return np.asarray(numbers(tensors["weight_packed"]) * np.repeat(scales, 32, 1), np.float32)


def nvfp4(rows: int, columns: int, rng: np.random.Generator) -> Tensors:
    codes = rng.integers(0x08, 0x7F, (rows, columns // 16), dtype=np.uint8)  # 2**-6 to 448
    return {
        "weight_packed": torch.from_numpy(rng.integers(0, 256, (rows, columns // 2), dtype=np.uint8)),
        "weight_scale": torch.from_numpy(codes).view(torch.float8_e4m3fn),
        "weight_global_scale": torch.tensor([150.0 * columns**0.5]),
        "input_global_scale": torch.tensor([7.0]),
    }


def of_nvfp4(tensors: Tensors) -> np.ndarray:
    scales = (
        E4M3_VALUES[tensors["weight_scale"].view(torch.uint8).numpy()]
        / tensors["weight_global_scale"].numpy()
    )
    return np.asarray(numbers(tensors["weight_packed"]) * np.repeat(scales, 16, 1))


def modelopt(rows: int, columns: int, rng: np.random.Generator) -> Tensors:
    tensors = nvfp4(rows, columns, rng)
    return {
        "weight": tensors["weight_packed"], "weight_scale": tensors["weight_scale"],
        "weight_scale_2": (1 / tensors["weight_global_scale"]).reshape(()), "input_scale": torch.tensor(0.1),
    }  # fmt: skip


def of_modelopt(tensors: Tensors) -> np.ndarray:
    scales = (
        E4M3_VALUES[tensors["weight_scale"].view(torch.uint8).numpy()] * tensors["weight_scale_2"].numpy()
    )
    return np.asarray(numbers(tensors["weight"]) * np.repeat(scales, 16, 1))


def compressed(form: str, size: int, strategy: str, scale: str, activations: Any = None) -> dict[str, Any]:
    weights = {
        "num_bits": 4, "type": "float", "symmetric": True, "dynamic": False, "group_size": size, "strategy": strategy,
        "scale_dtype": scale, "zp_dtype": scale, "actorder": None, "block_structure": None, "observer": "minmax",
    }  # fmt: skip
    group = {"targets": ["Linear"], "weights": weights, "input_activations": activations, "format": form}
    return {
        "quant_method": "compressed-tensors", "format": form, "ignore": ["lm_head"], "config_groups": {"group_0": group},
        "quantization_status": "compressed", "transform_config": {}, "sparsity_config": {},
    }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Form:
    scheme: dict[str, Any]
    make: Callable[[int, int, np.random.Generator], Tensors]
    exact: Callable[[Tensors], np.ndarray]
    kind: str | None
    """In which the kernels hold them."""


BY_16 = "lut4-fp4" if "lut4-fp4" in STORED_KINDS else None
W4A4 = {"num_bits": 4, "type": "float", "dynamic": "local", "strategy": "tensor_group", "group_size": 16}
FORMS = {
    "mxfp4": Form(compressed("mxfp4-pack-quantized", 32, "group", "torch.uint8"), mxfp4, of_mxfp4, "MXFP4"),
    "nvfp4": Form(
        compressed("nvfp4-pack-quantized", 16, "tensor_group", "torch.float8_e4m3fn", W4A4), nvfp4, of_nvfp4, BY_16,
    ),
    "modelopt": Form(
        {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"], "producer": {"name": "modelopt"}},
        modelopt, of_modelopt, BY_16,
    ),
}  # fmt: skip


def write(folder: Path, form: Form, shape: str = "llama", **fields: Any) -> tuple[Path, Path]:
    """A checkpoint in that form, and one with the same numbers in float32."""
    wide = write_checkpoint(folder / "wide", {**SHAPES[shape], **fields})
    stored, exact = dict(load_file(wide / "model.safetensors")), {}
    rng = np.random.default_rng(3)
    for name, tensor in list(stored.items()):
        exact[name] = tensor
        if name.endswith("_proj.weight"):
            tensors = form.make(*tensor.shape, rng)
            del stored[name]
            stored |= {f"{name.removesuffix('weight')}{suffix}": one for suffix, one in tensors.items()}
            exact[name] = torch.from_numpy(form.exact(tensors))
    save_file(exact, wide / "model.safetensors")
    path = folder / "fp4"
    path.mkdir()
    save_file(stored, path / "model.safetensors")
    values = json.loads((wide / "config.json").read_text()) | {"quantization_config": form.scheme}
    (path / "config.json").write_text(json.dumps(values))
    return path, wide


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    return {name: write(tmp_path_factory.mktemp(name), form) for name, form in FORMS.items()}


def auto_round(kind: str, size: int) -> dict[str, Any]:
    return {
        "quant_method": "auto-round", "packing_format": "auto_round:llm_compressor", "bits": 4, "data_type": kind, "sym": True,
        "group_size": size, "act_bits": 4, "act_data_type": f"{kind}_rceil", "act_dynamic": True, "act_group_size": size,
        "act_sym": True, "autoround_version": "0.9", "iters": 200, "low_gpu_mem_usage": True,
        "extra_config": {"model.layers.0.mlp.gate": {"bits": 16, "data_type": "float"}},
    }  # fmt: skip


every_form = pytest.mark.parametrize("form", FORMS)


@pytest.mark.parametrize(("form", "kind", "size"), [("mxfp4", "mx_fp", 32), ("nvfp4", "nv_fp", 16)])
def test_auto_round_writes_fp4_as_compressed_tensors_does(
    form: str, kind: str, size: int, checkpoints: dict[str, tuple[Path, Path]], tmp_path: Path
) -> None:
    path, wide = checkpoints[form]
    fields = json.loads((path / "config.json").read_text()) | {"quantization_config": auto_round(kind, size)}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    (tmp_path / "model.safetensors").symlink_to(path / "model.safetensors")
    claim = parse_quantization(auto_round(kind, size), "config.json")
    assert claim is not None and "act_bits 4 is not applied" in claim.notes[0]
    checkpoint, exact = Checkpoint(tmp_path), load_file(wide / "model.safetensors")
    assert checkpoint.names() == set(exact)
    for name, expected in exact.items():
        result = torch.empty(expected.shape)
        checkpoint.file_of(name).copy_into(name, result)
        assert torch.equal(result, expected), name
    checkpoint.close()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"bits": 8}, "auto_round:llm_compressor with bits 8 is not supported; supported: 4"),
        ({"data_type": "int"}, "with data_type 'int' is not supported; supported: mx_fp, nv_fp"),
        ({"sym": False}, "with sym False is not supported; supported: true"),
        ({"extra_config": {"lm_head": {"bits": 8}}}, "extra_config 'lm_head': auto_round:llm_compressor with bits 8 is"),
    ],
)  # fmt: skip
def test_other_numbers_of_auto_round_are_refused(more: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_quantization(auto_round("mx_fp", 32) | more, "config.json")
    assert words in str(caught.value)


@every_form
def test_numbers_are_those_of_the_definition(form: str, checkpoints: dict[str, tuple[Path, Path]]) -> None:
    path, wide = checkpoints[form]
    checkpoint, exact = Checkpoint(path), load_file(wide / "model.safetensors")
    assert checkpoint.names() == set(exact)
    for name, expected in exact.items():
        if name.endswith("_proj.weight"):
            file = checkpoint.file_of(name)
            ours = torch.empty(expected.shape)
            file.copy_into(name, ours)
            assert torch.equal(ours, expected), name
            assert file.stored_as(name) == "fp4" and file.stored_kind(name) == FORMS[form].kind
    checkpoint.close()
    assert not_finite(path) is None


@every_form
async def test_logits(form: str, checkpoints: dict[str, tuple[Path, Path]]) -> None:
    """Beside the same weights in float32: kept, up to the rounding of activations; widened, exactly."""
    path, wide = checkpoints[form]
    expected, plain = await logits(wide)
    ours, executor = await logits(path)
    notes = executor.status().notes
    assert executor.info().quantization == FORMS[form].kind
    if FORMS[form].kind is None:
        assert distance(ours, expected) < 1e-5
        label = {"nvfp4": "nvfp4-pack-quantized", "modelopt": "modelopt-nvfp4"}[form]
        assert any(f"the checkpoint's {label} weights were widened: their groups" in one for one in notes)
    else:
        assert 5e-5 < distance(ours, expected) < INT8_ERROR
        assert any("in one call" in one for one in notes)
        needed = [one.capabilities().memory.parameter_memory for one in (executor, plain)]
        assert needed[0] < 0.4 * needed[1]
    assert distance((await logits(path, "torch"))[0], expected) < 1e-5
    facts = describe(config(path))
    assert facts["checkpoint"]["problem"] is None
    assert facts["checkpoint"]["bytes"] <= (path / "model.safetensors").stat().st_size


@pytest.mark.parametrize("form", [name for name, form in FORMS.items() if form.kind is not None])
@pytest.mark.parametrize("isa", USABLE_ISAS)
def test_kernels_hold_the_same_weights(
    isa: str, form: str, checkpoints: dict[str, tuple[Path, Path]]
) -> None:
    """One weight at a time: 127 times it, over 127."""
    path, wide = checkpoints[form]
    checkpoint, exact = Checkpoint(path), load_file(wide / "model.safetensors")
    for name in ("model.layers.1.self_attn.k_proj.weight", "model.layers.0.mlp.down_proj.weight"):
        expected = exact[name]
        weight = PackedWeight(cpu_kernels(isa), *expected.shape, FORMS[form].kind)
        for begin, rows in checkpoint.file_of(name).raw_rows(name):
            weight.fill_blocks(rows.numpy(), begin)
        got = weight(torch.eye(expected.shape[1]) * 127.0).T / 127.0
        assert torch.allclose(got, expected, rtol=3e-7, atol=1e-7 * float(expected.abs().max()))
    checkpoint.close()


async def test_experts(tmp_path: Path) -> None:
    """Kept, a token that two experts suit nearly as well may go to the other one."""
    for form in ("mxfp4", "modelopt"):
        path, wide = write(tmp_path / form, FORMS[form], "experts")
        expected, _ = await logits(wide)
        assert distance((await logits(path, "torch"))[0], expected) < 1e-5
        assert distance((await logits(path))[0], expected) < (0.15 if FORMS[form].kind else 1e-5)


async def test_a_setting_quantizes_them_anew(checkpoints: dict[str, tuple[Path, Path]]) -> None:
    path, wide = checkpoints["nvfp4"]
    setting = OptimizationConfig(num_threads=1, quantization="int8")
    ours, executor = await logits(path, optimization=setting)
    assert executor.info().quantization == "int8"
    assert 1e-4 < distance(ours, (await logits(wide))[0]) < 0.1


def test_exponents_may_have_a_dtype_of_their_own(tmp_path: Path) -> None:
    path, wide = write(tmp_path, FORMS["mxfp4"])
    raw = (path / "model.safetensors").read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    for name, entry in header.items():
        if name.endswith("weight_scale"):
            entry["dtype"] = "F8_E8M0"
    text = json.dumps(header).encode()
    (path / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + raw[8 + length :])
    name = "model.layers.0.mlp.up_proj.weight"
    ours = torch.empty(load_file(wide / "model.safetensors")[name].shape)
    checkpoint = Checkpoint(path)
    checkpoint.file_of(name).copy_into(name, ours)
    assert torch.equal(ours, load_file(wide / "model.safetensors")[name])
    checkpoint.close()


STEM = "model.layers.0.mlp.up_proj"


def _drop(suffix: str) -> Callable[[Tensors], None]:
    return lambda tensors: (tensors.pop(f"{STEM}.{suffix}"), None)[1]


def _put(suffix: str, tensor: torch.Tensor) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.update({f"{STEM}.{suffix}": tensor})


BROKEN: dict[str, tuple[str, Callable[[Tensors], None], list[str]]] = {
    "no scale": ("mxfp4", _drop("weight_scale"), [f"{STEM}.weight_scale is missing", "mxfp4-pack-quantized needs it"]),
    "no factor": ("nvfp4", _drop("weight_global_scale"), [f"{STEM}.weight_global_scale is missing"]),
    "no second": ("modelopt", _drop("weight_scale_2"), [f"{STEM}.weight_scale_2 is missing"]),
    "scales of 16": ("mxfp4", _put("weight_scale", torch.zeros(384, 16, dtype=torch.uint8)), ["[384, 16]; [384, 8] fits"]),
    "scales of 32": (
        "nvfp4", _put("weight_scale", torch.zeros(384, 8).to(torch.float8_e4m3fn)), ["[384, 8]; [384, 16] fits"],
    ),
    "scales in float32": ("nvfp4", _put("weight_scale", torch.ones(384, 16)), ["dtype F32", "F8_E4M3"]),
    "two factors": ("nvfp4", _put("weight_global_scale", torch.ones(2)), ["shape [2]; one number"]),
    "words": ("nvfp4", _put("weight_packed", torch.zeros(384, 128, dtype=torch.int32)), ["dtype I32", "U8"]),
    "a factor of the input": ("modelopt", _put("pre_quant_scale", torch.ones(256)), ["pre_quant_scale is not supported"]),
    "zeros": ("nvfp4", _put("weight_zero_point", torch.zeros(384, 16)), ["weight_zero_point is not supported"]),
    "odd columns": (
        "nvfp4",
        lambda tensors: tensors.update({
            f"{STEM}.weight_packed": torch.zeros(384, 60, dtype=torch.uint8),
            f"{STEM}.weight_scale": torch.zeros(384, 8).to(torch.float8_e4m3fn),
        }),
        ["120 columns"],
    ),
    "other sizes": (
        "nvfp4",
        lambda tensors: tensors.update({
            f"{STEM}.weight_packed": torch.zeros(384, 64, dtype=torch.uint8),
            f"{STEM}.weight_scale": torch.zeros(384, 8).to(torch.float8_e4m3fn),
        }),
        ["[384, 128]", "[384, 256]"],
    ),
}  # fmt: skip


def start_error(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        load_model(config(path), lambda stage, done, total: None)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", BROKEN)
def test_files_that_do_not_fit_are_refused(name: str, tmp_path: Path) -> None:
    form, change, words = BROKEN[name]
    path, _ = write(tmp_path, FORMS[form])
    tensors = load_file(path / "model.safetensors")
    change(tensors)
    save_file(tensors, path / "model.safetensors")
    message = start_error(path)
    assert (
        "model.safetensors: tensor model.layers.0.mlp.up_proj.weight" in message
        or "pre_quant_scale" in message
    ), message
    assert all(word in message for word in words), message
    if name != "other sizes":  # which are compared with config.json at the start
        assert describe(config(path))["checkpoint"]["problem"] == message


@pytest.mark.parametrize(("form", "code"), [("mxfp4", 255), ("nvfp4", 0x7F)])
def test_numbers_that_are_not_finite_are_refused(form: str, code: int, tmp_path: Path) -> None:
    path, _ = write(tmp_path, FORMS[form])
    tensors = load_file(path / "model.safetensors")
    tensors[f"{STEM}.weight_scale"].view(torch.uint8)[3, 1] = code
    save_file(tensors, path / "model.safetensors")
    assert f"tensor {STEM}.weight_scale has numbers that are not finite" in start_error(path)


@pytest.mark.parametrize(
    ("form", "field", "value", "words"),
    [
        (
            "mxfp4",
            "num_bits",
            8,
            "mxfp4-pack-quantized weights with num_bits 8 is not supported; supported: 4",
        ),
        ("mxfp4", "group_size", 16, "group_size 16 is not supported; supported: 32"),
        ("nvfp4", "group_size", 32, "group_size 32 is not supported; supported: 16"),
        ("nvfp4", "symmetric", False, "symmetric False is not supported; supported: true"),
        ("nvfp4", "type", "int", "type 'int' is not supported; supported: float"),
        ("nvfp4", "strategy", "channel", "strategy 'channel' is not supported; supported: tensor_group"),
        ("modelopt", "quant_algo", "NVFP4_AWQ", "modelopt with quant_algo 'NVFP4_AWQ' is not supported"),
        (
            "modelopt",
            "quant_algo",
            "W4A8_NVFP4_FP8",
            "modelopt with quant_algo 'W4A8_NVFP4_FP8' is not supported",
        ),
    ],
)
def test_settings_that_are_refused(
    form: str, field: str, value: Any, words: str, checkpoints: dict[str, tuple[Path, Path]], tmp_path: Path
) -> None:
    values = json.loads((checkpoints[form][0] / "config.json").read_text())
    settings = values["quantization_config"]
    groups = settings.get("config_groups")
    (settings if groups is None else groups["group_0"]["weights"])[field] = value
    (tmp_path / "config.json").write_text(json.dumps(values))
    with pytest.raises(ConfigError) as caught:
        describe(config(tmp_path))
    assert words in str(caught.value)
    assert start_error(tmp_path) == str(caught.value)
