"""Random checkpoints in GPTQ, AWQ and compressed-tensors, and what their weights are by the formats' definitions, number by
number."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from executors.llm.model.config import read_config
from executors.llm.model.decoder import Decoder
from tests.executors.checkpoints import LLAMA, QWEN3

SIZES: dict[str, Any] = {
    "hidden_size": 256, "intermediate_size": 384, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 211,
}  # fmt: skip
SHAPES: dict[str, dict[str, Any]] = {
    "qwen3": {**QWEN3, **SIZES},
    "llama": {**LLAMA, **SIZES, "tie_word_embeddings": False},
    "experts": {
        **QWEN3, **SIZES, "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_experts": 4,
        "num_experts_per_tok": 2, "moe_intermediate_size": 128, "norm_topk_prob": True, "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    },
}  # fmt: skip
Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Form:
    """A way to store weights. `make(rows, columns, rng, order)` returns tensors by their suffixes, of random numbers; `order`:
    a random permutation of the columns that linear layers with the same input share. `kind`: in which the kernels hold them."""

    scheme: dict[str, Any]
    make: Callable[[int, int, np.random.Generator, np.ndarray], Tensors]
    kind: str


def scales(
    rng: np.random.Generator, shape: tuple[int, ...], columns: int, bits: int, dtype: torch.dtype
) -> torch.Tensor:
    """Such that weights are about 1 / sqrt(columns)."""
    spread = 3.0 / columns**0.5 / 2 ** (bits - 1)
    return torch.from_numpy(rng.uniform(0.4 * spread, spread, shape).astype(np.float32)).to(dtype)


def words(rng: np.random.Generator, *shape: int) -> torch.Tensor:
    return torch.from_numpy(rng.integers(0, 1 << 32, shape, dtype=np.uint32).view(np.int32))


def field(found: torch.Tensor, bits: int, at: np.ndarray) -> np.ndarray:
    """The numbers at place `at` of each int32."""
    return (found.numpy().view(np.uint32) >> (bits * at).astype(np.uint32)).astype(np.int64) & (
        (1 << bits) - 1
    )


def gptq(bits: int, size: int, zeros: int | None = None, act_order: bool = False, index: bool = True) -> Any:
    """`zeros`: what every stored zero is; None: random ones. `size`: columns of a group, -1 for all."""

    def make(rows: int, columns: int, rng: np.random.Generator, order: np.ndarray) -> Tensors:
        group = columns if size < 0 else size
        count, per = columns // group, 32 // bits
        made = {
            "qweight": words(rng, columns // per, rows),
            "qzeros": words(rng, count, rows // per),
            "scales": scales(rng, (count, rows), columns, bits, torch.float16),
        }
        if zeros is not None:
            word = sum(zeros << (bits * i) for i in range(per))
            made["qzeros"] = torch.from_numpy(np.full((count, rows // per), word, np.uint32).view(np.int32))
        if index:
            made["g_idx"] = torch.from_numpy((np.arange(columns) // group).astype(np.int32))
        if act_order:
            made["g_idx"] = made["g_idx"][torch.from_numpy(order)]
        return made

    return make


def of_gptq(stored: Tensors, bits: int, zero: str = "plus") -> np.ndarray:
    """`zero`: "plus" (each word plus 1 of every number), "stored" or "half"."""
    per = 32 // bits
    columns, rows = len(stored["qweight"]) * per, stored["qweight"].shape[1]
    count = len(stored["scales"])
    i, o = np.arange(columns), np.arange(rows)
    group = stored["g_idx"].numpy().astype(np.int64) if "g_idx" in stored else i // (columns // count)
    numbers = field(stored["qweight"][i // per], bits, (i % per)[:, None])
    stored_zeros = stored["qzeros"].numpy().view(np.uint32).astype(np.uint64)
    if zero == "plus":
        stored_zeros += sum(1 << (bits * i) for i in range(per))
    held = torch.from_numpy((stored_zeros % 2**32).astype(np.uint32).view(np.int32))
    zeros = field(held[:, o // per], bits, o % per)
    if zero == "half":
        zeros = np.full_like(zeros, 1 << (bits - 1))
    wide = stored["scales"].float().numpy()[group] * (numbers - zeros[group]).astype(np.float32)
    return np.ascontiguousarray(wide.T)


def awq(size: int) -> Any:
    def make(rows: int, columns: int, rng: np.random.Generator, order: np.ndarray) -> Tensors:
        count = columns // size
        return {
            "qweight": words(rng, columns, rows // 8),
            "qzeros": words(rng, count, rows // 8),
            "scales": scales(rng, (count, rows), columns, 4, torch.float16),
        }

    return make


def of_awq(stored: Tensors) -> np.ndarray:
    columns, rows = len(stored["qweight"]), stored["qweight"].shape[1] * 8
    place = np.argsort([0, 2, 4, 6, 1, 3, 5, 7])  # four bits `place[n]` of a word are row n of eight
    o = np.arange(rows)
    numbers = field(stored["qweight"][:, o // 8], 4, place[o % 8])
    zeros = field(stored["qzeros"][:, o // 8], 4, place[o % 8])
    group = np.arange(columns) // (columns // len(zeros))
    wide = stored["scales"].float().numpy()[group] * (numbers - zeros[group]).astype(np.float32)
    return np.ascontiguousarray(wide.T)


def packed(
    bits: int, size: int, dtype: torch.dtype, zeros: str = "", act_order: bool = False, shrink: float = 1.0
) -> Any:
    """`zeros`: "", "packed" (int32) or "plain" (int8)."""

    def make(rows: int, columns: int, rng: np.random.Generator, order: np.ndarray) -> Tensors:
        group = columns if size < 0 else size
        count, per = columns // group, 32 // bits
        made = {
            "weight_packed": words(rng, rows, columns // per),
            "weight_shape": torch.tensor([rows, columns]),
            "weight_scale": scales(rng, (rows, count), columns, bits, dtype),
        }
        made["weight_scale"][0] *= shrink
        if zeros == "packed":
            made["weight_zero_point"] = words(rng, rows // per, count)
        elif zeros:
            half = 1 << (bits - 1)
            made["weight_zero_point"] = torch.from_numpy(
                rng.integers(-half, half, (rows, count), dtype=np.int8)
            )
        if act_order:
            made["weight_g_idx"] = torch.from_numpy((np.arange(columns) // group).astype(np.int32)[order])
        return made

    return make


def of_packed(stored: Tensors, bits: int) -> np.ndarray:
    per, half = 32 // bits, 1 << (bits - 1)
    rows, columns = (int(n) for n in stored["weight_shape"])
    i, o = np.arange(columns), np.arange(rows)
    numbers = field(stored["weight_packed"][:, i // per], bits, i % per) - half
    scale = stored["weight_scale"].float().numpy()
    zeros = np.zeros_like(scale, np.int64)
    if "weight_zero_point" in stored:
        found = stored["weight_zero_point"]
        one = found.dtype is torch.int32
        zeros = (
            field(found[o // per], bits, (o % per)[:, None]) - half if one else found.numpy().astype(np.int64)
        )
    group = i // (columns // scale.shape[1])
    if "weight_g_idx" in stored:
        group = stored["weight_g_idx"].numpy().astype(np.int64)
    return np.asarray(scale[:, group] * (numbers - zeros[:, group]).astype(np.float32))


def whole(size: int, zeros: bool = False, one: bool = False) -> Any:
    """int-quantized; `one`: a single scale."""

    def make(rows: int, columns: int, rng: np.random.Generator, order: np.ndarray) -> Tensors:
        count = 1 if size < 0 else columns // size
        shape = (1,) if one else (rows, count)
        made = {
            "weight": torch.from_numpy(rng.integers(-128, 128, (rows, columns), dtype=np.int8)),
            "weight_scale": scales(rng, shape, columns, 8, torch.bfloat16),
            "input_scale": torch.tensor([0.02]),
        }
        if zeros:
            made["weight_zero_point"] = torch.from_numpy(rng.integers(-128, 128, shape, dtype=np.int8))
        return made

    return make


def of_whole(stored: Tensors) -> np.ndarray:
    numbers = stored["weight"].numpy().astype(np.int64)
    scale = stored["weight_scale"].float().numpy().reshape(-1, stored["weight_scale"].shape[-1])
    zeros = np.zeros_like(scale, np.int64)
    if "weight_zero_point" in stored:
        zeros = stored["weight_zero_point"].numpy().astype(np.int64).reshape(scale.shape)
    each = numbers.shape[1] // scale.shape[1]
    wide = np.repeat(scale, each, 1) * (numbers - np.repeat(zeros, each, 1)).astype(np.float32)
    return np.asarray(wide)


def compressed(form: str, bits: int, strategy: str = "group") -> dict[str, Any]:
    weights = {"num_bits": bits, "type": "int", "symmetric": True, "dynamic": False, "strategy": strategy}
    return {
        "quant_method": "compressed-tensors", "format": form, "ignore": ["lm_head"],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
    }  # fmt: skip


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True}
V2 = {**GPTQ, "checkpoint_format": "gptq_v2"}
EIGHT = {**GPTQ, "bits": 8}
ASYM, V2_ASYM, EIGHT_ASYM = ({**one, "sym": False} for one in (GPTQ, V2, EIGHT))
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True}
FOUR, PACKED8, INT8 = (
    compressed("pack-quantized", 4),
    compressed("pack-quantized", 8),
    compressed("int-quantized", 8),
)
BF16, F32 = torch.bfloat16, torch.float32

FORMS: dict[str, Form] = {
    "gptq-128": Form(GPTQ, gptq(4, 128, zeros=7), "int4-g128"),
    "gptq-64": Form(GPTQ, gptq(4, 64, zeros=7, index=False), "int4-g64"),
    "gptq-32": Form(GPTQ, gptq(4, 32, zeros=7), "Q4_0"),
    "gptq-rows": Form(GPTQ, gptq(4, -1, zeros=7), "int4-g128"),
    "gptq-zeros-128": Form(ASYM, gptq(4, 128), "uint4-g128"),
    "gptq-zeros-64": Form(ASYM, gptq(4, 64), "uint4-g64"),
    "gptq-zeros-32": Form(ASYM, gptq(4, 32), "uint4-g32"),
    "gptq-zero-of-0": Form(ASYM, gptq(4, 128, zeros=15), "uint4-g128"),
    "gptq-act-order": Form({**ASYM, "desc_act": True}, gptq(4, 128, act_order=True), "uint4-g128"),
    "gptq-v2": Form(V2, gptq(4, 128, zeros=8), "int4-g128"),
    "gptq-v2-zeros": Form(V2_ASYM, gptq(4, 32), "uint4-g32"),
    "gptq-8": Form(EIGHT, gptq(8, 128, zeros=127), "Q8_0"),
    "gptq-8-zeros": Form(EIGHT_ASYM, gptq(8, 32), "uint8-f32"),
    "gptq-8-zero-of-0": Form(EIGHT_ASYM, gptq(8, 32, zeros=255), "uint8-f32"),
    "awq-32": Form(AWQ, awq(32), "uint4-g32"),
    "awq-128": Form(AWQ, awq(128), "uint4-g128"),
    "packed-128": Form(FOUR, packed(4, 128, BF16), "int4-g128"),
    "packed-rows": Form(compressed("pack-quantized", 4, "channel"), packed(4, -1, BF16), "int4-g128"),
    "packed-zeros": Form(FOUR, packed(4, 64, BF16, "packed"), "uint4-g64"),
    "packed-int8-zeros": Form(FOUR, packed(4, 64, BF16, "plain"), "uint4-g64"),
    "packed-act-order": Form(FOUR, packed(4, 64, BF16, act_order=True), "int4-g64"),
    "packed-float32": Form(FOUR, packed(4, 128, F32), "uint4-f32"),
    "packed-tiny-scales": Form(FOUR, packed(4, 128, BF16, shrink=2.0**-24), "uint4-f32"),
    "packed-8": Form(PACKED8, packed(8, 128, BF16), "Q8_0"),
    "packed-8-zeros": Form(PACKED8, packed(8, 128, BF16, "packed"), "uint8-f32"),
    "int8-rows": Form(compressed("int-quantized", 8, "channel"), whole(-1), "Q8_0"),
    "int8-groups-zeros": Form(INT8, whole(64, zeros=True), "uint8-f32"),
    "int8-one-scale": Form(compressed("int-quantized", 8, "tensor"), whole(-1, one=True), "Q8_0"),
}

ZEROS: dict[str, Form] = {
    "unsaid": Form({"quant_method": "gptq", "bits": 4}, gptq(4, 128), "uint4-g128"),
    "sym, 8 stored": Form(GPTQ, gptq(4, 128, zeros=8), "int4-g128"),
    "sym, any stored": Form(GPTQ, gptq(4, 32), "Q4_0"),
    "sym of gptq_v2, 7 stored": Form(V2, gptq(4, 128, zeros=7), "int4-g128"),
    "sym of 8 bits, any stored": Form(EIGHT, gptq(8, 32), "Q8_0"),
    "15 stored beside others": Form(ASYM, gptq(4, 64, zeros=15), "uint4-g64"),
}  # fmt: skip
"""What the zeros of GPTQ are beside what is stored."""


def exact_weight(scheme: dict[str, Any], stored: Tensors) -> np.ndarray:
    """float32 [rows, columns], by the definition of the format."""
    if scheme["quant_method"] == "gptq":
        second = scheme.get("checkpoint_format") == "gptq_v2"
        return of_gptq(
            stored, scheme["bits"], "half" if scheme.get("sym") else "stored" if second else "plus"
        )
    if scheme["quant_method"] == "awq":
        return of_awq(stored)
    [group] = scheme["config_groups"].values()
    return (
        of_whole(stored)
        if scheme["format"] == "int-quantized"
        else of_packed(stored, group["weights"]["num_bits"])
    )


def write_quantized(
    folder: Path, form: Form, shape: str = "qwen3", wide: tuple[str, ...] = (), **fields: Any
) -> tuple[Path, Path]:
    """A checkpoint in that form, and one with the same numbers in float32. `wide`: ends of modules that are not quantized."""
    config = {**SHAPES[shape], **fields}
    quantized, exact = folder / "quantized", folder / "wide"
    for path, more in ((quantized, {"quantization_config": form.scheme}), (exact, {})):
        path.mkdir(parents=True)
        (path / "config.json").write_text(json.dumps({**config, **more}))
    decoder = Decoder(read_config(exact), torch.float32, torch.device("meta"))
    rng, heads = np.random.default_rng(5), decoder.head_norms()
    stored, numbers = Tensors(), Tensors()
    for name, target in decoder.parameters().items():
        size = tuple(target.shape[1:] if name in heads else target.shape)
        stem = name.removesuffix(".weight")
        if name.endswith("_proj.weight") and not stem.endswith(wide or ("-",)):
            # Layers with the same input have the same order.
            order = np.random.default_rng(size[1] + ("o_proj" in name)).permutation(size[1])
            made = form.make(*size, rng, order)
            stored |= {f"{stem}.{suffix}": tensor.contiguous() for suffix, tensor in made.items()}
            numbers[name] = torch.from_numpy(exact_weight(form.scheme, made))
            continue
        spread = 1.2 if "embed" in name else 1.2 / size[-1] ** 0.5
        drawn = rng.normal(0.0, spread, size) if len(size) > 1 else rng.uniform(0.5, 1.5, size)
        stored[name] = numbers[name] = torch.from_numpy(drawn.astype(np.float32))
    save_file(stored, quantized / "model.safetensors")
    save_file(numbers, exact / "model.safetensors")
    return quantized, exact


def write_mixed(
    folder: Path, settings: dict[str, Any], forms: dict[str, str], shape: str = "qwen3"
) -> tuple[Path, Path]:
    """A checkpoint whose modules have the form of FORMS under the end of their name, others the first one, and one with the same
    numbers in float32."""
    tensors, exact = Tensors(), Tensors()
    for end, form in forms.items():
        quantized, wide = write_quantized(folder / f"{end}-{form}", FORMS[form], shape)
        if end:  # in the place of what the first form has
            tensors = {name: tensor for name, tensor in tensors.items() if f"{end}." not in name}
        for path, into in ((quantized, tensors), (wide, exact)):
            found = load_file(path / "model.safetensors")
            into |= {name: tensor for name, tensor in found.items() if not end or f"{end}." in name}
    save_file(tensors, quantized / "model.safetensors")
    save_file(exact, wide / "model.safetensors")
    fields = json.loads((quantized / "config.json").read_text()) | {"quantization_config": settings}
    (quantized / "config.json").write_text(json.dumps(fields))
    return quantized, wide
