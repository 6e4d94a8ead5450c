"""Files of settings as people bring them from other servers: vLLM's names, flags that change nothing, keys without a value."""

from pathlib import Path

import pytest

from server.settings.environment import SettingsError
from server.settings.load import load
from server.settings.table import Settings


def read(folder: Path, text: str) -> tuple[Settings, list[str]]:
    file = folder / "my.yaml"
    file.write_text(text)
    return load({"config": str(file)}, {})


def error(folder: Path, text: str) -> str:
    with pytest.raises(SettingsError) as caught:
        read(folder, text)
    return str(caught.value).removeprefix(f"{folder}/my.yaml: ")


def test_a_file_of_vllm(tmp_path: Path) -> None:
    text = """
        host: 127.0.0.1
        max-model-len: 4096
        gpu_memory_utilization: 0.5
        trust-remote-code: true
        swap-space: 4
        disable_log_requests:
        disable-log-stats: false
        model-impl: auto
        speculative-model: false
        revision: null
    """
    settings, notes = read(tmp_path, text)
    assert (settings.host, settings.max_model_len, settings.gpu_memory_utilization) == (
        "127.0.0.1",
        4096,
        0.5,
    )
    file = f"{tmp_path}/my.yaml: "
    assert [note.removeprefix(file).partition(" is ignored: ")[0] for note in notes] == [
        "trust-remote-code", "swap-space", "disable-log-stats", "model-impl",
    ]  # fmt: skip


def test_one_error_names_all_that_is_unknown(tmp_path: Path) -> None:
    assert error(tmp_path, "enable-expert-parallel: true").startswith(
        "enable-expert-parallel: not supported; experts lie"
    )
    assert (
        error(tmp_path, "max-modle-len: 1") == "max-modle-len: no such setting; did you mean max_model_len?"
    )
    assert error(tmp_path, "n-ctx: 64\nprot: 1\n7: 8\nport: 1") == (
        "3 unknown names: n-ctx (use --max-model-len 64); prot (no such setting, did you mean port?); 7 (no such setting)"
    )


def test_a_name_in_both_spellings_stands_twice(tmp_path: Path) -> None:
    assert "stands twice" in error(tmp_path, "max-model-len: 1\nmax_model_len: 2")


def test_a_key_without_a_value_is_not_there(tmp_path: Path) -> None:
    settings, notes = read(tmp_path, "port:\nhost: ~\nmax-model-len: null\nserved_model_name:\n")
    assert (settings.explicit, settings.port, notes) == (frozenset(), 8000, [])


@pytest.mark.parametrize("name", ["api_key", "api-key-file", "metrics_key"])
def test_a_secret_without_a_value_ends_the_start(tmp_path: Path, name: str) -> None:
    assert (
        error(tmp_path, f"{name}:")
        == f"{name.replace('-', '_')}: it is given but empty; leave it out to serve without a key"
    )


@pytest.mark.parametrize("name", ["api_key", "served_model_name"])
def test_a_number_in_place_of_a_name_belongs_in_quotes(tmp_path: Path, name: str) -> None:
    assert error(tmp_path, f"{name}: 1234").startswith(f"{name}: it should be a valid string, in quotes")


def test_a_file_that_is_nested_too_deeply(tmp_path: Path) -> None:
    assert error(tmp_path, "lora_modules: " + "[" * 3000) == "its lists and mappings are nested too deeply"
