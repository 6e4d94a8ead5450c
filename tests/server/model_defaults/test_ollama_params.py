"""Parameters of Ollama's models: each is a default, without effect for a reason, or named in a note."""

from __future__ import annotations

from typing import Any

import pytest

from executors.contract import ConfigError
from server.model_defaults.ollama_params import HARMLESS, NOT_USED, OTHERS, SAMPLING, read_params
from server.model_files.ollama_package import Package

NAMES = {
    "num_keep", "seed", "num_predict", "top_k", "top_p", "min_p", "typical_p", "repeat_last_n", "temperature",
    "repeat_penalty", "presence_penalty", "frequency_penalty", "stop", "num_ctx", "num_batch", "num_gpu", "main_gpu", "use_mmap",
    "num_thread", "draft_num_predict",
    # of older versions
    "mirostat", "mirostat_tau", "mirostat_eta", "penalize_newline", "tfs_z", "numa", "low_vram", "f16_kv", "vocab_only",
    "use_mlock", "logits_all", "num_gqa", "embedding_only", "rope_frequency_base", "rope_frequency_scale",
}  # fmt: skip
"""The options of Ollama's api/types.go, and those that it once had."""


def read(**params: Any) -> Any:
    return read_params(Package("m", params=params))


def test_every_parameter_has_one_place() -> None:
    places = [set(SAMPLING), set(OTHERS), set(HARMLESS), set(NOT_USED)]
    assert set.union(*places) == NAMES and sum(map(len, places)) == len(NAMES)
    assert all(HARMLESS.values())


def test_values_by_our_names() -> None:
    found = read(
        temperature=0.1, top_k=20, top_p=0.5, min_p=0.1, typical_p=0.9, repeat_penalty=1.1, presence_penalty=0.5,
        frequency_penalty=0.25, seed=7, stop=["<|x|>", "", "y", "y"], num_predict=12, num_ctx=2048, repeat_last_n=-1,
    )  # fmt: skip
    assert found.sampling == {
        "temperature": 0.1, "top_k": 20, "top_p": 0.5, "min_p": 0.1, "typical_p": 0.9, "repetition_penalty": 1.1,
        "presence_penalty": 0.5, "frequency_penalty": 0.25,
    }  # fmt: skip
    assert (found.seed, found.stop, found.max_tokens, found.context) == (7, ("<|x|>", "y"), 12, 2048)
    assert found.notes == ()


def test_forms_of_other_writers() -> None:
    found = read(
        temperature="0.5", top_k=["40"], stop="x", num_predict=-2, seed=-1, num_ctx=4096.0, top_p=None
    )
    assert found.sampling == {"temperature": 0.5, "top_k": 40} and found.stop == ("x",)
    assert (found.seed, found.max_tokens, found.context) == (None, None, 4096)


def test_penalties_of_no_tokens() -> None:
    assert read(repeat_penalty=1.5, repeat_last_n=0).sampling["repetition_penalty"] == 1.0


@pytest.mark.parametrize("name", sorted(HARMLESS))
def test_parameters_without_effect(name: str) -> None:
    assert read(**{name: 1}).notes == () and read(**{name: True}).notes == ()


@pytest.mark.parametrize("name", [*sorted(NOT_USED), "of_tomorrow", "repeat_last_n"])
def test_parameters_that_a_note_names(name: str) -> None:
    for neutral in NOT_USED.get(name, ()):
        assert read(**{name: neutral}).notes == ()
    [note] = read(**{name: 2}).notes
    assert note.startswith(f"Ollama's model m: parameter {name} 2 is not used")


@pytest.mark.parametrize(
    ("params", "why"),
    [
        ({"temperature": "hot"}, "parameter temperature is 'hot'; a number"),
        ({"top_k": True}, "parameter top_k is 'True'; a number"),
        ({"num_ctx": 1.5}, "parameter num_ctx is 1.5; a whole number"),
        ({"stop": [1]}, "parameter stop is"),
        ({"stop": {"a": 1}}, "parameter stop is"),
        ({"seed": {}}, "parameter seed is"),
    ],
)
def test_values_of_other_types(params: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=f"^Ollama's model m: {why}"):
        read(**params)
