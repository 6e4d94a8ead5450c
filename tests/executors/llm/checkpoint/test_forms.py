"""Checkpoints as people have them: bodies without a head, names behind other beginnings, files that hold or list more."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from executors.contract import ConfigError, LogitsMode, PrefillInput, SamplingParams, Tensor, Unsupported
from executors.llm.executor import LlmExecutor
from executors.llm.model.config import parse_config
from executors.llm.model.families import FAMILIES
from executors.llm.tools import compare
from executors.llm.tools.describe import describe
from tests.executors.llm.driver import Driver, config, start
from tests.executors.llm.models import SHAPES
from tests.tiers import sweep

IDS = [3, 1, 4, 1, 5, 9, 2, 6]
PROMPT = Tensor.of([IDS], "int32")
ONE_OF_EACH = (
    "llama-biases-llama3-rope", "mistral-window", "mistral-beside-images", "mixtral", "qwen2-biases", "qwen3-tied-gqa",
    "qwen3-untied-one-kv-head", "qwen3-moe", "gemma-one-kv-head", "gemma2-caps-alternating-windows", "gemma3-two-ropes",
    "gemma3-beside-images", "phi3-window", "olmo2", "olmoe", "smollm3-some-layers-without-rope", "granite", "gpt2",
    "gpt2-untied-n-inner", "ministral3-growing-queries", "ministral3-beside-images", "olmo3-windows-yarn",
    "exaone4-windows-rotated-alone", "glm4-neighbours-of-half-a-head", "hunyuan-norms-last-alpha", "qwen3-beside-images",
    "qwen2-moe-windows-some-dense-layers", "gemma4-experts-beside-mlp", "gemma4-beside-images", "gemma4-unified",
    "gemma4-unified-beside-images",
    "gpt-oss-sinks-windows", "lfm2-short-convolutions", "lfm2-moe-sigmoid-router", "qwen3-next", "qwen3.5",
    "qwen3.5-beside-images", "qwen3.5-moe", "qwen3.5-moe-beside-images",
)  # fmt: skip
UNTIED, TIED = "qwen3-untied-one-kv-head", "qwen3-tied-gqa"


async def _logits(path: Path) -> np.ndarray:
    executor = await start(path)
    row = (await executor.prefill(PrefillInput(PROMPT))).last_token_logits()
    await executor.shutdown()
    return np.asarray(row).reshape(-1)


async def _hidden(executor: LlmExecutor) -> np.ndarray:
    asked = PrefillInput(PROMPT, logits=LogitsMode.NONE, want_hidden_states=True)
    states = (await executor.prefill(asked)).hidden_states
    assert states is not None
    return states.numpy()[0]


def _change(path: Path, **fields: Any) -> None:
    """In config.json; `...` takes a field away."""
    values = json.loads((path / "config.json").read_text()) | fields
    kept = {key: value for key, value in values.items() if value is not ...}
    (path / "config.json").write_text(json.dumps(kept))


def _write(source: Path, to: Path, tensors: dict[str, torch.Tensor], **fields: Any) -> Path:
    to.mkdir(exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, to / "model.safetensors")
    shutil.copy(source / "config.json", to)
    _change(to, **fields)
    return to


def _tied(name: str) -> bool:
    return bool(SHAPES[name][1].get("tie_word_embeddings", name.startswith(("gpt2", "gemma"))))


@sweep(every=3)
@pytest.mark.parametrize("name", ONE_OF_EACH)
async def test_a_body_saved_alone(reference: Any, tmp_path: Path, name: str) -> None:
    """As `AutoModel` saves it: another architecture, names without the beginning, no head."""
    known = reference(name)
    body = known.model.base_model
    body.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert saved["architectures"] == [type(body).__name__] != [type(known.model).__name__]
    executor = await start(tmp_path)
    info = executor.info()
    with torch.no_grad():
        expected = body(torch.tensor([IDS])).last_hidden_state[0].numpy()
    assert np.abs(await _hidden(executor) - expected).max() < 1e-4
    assert info.generates == _tied(name)
    noted = any("no lm_head: the model makes embeddings" in note for note in executor.status().notes)
    assert noted != info.generates
    await executor.shutdown()
    if info.generates:
        assert np.abs(await _logits(tmp_path) - known.logits(IDS)[-1]).max() < 1e-4


def test_every_family_is_among_them(reference: Any) -> None:
    served = {
        parse_config(json.loads((reference(name).path / "config.json").read_text())).family.name
        for name in ONE_OF_EACH
    }
    assert served == {family.name for family in FAMILIES}


@sweep(every=3)
@pytest.mark.parametrize(
    "begin",
    ["", "model.", "transformer.", "language_model.model.", "model.language_model.", "_orig_mod.model."],
)
@pytest.mark.parametrize("name", [TIED, "llama-biases-llama3-rope", "gpt2", "mixtral"])
async def test_any_beginning_before_the_names(reference: Any, tmp_path: Path, name: str, begin: str) -> None:
    path = reference(name).path
    usual = "transformer." if name == "gpt2" else "model."
    tensors = load_file(path / "model.safetensors")
    renamed = {
        begin + key.removeprefix(usual) if key.startswith(usual) else key: one for key, one in tensors.items()
    }
    assert np.array_equal(await _logits(_write(path, tmp_path, renamed)), await _logits(path))


async def test_of_a_tied_pair_the_heads_name_is_enough(reference: Any, tmp_path: Path) -> None:
    path = reference(TIED).path
    tensors = load_file(path / "model.safetensors")
    tensors["lm_head.weight"] = tensors.pop("model.embed_tokens.weight")
    assert np.array_equal(await _logits(_write(path, tmp_path, tensors)), await _logits(path))


@pytest.fixture
def headless(reference: Any, tmp_path: Path) -> Path:
    path = reference(UNTIED).path
    tensors = load_file(path / "model.safetensors")
    del tensors["lm_head.weight"]
    return _write(path, tmp_path / "headless", tensors)


async def test_a_model_without_a_head_refuses_to_generate(headless: Path) -> None:
    executor = await start(headless)
    for asked in (
        PrefillInput(PROMPT),
        PrefillInput(PROMPT, logits=LogitsMode.NONE, sampling=SamplingParams()),
    ):
        with pytest.raises(Unsupported, match="no lm_head"):
            await executor.prefill(asked)
    driver = Driver(executor)
    with pytest.raises(Unsupported, match="no lm_head"):
        await driver.generate([driver.add(IDS)], 2, 8)
    await executor.shutdown()


def test_info_says_that_a_model_has_no_head(headless: Path, reference: Any) -> None:
    facts = describe(config(headless), 1 << 34)
    assert facts["generates"] is False and facts["checkpoint"]["problem"] is None
    assert describe(config(reference(UNTIED).path), 1 << 34)["generates"] is True


async def test_a_head_that_the_index_promises_is_needed(headless: Path) -> None:
    names = load_file(headless / "model.safetensors")
    index = {
        "weight_map": {**dict.fromkeys(names, "model.safetensors"), "lm_head.weight": "model-2.safetensors"}
    }
    (headless / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(
        ConfigError,
        match=r"model-2\.safetensors: no such file, though model\.safetensors\.index\.json names it",
    ):
        await start(headless)
    assert "model-2.safetensors" in describe(config(headless), 1 << 34)["checkpoint"]["problem"]


# -- which model it is ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("named", [None, ..., [], [None]])
@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_model_type_says_what_architectures_does_not(reference: Any, name: str, named: Any) -> None:
    values = json.loads((reference(name).path / "config.json").read_text())
    usual = parse_config(values)
    changed = {key: value for key, value in {**values, "architectures": named}.items() if value is not ...}
    assert parse_config(changed) == usual and parse_config(changed).notes == ()


async def test_a_checkpoint_without_architectures_is_served(reference: Any, tmp_path: Path) -> None:
    path = reference(TIED).path
    tensors = load_file(path / "model.safetensors")
    assert np.array_equal(
        await _logits(_write(path, tmp_path, tensors, architectures=None)), await _logits(path)
    )


def _config_of(reference: Any, **fields: Any) -> dict[str, Any]:
    values = json.loads((reference(TIED).path / "config.json").read_text()) | fields
    return {key: value for key, value in values.items() if value is not ...}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"architectures": None, "model_type": "grok"}, "architectures names nothing, and model_type is 'grok'; supported"),
        ({"architectures": ..., "model_type": ...}, "field architectures is missing; supported: Llama"),
        ({"architectures": "Qwen3ForCausalLM"}, "architectures is 'Qwen3ForCausalLM'; a list of names is needed"),
        ({"architectures": ["GrokForCausalLM"]}, "architecture 'GrokForCausalLM' is not supported; supported"),
        ({"architectures": ["GrokForSequenceClassification"]}, "'GrokForSequenceClassification' is not supported"),
        (
            {"architectures": ["Qwen3ForSequenceClassification"]},
            r"the classification head has 2 labels \(id2label\)",
        ),
        ({"architectures": ["Qwen2ForRewardModel"]}, "'Qwen2ForRewardModel' has the head of another task"),
        (
            {"architectures": ["Qwen3ForTokenClassification"]},
            r"'Qwen3ForTokenClassification' has the head of another task.*\[\"Qwen3ForCausalLM\"\]",
        ),
        ({"architectures": ["GPT2DoubleHeadsModel"]}, "has the head of another task"),
    ],
)  # fmt: skip
def test_what_is_not_served_is_refused(reference: Any, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_config(_config_of(reference, **fields))


def test_the_first_architecture_that_is_served_counts(reference: Any) -> None:
    named = ["Qwen3ForTokenClassification", "Qwen3Model"]
    found = parse_config(_config_of(reference, architectures=named))
    assert found.architecture == "Qwen3ForCausalLM" and found.notes == ()


@pytest.mark.parametrize("named", ["FSDPQwen3ForCausalLM", "FSDPQwen3Model"])
def test_the_name_that_a_trainers_wrapper_leaves(reference: Any, named: str) -> None:
    found = parse_config(_config_of(reference, architectures=[named]))
    assert found.architecture == "Qwen3ForCausalLM" and found.notes == ()


def test_a_model_type_of_another_family_is_named(reference: Any) -> None:
    [note] = parse_config(_config_of(reference, model_type="llama")).notes
    assert (
        note
        == "model_type 'llama' is not used: architectures names Qwen3ForCausalLM, whose model_type differs"
    )


# -- what nobody needs ---------------------------------------------------------------------------------------------------------

EXTRA = (
    "model.layers.0.self_attn.rotary_emb.inv_freq", "model.layers.0.self_attn.masked_bias", "model.layers.0.attn.bias",
    "score.weight", "classifier.bias", "qa_outputs.weight", "v_head.summary.weight", "mtp.layers.0.mlp.up_proj.weight",
    "vision_tower.patch.weight", "model.layers.0.self_attn.q_proj.weight_scale", "model.layers.0.self_attn.q_proj.bias",
    "model.layers.7.input_layernorm.weight", "model.embed_tokens.extra",
)  # fmt: skip


@pytest.mark.parametrize("name", EXTRA)
async def test_a_tensor_that_nobody_needs_is_named_and_left(
    reference: Any, tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = reference(TIED).path
    tensors = load_file(path / "model.safetensors")
    # Of a dtype that no weight may have, and with a number that none may have.
    extra = torch.tensor([1, 0], dtype=torch.bool) if "bias" in name else torch.full((2,), float("-inf"))
    executor = await start(_write(path, tmp_path, {**tensors, name: extra}))
    row = (await executor.prefill(PrefillInput(PROMPT))).last_token_logits()
    [note] = [note for note in executor.status().notes if "not used" in note]
    await executor.shutdown()
    assert (
        note == f"tensor {name} is not used: Qwen3ForCausalLM as config.json describes it has no such tensor"
    )
    assert [record.message.endswith(note) for record in caplog.records if "not used" in record.message] == [
        True
    ]
    assert np.array_equal(np.asarray(row).reshape(-1), await _logits(path))


async def test_many_of_them_make_one_warning(reference: Any, tmp_path: Path) -> None:
    path = reference(TIED).path
    tensors = load_file(path / "model.safetensors") | {name: torch.zeros(2) for name in EXTRA}
    executor = await start(_write(path, tmp_path, tensors))
    [note] = [note for note in executor.status().notes if "not used" in note]
    assert note.startswith(
        f"{len(EXTRA)} tensors (classifier.bias, model.embed_tokens.extra, ...) are not used"
    )
    await executor.shutdown()


async def test_fewer_layers_than_the_file_has(reference: Any, tmp_path: Path) -> None:
    known = reference(TIED)
    path = _write(
        known.path,
        tmp_path,
        load_file(known.path / "model.safetensors"),
        num_hidden_layers=2,
        layer_types=None,
    )
    model = type(known.model).from_pretrained(path, dtype=torch.float32)
    with torch.no_grad():
        expected = model(torch.tensor([IDS])).logits[0, -1].numpy()
    assert np.abs(await _logits(path) - expected).max() < 1e-4


def _index(path: Path, more: dict[str, str]) -> None:
    tensors = load_file(path / "model.safetensors")
    (path / "model.safetensors").rename(path / "model-1.safetensors")
    index = {"weight_map": {**dict.fromkeys(tensors, "model-1.safetensors"), **more}}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize("more", [
    {"score.weight": "model-1.safetensors"}, {"score.weight": "model-2.safetensors"},
    {"mtp.layers.0.weight": "model-2.safetensors", "model.rotary_emb.inv_freq": "model-3.safetensors"},
])  # fmt: skip
async def test_an_index_that_lists_what_nobody_needs(
    reference: Any, tmp_path: Path, more: dict[str, str]
) -> None:
    path = reference(TIED).path
    _index(_write(path, tmp_path, load_file(path / "model.safetensors")), more)
    executor = await start(tmp_path)
    [note] = [note for note in executor.status().notes if "not used" in note]
    assert min(more) in note
    await executor.shutdown()
    assert np.array_equal(await _logits(tmp_path), await _logits(path))
    assert describe(config(tmp_path), 1 << 34)["checkpoint"]["problem"] is None


@pytest.mark.parametrize("shard", ["model-1.safetensors", "model-2.safetensors"])
async def test_a_needed_tensor_that_is_missing_stays_an_error(
    reference: Any, tmp_path: Path, shard: str
) -> None:
    path, name = reference(TIED).path, "model.layers.1.mlp.up_proj.weight"
    tensors = load_file(path / "model.safetensors")
    del tensors[name]
    _index(_write(path, tmp_path, tensors), {name: shard, "score.weight": "model-3.safetensors"})
    with pytest.raises(ConfigError, match=rf"{shard}.*though model\.safetensors\.index\.json"):
        await start(tmp_path)


async def test_a_stale_index_is_no_reason_not_to_load(reference: Any, tmp_path: Path) -> None:
    """It names another file for a tensor that is there all the same."""
    path = reference(TIED).path
    _index(
        _write(path, tmp_path, load_file(path / "model.safetensors")),
        {"model.norm.weight": "model-9.safetensors"},
    )
    assert np.array_equal(await _logits(tmp_path), await _logits(path))


async def test_an_index_that_stayed_when_the_shards_were_joined(reference: Any, tmp_path: Path) -> None:
    path = reference(TIED).path
    tensors = load_file(path / "model.safetensors")
    _write(path, tmp_path, tensors)
    index = {"weight_map": dict.fromkeys(tensors, "model-00001-of-00001.safetensors")}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert np.array_equal(await _logits(tmp_path), await _logits(path))


async def test_the_dtype_is_the_embeddings(reference: Any, tmp_path: Path) -> None:
    """Where config.json names none: not that of a mask that comes first."""
    path = reference(TIED).path
    tensors = {name: one.bfloat16() for name, one in load_file(path / "model.safetensors").items()}
    executor = await start(
        _write(path, tmp_path, {"a.masked_bias": torch.zeros(2), **tensors}, dtype=..., torch_dtype=...)
    )
    assert executor.info().dtype == "bfloat16"
    await executor.shutdown()


def test_verify_has_nothing_to_compare_without_a_head(headless: Path) -> None:
    job = {"model": str(headless), "reference": str(headless)}
    with pytest.raises(ConfigError, match="the checkpoint has no lm_head, so there are no logits to compare"):
        compare.run(job, lambda stage: None)
