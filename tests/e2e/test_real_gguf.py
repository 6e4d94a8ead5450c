"""Trained models read from their GGUF files: Q4_1 and Q8_0 in the one; Q4_K, Q5_0, Q6_K and Q8_0 in the other."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, quants
from safetensors.torch import load_file
from tokenizers import Tokenizer

from benchmarks.quality_quantization import figures, float32_logits, quantized
from executors.contract import OptimizationConfig, PrefillInput, Tensor
from executors.gguf.file import read_gguf
from executors.llm.checkpoint.files import Checkpoint
from executors.llm.model.gguf_names import Stored
from executors.llm.tools.wide_copy import write_wide_copy
from tests.e2e.test_real_int8 import MOST_KL, WIDEST_FLIP
from tests.executors.gguf_files import prepared
from tests.executors.llm.driver import start
from tools.real_models import directory, gguf_file

pytestmark = [pytest.mark.external, pytest.mark.timeout(600)]

TYPES = {"smollm2": {"Q4_1", "Q8_0", "F32"}, "gemma3": {"Q4_K", "Q5_0", "Q6_K", "Q8_0", "F32"}}
TEXT = (
    "The lighthouse had been dark for eleven years when the letter came. Its keeper had moved to the village; "
    * 20
)


def _reference(path: Path, one: Stored) -> torch.Tensor:
    """A tensor as the gguf package dequantizes it, in the usual form."""
    raw = np.fromfile(path, np.uint8, one.tensor.num_bytes, offset=one.tensor.offset)
    values = quants.dequantize(raw, GGMLQuantizationType[one.tensor.type]).reshape(one.tensor.shape)
    tensor = torch.from_numpy(np.array(values))
    if one.heads:
        tensor = torch.cat(
            [head.unflatten(0, (-1, 2)).transpose(0, 1).flatten(0, 1) for head in tensor.chunk(one.heads)]
        )
    return tensor - 1 if one.plus_one else tensor


@pytest.mark.parametrize("name", TYPES)
def test_every_weight_is_the_reference_bit_for_bit(tmp_path: Path, name: str) -> None:
    path = gguf_file(name)
    published = load_file(directory(name) / "model.safetensors")
    checkpoint = Checkpoint(prepared(tmp_path, path))
    (file,) = checkpoint.files.values()
    assert set(file.names()) == set(published)
    for usual in file.names():
        mine = torch.empty(file.shape(usual))
        file.copy_into(usual, mine)
        assert torch.equal(mine, _reference(path, file._stored[usual])), usual
        # In bfloat16 it is the directory that another program made of the file.
        assert torch.equal(mine.to(torch.bfloat16), published[usual]), usual
    kinds = Counter(one.type for one in read_gguf(path, arrays=False).tensors.values())
    print(f"{name}: {dict(kinds)}")
    assert set(kinds) == TYPES[name]
    checkpoint.close()


@pytest.mark.parametrize("name", TYPES)
async def test_int8_of_a_file_is_that_of_the_widened_checkpoint(tmp_path: Path, name: str) -> None:
    ids = Tokenizer.from_file(str(directory(name) / "tokenizer.json")).encode(TEXT).ids[:400]
    rows = []
    for path in (prepared(tmp_path, gguf_file(name)), directory(name)):
        options = OptimizationConfig(num_threads=1, quantization="int8")
        executor = await start(
            path, dtype="bfloat16", optimization=options, kv_bytes=64 << 20, max_model_len=512
        )
        rows.append(
            np.asarray((await executor.prefill(PrefillInput(Tensor.of([ids], "int32")))).last_token_logits())
        )
        await executor.shutdown()
    # Rounded to int8 from float32 in one case, and from bfloat16 in the other.
    assert np.abs(rows[0] - rows[1]).mean() < 0.5
    assert rows[0].argmax() == rows[1].argmax()


@pytest.mark.parametrize(("name", "agreement"), [("smollm2", 0.94), ("gemma3", 0.96)])
async def test_a_file_computed_as_it_is_stored_is_close_to_the_same_weights_in_float32(
    tmp_path: Path, name: str, agreement: float
) -> None:
    stored, wide = prepared(tmp_path / "stored", gguf_file(name)), tmp_path / "wide"
    write_wide_copy(stored, wide)
    for path in (stored, wide):  # the texts are tokenized by both names
        for file in directory(name).glob("*token*.json"):
            shutil.copy(file, path)
    with float32_logits(wide) as exact:
        found = await quantized(stored, "bf16", exact, ["prefill"], threads=1)
    report = figures(found["prefill"])
    print(f"{name}: {report}")
    assert report["rows"] > 2000
    assert report["kl"] <= MOST_KL, report
    assert report["agreement"] >= agreement, report
    assert report["flipped_gap"] <= WIDEST_FLIP, report
