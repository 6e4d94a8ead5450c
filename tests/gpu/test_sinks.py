"""Sinks of a whole model whose layers Triton kernels compute, against the same model computed by torch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from executors.llm.attention.plain_torch import TorchAttention
from executors.llm.attention.triton_attention import TritonAttention
from executors.llm.checkpoint.weights import load_weights
from executors.llm.fused.triton_forward import TritonForward
from executors.llm.kernel_support.kernel_choice import fuse
from executors.llm.model.caches import kv_group
from executors.llm.model.config import read_config
from executors.llm.model.decoder import Decoder
from tests.executors.checkpoints import QWEN3, with_sinks, write_checkpoint
from tests.executors.llm.fused.test_cpu_forward import Runner

pytestmark = [
    pytest.mark.long, pytest.mark.interpreted, pytest.mark.filterwarnings("ignore:overflow encountered in exp"),
]  # fmt: skip
MODELS = {
    "windows": {**QWEN3, "use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1, "num_hidden_layers": 2},
    "heads of 512": {**QWEN3, "head_dim": 512, "num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 1},
}  # fmt: skip


def loaded(path: Path) -> Decoder:
    made = Decoder(with_sinks(read_config(path)), torch.float32, torch.device("cpu"))
    load_weights(made, path, lambda *report: None)
    made.prepare(256)
    return made


@pytest.mark.long(every=2)
@pytest.mark.parametrize("name", MODELS)
def test_a_models_layers_pass_their_sinks_on(name: str, tmp_path: Path) -> None:
    """In steps of many tokens, of few and of one, which take kernels of their own."""
    path = write_checkpoint(tmp_path / "model", MODELS[name], 0, with_sinks)
    fused, plain = loaded(path), loaded(path)
    backend = TritonAttention(kv_group(fused))
    fuse(backend, fused)
    assert isinstance(fused._fused, TritonForward) and fused._fused.few is not None
    kernels, torchs = Runner(fused, None), Runner(plain, None)
    kernels.attention = backend  # type: ignore[assignment]
    assert isinstance(torchs.attention, TorchAttention)
    for items in ([(0, 0, 30), (1, 0, 1)], [(0, 30, 3), (2, 0, 5)], [(0, 33, 1), (1, 1, 1)], [(0, 34, 1)]):
        for found, expected in zip(kernels.step(items), torchs.step(items), strict=True):
            assert (found - expected).abs().max() < 1e-4 * expected.square().mean().sqrt(), items
