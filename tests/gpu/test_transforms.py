"""Hadamard products around the kernels' linear layers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.executors.checkpoints import write_checkpoint
from tests.executors.llm.checkpoint.test_fp8_weights import distance, logits
from tests.executors.llm.checkpoint.test_transforms import GROUPS, PLAIN, copied, with_transforms
from tests.gpu.test_attention import DEVICE

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore:overflow encountered in exp")]


@pytest.mark.long(every=2)
@pytest.mark.parametrize("name", ["merged inputs", "both sides"])
async def test_a_transformed_model_is_the_plain_one(name: str, tmp_path: Path) -> None:
    plain = write_checkpoint(tmp_path / "plain", {**PLAIN, "tie_word_embeddings": False, "vocab_size": 212})
    path = with_transforms(copied(plain, tmp_path / "turned"), GROUPS[name])
    found, expected = [(await logits(one, "triton", device=DEVICE.type))[0] for one in (path, plain)]
    assert distance(found, expected) < (1e-4 if DEVICE.type == "cuda" else 1e-5)
