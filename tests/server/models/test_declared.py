"""What is declared of several models, by arguments, in a file and in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from engine.errors import ModelNotFound
from executors.tiny import weights_dir
from server.commands.serve import is_pair
from server.lora.modules import LoraModule, read_modules
from server.models import port_models
from server.models.declared import IDLE_UNLOAD, declared_models
from server.models.needs import need_of, weight_bytes
from server.settings.load import SettingsError, load
from server.settings.table import Settings
from server.startup.new_state import new_state
from server.startup.port import Port
from server.startup.speculation import read_speculation
from server.telemetry.metrics import Metrics


def settings(**flags: Any) -> Settings:
    return load(flags, {})[0]


def test_a_source_and_a_mapping() -> None:
    models = {
        "small": "/models/small.gguf",
        "large": {
            "source": "org/large", "aliases": ["big"], "pin": True, "idle_unload": 60, "memory": "2GiB",
            "settings": {"max-model-len": 4096}, "sampling": {"temperature": 0.2},
        },
    }  # fmt: skip
    small, large = declared_models(settings(models=models, idle_unload="5", dtype="float32"))
    assert (small.name, small.settings.model, small.idle_unload, small.pin) == (
        "small",
        "/models/small.gguf",
        5.0,
        False,
    )
    assert small.settings.served_model_name == ("small",) and small.settings.dtype == "float32"
    assert (large.aliases, large.pin, large.preload, large.idle_unload, large.memory) == (
        ("big",),
        True,
        True,
        60.0,
        2**31,
    )
    assert large.settings.max_model_len == 4096 and "max_model_len" in large.settings.explicit
    assert large.settings.override_generation_config == {"temperature": 0.2}
    assert not large.settings.models and "models" not in large.settings.explicit


def test_adapters_and_a_draft_of_a_model() -> None:
    """They become the settings that a server of this model alone would have."""
    models = {
        "a": {"source": "x", "lora": {"fr": "/loras/fr", "de": {"path": "org/de", "base_model_name": "x"}}, "draft": "y"},
        "b": {"source": "x", "lora": {"it": "/loras/it"}, "settings": {"max_loras": 4, "max_lora_rank": 16}},
    }  # fmt: skip
    a, b = declared_models(settings(models=models))
    assert a.names == ("a", "fr", "de") and a.loras == {"fr": "/loras/fr", "de": "org/de"}
    assert read_modules(a.settings.lora_modules) == (
        LoraModule("fr", "/loras/fr"),
        LoraModule("de", "org/de", "x"),
    )
    assert a.settings.max_loras == 2, "memory is kept for no more than there are"
    assert read_speculation(a.settings).model == "y"
    assert (b.settings.max_loras, b.settings.max_lora_rank) == (4, 16)
    assert read_speculation(b.settings).model == ""


def test_an_adapters_name_stands_for_one_model() -> None:
    with pytest.raises(SettingsError, match="b: 'fr' names both a and b"):
        declared_models(
            settings(
                models={
                    "a": {"source": "x", "lora": {"fr": "y"}},
                    "b": {"source": "x", "lora": {"fr": "z"}},
                }
            )
        )


def test_idle_models_are_unloaded_after_half_an_hour_by_default() -> None:
    [one] = declared_models(settings(models={"a": "x"}))
    assert one.idle_unload == IDLE_UNLOAD == 1800


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ({}, "source: it should be a string"),
        (7, "a source, or a mapping"),
        ({"source": "x", "pinn": True}, "pinn: no such key; did you mean pin?"),
        ({"source": "x", "pin": "yes"}, "pin: it should be true or false"),
        ({"source": "x", "aliases": "a"}, "aliases: a list of names"),
        ({"source": "x", "settings": {"port": 1}}, "port: it is the server's, not a model's"),
        (
            {"source": "x", "settings": {"max_model_length": 1}},
            "no such setting; did you mean max_model_len?",
        ),
        ({"source": "x", "settings": {"max_model_len": 0}}, "max_model_len: it should be greater"),
        ({"source": "x", "memory": "much"}, "memory"),
        ({"source": "x", "mmproj": "y.gguf"}, "mmproj: images are not read by any model here"),
        ({"source": "x", "draft": 7}, "draft: a source, or a mapping as speculative_config"),
        (
            {"source": "x", "draft": "y", "settings": {"speculative_config": {"method": "ngram"}}},
            "draft: settings has speculative_config already",
        ),
        ({"source": "x", "lora": ["b"]}, "lora: a mapping of names"),
        ({"source": "x", "lora": {"b c": "y"}}, "lora: b c': a name has 1 to 200 characters"),
        ({"source": "x", "lora": {"b": 7}}, "lora: b: a folder, a GGUF file or a hub name"),
        ({"source": "x", "lora": {"b": {}}}, "lora: b: path: it should be a string"),
        ({"source": "x", "lora": {"b": {"pth": "y"}}}, "lora: b: pth: no such key; did you mean path?"),
        ({"source": "x", "lora": {"b": {"path": ""}}}, "lora: b: path: it should be a string"),
        ({"source": "x", "lora": {"b": "y"}, "aliases": ["b"]}, "'b' names two things"),
        ({"source": "x", "lora": {"a": "y"}}, "'a' names two things"),
        ({"source": "x", "variants": ["b"]}, "variants: a mapping of names"),
        ({"source": "x", "variants": {"b": {}}}, "variants: b: a mapping with template or sampling"),
        ({"source": "x", "variants": {"b": {"templat": {}}}}, "templat: no such key; did you mean template?"),
        (
            {"source": "x", "variants": {"b": {"template": ["c"]}}},
            "template: a mapping of the template's variables",
        ),
        ({"source": "x", "variants": {"b": {"sampling": {"temperatur": 1}}}}, "did you mean temperature?"),
        (
            {"source": "x", "variants": {"b": {"sampling": {"top_p": 2}}}},
            "top_p: it should be a number from 0 to 1",
        ),
    ],
)
def test_what_is_wrong_is_named(entry: Any, says: str) -> None:
    with pytest.raises(SettingsError) as caught:
        declared_models(settings(models={"a": entry}))
    assert says in str(caught.value) and "models: a" in str(caught.value)


def test_a_name_stands_for_one_model() -> None:
    with pytest.raises(SettingsError, match="'a' names both a and b"):
        declared_models(settings(models={"a": "x", "b": {"source": "y", "aliases": ["a"]}}))
    variants = {"a": {"sampling": {"temperature": 0}}}
    with pytest.raises(SettingsError, match="'a' names both a and b"):
        declared_models(settings(models={"a": "x", "b": {"source": "y", "variants": variants}}))


@pytest.mark.parametrize(
    "flags",
    [
        {"api_server_count": 2},
        {"lora_modules": ["x=/y"]},
        {"enable_lora": True},
        {"served_model_name": ["x"]},
        {"model_alias": ["x*=a"]},
        {"model": "y"},
        {"executor_mode": "inline"},
    ],
)
def test_what_does_not_go_with_several_models_is_refused_by_name(flags: dict[str, Any]) -> None:
    [name] = flags
    with pytest.raises(SettingsError, match=f"--{name.replace('_', '-')}"):
        declared_models(settings(models={"a": "x"}, **flags))


def write(path: Path, size: int = 10) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\0" * size)


def test_a_folder_lists_split_files_once_and_no_projector(tmp_path: Path) -> None:
    write(tmp_path / "whole.gguf", 7)
    for part in (1, 2, 3):
        write(tmp_path / f"split-0000{part}-of-00003.gguf", 100)
    write(tmp_path / "seeing" / "seeing.gguf")
    write(tmp_path / "seeing" / "mmproj-seeing.gguf")
    write(tmp_path / "torn-00001-of-00002.gguf")
    models = {one.name: one for one in declared_models(settings(models_dir=str(tmp_path)))}
    assert sorted(models) == ["seeing", "split", "torn", "whole"]
    assert models["torn"].problem == "1 of 2 parts are missing" and models["split"].problem is None
    assert weight_bytes(tmp_path / "split-00001-of-00003.gguf") == 300


def test_a_named_model_goes_before_one_of_the_folder(tmp_path: Path) -> None:
    write(tmp_path / "a.gguf")
    models = declared_models(settings(models_dir=str(tmp_path), models={"a": "other"}))
    assert [one.settings.model for one in models] == ["other"]


def test_an_alias_goes_before_a_file_of_the_folder(tmp_path: Path) -> None:
    write(tmp_path / "a.gguf")
    models = declared_models(
        settings(models_dir=str(tmp_path), models={"b": {"source": "x", "aliases": ["a"]}})
    )
    assert [one.name for one in models] == ["b"]


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no model is there"):
        declared_models(settings(models_dir=str(tmp_path)))
    with pytest.raises(SettingsError, match="no such directory"):
        declared_models(settings(models_dir=str(tmp_path / "x")))


def test_a_need_counts_weights_and_kv(tmp_path: Path) -> None:
    write(tmp_path / "model.safetensors", 1000)
    (tmp_path / "config.json").write_text("{}")
    given = settings(models={"a": "x"}, kv_cache_memory_bytes="1GiB")
    assert need_of(given, tmp_path) - need_of(given, tmp_path / "absent") == 1100
    assert need_of(given, tmp_path) > 2**30


def test_a_need_counts_adapters() -> None:
    """The places of all adapters and one more, of the highest rank, for each matrix of a layer."""
    path = weights_dir()
    plain, adapted = declared_models(
        settings(
            models={"a": "x", "b": {"source": "x", "lora": {"fr": "y"}, "settings": {"max_lora_rank": 8}}}
        )
    )
    with safe_open(path / "model.safetensors", "np") as file:
        shapes = [file.get_slice(name).get_shape() for name in file.keys() if "_proj" in name]  # noqa: SIM118
    expected = 2 * 8 * 4 * sum(map(sum, shapes))
    assert shapes and need_of(adapted.settings, path) - need_of(plain.settings, path) == expected


def test_a_path_with_an_equals_sign_is_no_pair(tmp_path: Path) -> None:
    path = tmp_path / "a=b.gguf"
    write(path)
    assert is_pair("a=b.gguf") and not is_pair(str(path)) and not is_pair("org/name")


async def test_a_model_that_comes_into_the_folder_is_known_without_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And one whose part was missing is served once it is there."""
    monkeypatch.setattr(port_models, "_SCAN_PAUSE", 0.0)
    write(tmp_path / "first.gguf")
    write(tmp_path / "torn-00001-of-00002.gguf")
    port = Port(settings(models_dir=str(tmp_path), executor="echo"))
    state = new_state(port.settings, port.names, (), Metrics(), None)
    models = port.table(state)
    assert [row.name for row in models.rows()] == ["first", "torn"]
    assert models.find("torn").status == "failed"
    write(tmp_path / "second.gguf")
    write(tmp_path / "torn-00002-of-00002.gguf")
    assert (await models.find_or_scan("second")).status == "unloaded"
    assert models.find("torn").status == "unloaded"
    assert set(models.table.entries) == {"first", "torn", "second"} == set(state.metrics.parts)
    with pytest.raises(ModelNotFound, match="Did you mean 'second'"):
        await models.find_or_scan("secnd")
