"""Trained models read from their GGUF files: Q4_1 and Q8_0 in the one; Q4_K, Q5_0, Q6_K and Q8_0 in the other."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, quants
from safetensors.torch import load_file
from tokenizers import Tokenizer

from executors.contract import OptimizationConfig, PrefillInput, Tensor
from executors.gguf.file import read_gguf
from executors.llm.checkpoint.files import Checkpoint
from executors.llm.model.gguf_names import Stored
from tests.executors.gguf_files import prepared
from tests.executors.llm.driver import start
from tools.real_models import directory, gguf_file

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]

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


@pytest.mark.parametrize("quantization", [None, "int8"])
@pytest.mark.parametrize("name", TYPES)
async def test_logits_are_those_of_the_widened_checkpoint(
    tmp_path: Path, name: str, quantization: str | None
) -> None:
    ids = Tokenizer.from_file(str(directory(name) / "tokenizer.json")).encode(TEXT).ids[:400]
    rows = []
    for path in (prepared(tmp_path, gguf_file(name)), directory(name)):
        options = OptimizationConfig(num_threads=1, quantization=quantization)
        executor = await start(
            path, dtype="bfloat16", optimization=options, kv_bytes=64 << 20, max_model_len=512
        )
        rows.append(
            np.asarray((await executor.prefill(PrefillInput(Tensor.of([ids], "int32")))).last_token_logits())
        )
        await executor.shutdown()
    if quantization is None:
        assert np.array_equal(rows[0], rows[1])
    else:  # rounded to int8 from float32 in one case, and from bfloat16 in the other
        assert np.abs(rows[0] - rows[1]).mean() < 0.5
        assert rows[0].argmax() == rows[1].argmax()
