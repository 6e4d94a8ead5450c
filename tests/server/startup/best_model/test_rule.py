"""Which of several models is the best one, by names, sizes and the executor's facts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from server.model_files.folders import Found
from server.model_files.headers import Experts, experts_of
from server.startup.best_model import rule

GB = 10**9


def model(name: str, kind: str = "GGUF Q4_K_M", size: float = 2.5 * GB, problem: str | None = None) -> Found:
    return Found(name, kind, int(size), Path("/m") / name, "Hugging Face", problem)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("Qwen/Qwen3-Embedding-4B-GGUF/Qwen3-Embedding-4B-Q8_0.gguf", "Embedding"),
        ("nomic-embed-text:latest", "embed"),
        ("BAAI/bge-reranker-v2-m3", "bge"),
        ("Qwen/Qwen3-Reranker-4B", "Reranker"),
        ("google/gemma-3-4b-pt", "base model"),
        ("Qwen/Qwen3-4B-Base", "base model"),
        ("meta-llama/Llama-Guard-3-8B", "Guard"),
        ("acme/Qwen3-4B-draft", "draft"),
        ("acme/EAGLE3-Llama-8B", "EAGLE3"),
        ("hf-internal-testing/tiny-random-LlamaForCausalLM", "random"),
        ("acme/summaries-lora", "lora"),
        ("gpt-oss:120b-cloud", "cloud"),
    ],
)
def test_what_is_not_for_chats_by_its_name(name: str, reason: str) -> None:
    assert reason in (rule.excluded_by_name(model(name), 100 * GB) or "")


@pytest.mark.parametrize(
    "name",
    [
        "Qwen/Qwen3-4B-Instruct-2507", "llama3.2:3b", "/data/.lmstudio/models/lmstudio-community/gemma-3-4b-it-GGUF/a.gguf",
        "acme/Explorations-4B", "acme/database-chat", "mistralai/Ministral-3B", "Vanguard-7B", "unsloth/gemma-3n-E4B-it",
    ],
)  # fmt: skip
def test_other_names_exclude_nothing(name: str) -> None:
    assert rule.excluded_by_name(model(name), 100 * GB) is None


def test_sizes_and_faults_exclude() -> None:
    assert (
        rule.excluded_by_name(model("a", problem="1 of 2 parts are missing"), 100 * GB)
        == "1 of 2 parts are missing"
    )
    assert "too small" in (rule.excluded_by_name(model("a", size=60e6), 100 * GB) or "")
    assert "do not fit" in (rule.excluded_by_name(model("a", size=9 * GB), 8 * GB) or "")


@pytest.mark.parametrize(
    ("kind", "bits"),
    [
        ("GGUF Q4_K_M", 4.7), ("GGUF IQ2_XXS", 2.7), ("GGUF Q8_0", 8.7), ("GGUF BF16", 16), ("GGUF F32", 32), ("GGUF MXFP4", 4.5),
        ("GGUF", 4.8), ("safetensors bfloat16", 16), ("safetensors float16 awq", 4.5), ("safetensors bfloat16 fp8", 8),
        ("safetensors float32", 32), ("safetensors", 16),
    ],
)  # fmt: skip
def test_bits_of_a_format(kind: str, bits: float) -> None:
    assert rule.format_bits(kind) == bits


def best(*models: tuple[str, float, Experts | None, float, float]) -> str:
    """The first of (name, parameters, experts, bits per weight, time)."""
    ranked = sorted(
        models, key=lambda one: rule.order(one[1], one[2], int(one[1] * one[3] / 8), changed=one[4])
    )
    return ranked[0][0]


def test_the_order() -> None:
    assert best(("3B", 3e9, None, 16, 9), ("4B", 4e9, None, 4.8, 1)) == "4B"
    assert (
        best(("4-bit", 4e9, None, 4.8, 1), ("16-bit", 4e9, None, 16, 2), ("2-bit", 4e9, None, 2.6, 3))
        == "4-bit"
    )
    assert best(("16-bit", 4e9, None, 16, 2), ("2-bit", 4e9, None, 2.6, 3)) == "16-bit"
    assert best(("old", 4e9, None, 4.8, 1), ("new", 4e9, None, 8.5, 2)) == "new"
    # With and without a head of its own: the same model.
    assert best(("tied", 4.02e9, None, 4.8, 2), ("with head", 4.2e9, None, 4.8, 1)) == "tied"


def test_a_mixture_counts_less_than_its_weights_and_more_than_what_a_token_uses() -> None:
    moe = ("30B-A3B", 30e9, Experts(128, 8), 4.8, 1.0)
    assert best(moe, ("8B", 8e9, None, 4.8, 1)) == "30B-A3B"
    assert best(moe, ("14B", 14e9, None, 4.8, 1)) == "14B"


def facts(**changes: Any) -> dict[str, Any]:
    return {"context": 32768, "context_length": 32768, "problem": None, "generates": True, "parameters": 4e9,
            "loaded_bytes": 2.5e9, "device": "cpu", "threads": 2, **changes}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"problem": "model_type 'x' is not supported"}, "not supported"),
        ({"context": 1000}, "a context of 1,000 tokens"),
        ({"context": 2048, "context_length": 2048}, None),
        ({"generates": False}, "no text"),
        ({"parameters": 135e6}, "too small"),
        ({"loaded_bytes": 40e9}, "0.5 tokens per second"),
        ({"loaded_bytes": 40e9, "threads": 8}, "2.0 tokens per second"),
        ({"loaded_bytes": 40e9, "device": "cuda:0"}, None),
    ],
)
def test_what_the_executor_says(changes: dict[str, Any], reason: str | None) -> None:
    found = rule.excluded_by_facts(facts(**changes), None)
    assert found is None if reason is None else reason in (found or "")


def test_a_mixture_of_30_billion_is_fast_enough_on_two_cores_where_a_dense_model_is_not() -> None:
    assert rule.excluded_by_facts(facts(loaded_bytes=17e9), None) is not None
    assert rule.excluded_by_facts(facts(loaded_bytes=17e9), Experts(128, 8)) is None


def test_experts_by_their_names_in_configurations() -> None:
    assert experts_of({"num_experts": 128, "num_experts_per_tok": 8}) == Experts(128, 8)
    assert experts_of({"num_local_experts": 8, "num_experts_per_tok": 2}) == Experts(8, 2)
    assert experts_of({"text_config": {"n_routed_experts": 64, "num_experts_per_tok": 6}}) == Experts(64, 6)
    metadata = {
        "general.architecture": "qwen3moe",
        "qwen3moe.expert_count": 128,
        "qwen3moe.expert_used_count": 8,
    }
    assert experts_of(metadata) == Experts(128, 8)
    assert experts_of({"hidden_size": 64}) is experts_of({"num_experts": 4}) is None
