"""Which rotary fields count where several say something: those that transformers reads, with its numbers."""

from __future__ import annotations

import copy
import importlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from executors.contract import ConfigError, LogitsMode, PrefillInput, Tensor
from executors.llm.model.config import parse_config
from executors.llm.model.rope import inverse_frequencies
from tests.executors.llm.driver import start
from tests.tiers import sweep

_COMMON: dict[str, Any] = {
    "vocab_size": 100, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 12, "intermediate_size": 56, "max_position_embeddings": 256, "rms_norm_eps": 1e-6,
}  # fmt: skip
LINEAR: dict[str, Any] = {"rope_type": "linear", "factor": 8.0}
YARN: dict[str, Any] = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
LLAMA3: dict[str, Any] = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
LONGROPE: dict[str, Any] = {
    "rope_type": "longrope", "original_max_position_embeddings": 64,
    "short_factor": [1.0, 1.1, 1.3, 1.5, 1.7, 2.0], "long_factor": [1.0, 1.5, 2.0, 3.0, 4.0, 6.0],
}  # fmt: skip
DYNAMIC: dict[str, Any] = {"rope_type": "dynamic", "factor": 2.0}
PLAIN: dict[str, Any] = {"rope_theta": 500.0, "rope_type": "default"}
TWO: dict[str, Any] = {
    "full_attention": PLAIN, "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
}  # fmt: skip
_MODULES = {
    "Gemma3Text": ("gemma3", "Gemma3"), "Gemma4Text": ("gemma4", "Gemma4Text"), "Qwen3Moe": ("qwen3_moe", "Qwen3Moe"),
    "Qwen2Moe": ("qwen2_moe", "Qwen2Moe"), "GptOss": ("gpt_oss", "GptOss"), "Lfm2Moe": ("lfm2_moe", "Lfm2Moe"),
    "HunYuanDenseV1": ("hunyuan_v1_dense", "HunYuanDenseV1"), "Qwen3Next": ("qwen3_next", "Qwen3Next"),
    "Qwen3_5Text": ("qwen3_5", "Qwen3_5Text"), "Qwen3_5MoeText": ("qwen3_5_moe", "Qwen3_5MoeText"),
}  # fmt: skip
_LAYERS = ("full_attention", "sliding_attention")
_TWO_ROPES = ("Gemma3Text", "Gemma4Text", "Olmo3")
_OF_A_PART = ("Glm4", "Qwen3Next", "Qwen3_5Text", "Qwen3_5MoeText")
"""Kinds that rotate a part of each head."""

WAYS: dict[str, dict[str, Any]] = {
    "none": {},
    "theta at the top": {"rope_theta": 700.0},
    "theta in the object": {"rope_parameters": PLAIN},
    "theta in both": {"rope_parameters": PLAIN, "rope_theta": 700.0},
    "scaling is null": {"rope_parameters": PLAIN, "rope_scaling": None},
    "scaling is empty": {"rope_parameters": PLAIN, "rope_scaling": {}},
    "linear beside": {"rope_parameters": PLAIN, "rope_scaling": LINEAR},
    "linear beside, theta at the top": {"rope_parameters": PLAIN, "rope_scaling": LINEAR, "rope_theta": 700.0},
    "linear beside, theta in it": {"rope_parameters": PLAIN, "rope_scaling": {**LINEAR, "rope_theta": 90.0}},
    "default beside": {"rope_parameters": {**LINEAR, "rope_theta": 5.0}, "rope_scaling": {"rope_type": "default"}},
    "yarn beside": {"rope_parameters": PLAIN, "rope_scaling": YARN},
    "yarn, its length at the top": {"rope_scaling": YARN, "original_max_position_embeddings": 32},
    "yarn, no length": {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
    "yarn, factor null": {"rope_scaling": {**YARN, "factor": None}},
    "yarn, all its fields": {
        "rope_scaling": {
            **YARN, "beta_fast": 16, "beta_slow": 2, "mscale": 1.5, "mscale_all_dim": 0.7, "truncate": False,
        }
    },
    "yarn, attention factor": {"rope_scaling": {**YARN, "attention_factor": 1.3}},
    "yarn, bounds that cross": {"rope_scaling": {**YARN, "original_max_position_embeddings": 4}},
    "dynamic beside": {"rope_parameters": PLAIN, "rope_scaling": DYNAMIC},
    "dynamic, a length": {"rope_scaling": {**DYNAMIC, "original_max_position_embeddings": 64}},
    "llama3 beside": {"rope_parameters": PLAIN, "rope_scaling": LLAMA3},
    "llama3, its length at the top": {"rope_scaling": LLAMA3, "original_max_position_embeddings": 32},
    "longrope beside": {"rope_parameters": PLAIN, "rope_scaling": LONGROPE},
    "longrope, its length at the top": {"rope_scaling": LONGROPE, "original_max_position_embeddings": 32},
    "longrope, factor": {"rope_scaling": {**LONGROPE, "factor": 3.0}},
    "longrope, attention factor": {"rope_scaling": {**LONGROPE, "attention_factor": 1.3}},
    "type": {"rope_scaling": {"type": "linear", "factor": 8.0}},
    "type and rope_type": {"rope_scaling": {"type": "linear", "rope_type": "default", "factor": 8.0}},
    "no type": {"rope_scaling": {"factor": 8.0}},
    "keys of another kind": {"rope_scaling": {**LINEAR, "attention_factor": 2.0, "mscale": 3.0}},
    "a share": {"partial_rotary_factor": 0.5},
    "a share in the object": {"rope_parameters": {**PLAIN, "partial_rotary_factor": 0.5}},
}  # fmt: skip
NESTED: dict[str, dict[str, Any]] = {
    "none": {},
    "theta at the top": {"rope_theta": 700.0, "rope_local_base_freq": 70.0},
    "two": {"rope_parameters": TWO},
    "two, theta at the top": {"rope_parameters": TWO, "rope_theta": 700.0, "rope_local_base_freq": 70.0},
    "linear beside": {"rope_parameters": TWO, "rope_scaling": LINEAR},
    "yarn beside": {"rope_parameters": TWO, "rope_scaling": YARN},
    "theta in the other": {"rope_parameters": TWO, "rope_scaling": {**LINEAR, "rope_theta": 9.0}},
    "linear of old": {"rope_scaling": LINEAR, "rope_theta": 700.0, "rope_local_base_freq": 70.0},
    "type of old": {"rope_scaling": {"type": "linear", "factor": 8.0}, "rope_theta": 700.0},
    "type in it": {"rope_parameters": {**TWO, "full_attention": {"type": "linear", "factor": 2.0}}},
    "the other length": {
        "rope_parameters": {**TWO, "full_attention": {**YARN, "rope_theta": 50.0}}, "original_max_position_embeddings": 32,
    },
    "sliding scaled": {"rope_parameters": {**TWO, "sliding_attention": {**LINEAR, "rope_theta": 77.0}}},
    "sliding null": {"rope_parameters": {**TWO, "sliding_attention": None}, "rope_local_base_freq": 70.0},
    "flat": {"rope_parameters": {**LINEAR, "rope_theta": 77.0}},
    "bounds of yarn in it": {"rope_parameters": TWO, "rope_scaling": {**YARN, "truncate": False}},
    "bounds of yarn beside": {"rope_parameters": {**TWO, "truncate": False}, "rope_scaling": YARN},
    "a share": {"partial_rotary_factor": 0.5, "rope_parameters": TWO},
}  # fmt: skip
PHI3_WAYS = {
    name: fields
    for name, fields in WAYS.items()
    if not fields.get("rope_scaling") or name.startswith(("longrope", "default"))
}
PHI3_WAYS |= {"no length": {"rope_scaling": {k: v for k, v in LONGROPE.items() if not k.startswith("orig")}}}
PROPORTIONAL: dict[str, Any] = {
    "rope_type": "proportional",
    "rope_theta": 500.0,
    "partial_rotary_factor": 0.5,
}
GEMMA4_WAYS: dict[str, dict[str, Any]] = {
    "none": {},
    "theta at the top": {"rope_theta": 700.0},
    "two": {"rope_parameters": TWO},
    "a part": {"rope_parameters": {**TWO, "full_attention": PROPORTIONAL}},
    "a part, stretched": {"rope_parameters": {**TWO, "full_attention": {**PROPORTIONAL, "factor": 8.0}}},
    "no share": {
        "rope_parameters": {**TWO, "full_attention": {"rope_type": "proportional", "rope_theta": 500.0}}
    },
}
CASES = [
    *[(family, way, WAYS[way]) for family in ("Llama", "Qwen3") for way in WAYS],
    # Its default is YaRN, with which a share is refused.
    *[("GptOss", way, WAYS[way]) for way in WAYS if way != "a share"],
    *[(family, way, WAYS[way]) for family in _OF_A_PART for way in WAYS if not way.startswith("longrope")],
    *[("Gemma4Text", way, fields) for way, fields in GEMMA4_WAYS.items()],
    *[("Olmo3", way, fields) for way, fields in NESTED.items()],
    *[
        (family, way, WAYS[way])
        for family in (
            "Mistral",
            "Mixtral",
            "SmolLM3",
            "Qwen2Moe",
            "Qwen3Moe",
            "Gemma2",
            "Granite",
            "Olmo2",
            "Exaone4",
            "HunYuanDenseV1",
            "Lfm2",
            "Lfm2Moe",
        )
        for way in ("none", "linear beside", "yarn, its length at the top", "a share")
    ],
    *[("Gemma3Text", way, fields) for way, fields in NESTED.items()],
    *[("Phi3", way, fields) for way, fields in PHI3_WAYS.items()],
]


def _theirs(kind: str, fields: dict[str, Any]) -> list[tuple[torch.Tensor, float]]:
    """Frequencies and scale of each rope that transformers makes of these fields."""
    import transformers

    module, prefix = _MODULES.get(kind, (kind.lower(), kind))
    config = getattr(transformers, f"{kind}Config").from_dict(copy.deepcopy(fields))
    modeling = importlib.import_module(f"transformers.models.{module}.modeling_{module}")
    rope = getattr(modeling, f"{prefix}RotaryEmbedding")(config)
    if kind not in _TWO_ROPES:
        return [(rope.inv_freq, rope.attention_scaling)]
    return [(getattr(rope, f"{one}_inv_freq"), getattr(rope, f"{one}_attention_scaling")) for one in _LAYERS]


@sweep(every=3)
@pytest.mark.parametrize(("kind", "way", "fields"), CASES, ids=[f"{kind}-{way}" for kind, way, _ in CASES])
def test_the_frequencies_are_those_of_transformers(kind: str, way: str, fields: dict[str, Any]) -> None:
    given = {**_COMMON, **fields}
    if kind in _TWO_ROPES:
        given["layer_types"] = ["sliding_attention", "full_attention"]
    if kind == "Gemma4Text":
        given |= {"global_head_dim": 24, "hidden_size_per_layer_input": 0}
    if kind in _OF_A_PART:
        given["head_dim"] = 24
    if kind.startswith("Lfm2"):
        given |= {"norm_eps": 1e-6, "layer_types": ["conv", "full_attention"]}
    if kind == "Gemma2":
        given["layer_types"] = ["full_attention", "full_attention"]
    architecture = kind.removesuffix("Text") + "ForCausalLM"
    experts = {
        "num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8,
        "shared_expert_intermediate_size": 8,
    }  # fmt: skip
    ropes = parse_config({**given, **experts, "architectures": [architecture]}).ropes
    expected = _theirs(kind, given)
    assert len(ropes) == len(expected)
    for rope, (frequencies, scale) in zip(ropes, expected, strict=True):
        mine, my_scale = inverse_frequencies(rope, rope.dim, 1)
        assert mine.shape == frequencies.shape
        assert torch.allclose(mine.float(), frequencies, rtol=2e-6, atol=0), (mine, frequencies)
        assert my_scale == pytest.approx(scale, abs=1e-9)


@pytest.mark.parametrize(
    "scaling", [LINEAR, YARN, DYNAMIC, LLAMA3, LONGROPE], ids=lambda one: one["rope_type"]
)
@pytest.mark.parametrize("shape", ["llama-biases-llama3-rope", "qwen3-tied-gqa"])
async def test_rope_scaling_beside_rope_parameters_gives_their_logits(
    reference: Any, tmp_path: Path, shape: str, scaling: dict[str, Any]
) -> None:
    """As somebody adds it to a file that transformers 5 has saved."""
    known = reference(shape)
    shutil.copytree(known.path, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "config.json"
    values = json.loads(path.read_text())
    half = values["head_dim"] // 2
    if scaling is LONGROPE:
        scaling = {
            **LONGROPE,
            "short_factor": [1.0 + i / 8 for i in range(half)],
            "long_factor": [4.0] * half,
        }
    values |= {"rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}, "rope_scaling": scaling}
    path.write_text(json.dumps(values))
    model = type(known.model).from_pretrained(tmp_path, dtype=torch.float32, attn_implementation="eager")
    ids = np.random.default_rng(1).integers(0, known.vocab_size, 61)
    with torch.no_grad():
        expected = model(torch.from_numpy(ids)[None]).logits[0].numpy()
        before = known.logits(ids)
    executor = await start(tmp_path)
    prompt = PrefillInput(Tensor.of([ids.tolist()], "int32"), logits=LogitsMode.ALL)
    found = (await executor.prefill(prompt)).logits.numpy()[0]
    assert any("rope_scaling replaces rope_parameters" in note for note in executor.status().notes)
    await executor.shutdown()
    assert np.abs(found - expected).max() < 1e-4
    if scaling is not DYNAMIC or shape.startswith("llama"):  # up to its length, dynamic is the default
        assert np.abs(found - before).max() > 1e-2


def _notes(architecture: str, **fields: Any) -> tuple[str, ...]:
    return parse_config({**_COMMON, "architectures": [architecture], **fields}).notes


@pytest.mark.parametrize(
    ("architecture", "fields", "words"),
    [
        ("LlamaForCausalLM", WAYS["linear beside"], ["rope_scaling replaces", "the rope_theta 500.0"]),
        ("LlamaForCausalLM", WAYS["keys of another kind"], ["rope_scaling: attention_factor, mscale not used", "linear"]),
        ("LlamaForCausalLM", WAYS["dynamic, a length"], ["original_max_position_embeddings not used", "dynamic"]),
        ("LlamaForCausalLM", WAYS["no type"], ["rope_scaling: factor not used", "default"]),
        ("LlamaForCausalLM", WAYS["a share"], ["partial_rotary_factor 0.5 is not used", "llama"]),
        ("LlamaForCausalLM", {"rope_parameters": TWO}, ["full_attention, sliding_attention not used"]),
        ("Gemma3ForCausalLM", NESTED["flat"], ["factor, rope_theta, rope_type not used", "full_attention"]),
        ("Gemma3ForCausalLM", NESTED["type of old"], ["rope_scaling: type is not used"]),
        ("Gemma3ForCausalLM", NESTED["bounds of yarn in it"], ["truncate false is not used"]),
        ("LlamaForCausalLM", {"rope_scaling": {**YARN, "finetuned": True}}, ["rope_scaling: finetuned not used"]),
    ],
)  # fmt: skip
def test_what_does_not_count_is_named(architecture: str, fields: dict[str, Any], words: list[str]) -> None:
    notes = " | ".join(_notes(architecture, **fields))
    assert all(word in notes for word in words), notes


@pytest.mark.parametrize(
    "fields",
    [
        {}, WAYS["theta in both"], WAYS["yarn, all its fields"], WAYS["longrope, factor"], WAYS["type"],
        {"rope_scaling": {"rope_type": "default", "type": "default", "mrope_section": [1, 2, 3]}},
        {"rope_scaling": {**LINEAR, "attention_factor": None}},
    ],
)  # fmt: skip
def test_what_counts_or_means_nothing_is_not_mentioned(fields: dict[str, Any]) -> None:
    assert _notes("LlamaForCausalLM", **fields) == ()


@pytest.mark.parametrize(
    ("architecture", "fields", "words"),
    [
        ("LlamaForCausalLM", {"rope_scaling": "linear"}, "rope_scaling is 'linear'; an object is needed"),
        ("LlamaForCausalLM", {"rope_scaling": {"rope_type": "mrope"}}, "rope_scaling of type 'mrope'"),
        ("LlamaForCausalLM", {"rope_scaling": {"rope_type": "yarn"}}, "rope_scaling: field factor is missing"),
        ("LlamaForCausalLM", {**WAYS["linear beside"], "partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5 is not"),
        ("Gemma3ForCausalLM", {**NESTED["flat"], "rope_scaling": LINEAR}, "rope_parameters has no full_attention"),
        ("Gemma3ForCausalLM", {"rope_parameters": {"full_attention": [1]}}, "full_attention is .1.; an object"),
        ("Phi3ForCausalLM", {"rope_scaling": LINEAR}, "rope_scaling of type 'linear' is not supported"),
    ],
)  # fmt: skip
def test_what_cannot_be_served_is_refused(architecture: str, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        _notes(architecture, **fields)
