"""Layers that keep states on two ranks: each number is on one of them, and both together compute what one process computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from executors.contract import (
    ConfigError,
    ExecutorConfig,
    ModelExecutor,
    OptimizationConfig,
    ParallelConfig,
    replace,
)
from executors.llm.memory.state_limits import refuse_states
from executors.llm.model.caches import state_group
from executors.llm.model.config import DecoderConfig, read_config
from executors.llm.model.decoder import Decoder
from executors.llm.model.linear import StoredFormat
from executors.llm.parallel.rank_decoder import RankDecoder
from executors.llm.parallel.shard import Shard, plan_shard
from executors.llm.tools.describe import describe
from executors.lora import pack
from executors.process import connect
from executors.testing import conformance_states
from executors.testing.conformance import CASES, check
from tests.executors.hybrid_gguf import fields_of, qwen_metadata, qwen_tensors, write_hybrid
from tests.executors.llm.driver import config
from tests.executors.llm.lora.test_hybrid_loras import MODELS as LORA_MODULES
from tests.executors.llm.lora.test_hybrid_loras import sizes_of
from tests.executors.llm.models import SHAPES, Reference, build, write
from tests.executors.llm.parallel.rank_process import logits_of, on_ranks
from tests.executors.llm.parallel.test_logits import _nearly_equal
from tests.executors.lora.peft_files import write_peft

NAMES = [
    "lfm2-short-convolutions", "lfm2-biases-kernel-of-5-untied", "lfm2-moe-sigmoid-router", "qwen3-next", "qwen3.5",
    "qwen3.5-moe",
]  # fmt: skip
ADAPTED = {"lfm2-short-convolutions": "lfm2", "qwen3-next": "qwen3_next", "qwen3.5": "qwen3_5"}
FLOAT32 = {"dtype": "float32"}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Reference]:
    folder = tmp_path_factory.mktemp("models")
    return {name: build(name, folder / name) for name in NAMES}


def shards(model: DecoderConfig, size: int, *more: Any) -> list[Shard]:
    return [plan_shard(model, ParallelConfig(size, 1, rank), *(more or ({}, None))) for rank in range(size)]


def numbers_of(decoder: Decoder, shard: Shard | None = None) -> dict[str, np.ndarray]:
    """How often each number of a tensor is in a decoder, by names; zeros of a rank are in another's."""
    found = {}
    for name, place in Decoder(decoder.whole, torch.float32, torch.device("meta")).places().items():
        shape = tuple(place.tensor.shape)
        cut = None if shard is None else shard.cuts.get(name)
        times = np.ones(shape, np.int64)
        if cut is not None:
            rows = np.zeros(shape[0], np.int64)
            for begin, end in ((0, shape[0]),) if cut.rows is None else cut.rows:
                rows[begin:end] += not cut.zeros
            times *= rows.reshape(-1, *(1 for _ in shape[1:]))
            if cut.columns is not None:
                times[:, : cut.columns[0]] = times[:, cut.columns[1] :] = 0
            assert cut.zeros or (times.any() and times.max() == 1), name
        found[name] = times
    return found


@pytest.mark.parametrize("name", NAMES)
def test_each_number_of_a_layer_with_states_is_on_one_rank(name: str, models: dict[str, Reference]) -> None:
    model = read_config(models[name].path)
    whole = Decoder(model, torch.float32, torch.device("meta"))
    parts, states = [], []
    for shard in shards(model, 2):
        assert shard.states.joining == "sum"
        decoder = RankDecoder(shard, None, torch.float32, torch.device("meta"))
        parts.append(numbers_of(decoder, shard))
        states.append(state_group(decoder))
        for own, place in decoder.places().items():
            cut, room = shard.cuts.get(own), tuple(place.tensor.shape)
            of_whole = tuple(whole.places()[own].tensor.shape)
            if own not in decoder.head_norms():
                assert room == (of_whole if cut is None else cut.shape), own
    for own in whole.places():
        total = parts[0][own] + parts[1][own]
        state = any(word in own for word in ("linear_attn", ".conv.")) and not own.endswith(
            "linear_attn.norm.weight"
        )
        assert (total == 1).all() if state else total.min() >= 1, own
        if own.endswith(("self_attn.q_proj.weight", "self_attn.o_proj.weight", "self_attn.out_proj.weight")):
            assert (total == 1).all(), own
    together = state_group(whole)
    assert together is not None and None not in states
    assert sum(np.prod(one.shape) for one in states if one is not None) == np.prod(together.shape)


def test_layers_that_cannot_be_cut_are_whole_on_each_rank(models: dict[str, Reference]) -> None:
    model = read_config(models["qwen3.5"].path)
    tiled = replace(model, family=replace(model.family, names=replace(model.family.names, delta_tiled=True)))
    outputs = [f"model.layers.{i}.linear_attn.out_proj.weight" for i in (0, 2, 3)]
    in_order = {name: StoredFormat("Q8_0", torch.arange(96).flip(0)) for name in outputs}
    of_blocks = {name: StoredFormat("Q4_K") for name in outputs}
    for one, size, stored in (
        (tiled, 2, {}), (model, 3, {}), (model, 2, in_order), (model, 2, of_blocks),
    ):  # fmt: skip
        for shard in shards(one, size, stored, None):
            assert shard.states.joining == "whole" and shard.config.sizes == model.sizes
            assert not any("linear_attn" in name for name in shard.cuts)
    wide = replace(model, sizes={**model.sizes, "linear_num_key_heads": 4, "linear_num_value_heads": 8})
    for shard, keys in zip(shards(wide, 3), (2, 1, 1), strict=True):
        assert shard.states.joining == "sum" and shard.config.sizes["linear_num_key_heads"] == keys
        assert shard.config.sizes["linear_num_value_heads"] == 2 * keys
    # Three heads of 16 columns make a block and a half: two key heads stay together.
    blocks = {name: StoredFormat("Q8_0") for name in outputs}
    three = replace(model, sizes={**model.sizes, "linear_num_key_heads": 4, "linear_num_value_heads": 12})
    assert [shard.states.own_columns for shard in shards(three, 2, blocks, None)] == [(0, 96), (96, 192)]


def test_stages_are_refused_by_name(models: dict[str, Reference]) -> None:
    settings = config(models["qwen3.5"].path)
    model = Decoder(read_config(models["qwen3.5"].path), torch.float32, torch.device("cpu"))
    with pytest.raises(ConfigError, match=r"^pipeline_parallel_size: a model whose layers have a state"):
        refuse_states(model, replace(settings, parallel=ParallelConfig(pipeline_parallel_size=2)))
    refuse_states(model, replace(settings, parallel=ParallelConfig(tensor_parallel_size=2)))


def test_facts_of_a_model_are_those_of_its_ranks(models: dict[str, Reference]) -> None:
    """`cohort info` counts what each rank has: slots of states as large as their parts."""
    parallel, alone = ParallelConfig(2), config(models["qwen3.5"].path, **FLOAT32)
    facts = describe(replace(alone, parallel=parallel, executor_type=parallel.executor_type))
    one = describe(alone)
    assert len(facts["ranks"]) == 2 and facts["states"] == one["states"]
    assert all(0 < rank["loaded_bytes"] < one["loaded_bytes"] for rank in facts["ranks"])
    assert facts["memory"]["states"]["slots"] >= one["memory"]["states"]["slots"]


def of_gguf(model: Path, folder: Path, kind: str = "F32", arch: str = "qwen35") -> Path:
    """A file as the converter writes it: of qwen35 with the value heads in its order, of qwen3next with q, k, v and z apart."""
    metadata = qwen_metadata(fields_of(model), {"attention.recurrent_layers": [True, False, True, True]})
    tensors = qwen_tensors(model, arch)
    return write_hybrid(
        folder, arch, metadata, tensors, lambda name: kind if tensors[name].shape[-1] % 32 == 0 else "F32"
    )


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_logits_are_those_of_one_process(models: dict[str, Reference], tmp_path: Path) -> None:
    def quantized(name: str, kind: str) -> ExecutorConfig:
        return config(
            models[name].path, **FLOAT32, optimization=OptimizationConfig(num_threads=1, quantization=kind)
        )

    floats = {name: config(one.path, **FLOAT32) for name, one in models.items()}
    floats["value heads of a GGUF file"] = config(
        of_gguf(models["qwen3.5"].path, tmp_path / "gguf"), **FLOAT32
    )
    floats["random weights"] = config(models["qwen3.5"].path, **FLOAT32, load_format="dummy")
    wide = write(*SHAPES["qwen3.5-wide"], tmp_path / "wide", 1)
    narrow = {
        "int8": quantized("qwen3.5", "int8"), "int4": quantized("lfm2-moe-sigmoid-router", "int4"),
        "blocks of a GGUF file": config(of_gguf(wide.path, tmp_path / "blocks", "Q8_0"), **FLOAT32),
    }  # fmt: skip
    gates = write(*SHAPES["qwen3.5-attention-alone"], tmp_path / "gates", 1)
    floats["attention with gates alone"] = config(gates.path, **FLOAT32)
    jobs = {name: (one, ()) for name, one in {**floats, **narrow}.items()}
    found = on_ranks((2, 1), jobs, tmp_path / "ranks")
    stages = on_ranks(
        (1, 2), {name: jobs[name] for name in ["attention with gates alone"]}, tmp_path / "stages"
    )
    for name, one in floats.items():
        alone = await logits_of(one)
        assert alone.std() > (0.01 if name == "random weights" else 0.2), f"{name}: the logits say little"
        np.testing.assert_allclose(
            found[name], alone, atol=1e-4 * max(1.0, alone.std()), rtol=0, err_msg=name
        )
        if name in stages:
            np.testing.assert_allclose(stages[name], alone, atol=1e-4, rtol=0, err_msg=f"{name}, stages")
    for name, one in narrow.items():
        _nearly_equal(found[name], await logits_of(one), name)


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_adapters_are_cut_as_the_layers_are(models: dict[str, Reference], tmp_path: Path) -> None:
    lora, jobs = OptimizationConfig(num_threads=1, max_loras=1), {}
    file = of_gguf(models["qwen3-next"].path, tmp_path / "gguf", arch="qwen3next")
    for name, family in ADAPTED.items():
        folder = tmp_path / name
        folder.mkdir()
        targets = sizes_of(models[name].path, (*LORA_MODULES[family][1], "linear_attn.in_proj_qkvz"))
        assert any("linear_attn" in one or "conv." in one for one in targets)
        write_peft(folder / "adapter", targets, rank=5, seed=3)
        (folder / "packed").mkdir()
        packed = pack(folder / "adapter", folder / "packed", 8)
        adapter = ("a", str(packed.path), packed.digest)
        jobs[name] = config(models[name].path, **FLOAT32, optimization=lora), adapter
        if name == "qwen3-next":
            jobs["a file of q, k, v and z"] = config(file, **FLOAT32, optimization=lora), adapter
    found = on_ranks((2, 1), jobs, tmp_path / "ranks")
    for name, (one, adapter) in jobs.items():
        alone = await logits_of(one, adapter)
        np.testing.assert_allclose(
            found[name], alone, atol=1e-4 * max(1.0, alone.std()), rtol=0, err_msg=name
        )
        assert np.abs(alone - await logits_of(one)).max() > 0.1, "the adapter changes nothing"


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["lfm2-short-convolutions", "qwen3.5"])
async def test_conformance(name: str, models: dict[str, Reference]) -> None:
    """From which slot a state is read, to which it is written, and what is kept of it: on both ranks alike."""
    parallel = ParallelConfig(2)
    settings = replace(
        config(models[name].path, **FLOAT32), parallel=parallel, executor_type=parallel.executor_type
    )

    def make() -> ModelExecutor:
        return connect(settings)

    cases = [one for one in CASES if CASES[one].__module__ == conformance_states.__name__]
    report = await check(make, tolerance=1e-3, cases=cases)
    report.raise_for_failures()
    assert len(report.passed) >= len(cases) - 1
