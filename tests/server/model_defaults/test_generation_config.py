"""--generation-config and --override-generation-config: whose sampling defaults count, and which end tokens."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from executors.contract import ConfigError
from server.model_defaults.generation_config import NOT_USED, choose
from server.model_defaults.sampling import SamplingDefaults
from server.model_files.ollama_package import FILE, Package
from server.settings.table import DEFAULTS
from server.startup.text_side import read_text_side
from tests.engine.tokenizers_for_tests import byte_level, load

OWN = {"temperature": 0.6, "top_p": 0.9, "top_k": 20, "do_sample": True, "eos_token_id": [7, 9]}


def folder(path: Path, values: Any) -> Path:
    path.mkdir(exist_ok=True)
    text = values if isinstance(values, str) else json.dumps(values)
    (path / "generation_config.json").write_text(text)
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return folder(tmp_path / "model", OWN)


def test_auto_is_the_models(model: Path, tmp_path: Path) -> None:
    chosen = choose("auto", {}, model)
    assert chosen.defaults == SamplingDefaults(temperature=0.6, top_p=0.9, top_k=20)
    assert chosen.end_tokens == {7, 9}
    assert choose("auto", {}, tmp_path).defaults == SamplingDefaults(), "a model without the file"


@pytest.mark.parametrize("name", ["none", "vllm"])
def test_neutral_defaults_keep_the_end_tokens(model: Path, name: str) -> None:
    chosen = choose(name, {}, model)
    assert chosen.defaults == SamplingDefaults()
    assert chosen.end_tokens == {7, 9}


def test_a_directory(model: Path, tmp_path: Path) -> None:
    other = folder(tmp_path / "other", {"temperature": 0.1, "eos_token_id": 3})
    chosen = choose(str(other), {}, model)
    assert chosen.defaults == SamplingDefaults(temperature=0.1)
    assert chosen.end_tokens == {3, 7, 9}
    with pytest.raises(
        ConfigError, match=r"^--generation-config nowhere: it should be auto, none or vllm, or a "
    ):
        choose("nowhere", {}, model)


def test_an_override_wins(model: Path) -> None:
    assert choose("auto", {"temperature": 0.2}, model).defaults == SamplingDefaults(0.2, 0.9, 20)
    assert choose("none", {"top_k": 5}, model).defaults == SamplingDefaults(top_k=5)
    assert choose("auto", {"do_sample": False}, model).defaults.temperature == 0.0


def test_an_overriding_temperature_is_used_though_the_model_is_greedy(tmp_path: Path) -> None:
    model = folder(tmp_path / "greedy", {"do_sample": False, "temperature": 0.6})
    assert choose("auto", {}, model).defaults.temperature == 0.0
    assert choose("auto", {"temperature": 0.5}, model).defaults.temperature == 0.5


@pytest.mark.parametrize(
    ("override", "words"),
    [
        (
            {"temprature": 1},
            "--override-generation-config: temprature: no such default; there are do_sample, ",
        ),
        ({"temperature": -1}, "--override-generation-config: temperature: it should be a number"),
        ({"top_p": "x"}, "--override-generation-config: top_p: it should be a number"),
    ],
)
def test_faults_of_the_flag(model: Path, override: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        choose("auto", override, model)
    assert str(caught.value).startswith(words)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ("{", "not readable as JSON"),
        ("[1]", "a JSON object is expected"),
        ({"eos_token_id": "</s>"}, "eos_token_id: it should be a token id or several"),
        ({"eos_token_id": [True]}, "eos_token_id: it should be a token id or several"),
        ({"eos_token_id": [1.5]}, "eos_token_id: it should be a token id or several"),
        ({"temperature": "hot"}, "temperature: it should be a number"),
    ],
)
def test_faults_of_the_file(tmp_path: Path, values: Any, words: str) -> None:
    model = folder(tmp_path / "model", values)
    with pytest.raises(ConfigError) as caught:
        choose("auto", {}, model)
    assert str(caught.value).startswith(f"{model / 'generation_config.json'}: {words}")


@pytest.mark.parametrize(
    ("given", "ids", "named"),
    [
        (-1, set(), "-1"),
        ([None], set(), "null"),
        ([7, None, -1, 7], {7}, "null, -1"),
        ([-1, -2, -3, -4, -5], set(), "-1, -2, -3, -4, ..."),
    ],
)
def test_end_tokens_that_are_no_ids_are_named_and_left(
    tmp_path: Path, given: Any, ids: set[int], named: str
) -> None:
    model = folder(tmp_path / "model", {"eos_token_id": given})
    chosen = choose("auto", {}, model)
    assert chosen.end_tokens == ids
    where = f"{model / 'generation_config.json'}: eos_token_id: {named} not used"
    assert [line.startswith(where) for line in chosen.warnings] == [True]
    assert choose("none", {}, model).end_tokens == ids


@pytest.mark.parametrize("given", [None, [], 7, [7, 7]])
def test_end_tokens_without_a_fault_are_not_mentioned(tmp_path: Path, given: Any) -> None:
    assert choose("auto", {}, folder(tmp_path / "model", {"eos_token_id": given})).warnings == ()


def test_settings_that_change_an_answer_and_are_not_used_are_named(tmp_path: Path) -> None:
    values = {
        "num_beams": 4,
        "suppress_tokens": [5],
        "min_length": 0,
        "guidance_scale": None,
        "max_new_tokens": 50,
    }
    model = folder(tmp_path / "model", values)
    [warning] = choose("auto", {}, model).warnings
    assert warning == f"{model / 'generation_config.json'}: not used: num_beams, suppress_tokens"
    assert choose("none", {}, model).warnings == ()


USED = {
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "typical_p",
    "repetition_penalty",
    "do_sample",
    "eos_token_id",
}
HARMLESS = {
    "how long answers are, which requests say": ("max_new_tokens", "max_length"),
    "how it is computed": (
        "use_cache", "cache_implementation", "cache_config", "prefill_chunk_size", "compile_config", "disable_compile",
        "continuous_batching_config", "low_memory", "max_cache_len", "attn_implementation",
        "return_legacy_cache", "token_healing",
    ),
    "drafts, which change no token": (
        "is_assistant", "num_assistant_tokens", "num_assistant_tokens_schedule", "assistant_confidence_threshold",
        "prompt_lookup_num_tokens", "max_matching_ngram_size", "assistant_early_exit", "assistant_lookbehind",
        "target_lookbehind", "assistant_ema_alpha", "assistant_adaptive_mode",
        "assistant_ensemble_weight", "speculation_type", "use_mtp",
    ),
    "what is returned": (
        "output_attentions", "output_hidden_states", "output_scores", "output_logits", "return_dict_in_generate",
    ),
    "beams, of which there is one": ("early_stopping", "length_penalty"),
    "numbers that change no order": ("renormalize_logits", "remove_invalid_values"),
    "tokens that only encoders and batches need": ("pad_token_id", "bos_token_id", "decoder_start_token_id"),
    "the file itself": ("transformers_version", "generation_kwargs", "_from_model_config"),
}  # fmt: skip


def test_every_setting_of_transformers_is_used_named_or_harmless() -> None:
    import transformers

    known = set(transformers.GenerationConfig().to_dict()) | set(
        transformers.GenerationConfig._get_default_generation_params()
    )
    assert known - USED - set(NOT_USED) - {one for names in HARMLESS.values() for one in names} == set()


def test_shipped_values_count_where_the_model_has_none(model: Path, tmp_path: Path) -> None:
    shipped = {"temperature": 0.8, "min_p": 0.1, "frequency_penalty": 0.3}
    assert choose("auto", {}, model, shipped).defaults == SamplingDefaults(
        0.6, 0.9, 20, min_p=0.1, frequency_penalty=0.3
    )
    assert choose("auto", {"min_p": 0.0}, tmp_path, shipped).defaults == SamplingDefaults(
        0.8, frequency_penalty=0.3
    )
    assert choose("none", {}, model, shipped).defaults == SamplingDefaults()


def test_values_of_a_package_are_between_the_flags_and_the_file(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text('{"temperature": 0.3, "top_k": 5, "do_sample": false}')
    packaged = {"temperature": 0.1, "presence_penalty": 0.5}
    defaults = choose("auto", {}, tmp_path, None, packaged).defaults
    assert (defaults.temperature, defaults.top_k, defaults.presence_penalty) == (0.1, 5, 0.5)
    assert choose("auto", {}, tmp_path, None, {"top_k": 6}).defaults.temperature == 0.0
    over = choose("auto", {"temperature": 0.9}, tmp_path, None, packaged).defaults
    assert (over.temperature, over.presence_penalty) == (0.9, 0.5)
    assert choose("none", {}, tmp_path, None, packaged).defaults == SamplingDefaults()
    with pytest.raises(ConfigError, match="presence_penalty"):
        choose("auto", {}, tmp_path, None, {"presence_penalty": 9})


def test_the_text_side_of_a_packaged_model(tmp_path: Path) -> None:
    load(byte_level(), tmp_path)
    params = {"temperature": 0.1, "stop": ["x"], "seed": 3, "tfs_z": 0.5}
    package = Package(
        "m", None, "Arr.", params, ({"role": "user", "content": "Hi"},), "{{ .Prompt }}", notes=("a note",)
    )
    (tmp_path / FILE).write_bytes(package.to_json())
    (tmp_path / "gguf.json").write_text("{}")
    text = read_text_side(DEFAULTS, tmp_path, False)
    assert text.defaults.temperature == 0.1
    assert (text.preset.system, text.preset.stop, text.preset.seed) == ("Arr.", ("x",), 3)
    assert "a note" in text.warnings and any("tfs_z" in one for one in text.warnings)
    neutral = read_text_side(replace(DEFAULTS, generation_config="none"), tmp_path, False)
    assert neutral.defaults == SamplingDefaults() and neutral.preset.system == "Arr."
    assert (neutral.preset.stop, neutral.preset.seed) == ((), None)
    assert not any("tfs_z" in one for one in neutral.warnings)


@pytest.mark.parametrize(
    ("values", "choice", "override", "sets"),
    [
        (OWN, "auto", {}, True),
        ({"eos_token_id": 7, "do_sample": True, "temperature": None}, "auto", {}, False),
        ({"do_sample": False}, "auto", {}, True),
        ({"temperature": 1.0}, "auto", {}, True),
        ({}, "auto", {"min_p": 0.1}, True),
        ({}, "none", {}, True),
    ],
)
def test_whether_anything_was_chosen(
    tmp_path: Path, values: Any, choice: str, override: dict[str, Any], sets: bool
) -> None:
    """Neutral values may be a choice: a client that has a default for models without one asks."""
    own = choose(choice, override, folder(tmp_path / "m", values)).defaults.own
    assert bool(own) == sets
