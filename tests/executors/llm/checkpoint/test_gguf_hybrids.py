"""GGUF files of models whose layers are not all attention compute what their checkpoints compute."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from executors.contract import ConfigError, LogitsMode, PrefillInput, Tensor
from executors.llm.model.config import read_config
from tests.executors.hybrid_gguf import fields_of, lfm2_metadata, lfm2_tensors, write_hybrid
from tests.executors.llm.driver import start

IDS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9]


async def logits(path: Path) -> np.ndarray:
    executor = await start(path, dtype="float32")
    out = (await executor.prefill(PrefillInput(Tensor.of([IDS], "int32"), logits=LogitsMode.ALL))).logits
    assert out is not None
    await executor.shutdown()
    return np.asarray(out.numpy()[0])


@pytest.mark.parametrize(
    ("name", "arch"),
    [
        ("lfm2-short-convolutions", "lfm2"),
        ("lfm2-biases-kernel-of-5-untied", "lfm2"),
        ("lfm2-moe-sigmoid-router", "lfm2moe"),
        ("lfm2-moe-no-bias-of-choice", "lfm2moe"),
    ],
)
async def test_a_file_of_lfm2_is_its_checkpoint(reference: Any, tmp_path: Path, name: str, arch: str) -> None:
    ref = reference(name)
    path = write_hybrid(tmp_path, arch, lfm2_metadata(fields_of(ref.path)), lfm2_tensors(ref.path))
    ours, theirs = read_config(path), read_config(ref.path)
    assert (ours.layers, ours.moe, ours.sizes) == (theirs.layers, theirs.moe, theirs.sizes)
    assert np.abs(await logits(path) - ref.logits(IDS)).max() < 1e-4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"attention.head_count_kv": 2}, "a number for each of 5 layers is needed"),
        ({"attention.head_count_kv": [0] * 5}, r"head_count_kv .* is not supported; supported: one number"),
        ({"attention.head_count_kv": [0, 1, 2, 0, 0]}, "one number for the layers with attention"),
        ({"shortconv.l_cache": None}, "shortconv.l_cache is missing"),
        ({"shortconv.l_cache": 1}, "conv_L_cache is 1; at least 2"),
        ({"attention.sliding_window": 8}, "attention.sliding_window 8 is not supported"),
        ({"expert_gating_func": 1}, r"expert_gating_func 1 is not supported; supported: 2 \(sigmoid\)"),
    ],
)
async def test_other_files_are_refused_by_name(
    reference: Any, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    ref = reference("lfm2-moe-sigmoid-router")
    metadata = lfm2_metadata(fields_of(ref.path)) | change
    kept = {key: value for key, value in metadata.items() if value is not None}
    path = write_hybrid(tmp_path, "lfm2moe", kept, lfm2_tensors(ref.path))
    with pytest.raises(ConfigError, match=message):
        await start(path)
