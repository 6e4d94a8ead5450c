"""benchmarks/peers/cut_shapes.py: the files of large models with fewer layers, as their readers see them."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from benchmarks.peers import cut_shapes, gguf_files, models, roofline
from executors.contract import LogitsMode, PrefillInput, Tensor
from executors.gguf.file import read_gguf
from executors.llm.model.config import read_config
from tests.executors.gguf_files import prepared
from tests.executors.llm.driver import start

pytestmark = pytest.mark.long
SMALL = {
    "gpt-oss-20b-cut": lambda: cut_shapes.gpt_oss(2, hidden=64, experts=6, vocabulary=1008, heads=16),
    "gemma-4-e4b-cut": lambda: cut_shapes.gemma4(12, hidden=256, inner=128, vocabulary=1008),
}


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache in which files are made of smaller matrices."""
    monkeypatch.setenv("PEER_MODELS", str(tmp_path / "cache"))
    monkeypatch.setattr(models, "_WORDS", 997)
    monkeypatch.setattr(models, "END", 999)
    for name, cut in SMALL.items():
        monkeypatch.setitem(cut_shapes.CUTS, name, cut)
    return tmp_path


@pytest.mark.parametrize("name", SMALL)
async def test_a_file_is_made_once_and_served(name: str, small: Path) -> None:
    path = gguf_files.ensure(name)
    written = path.stat().st_mtime_ns
    assert gguf_files.ensure(name) == path and path.stat().st_mtime_ns == written
    assert list(path.parent.iterdir()) == [path]
    file, cut = read_gguf(path), SMALL[name]()
    assert {one: tensor.type for one, tensor in file.tensors.items()} == {
        tensor.name: tensor.type for tensor in cut.tensors
    }
    executor = await start(prepared(small / "served", path), dtype="auto", max_model_len=256)
    ids = [(31 * i * i + 7 * i) % 1000 for i in range(40)]
    output = await executor.prefill(PrefillInput(Tensor.of([ids], "int32"), logits=LogitsMode.ALL))
    assert output.logits is not None
    logits = output.logits.numpy()[0]
    await executor.shutdown()
    # Of order one, and another token after each: a file of zeros or of one number would be as fast, but for its experts.
    assert np.isfinite(logits).all() and 0.1 < logits.std() < 30
    assert len(set(logits.argmax(-1).tolist())) > 8


def test_the_whole_shapes_are_the_published_ones() -> None:
    """With all layers the matrices are as many numbers as the models' names and pages say."""
    counts = {
        "gpt-oss": sum(math.prod(one.shape) for one in cut_shapes.gpt_oss(24).tensors),
        "gemma4": sum(math.prod(one.shape) for one in cut_shapes.gemma4(42, 18).tensors),
    }
    assert counts["gpt-oss"] == pytest.approx(20.9e9, rel=0.005)
    assert counts["gemma4"] == pytest.approx(7.5e9, rel=0.01)


def test_layers_are_cut_and_nothing_else(small: Path) -> None:
    """The reader's own view: windows in the pattern of the whole model, and layers that read the keys of others."""
    gpt = read_config(prepared(small / "gpt", gguf_files.ensure("gpt-oss-20b-cut")))
    assert [layer.window for layer in gpt.layers] == [128, None]
    gemma = read_config(prepared(small / "gemma", gguf_files.ensure("gemma-4-e4b-cut")))
    assert [layer.window for layer in gemma.layers] == ([512] * 5 + [None]) * 2
    assert [gemma.heads_of(layer).head_dim for layer in gemma.layers] == ([256] * 5 + [512]) * 2


@pytest.mark.parametrize("kind", cut_shapes.BLOCKS)
def test_products_keep_unit_variance(kind: str) -> None:
    from gguf import GGMLQuantizationType, quants

    tensor = cut_shapes.Tensor("w", (128, 512), kind)
    rows = cut_shapes.contents(tensor, np.random.default_rng(1))
    weights = quants.dequantize(rows, GGMLQuantizationType[kind])
    # A scale of MXFP4 is a power of two.
    assert weights.std() == pytest.approx(512**-0.5, rel=0.42 if kind == "MXFP4" else 0.03)


def test_the_limit_counts_the_experts_of_a_token_alone(small: Path) -> None:
    file = read_gguf(gguf_files.ensure("gpt-oss-20b-cut"))
    experts = sum(one.num_bytes for name, one in file.tensors.items() if "_exps." in name)
    others = sum(
        one.num_bytes
        for name, one in file.tensors.items()
        if "_exps." not in name and name != "token_embd.weight"
    )
    cost = roofline.of_gguf(gguf_files.ensure("gpt-oss-20b-cut"))
    assert cost.weight_bytes == pytest.approx(others + experts * 4 / 6)
