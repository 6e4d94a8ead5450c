"""The parts of all ranks together are the model, each number once; blocks stay whole."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from executors.contract import ConfigError, ParallelConfig
from executors.llm.checkpoint.cut_tensors import selected_rows
from executors.llm.checkpoint.loader import refuse_for_ranks
from executors.llm.model.config import DecoderConfig, read_config
from executors.llm.model.cuts import Cut
from executors.llm.model.decoder import Decoder
from executors.llm.model.fp8 import Fp8Plan
from executors.llm.model.linear import StoredFormat
from executors.llm.parallel.rank_decoder import RankDecoder
from executors.llm.parallel.shard import Shard, plan_shard
from tests.executors.checkpoints import QWEN3, with_sinks, write_config
from tests.executors.llm.parallel.test_logits import BIASES, GPT_OSS, MOE, OLMO2
from tests.tiers import sweep

SHAPES: dict[str, dict[str, Any]] = {
    "qwen3": QWEN3,
    "biases": BIASES,
    "experts": MOE,
    "full norms": OLMO2,
    "gpt-oss": GPT_OSS,
}


def shards(
    config: DecoderConfig, size: int, stored: Mapping[str, StoredFormat] | None = None, quantization: str | None = None
) -> list[Shard]:  # fmt: skip
    return [
        plan_shard(config, ParallelConfig(size, 1, rank), stored or {}, quantization) for rank in range(size)
    ]


def counted(cuts: list[Cut]) -> np.ndarray:
    """How many ranks have each number of a tensor."""
    found = np.zeros(cuts[0].of, np.int64)
    for cut in cuts:
        rows = np.zeros(cut.of[0], np.int64)
        for begin, end in cut.rows if cut.rows is not None else ((0, cut.of[0]),):
            rows[begin:end] += 1
        if len(cut.of) == 1:
            found += rows * (not cut.zeros)
            continue
        columns = np.zeros(cut.of[1], np.int64)
        columns[slice(None) if cut.columns is None else slice(*cut.columns)] = 1
        found += rows[:, None] * columns
    return found


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("shape", SHAPES)
def test_each_number_is_on_one_rank(shape: str, size: int, tmp_path: Path) -> None:
    config = with_sinks(read_config(write_config(tmp_path / "m", SHAPES[shape])))
    of_ranks = shards(config, size)
    whole = Decoder(config, torch.float32, torch.device("meta"))
    assert "model.layers.0.self_attn.sinks" in whole.places()
    shared = max(1, size // config.num_kv_heads)
    for name in whole.places():
        cuts = [shard.cuts.get(name) for shard in of_ranks]
        if any(cut is None for cut in cuts):
            assert cuts == [None] * size, f"{name}: cut on some ranks only"
            continue
        times = counted([cut for cut in cuts if cut is not None])
        of_keys = any(part in name for part in ("k_proj", "v_proj", "k_norm"))
        assert (times == (shared if of_keys else 1)).all(), name
    divides = config.num_kv_heads % size == 0 or size % config.num_kv_heads == 0
    assert of_ranks[0].attention == ("sum" if divides else "whole")
    if not divides:
        assert all(shard.config.num_heads == config.num_heads for shard in of_ranks)
        return
    assert sum(shard.config.num_heads for shard in of_ranks) == config.num_heads


@sweep(every=3)
@pytest.mark.parametrize("quantization", [None, "int8"])
@pytest.mark.parametrize("order", [None, torch.arange(120).flip(0)], ids=["plain", "in another order"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_ranks_decoder_has_room_for_its_parts(
    shape: str, order: torch.Tensor | None, quantization: str | None, tmp_path: Path
) -> None:
    config = read_config(write_config(tmp_path / "m", SHAPES[shape]))
    whole = Decoder(config, torch.float32, torch.device("meta"))
    stored = {} if order is None else {name: StoredFormat("Q4_0", order) for name in whole.places()}
    for sizes in ((2, 1), (1, 2), (3, 1), (2, 2)):
        for rank in range(sizes[0] * sizes[1]):
            shard = plan_shard(config, ParallelConfig(*sizes, rank), stored, quantization)
            decoder = RankDecoder(shard, None, torch.float32, torch.device("meta"))
            for name, place in decoder.places().items():
                cut, size = shard.cuts.get(name), tuple(place.tensor.shape)
                of_whole = tuple(whole.places()[name].tensor.shape)
                if name not in decoder.head_norms():
                    assert size == (of_whole if cut is None else cut.shape), (
                        f"{name} on rank {rank} of {sizes}"
                    )
            missing = whole.places().keys() - decoder.places().keys() - shard.elsewhere
            ends = ("model.embed_tokens", "model.norm", "lm_head")
            assert all(name.startswith(ends) and not shard.is_first for name in missing)


def test_blocks_of_columns_are_not_cut(tmp_path: Path) -> None:
    fields = {**QWEN3, "hidden_size": 256, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64,
              "intermediate_size": 768}  # fmt: skip
    config = read_config(write_config(tmp_path / "m", fields))
    layers = range(config.num_layers)
    names = [
        f"model.layers.{i}.{part}.weight" for i in layers for part in ("self_attn.o_proj", "mlp.down_proj")
    ]
    first, second = shards(config, 2, dict.fromkeys(names, StoredFormat("Q4_K")))
    assert first.cuts[names[0]].columns == (0, 256) and second.cuts[names[0]].columns == (256, 512)
    assert first.cuts[names[1]].columns == (0, 512), "three blocks of 256: two and one"
    assert second.cuts[names[1]].columns == (512, 768)
    assert second.config.intermediate_size == 256

    odd = dict.fromkeys(names, StoredFormat("Q4_K")) | {
        names[0]: StoredFormat("int4-g64", torch.arange(512).flip(0))
    }
    for shard in shards(config, 2, odd):
        assert shard.attention == "join" and names[0] not in shard.cuts, (
            "columns in another order stay together"
        )
        assert shard.head_widths == (256, 256) and shard.mlp == "sum"


def test_heads_that_are_no_blocks_are_joined(tmp_path: Path) -> None:
    """Six heads of 20 columns, in groups of three: no cut is at a multiple of 32."""
    config = read_config(write_config(tmp_path / "m", QWEN3))
    for shard in shards(config, 2, quantization="int8"):
        assert shard.attention == "join" and shard.config.num_heads == 3
        assert shard.mlp == "sum"


def test_stages_have_all_layers_and_the_first_one_the_ends(tmp_path: Path) -> None:
    config = read_config(write_config(tmp_path / "m", QWEN3))
    first, second = (plan_shard(config, ParallelConfig(1, 2, rank), {}, None) for rank in range(2))
    assert (first.first_layer, first.config.num_layers) == (0, 2)
    assert (second.first_layer, second.config.num_layers) == (2, 1)
    assert first.is_first and first.config.vocab_size == config.vocab_size
    assert not second.is_first and second.config.vocab_size == 0
    assert "model.layers.2.mlp.down_proj.weight" in first.elsewhere - second.elsewhere
    with pytest.raises(ConfigError, match="pipeline_parallel_size 4: the model has 3 layers"):
        plan_shard(config, ParallelConfig(1, 4), {}, None)


def test_weights_in_fp8_are_not_cut(tmp_path: Path) -> None:
    config = read_config(write_config(tmp_path / "m", QWEN3))
    refuse_for_ranks(config, None)
    with pytest.raises(ConfigError, match="weights in FP8 are not cut"):
        refuse_for_ranks(config, Fp8Plan(blocks=False, stored=None, triton=False))


def test_rows_are_selected_across_pieces() -> None:
    rows = torch.arange(20)[:, None]
    pieces = [(0, rows[:7]), (7, rows[7:14]), (14, rows[14:])]
    found = torch.full((9,), -1)
    for begin, part in selected_rows(pieces, ((2, 8), (15, 18))):
        found[begin : begin + len(part)] = part[:, 0]
    assert found.tolist() == [2, 3, 4, 5, 6, 7, 15, 16, 17]
