"""--generation-config and --override-generation-config: whose sampling defaults count, and which end tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from executors.contract import ConfigError
from server.generation_config import choose
from server.sampling_defaults import SamplingDefaults

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
        ({"eos_token_id": -1}, "eos_token_id: it should be a token id or several"),
        ({"temperature": "hot"}, "temperature: it should be a number"),
    ],
)
def test_faults_of_the_file(tmp_path: Path, values: Any, words: str) -> None:
    model = folder(tmp_path / "model", values)
    with pytest.raises(ConfigError) as caught:
        choose("auto", {}, model)
    assert str(caught.value).startswith(f"{model / 'generation_config.json'}: {words}")
