"""Logits that are divided or capped on their way from the head to the sampler."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from executors.llm.model.decoder import Decoder
from tests.executors.checkpoints import QWEN3, write_checkpoint
from tests.executors.llm.attention.test_cpu_attention import BF16, FP32, both_dtypes, every_isa
from tests.executors.llm.fused.test_cpu_forward import MODELS, load

DIVIDED = {
    **QWEN3, "architectures": ["GraniteForCausalLM"], "model_type": "granite", "logits_scaling": 3.0,
    "embedding_multiplier": 1.0, "residual_multiplier": 1.0, "attention_multiplier": 0.25,
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {"capped": MODELS["gemma2"], "divided": DIVIDED}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("logits")
    return {name: write_checkpoint(root / name, fields) for name, fields in CONFIGS.items()}


def hidden_rows(decoder: Decoder, rows: int, scale: float = 1.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    return (torch.randn(rows, decoder.config.hidden_size, generator=generator) * scale).to(decoder.dtype)


@every_isa
@both_dtypes
@pytest.mark.parametrize("name", CONFIGS)
def test_logits_are_divided_and_capped(
    checkpoints: dict[str, Path], isa: str, dtype: torch.dtype, name: str
) -> None:
    decoder = load(checkpoints[name], dtype, isa)
    c = decoder.config
    for scale in (0.05, 1.0, 40.0):
        hidden = hidden_rows(decoder, 5, scale)
        raw = decoder.lm_head.wide(hidden).double() / c.logits_divisor
        expected = raw if c.final_softcap is None else torch.tanh(raw / c.final_softcap) * c.final_softcap
        got = decoder.logits(hidden)
        assert got.dtype is FP32
        assert (got.double() - expected).abs().max() < 1e-6 * max(1.0, float(expected.abs().max()))
        assert c.final_softcap is None or got.abs().max() <= c.final_softcap


@every_isa
@pytest.mark.parametrize("name", CONFIGS)
def test_what_is_sampled_from_is_what_is_described(checkpoints: dict[str, Path], isa: str, name: str) -> None:
    """The same bits, whichever rows are beside, and no new memory for them at the next call."""
    decoder = load(checkpoints[name], BF16, isa)
    hidden = hidden_rows(decoder, 7, 4.0)
    whole = decoder.logits(hidden)
    rows = torch.cat([decoder.logits(hidden[i : i + 1]) for i in range(7)])
    sampled, maxima = decoder.logits_for_sampling(hidden)
    assert torch.equal(sampled, whole) and torch.equal(rows, whole)
    # Those of the head's own results would be of other numbers.
    assert maxima is None
    at = sampled.data_ptr()
    again, _ = decoder.logits_for_sampling(hidden[:3])
    assert again.data_ptr() == at and torch.equal(again, whole[:3])


@every_isa
@pytest.mark.parametrize("name", CONFIGS)
def test_a_number_that_is_none_stays_one(checkpoints: dict[str, Path], isa: str, name: str) -> None:
    decoder = load(checkpoints[name], BF16, isa)
    hidden = hidden_rows(decoder, 3)
    hidden[1, 0] = float("nan")
    logits, _ = decoder.logits_for_sampling(hidden)
    assert logits[1].isnan().all() and logits[[0, 2]].isfinite().all()
