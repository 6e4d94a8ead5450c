"""Files of shapes with states, what a step of them reads, and `benchmarks.states`, on small shapes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import states
from benchmarks.peers import gguf_files, hybrid_files, limits, roofline
from benchmarks.shapes import SHAPES
from executors.gguf.file import read_gguf

pytestmark = pytest.mark.long

_SMALL = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512}
SMALL: dict[str, dict[str, Any]] = {
    "qwen3.5-0.8b": {
        **SHAPES["qwen3.5-0.8b"], **_SMALL, "num_hidden_layers": 4, "intermediate_size": 96, "head_dim": 32,
        "layer_types": [*["linear_attention"] * 3, "full_attention"], "linear_num_key_heads": 2,
        "linear_num_value_heads": 2, "linear_key_head_dim": 32, "linear_value_head_dim": 32, "max_position_embeddings": 4096,
    },
    "lfm2-350m": {
        **SHAPES["lfm2-350m"], **_SMALL, "num_hidden_layers": 3, "intermediate_size": 192, "block_multiple_of": 32,
        "layer_types": ["conv", "conv", "full_attention"], "max_position_embeddings": 4096,
    },
}  # fmt: skip
INPUTS = {"qwen3.5-0.8b": 3 * 3 * 3 * 64, "lfm2-350m": 2 * 2 * 64}
"""Numbers that the convolutions of all layers keep: layers, kernel less one, channels."""
MATRICES = {"qwen3.5-0.8b": 3 * 2 * 32 * 32, "lfm2-350m": 0}


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The shapes are small ones, and files are written without llama-quantize."""
    # A tokenizer has a token for every byte and the special ones, so that a small vocabulary is enough.
    monkeypatch.setitem(SHAPES, "qwen3.5-0.8b", SMALL["qwen3.5-0.8b"])
    monkeypatch.setitem(SHAPES, "lfm2-350m", SMALL["lfm2-350m"])
    return tmp_path


@pytest.mark.parametrize("shape", SMALL)
def test_a_step_reads_and_writes_the_states(small: Path, shape: str) -> None:
    file = small / "m.gguf"
    hybrid_files.write(shape, file)
    cost = roofline.of_gguf(file)
    assert cost.state_bytes == 2 * 4 * (INPUTS[shape] + MATRICES[shape])
    attends, head = 1, 32 if shape.startswith("qwen") else 16
    assert cost.kv_bytes == attends * 2 * 2 * 2 * head
    sizes = {name: tensor.shape for name, tensor in read_gguf(file, arrays=False).tensors.items()}
    assert sizes == hybrid_files.tensor_sizes(SMALL[shape])


@pytest.mark.parametrize(("hybrid", "dense"), states.TWINS.items(), ids=lambda name: name)
def test_twins_have_as_many_parameters(hybrid: str, dense: str) -> None:
    from benchmarks.peers.models import tensor_sizes

    def count(sizes: dict[str, tuple[int, ...]]) -> int:
        return sum(one[0] * one[1] for one in sizes.values() if len(one) == 2)

    ratio = count(tensor_sizes(SHAPES[dense])) / count(hybrid_files.tensor_sizes(SHAPES[hybrid]))
    assert 0.98 <= ratio <= 1.02


@pytest.mark.parametrize("shape", SMALL)
def test_depth_and_share_come_to_their_end(
    small: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], shape: str
) -> None:
    file = small / "m.gguf"
    hybrid_files.write(shape, file)
    monkeypatch.setattr(gguf_files, "ensure", lambda name: file)
    monkeypatch.setattr(limits, "reading", lambda: 50.0)
    monkeypatch.setattr(states, "_KV_BYTES", 1 << 26)
    shared = asyncio.run(states.share([shape], 1))
    assert [(one["shape"], one["streams"]) for one in shared] == [
        (name, streams) for streams in states.STREAMS for name in (shape, states.TWINS[shape])
    ]
    cost = roofline.of_gguf(file)
    for one in shared:
        assert one["MB"] * 1e6 > cost.weight_bytes + one["streams"] * cost.state_bytes
        assert one["share"] == pytest.approx(one["MB"] / 50 / one["ms"])
    (deep,) = asyncio.run(states.depth([shape], 600, 1))
    assert deep["ratio"] == pytest.approx(deep["ms"] / deep["ms_deep"])
    assert (
        len([json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]) == 5
    )
