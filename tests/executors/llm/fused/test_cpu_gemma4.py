"""Gemma 4 in the one call of the CPU kernels: rows that end behind the last layer that writes KV, formats of its files, and
experts beside an MLP."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from executors.kernels.cpu import cpu_kernels
from executors.llm.attention.cpu_attention import plan
from executors.llm.attention.plain_torch import TorchAttention
from executors.llm.fused import cpu_forward
from executors.llm.kernel_support.kernel_choice import fuse
from executors.llm.model.config import parse_config
from executors.llm.model.decoder import Decoder
from executors.llm.model.layers.dense_and_experts import DenseAndExperts
from executors.llm.step_arrays import StepArrays
from tests.executors.checkpoints import write_checkpoint
from tests.executors.kernels.blocks import dequantized, random_rows
from tests.executors.llm.attention.test_cpu_attention import BF16, FP32, every_isa
from tests.executors.llm.fused.test_cpu_experts import with_stored
from tests.executors.llm.fused.test_cpu_forward import (
    GEMMA4,
    GEMMA4_ALL,
    GEMMA4_EXPERTS,
    ITEMS,
    QWEN3,
    Runner,
    load,
)
from tests.tiers import sweep

STORED = {
    **GEMMA4_ALL, "num_hidden_layers": 4, "num_kv_shared_layers": 2,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
    "hidden_size": 256, "intermediate_size": 256, "head_dim": 64, "global_head_dim": 128, "hidden_size_per_layer_input": 256,
}  # fmt: skip
WITH_EXPERTS = {
    **STORED, **GEMMA4_EXPERTS, "moe_intermediate_size": 256, "num_experts": 5, "top_k_experts": 2,
    "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0,
}  # fmt: skip
LONG = {**GEMMA4_ALL, "max_position_embeddings": 2048}


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("gemma4") / "stored", STORED)


@pytest.fixture(scope="module")
def with_experts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("gemma4") / "experts", WITH_EXPERTS)


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("gemma4") / "long", LONG)


def by_torch(decoder: Decoder, runner: Runner) -> torch.Tensor:
    """The same step by torch around the kernels."""
    fused, decoder._fused = decoder._fused, None
    found = torch.cat(runner.step(ITEMS)).float()
    decoder._fused = fused
    return found


def far(one: torch.Tensor, other: torch.Tensor) -> float:
    return float(((one - other).norm(dim=-1) / other.norm(dim=-1)).median())


# -- only wanted rows --------------------------------------------------------------------------------------------------


@sweep(every=5)
@every_isa
@pytest.mark.parametrize("dtype", [FP32, BF16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("kv", ["wide", "int8"])
def test_wanted_rows_of_pieces_that_threads_share(long: Path, isa: str, dtype: torch.dtype, kv: str) -> None:
    """A prompt behind a thousand tokens, whose keys are cut into splits that two threads compute, beside a decode."""
    torch.set_num_threads(2)
    decoder = load(long, dtype, isa, length=2048)
    decoder.kv_dtype = torch.int8 if kv == "int8" else None
    before, items = [(0, 0, 1040), (1, 0, 700)], [(0, 1040, 60), (1, 700, 1)]
    counts, begins = np.array([60, 1]), np.array([1040, 700])
    arrays = StepArrays(np.zeros(61, np.int64), counts, begins, np.zeros((2, 100), np.int32))
    assert plan(arrays, 4, 1, None, 2).groups == 2, "no piece is cut"

    def run(wanted: list[int] | None) -> tuple[torch.Tensor, torch.Tensor]:
        runner = Runner(decoder, isa, threads=2, sequences=2, length=1200, block=16)
        runner.step(before, [])
        rows = torch.cat(runner.step(items, wanted))
        return rows, torch.cat(runner.step([(0, 1100, 2), (1, 701, 1)]))

    whole, following = run(None)
    for wanted in ([59], [59, 60], [0, 1, 5, 6, 7, 58], [*range(1, 60)], [*range(60)], [60], []):
        rows, then = run(wanted)
        assert torch.equal(rows[wanted], whole[wanted]), wanted
        assert torch.equal(then, following), "keys and values of all tokens are there"


def test_rows_that_are_not_wanted_end_at_the_last_layer_that_writes_kv(tmp_path: Path) -> None:
    """Six of eight layers borrow KV: a prompt takes the time of two."""
    layers = 8
    fields = {
        **GEMMA4_ALL, "num_hidden_layers": layers, "num_kv_shared_layers": layers - 2, "hidden_size": 192,
        "intermediate_size": 512, "layer_types": ["sliding_attention", "full_attention"] * (layers // 2),
    }  # fmt: skip
    decoder = load(write_checkpoint(tmp_path / "model", fields), FP32, cpu_kernels().isa)
    runner = Runner(decoder, cpu_kernels().isa, sequences=8)
    items = [(i, 0, 64) for i in range(8)]

    def took(wanted: list[int] | None) -> float:
        begin = time.thread_time()
        runner.step(items, wanted)
        return time.thread_time() - begin

    took(None)
    times = [(took([64 * i + 63 for i in range(8)]), took(None)) for _ in range(5)]
    few, all_rows = (sorted(each)[2] for each in zip(*times, strict=True))
    assert few < 0.55 * all_rows, (few, all_rows)


# -- formats -----------------------------------------------------------------------------------------------------------


@sweep(every=4)
@every_isa
@pytest.mark.parametrize("dtype", [FP32, BF16, torch.float16], ids=["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("kind", ["Q4_0", "Q8_0", "Q4_K", "Q6_K", "MXFP4"])
def test_layers_and_table_as_a_file_holds_them(stored: Path, isa: str, dtype: torch.dtype, kind: str) -> None:
    """The projection of the layers' inputs stays wide, as in files of llama.cpp."""
    decoder, plain = with_stored(stored, isa, dtype, kind, lambda name: ".layers." in name)
    table, wide_table = decoder.row_table, plain.row_table
    assert table is not None and wide_table is not None and decoder.layer_inputs is not None
    assert not decoder.layer_inputs.projection.stored and decoder.layers[0].attention.qkv.stored
    as_large = 1.0 / dequantized(kind, random_rows(kind, 8, 1024)).std()
    rows = random_rows(kind, *wide_table.weight.shape, seed=99, scale=float(as_large))
    wide_table.weight.copy_(torch.from_numpy(dequantized(kind, rows)))
    table.keep(cpu_kernels(isa), torch.from_numpy(rows), kind)
    assert cpu_forward.why_not(decoder) is None
    got = torch.cat(Runner(decoder, isa).step(ITEMS)).float()
    expected = torch.cat(Runner(plain, None).step(ITEMS))
    around = by_torch(decoder, Runner(decoder, isa))
    assert far(got, expected) < 0.03  # rows of activations are rounded to 8 bits
    if dtype is FP32:
        assert far(got, around) < 2e-3  # and a rounding may fall to the other side
    elif dtype is BF16:  # torch rounds more often; in float16 it may overflow
        assert far(got, expected) < 1.1 * far(around, expected)


@every_isa
@pytest.mark.parametrize("held", [FP32, BF16, torch.float16, torch.float64], ids=str)
def test_a_table_in_any_dtype(stored: Path, isa: str, held: torch.dtype) -> None:
    decoder, plain = load(stored, FP32, isa), load(stored, FP32, None)
    table, wide_table = decoder.row_table, plain.row_table
    assert table is not None and wide_table is not None
    table.map(wide_table.weight.to(held))
    wide_table.weight.copy_(wide_table.weight.to(held))
    got, expected = torch.cat(Runner(decoder, isa).step(ITEMS)), torch.cat(Runner(plain, None).step(ITEMS))
    assert (got - expected).abs().max() < 2e-4 * expected.square().mean().sqrt()


@every_isa
@pytest.mark.parametrize("dtype", [FP32, BF16, torch.float16], ids=["fp32", "bf16", "fp16"])
def test_kv_in_int8(stored: Path, isa: str, dtype: torch.dtype) -> None:
    decoder = load(stored, dtype, isa)
    decoder.kv_dtype = torch.int8
    got = torch.cat(Runner(decoder, isa, block=16).step(ITEMS)).float()
    around = by_torch(decoder, Runner(decoder, isa, block=16))
    expected = torch.cat(Runner(load(stored, FP32, None), None).step(ITEMS))
    assert 1e-3 < far(got, expected) < (0.03 if dtype is FP32 else 0.04)
    assert far(got, expected) < 1.1 * far(around, expected)
    if dtype is FP32:
        assert far(got, around) < 5e-3


@pytest.mark.parametrize("number", range(4))
def test_each_layer_has_its_own_inputs_and_scalar(stored: Path, number: int) -> None:
    """A layer whose inputs or scalar were another's would be found by `test_equals_torch`."""
    decoder = load(stored, FP32, None)
    whole = torch.cat(Runner(decoder, None).step(ITEMS))
    layer, table = decoder.layers[number], decoder.row_table
    assert layer.scalar is not None and table is not None
    if number < 3:  # the final norm hides the last one
        layer.scalar.mul_(1.5)
        changed = torch.cat(Runner(decoder, None).step(ITEMS))
        layer.scalar.div_(1.5)
        assert far(changed, whole) > 1e-2
    size = decoder.config.layer_input_size
    table.weight[:, number * size : (number + 1) * size].neg_()
    assert far(torch.cat(Runner(decoder, None).step(ITEMS)), whole) > 1e-2


# -- experts beside an MLP ---------------------------------------------------------------------------------------------


@sweep(every=9)
@every_isa
@pytest.mark.parametrize("dtype", [FP32, BF16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("kind", ["Q4_0", "Q8_0", "Q4_K", "MXFP4"])
@pytest.mark.parametrize("all_layers", [False, True], ids=["experts", "all"])
def test_experts_as_a_file_holds_them(
    with_experts: Path, isa: str, dtype: torch.dtype, kind: str, all_layers: bool
) -> None:
    """The experts alone, or with all that is beside them."""
    decoder, plain = with_stored(
        with_experts, isa, dtype, kind,
        lambda name: ".layers." in name and "router" not in name and (all_layers or ".experts." in name),
    )  # fmt: skip
    assert cpu_forward.why_not(decoder) is None
    got = torch.cat(Runner(decoder, isa).step(ITEMS)).float()
    expected = torch.cat(Runner(plain, None).step(ITEMS))
    around = by_torch(decoder, Runner(decoder, isa))
    assert far(got, expected) < 0.04
    if dtype is FP32:
        assert far(got, around) < (2e-3 if all_layers else 1e-4)
    else:
        assert far(got, expected) < 1.1 * far(around, expected)


@pytest.mark.parametrize(
    "part", ["router_norm", "factors", "experts_norm", "experts_post_norm", "mlp_post_norm", "mlp_norm"]
)
def test_each_norm_and_factor_of_experts_changes_a_result(with_experts: Path, part: str) -> None:
    """One that were left out would be found by `test_equals_torch`."""
    decoder = load(with_experts, FP32, None)
    whole = torch.cat(Runner(decoder, None).step(ITEMS))
    both = decoder.layers[1].feed_forward
    assert isinstance(both, DenseAndExperts)
    tensor = {
        "router_norm": both.experts.scale, "factors": both.experts.factors, "experts_norm": both.experts_norm.weight,
        "experts_post_norm": both.experts_post_norm.weight, "mlp_post_norm": both.mlp_post_norm.weight,
        "mlp_norm": both.mlp_norm.weight,
    }[part]  # fmt: skip
    tensor.copy_(torch.linspace(0.2, 3.0, len(tensor)))
    assert far(torch.cat(Runner(decoder, None).step(ITEMS)), whole) > 1e-2


# -- what is left to torch ---------------------------------------------------------------------------------------------


def test_what_is_refused_is_named() -> None:
    def why(fields: dict[str, Any], **names: str) -> str | None:
        config = parse_config(fields)
        family = replace(config.family, names=replace(config.family.names, **names))
        return cpu_forward.why_not(Decoder(replace(config, family=family), FP32, torch.device("meta")))

    assert why(GEMMA4_ALL) is None and why({**GEMMA4_ALL, **GEMMA4_EXPERTS}) is None
    assert why({**GEMMA4, "global_head_dim": 580}) == "heads of 580"
    without = "inputs or scalars of layers without a norm behind their MLPs"
    assert why(GEMMA4, mlp_post_norm="") == without
    assert why(GEMMA4_ALL, mlp_post_norm="", layer_scalar="") == without
    assert why({**QWEN3, "vocab_size": 130}) is None


def test_layers_in_several_formats_are_left_to_torch(stored: Path) -> None:
    """Also where only what a layer makes of its inputs is in another one."""
    decoder, _ = with_stored(
        stored, cpu_kernels().isa, FP32, "Q8_0", lambda name: ".layers." in name and "per_layer" not in name
    )
    fuse(TorchAttention(), decoder)
    assert not decoder.fused
    assert "in 4 bits or as their file has them and some are not" in (cpu_forward.why_not(decoder) or "")
