"""FP8 checkpoints in the forms that the field publishes, `--quantization fp8`, and KV in FP8: on a CPU, by torch."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from executors.contract import ConfigError, KvCacheHandle, LogitsMode, PrefillInput, Tensor
from executors.contract.config import ExecutorAttentionConfig, ExecutorMemoryConfig, OptimizationConfig
from executors.llm.checkpoint.loader import kv_dtype
from executors.llm.executor import LlmExecutor
from executors.llm.factory import LlmFactory
from executors.llm.kernel_support.fp8_support import why_not
from executors.llm.model.fp8 import E4M3, GROUP, Fp8Weight, quantized, widened
from executors.llm.model.quantization import Fp8Scheme, parse_quantization
from executors.llm.tools.describe import describe
from tests.executors.checkpoints import QWEN3, write_checkpoint
from tests.executors.llm.driver import config, start

SMALL: dict[str, Any] = {
    **QWEN3, "num_hidden_layers": 2, "hidden_size": 160, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
    "intermediate_size": 144,
}  # fmt: skip
"""Keys and values begin at row 128 and 192 of their linear, the second half of the MLP at row 144: within blocks."""
MOE: dict[str, Any] = {
    **SMALL, "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 48, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [],
}  # fmt: skip
PROMPT = [5, 9, 100, 3, 17, 20, 33, 8, 150, 151, 2, 77, 60, 1, 209, 44, 13, 12, 90, 91]
_GROUP: dict[str, Any] = {"targets": ["Linear"], "output_activations": None}


def _compressed(form: str, strategy: str, **more: Any) -> dict[str, Any]:
    weights = {
        "num_bits": 8,
        "type": "float",
        "symmetric": True,
        "dynamic": False,
        "strategy": strategy,
        **more,
    }
    return {
        "quant_method": "compressed-tensors", "format": form, "ignore": ["lm_head"], "kv_cache_scheme": None,
        "config_groups": {"group_0": {**_GROUP, "weights": weights}},
    }  # fmt: skip


def _by_blocks(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    rows, columns = weight.shape
    padded = torch.zeros(-(-rows // GROUP) * GROUP, -(-columns // GROUP) * GROUP)
    padded[:rows, :columns] = weight
    parts = padded.unflatten(0, (-1, GROUP)).unflatten(2, (-1, GROUP))
    scales = parts.abs().amax((1, 3)) / 448
    data = (parts / scales[:, None, :, None]).flatten(2, 3).flatten(0, 1)[:rows, :columns]
    return data.clamp(-448, 448).to(E4M3), scales


def _by_blocks_of_powers(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales in e8m0, as transformers writes them for scale_fmt ue8m0."""
    scales = torch.exp2(_by_blocks(weight)[1].log2().ceil())
    wide = scales.repeat_interleave(GROUP, 0).repeat_interleave(GROUP, 1)[: len(weight), : weight.shape[1]]
    return (weight / wide).to(E4M3), scales.to(torch.float8_e8m0fnu)


def _by_tensor(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scale = weight.abs().max() / 448
    return (weight / scale).clamp(-448, 448).to(E4M3), scale


Rounded = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
FORMS: dict[str, tuple[dict[str, Any], str, Rounded]] = {
    "blocks": (
        {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128],
         "modules_to_not_convert": ["lm_head"]}, "weight_scale_inv", _by_blocks,
    ),
    "blocks with powers of two": (
        {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128], "scale_fmt": "ue8m0"},
        "weight_scale_inv", _by_blocks_of_powers,
    ),
    "one number": (
        {"quant_method": "fp8", "activation_scheme": "static"}, "weight_scale", _by_tensor,
    ),
    "one number, as Mistral writes it": (
        {"quant_method": "fp8", "activation_scheme": "static", "dequantize": False, "weight_block_size": None,
         "modules_to_not_convert": ["model.vision_tower", "model.multi_modal_projector", "lm_head"]},
        "weight_scale_inv", _by_tensor,
    ),
    "a number in a list": (
        _compressed("naive-quantized", "tensor"), "weight_scale", lambda w: (_by_tensor(w)[0], _by_tensor(w)[1].view(1)),
    ),
    "rows": (_compressed("float-quantized", "channel"), "weight_scale", quantized),
    "compressed blocks": (
        _compressed("float-quantized", "block", block_structure=[128, 128]), "weight_scale", _by_blocks,
    ),
}  # fmt: skip


def write_fp8(source: Path, target: Path, form: str, **extra: torch.Tensor) -> tuple[Path, Path]:
    """A checkpoint in FP8, and one with the same numbers in float32."""
    scheme, suffix, rounded = FORMS[form]
    stored, exact = dict[str, torch.Tensor](), dict[str, torch.Tensor]()
    for name, tensor in load_file(source / "model.safetensors").items():
        stored[name] = exact[name] = tensor
        if name.endswith("_proj.weight"):
            data, scales = rounded(tensor)
            # As published: the scales of rows in bf16.
            scales = scales.bfloat16().float() if form == "rows" else scales
            stored[name], stored[f"{name.removesuffix('weight')}{suffix}"] = data, scales.contiguous()
            if scheme.get("activation_scheme") == "static":
                own = "activation_scale" if "Mistral" in form else "input_scale"
                stored[f"{name.removesuffix('weight')}{own}"] = torch.tensor(0.02)
            scales = scales.float()
            rows = scales.repeat_interleave(GROUP, 0)[: len(data)] if "blocks" in form else scales
            exact[name] = widened(data, rows.reshape(1, 1) if rows.numel() == 1 else rows)
    fields = json.loads((source / "config.json").read_text())
    for kind, tensors, more in (
        ("fp8", {**stored, **extra}, {"quantization_config": scheme}),
        ("wide", exact, {}),
    ):
        folder = target / kind
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(fields | more))
        save_file(
            {name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors"
        )
    return target / "fp8", target / "wide"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("source"), SMALL)


def chunk(tokens: list[int], begin: int, blocks: list[int]) -> PrefillInput:
    """Tokens from position `begin` on, all of whose logits are asked for."""
    kv = KvCacheHandle(1, (np.array(blocks, np.int32),), begin)
    return PrefillInput(Tensor.of([tokens], "int32"), kv_cache=kv, pos_offset=begin, logits=LogitsMode.ALL)


async def logits(
    path: Path, backend: str = "auto", chunks: tuple[int, ...] = (9, 1, 10), kv: str = "auto", **changes: Any
) -> tuple[torch.Tensor, LlmExecutor]:
    """[T, vocabulary] of PROMPT, computed in chunks."""
    executor = await start(
        path, attention=ExecutorAttentionConfig(block_size=4, backend=backend),
        memory=ExecutorMemoryConfig(kv_cache_memory_bytes=1 << 20, kv_cache_dtype=kv), **changes,
    )  # fmt: skip
    parts, done = [], 0
    for count in chunks:
        output = await executor.prefill(chunk(PROMPT[done : done + count], done, [2, 0, 5, 1, 3]))
        assert output.logits is not None
        parts.append(torch.from_numpy(output.logits.numpy().copy()).view(count, -1))
        done += count
    return torch.cat(parts), executor


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Share of the deviation of the logits."""
    return float((found - expected).norm() / (expected - expected.mean(-1, keepdim=True)).norm())


@pytest.mark.long
async def test_ministral_as_published(tmp_path: Path) -> None:
    """Queries grow within the prompt."""
    ropes = {
        "rope_type": "default",
        "rope_theta": 1e4,
        "original_max_position_embeddings": 4,
        "llama_4_scaling_beta": 0.3,
    }
    fields = {
        **SMALL, "architectures": ["Ministral3ForCausalLM"], "model_type": "ministral3", "rope_parameters": ropes,
    }  # fmt: skip
    source = write_checkpoint(tmp_path / "source", fields)
    fp8, wide = write_fp8(source, tmp_path, "one number, as Mistral writes it")
    expected, _ = await logits(wide)
    assert distance((await logits(fp8))[0], expected) < 1e-5
    found, executor = await logits(fp8, "torch")
    assert 1e-4 < distance(found, expected) < 0.08 and executor.info().quantization == "fp8"


@pytest.mark.parametrize("form", FORMS)
async def test_each_form_means_its_numbers(form: str, source: Path, tmp_path: Path) -> None:
    """Widened on a CPU, exactly; where a GPU is stood in for, activations are rounded too and the linears hold e4m3."""
    fp8, wide = write_fp8(source, tmp_path, form)
    expected, plain = await logits(wide)
    found, executor = await logits(fp8)
    assert distance(found, expected) < 1e-5
    assert executor.info().quantization is None
    assert any("FP8 weights were widened" in note for note in executor.status().notes)

    found, executor = await logits(fp8, "torch")
    # 3 bits of mantissa: half a spacing is at most 1/16, of which many average out.
    assert 1e-4 < distance(found, expected) < 0.08
    assert executor.info().quantization == "fp8"
    assert any("fp8: 8 of 9 linear layers" in note for note in executor.status().notes)
    needed = [one.capabilities().memory.parameter_memory for one in (executor, plain)]
    assert needed[0] < needed[1] / 2
    assert distance(expected, (await logits(source))[0]) > 1e-3, "the form must round"


async def test_experts_are_widened(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "source", MOE)
    fp8, wide = write_fp8(source, tmp_path, "blocks")
    expected, _ = await logits(wide)
    assert distance((await logits(fp8))[0], expected) < 1e-5
    found, executor = await logits(fp8, "torch")
    assert distance(found, expected) < 0.2  # a router may choose otherwise
    assert any("fp8: 4 of" in note for note in executor.status().notes)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
async def test_a_plain_model_is_rounded_as_it_is_loaded(dtype: str, source: Path) -> None:
    asked = OptimizationConfig(num_threads=1, quantization="fp8")
    expected, _ = await logits(source)
    found, executor = await logits(source, "torch", dtype=dtype, optimization=asked)
    assert 1e-3 < distance(found, expected) < 0.12
    assert executor.info().quantization == "fp8"
    # Dummy weights take the same way.
    dummy, executor = await logits(source, "torch", load_format="dummy", optimization=asked)
    assert torch.isfinite(dummy).all() and any("fp8: 8 of 9" in note for note in executor.status().notes)


def test_rounding_with_a_scale_for_several_rows() -> None:
    torch.manual_seed(0)
    weight = torch.randn(52, 300) * torch.rand(52, 1)
    held = Fp8Weight(64, 300, torch.device("cpu"), True, 16)
    held.fill(weight[:32], 0)
    held.fill(weight[32:], 32)
    found = widened(held.data, held.scales.repeat_interleave(16, 0))[:52]
    for begin in range(0, 52, 16):
        part = slice(begin, begin + 16)
        for column in range(0, 300, GROUP):
            largest = weight[part, column : column + GROUP].abs().max()
            error = (found - weight)[part, column : column + GROUP].abs().max()
            assert error <= largest / 28 + 1e-6  # half of the spacing 32 below 448


async def test_kv_in_fp8(source: Path) -> None:
    expected, plain = await logits(source, "torch")
    found, executor = await logits(source, "torch", kv="fp8")
    assert 1e-3 < distance(found, expected) < 0.08
    narrow, wide = (one._ready().runner.cache.spec.bytes_per_token() for one in (executor, plain))
    assert narrow * 4 == wide
    assert any("KV in fp8" in note for note in executor.status().notes)
    notes = "; ".join((await logits(source, kv="fp8"))[1].status().notes)
    assert (
        "layers: by torch around the kernels, because of KV in fp8" in notes
        and "does not read KV in fp8" in notes
    )
    # Whole, in chunks, or by Cohort's linears around torch's attention: a token sees what is stored.
    for backend, chunks in (("torch", (20,)), ("torch", (1,) * 20), ("auto", (20,))):
        assert distance((await logits(source, backend, chunks, "fp8_e4m3"))[0], found) < 1e-2


async def test_scales_of_keys_and_values_come_from_the_checkpoint(source: Path, tmp_path: Path) -> None:
    """Numbers far from 1: without them keys would vanish and values be cut off."""
    scales = {"k_scale": torch.tensor(0.03), "v_scale": torch.tensor([0.01])}
    extra = {
        f"model.layers.{i}.self_attn.{name}": value.clone()
        for i in range(2)
        for name, value in scales.items()
    }
    fp8, wide = write_fp8(source, tmp_path, "rows", **extra)
    expected, _ = await logits(wide)
    found, executor = await logits(fp8, "auto", kv="fp8")
    assert executor._ready().runner.cache.spec.kv_scales == ((pytest.approx(0.03), pytest.approx(0.01)),) * 2
    assert 1e-3 < distance(found, expected) < 0.08
    assert distance((await logits(fp8))[0], expected) < 1e-5, "wide KV needs none"


async def test_blocks_of_fp8_are_copied(source: Path) -> None:
    executor = await start(
        source, memory=ExecutorMemoryConfig(kv_cache_memory_bytes=1 << 19, kv_cache_dtype="fp8")
    )
    cache = executor._ready().runner.cache
    cache.layers[0][:, 1] = torch.randn(cache.layers[0][:, 1].shape).to(E4M3)
    cache.copy_blocks(torch.tensor([[0, 1, 3]], dtype=torch.int32).numpy())
    assert torch.equal(cache.layers[0][:, 3].float(), cache.layers[0][:, 1].float())
    assert cache.layers[0][:, 3].float().any()


REFUSED: dict[str, tuple[Any, str]] = {
    "another method": ({"quant_method": "aqlm", "bits": 4}, "(aqlm)"),
    "no object": ("fp8", "fp8"),
    "other blocks": ({"quant_method": "fp8", "weight_block_size": [64, 64]}, "[64, 64]"),
    "blocks in words": ({"quant_method": "fp8", "weight_block_size": "128x"}, "128x"),
    "blocks of a number that is none": ({"quant_method": "fp8", "weight_block_size": "9" * 6000}, "999"),
    "another float": ({"quant_method": "fp8", "fmt": "e5m2"}, "e5m2"),
    "4 bits": (_compressed("float-quantized", "channel", num_bits=4), "num_bits 4"),
    "integers": (_compressed("float-quantized", "channel", type="int"), "type 'int'"),
    "asymmetric": (_compressed("float-quantized", "channel", symmetric=False), "symmetric False"),
    "a packed format": (_compressed("pack-quantized", "channel"), "pack-quantized"),
    "groups of columns": (_compressed("float-quantized", "group"), "'group'"),
    "no block size": (_compressed("float-quantized", "block"), "block_structure"),
    "no groups": ({"quant_method": "compressed-tensors", "format": "float-quantized"}, "config_groups"),
    "no weights": (
        {"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": {"a": {}}}, "no weights",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_supported_is_one_line(case: str) -> None:
    value, word = REFUSED[case]
    with pytest.raises(ConfigError) as caught:
        parse_quantization(value, "a/config.json")
    message = str(caught.value)
    assert (
        message.startswith("a/config.json: quantization_config") and "\n" not in message and word in message
    )


def test_block_sizes_may_be_written_as_text() -> None:
    value = _compressed("float-quantized", "block", block_structure="128x128")
    found = parse_quantization(value, "x")
    assert found is not None and found.fp8 == Fp8Scheme(blocks=True)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("no scale", ["q_proj.weight is in FP8", "weight_scale"]),
        ("a scale of another shape", ["q_proj.weight_scale", "shape [7]", "[128, 160]"]),
        ("a scale that is no number", ["q_proj.weight_scale", "not finite"]),
        ("no quantization_config", ["q_proj.weight is in FP8", "config.json has no quantization_config"]),
    ],
)
async def test_each_fault_names_the_tensor(
    fault: str, words: list[str], source: Path, tmp_path: Path
) -> None:
    fp8, _ = write_fp8(source, tmp_path, "rows")
    tensors = load_file(fp8 / "model.safetensors")
    scale = "model.layers.1.self_attn.q_proj.weight_scale"
    if fault == "no scale":
        del tensors[scale]
    elif fault == "no quantization_config":
        shutil.copy(source / "config.json", fp8 / "config.json")
    else:
        tensors[scale] = torch.ones(7) if "shape" in fault else torch.full((128, 1), float("nan"))
    save_file(tensors, fp8 / "model.safetensors")
    with pytest.raises(ConfigError) as caught:
        await start(fp8)
    assert "\n" not in str(caught.value) and all(word in str(caught.value) for word in words), caught.value


async def test_a_checkpoint_that_names_no_dtype(source: Path, tmp_path: Path) -> None:
    """Most of its bytes are e4m3, which is what nothing is computed in."""
    fp8, wide = write_fp8(source, tmp_path, "rows")
    fields = json.loads((fp8 / "config.json").read_text())
    del fields["dtype"]
    (fp8 / "config.json").write_text(json.dumps(fields))
    told = describe(config(fp8, memory=ExecutorMemoryConfig(kv_cache_memory_bytes=1 << 20)))
    found, executor = await logits(fp8)
    assert told["dtype"] == executor.info().dtype == "float32"
    assert told["checkpoint"]["dtype"] == "float8_e4m3fn"
    assert distance(found, (await logits(wide))[0]) < 1e-5


async def test_settings_that_cannot_be_had_name_themselves(source: Path) -> None:
    plain = OptimizationConfig(num_threads=1)
    for optimization, memory, words in (
        (replace(plain, quantization="fp8"), {}, "quantization fp8: a CPU does not multiply e4m3; take int8"),
        (
            replace(plain, deterministic=True),
            {"kv_cache_dtype": "fp8"},
            "kv_cache_dtype fp8: not supported with deterministic",
        ),
    ):
        limits = ExecutorMemoryConfig(kv_cache_memory_bytes=1 << 18, **memory)
        with pytest.raises(ConfigError) as caught:
            await start(source, optimization=optimization, memory=limits)
        assert words in str(caught.value)
    limits = ExecutorMemoryConfig(kv_cache_dtype="fp8_e5m2")
    with pytest.raises(
        ConfigError, match="'fp8_e5m2' is not supported; supported: auto, int8, fp8, fp8_e4m3"
    ):
        LlmFactory().validate_config(config(source, memory=limits))


@pytest.mark.parametrize(
    ("capability", "triton", "backend", "blocks", "word"),
    [
        ((8, 0), True, "auto", False, "compute capability 8.0"),
        ((8, 9), True, "auto", True, None),
        ((9, 0), False, "auto", False, None),
        ((9, 0), False, "torch", True, "triton"),
    ],
)
def test_which_gpus_multiply_e4m3(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], triton: bool, backend: str, blocks: bool, word: str | None
) -> None:  # fmt: skip
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name if triton else None)
    monkeypatch.setattr(
        "executors.llm.kernel_support.fp8_support._fault", lambda device: None
    )  # kernels are tried on the device
    device = torch.device("cuda")
    why = why_not(device, backend, blocks)
    assert why is None if word is None else why is not None and word in why
    settings = config(Path(), memory=ExecutorMemoryConfig(kv_cache_dtype="fp8"))
    if capability < (8, 9):
        with pytest.raises(ConfigError, match=r"kv_cache_dtype fp8: compute capability 8\.0"):
            kv_dtype(settings, device)
    else:
        assert kv_dtype(settings, device) is E4M3
