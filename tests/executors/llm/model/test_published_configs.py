"""Fields as published checkpoints have them: what they mean, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from executors.contract.errors import ConfigError
from executors.llm.model.config import parse_config
from executors.llm.model.rope import rotary_table
from executors.llm.model.rope_config import RopeConfig

_COMMON: dict[str, Any] = {
    "hidden_size": 64, "num_hidden_layers": 6, "num_attention_heads": 4, "intermediate_size": 96, "vocab_size": 100,
    "max_position_embeddings": 4096, "rms_norm_eps": 1e-6,
}  # fmt: skip


def config(architecture: str, **fields: Any) -> Any:
    return parse_config({**_COMMON, "architectures": [architecture], **fields})


def windows(architecture: str, **fields: Any) -> list[int | None]:
    return [layer.window for layer in config(architecture, **fields).layers]


def test_windows_where_fields_are_missing_null_or_switched_off() -> None:
    assert windows("MistralForCausalLM") == [4096] * 6
    assert windows("MistralForCausalLM", sliding_window=None) == [None] * 6
    assert (
        windows("Qwen2ForCausalLM", sliding_window=32768, use_sliding_window=False, max_window_layers=2)
        == [None] * 6
    )
    assert windows("Gemma2ForCausalLM") == [4096, None] * 3
    assert windows("Gemma2ForCausalLM", sliding_window=None) == [None] * 6
    assert windows("Gemma3ForCausalLM", sliding_window=512) == [512] * 5 + [None]
    assert windows("Phi3ForCausalLM", sliding_window=2047) == [2047] * 6


def test_gemma_2_bounds_scores_and_logits_unless_told_not_to() -> None:
    usual = config("Gemma2ForCausalLM")
    assert (usual.attn_softcap, usual.final_softcap) == (50.0, 30.0)
    off = config("Gemma2ForCausalLM", attn_logit_softcapping=None, final_logit_softcapping=None)
    assert (off.attn_softcap, off.final_softcap) == (None, None)


def test_gemma_3_counts_its_context_after_scaling() -> None:
    scaled = config(
        "Gemma3ForCausalLM",
        max_position_embeddings=131072,
        rope_scaling={"rope_type": "linear", "factor": 8.0},
    )
    assert scaled.context_length == scaled.max_context_length == 131072
    assert scaled.ropes[0].factor == 8.0 and scaled.ropes[1].kind == "default"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"vocab_size": 10**12}, ["vocab_size", "at most"]),
        ({"hidden_size": 10**30}, ["hidden_size is about 1e30", "at most"]),
        ({"max_position_embeddings": 10**400}, ["max_position_embeddings", "at most"]),
        ({"num_hidden_layers": 10**6}, ["num_hidden_layers", "at most 1000"]),
        ({"rms_norm_eps": -1e-6}, ["rms_norm_eps", "at least 0"]),
        (
            {"rope_scaling": {"rope_type": "yarn", "factor": 1e308}},
            ["rope_scaling: factor is 1e+308", "at most"],
        ),
    ],
)
def test_huge_numbers_are_refused_by_name(fields: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        config("LlamaForCausalLM", **fields)
    assert all(word in str(caught.value) for word in words), caught.value


def test_a_long_table_is_the_same_in_pieces() -> None:
    rope = RopeConfig("default", 10000.0, 20000, 8)
    table = rotary_table(rope, 9000, torch.device("cpu"))
    positions = torch.arange(9000, dtype=torch.float64)[:, None]
    angles = positions * 10000.0 ** -(torch.arange(0, 8, 2, dtype=torch.float64) / 8)
    assert torch.equal(table[:, 0], angles.cos().float())
    assert torch.equal(table[:, 1], angles.sin().float())
