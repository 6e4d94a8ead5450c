"""Checkpoints with Hadamard products around linear layers: logits are those of a model that has the products in its weights."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from executors.contract import ConfigError, ExecutorType
from executors.contract.config import OptimizationConfig, ParallelConfig
from executors.llm.checkpoint.loader import load_model
from executors.llm.tools.describe import describe
from executors.lora import pack
from tests.executors.checkpoints import LLAMA, write_checkpoint
from tests.executors.llm.checkpoint.quantized_checkpoints import FORMS, SHAPES, write_quantized
from tests.executors.llm.checkpoint.test_fp8_weights import distance, logits, write_fp8
from tests.executors.llm.driver import config
from tests.executors.llm.lora.test_loras import logits as last_logits
from tests.executors.llm.lora.test_loras import merged, prompt, start
from tests.executors.lora.peft_files import write_peft

SIZES = {
    "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
    "num_hidden_layers": 2,
}  # fmt: skip
PLAIN = {**LLAMA, **SIZES}
ALL_INPUTS = ("re:.*(q|k|v)_proj$", "re:.*gate_proj$", "re:.*up_proj$")


def group(
    *targets: str, location: str = "input", ignore: tuple[str, ...] = (), **fields: Any
) -> dict[str, Any]:
    apply = {"targets": list(targets), "location": location, "inverse": False, "ignore": list(ignore)}
    return {"type": "hadamard", "randomize": False, "head_dim": None, "apply": [apply], **fields}


GROUPS: dict[str, dict[str, Any]] = {
    "down": {"R4": group("re:.*down_proj$")},
    "down and o in blocks": {"R4": group("re:.*down_proj$", "re:.*o_proj$", head_dim=32)},
    "merged inputs": {"R": group(*ALL_INPUTS, precision="torch.bfloat16")},
    "outputs": {"R": group("re:.*(v|gate|down)_proj$", location="output", head_dim=16)},
    "head": {"R": group("lm_head"), "S": group("lm_head", location="output", head_dim=2)},
    "all": {"R": group("Linear", ignore=("lm_head",), head_dim=64)},
    "both sides": {
        "u": group("Linear", location="output", ignore=("re:.*lm_head",), head_dim=32),
        "v": group("model.layers.1.mlp.down_proj"),
    },
    "offline": {"R1": group("re:.*o_proj$", location="weight_output", type="random-hadamard", randomize=True)},
    "scores": {
        "R3": {"type": "hadamard", "head_dim": 32, "apply": [
            {"targets": ["re:.*self_attn$"], "location": "q_attn"}, {"targets": ["re:.*self_attn$"], "location": "k_cache"},
        ]},
    },
}  # fmt: skip
COMPUTED = [name for name in GROUPS if name not in ("offline", "scores")]


def hadamard(size: int) -> np.ndarray:
    """By definition: the sign is that of the number of bits that row and column share."""
    at = np.arange(size)
    shared = np.array([[bin(row & column).count("1") for column in at] for row in at])
    return ((-1.0) ** shared / size**0.5).astype(np.float32)


def turned(tensors: dict[str, torch.Tensor], groups: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The weights that make up for the transforms: W H for an input, and H W for an output."""

    ours = dict(tensors)
    for scheme in groups.values():
        for part in scheme["apply"]:
            for name, weight in ours.items():
                stem = name.removesuffix(".weight")
                linear = stem.endswith("_proj") or stem == "lm_head"
                hits = [
                    any(
                        re.match(one[3:], stem) if one.startswith("re:") else one in (stem, "Linear")
                        for one in part.get(key, ())
                    )
                    for key in ("targets", "ignore")
                ]
                if not linear or hits != [True, False] or part["location"] not in ("input", "output"):
                    continue
                size = scheme["head_dim"] or weight.shape[part["location"] == "input"]
                h = torch.from_numpy(
                    np.kron(np.eye(weight.shape[part["location"] == "input"] // size), hadamard(size))
                ).float()
                ours[name] = weight @ h if part["location"] == "input" else h @ weight
    return ours


def with_transforms(path: Path, groups: dict[str, Any], weights: bool = True) -> Path:
    """Add the transforms to a checkpoint's config.json, and make up for them in the `weights`."""
    fields = json.loads((path / "config.json").read_text())
    quantized = fields.setdefault(
        "quantization_config", {"quant_method": "compressed-tensors", "sparsity_config": {}}
    )
    quantized["transform_config"] = {"config_groups": groups}
    (path / "config.json").write_text(json.dumps(fields))
    if weights:
        tensors = turned(load_file(path / "model.safetensors"), groups)
        save_file({k: v.contiguous() for k, v in tensors.items()}, path / "model.safetensors")
    return path


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(
        tmp_path_factory.mktemp("plain"), {**PLAIN, "tie_word_embeddings": False, "vocab_size": 212}
    )


def copied(path: Path, to: Path) -> Path:
    shutil.copytree(path, to)
    return to


@pytest.mark.parametrize("name", GROUPS)
async def test_a_transformed_model_is_the_plain_one(name: str, plain: Path, tmp_path: Path) -> None:
    path = with_transforms(copied(plain, tmp_path / "turned"), GROUPS[name])
    expected, _ = await logits(plain)
    ours, executor = await logits(path)
    assert distance(ours, expected) < 1e-5
    slow = any("Hadamard transforms" in note for note in executor.status().notes)
    assert slow is (name in COMPUTED and name != "head")
    if name in COMPUTED:
        fields = json.loads((path / "config.json").read_text())
        del fields["quantization_config"]
        (path / "config.json").write_text(json.dumps(fields))
        assert distance((await logits(path))[0], expected) > 0.05, "the transforms must matter"


@pytest.mark.parametrize("name", ["down and o in blocks", "both sides"])
async def test_torch_computes_them_too(name: str, plain: Path, tmp_path: Path) -> None:
    path = with_transforms(copied(plain, tmp_path / "turned"), GROUPS[name])
    assert distance((await logits(path, "torch"))[0], (await logits(plain))[0]) < 1e-5


@pytest.mark.parametrize(
    ("form", "name"), [("packed-128", "down"), ("int8-rows", "outputs"), ("packed-zeros", "all")]
)
async def test_quantized_weights(form: str, name: str, tmp_path: Path) -> None:
    """Activations are quantized after the transform: up to that rounding, as the dequantized weights with it."""
    groups = {
        key: {**one, "head_dim": 128 if name == "down" else one["head_dim"]}
        for key, one in GROUPS[name].items()
    }
    quantized, wide = write_quantized(tmp_path, FORMS[form])
    with_transforms(quantized, groups, weights=False)
    tensors = turned(load_file(wide / "model.safetensors"), groups)
    save_file({k: v.contiguous() for k, v in tensors.items()}, wide / "model.safetensors")
    expected, _ = await logits(wide)
    kept, executor = await logits(quantized)
    assert 5e-5 < distance(kept, expected) < 0.06
    assert executor.info().quantization == FORMS[form].kind
    widened, _ = await logits(quantized, "torch")
    assert distance(widened, expected) < 1e-5


async def test_experts(tmp_path: Path) -> None:
    groups = {
        "in": group("re:.*(gate|up|down)_proj$", head_dim=64),
        "out": group("re:.*down_proj$", location="output"),
    }
    plain = write_checkpoint(tmp_path / "plain", {**SHAPES["experts"], "tie_word_embeddings": True})
    path = with_transforms(copied(plain, tmp_path / "turned"), groups)
    assert distance((await logits(path))[0], (await logits(plain))[0]) < 1e-5


async def test_fp8_weights(plain: Path, tmp_path: Path) -> None:
    source = copied(plain, tmp_path / "source")
    fp8, wide = write_fp8(source, tmp_path, "rows")
    with_transforms(fp8, GROUPS["down"], weights=False)
    tensors = turned(load_file(wide / "model.safetensors"), GROUPS["down"])
    save_file({k: v.contiguous() for k, v in tensors.items()}, wide / "model.safetensors")
    expected, _ = await logits(wide)
    assert distance((await logits(fp8))[0], expected) < 1e-5
    assert 1e-4 < distance((await logits(fp8, "torch"))[0], expected) < 0.08


async def test_a_row_has_the_same_bits_in_any_step(plain: Path, tmp_path: Path) -> None:
    path = with_transforms(copied(plain, tmp_path / "turned"), GROUPS["both sides"])
    steady = OptimizationConfig(num_threads=1, deterministic=True)
    first, second = [
        (await logits(path, chunks=chunks, optimization=steady))[0] for chunks in ((20,), (9, 1, 10))
    ]
    assert torch.equal(first, second)


async def test_adapters_get_what_the_module_gets(plain: Path, tmp_path: Path) -> None:
    """PEFT adds B A x to a module with hooks: x before the transform of its input, added after that of its output."""
    groups = {**GROUPS["all"], **GROUPS["outputs"]}
    path = with_transforms(copied(plain, tmp_path / "turned"), groups)
    targets = {
        name.removesuffix(".weight"): tuple(tensor.shape)
        for name, tensor in load_file(plain / "model.safetensors").items() if name.endswith("_proj.weight")
    }  # fmt: skip
    made = write_peft(tmp_path / "adapter", targets, rank=4, seed=1)
    packed = pack(tmp_path / "adapter", tmp_path, 256)
    executor: Any = await start(path, 1)
    await executor.load_adapter("one", str(packed.path), packed.digest)
    ours = await last_logits(executor, [(prompt(1), "one"), (prompt(2), None)])
    scale = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    whole = merged(plain, made, scale["lora_alpha"] / scale["r"], tmp_path / "merged")
    expected = [
        (await last_logits(await start(model), [(prompt(number), None)]))[0]
        for number, model in ((1, whole), (2, plain))
    ]
    for one, other in zip(ours, expected, strict=True):
        assert np.allclose(one, other, atol=2e-4)
    assert not np.allclose(
        expected[0], (await last_logits(await start(plain), [(prompt(1), None)]))[0], atol=0.05
    )


def of_file(kind: str, size: int, permuted: bool, seed: int) -> tuple[dict[str, torch.Tensor], np.ndarray]:
    """Tensors of a transform by suffixes, and the matrix by which rows are multiplied."""
    rng = np.random.default_rng(seed)
    if kind == "random-matrix":
        ours = rng.normal(0.0, size**-0.5, (size, size)).astype(np.float32)
        return {"weight": torch.from_numpy(ours)}, ours
    signs = hadamard(size) * size**0.5
    if kind == "random-hadamard":
        signs = signs[rng.permutation(size)] * rng.choice((-1, 1), size)
    tensors = {"weight": torch.from_numpy(np.ascontiguousarray(signs)).round().double()}
    if permuted:
        order = rng.permutation(size)
        tensors["perm"] = torch.from_numpy(order)
        signs = signs[order][:, order]
    return tensors, signs / size**0.5


@pytest.mark.parametrize(
    ("kind", "permuted"),
    [("random-hadamard", False), ("random-hadamard", True), ("random-matrix", False), ("hadamard", True)],
)
async def test_matrices_of_the_files(kind: str, permuted: bool, plain: Path, tmp_path: Path) -> None:
    """Once at an input, and turned at outputs: each in the file of one module for all of a size."""
    groups = {
        "v": group("re:.*(q|k|v)_proj$", type=kind, randomize=permuted),
        "u": group("re:.*(v|down)_proj$", type=kind, randomize=permuted, location="output", head_dim=32),
    }
    groups["u"]["apply"][0]["inverse"] = True
    tensors = load_file(plain / "model.safetensors")
    stored, exact = dict(tensors), dict(tensors)
    of_v, v = of_file(kind, 64, permuted, 1)
    of_u, u = of_file(kind, 32, permuted, 2)
    stored |= {f"model.layers.1.self_attn.k_proj.v_input.{suffix}": one for suffix, one in of_v.items()}
    stored |= {f"model.layers.0.mlp.down_proj.u_output.{suffix}": one for suffix, one in of_u.items()}
    back = u if kind == "random-matrix" else u.T
    for name, weight in tensors.items():
        if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight")):
            exact[name] = exact[name] @ torch.from_numpy(v.T.copy()).float()
        if name.endswith(("v_proj.weight", "down_proj.weight")):
            blocks = np.kron(np.eye(len(weight) // 32), back)
            exact[name] = torch.from_numpy(blocks.T.copy()).float() @ exact[name]
    path, wide = (copied(plain, tmp_path / name) for name in ("stored", "wide"))
    save_file(stored, path / "model.safetensors")
    save_file({name: one.contiguous() for name, one in exact.items()}, wide / "model.safetensors")
    with_transforms(path, groups, weights=False)
    expected, _ = await logits(wide)
    ours, executor = await logits(path)
    assert distance(ours, expected) < 1e-5
    assert not any("not used" in note for note in executor.status().notes)
    assert distance((await logits(path, "torch"))[0], expected) < 1e-5
    assert describe(config(path))["checkpoint"]["problem"] is None
    steady = OptimizationConfig(num_threads=1, deterministic=True)
    with pytest.raises(ConfigError, match="deterministic: transform_config: the matrix of"):
        load_model(config(path, optimization=steady), lambda stage, done, total: None)

    def problem() -> str:
        save_file(stored, path / "model.safetensors")
        with pytest.raises(ConfigError) as caught:
            load_model(config(path), lambda stage, done, total: None)
        return str(caught.value)

    stored["model.layers.0.self_attn.q_proj.v_input.weight"] = (
        stored["model.layers.1.self_attn.k_proj.v_input.weight"] * 2
    )
    assert (
        "q_proj.v_input.weight differs from" in problem() or "k_proj.v_input.weight differs from" in problem()
    )
    del stored["model.layers.0.self_attn.q_proj.v_input.weight"]
    del stored[f"model.layers.0.mlp.down_proj.u_output.{'perm' if permuted else 'weight'}"]
    missing = problem()
    assert "there is no tensor MODULE.u_output." in missing
    assert describe(config(path))["checkpoint"]["problem"] == missing


def refusal(path: Path) -> str:
    """What a start says, and `cohort info` too."""
    with pytest.raises(ConfigError) as of_start:
        load_model(config(path), lambda stage, done, total: None)
    with pytest.raises(ConfigError) as of_info:
        describe(config(path))
    assert str(of_start.value) == str(of_info.value)
    assert "\n" not in str(of_start.value)
    return str(of_start.value)


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        ({"R": group("re:.*down_proj$", type="dct")}, ["R: type 'dct' at input", "random-hadamard"]),
        (
            {"R": {"type": "random-matrix", "apply": [
                {"targets": ["lm_head"], "location": "input"}, {"targets": ["re:.*o_proj"], "location": "input", "inverse": True},
            ]}},
            ["R: random-matrix and its inverse, both online"],
        ),
        ({"R": group("re:.*down_proj$", requires_grad=True)}, ["requires_grad True"]),
        ({"R": group("re:.*down_proj$", precision="torch.int8")}, ["precision 'int8'"]),
        ({"R": group("re:.*down_proj$", head_dim=48)}, ["head_dim 48 for 128 columns"]),
        ({"R": group("re:.*down_proj$", head_dim=0)}, ["head_dim 0"]),
        ({"R": group("re:.*down_proj$", seed=3)}, ["R: key 'seed'"]),
        ({"R": group("re:.*q_proj$")}, ["different transforms of the one input", "v_proj"]),
        ({"R": group("re:.*down_proj$"), "S": group("re:.*down_proj$")}, ["R and S both at the input"]),
        ({"R": group("re:.*self_attn", head_dim=16)}, ["model.layers.0.self_attn as a target"]),
        ({"R": group("LlamaMLP", "lm_head", head_dim=16)}, ["target 'LlamaMLP' at input"]),
        ({"R": group("re:.*_proj$|.*embed_tokens$", location="output", head_dim=32)}, ["model.embed_tokens as a target"]),
        ({"R": group("re:.*act_fn$", location="output", head_dim=16)}, ["re:.*act_fn$ as targets at output", "no linear"]),
        ({"R": group("re:.*self_attn$", location="k_cache")}, ["location 'k_cache' in this form"]),
        ({"R": group("re:.*down_proj$", location="weight")}, ["location 'weight'"]),
        ({"R": group("re:(", location="input")}, ["is no regular expression"]),
    ],
)  # fmt: skip
def test_what_is_not_computed_is_refused(
    groups: dict[str, Any], words: list[str], plain: Path, tmp_path: Path
) -> None:
    message = refusal(with_transforms(copied(plain, tmp_path / "turned"), groups, weights=False))
    assert "config.json: quantization_config: transform_config: " in message
    assert all(word in message for word in words), message


def test_sizes_that_are_no_powers_of_two_are_refused(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, {**PLAIN, "intermediate_size": 96})
    message = refusal(with_transforms(path, GROUPS["down"], weights=False))
    assert "R4: a Hadamard matrix of size 96 at the input of model.layers.0.mlp.down_proj" in message
    assert "powers of two" in message


def test_ranks_are_refused(plain: Path, tmp_path: Path) -> None:
    path = with_transforms(copied(plain, tmp_path / "turned"), GROUPS["down"])
    with pytest.raises(ConfigError, match="online transforms are of whole rows and are not cut"):
        describe(
            config(
                path,
                parallel=ParallelConfig(tensor_parallel_size=2),
                executor_type=ExecutorType.TENSOR_PARALLEL,
            )
        )


async def test_matrices_in_the_files_are_compared(plain: Path, tmp_path: Path) -> None:
    path = with_transforms(copied(plain, tmp_path / "turned"), GROUPS["down"])
    tensors = load_file(path / "model.safetensors")
    name = "model.layers.0.mlp.down_proj.R4_input.weight"
    for factor in (128**0.5, 1.0):
        tensors[name] = torch.from_numpy(hadamard(128)) * factor
        save_file(tensors, path / "model.safetensors")
        ours, executor = await logits(path)
        assert distance(ours, (await logits(plain))[0]) < 1e-5
        assert not any("R4_input" in note for note in executor.status().notes)
    tensors[name] = tensors[name][
        :, torch.randperm(128, generator=torch.Generator().manual_seed(0))
    ].contiguous()
    save_file(tensors, path / "model.safetensors")
    with pytest.raises(ConfigError, match="R4_input\\.weight is not Sylvester's Hadamard matrix"):
        load_model(config(path), lambda stage, done, total: None)
    assert "not Sylvester's" in describe(config(path))["checkpoint"]["problem"]
