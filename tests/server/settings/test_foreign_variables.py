"""Variables of other servers: their API keys are in force, every other one is a line; an empty one is not there."""

from __future__ import annotations

import pytest

from server.settings.foreign.keys import client_key, remove_secrets, server_secrets
from server.settings.foreign.variables import LLAMA_CPP, OLLAMA, TGI, VLLM, foreign_notes
from server.settings.load import SettingsError, load
from server.settings.table import TABLE

OWN = {row.flag for row in TABLE.values()} | {
    f"--no-{row.flag[2:]}" for row in TABLE.values() if row.is_switch
}


@pytest.mark.parametrize(
    ("name", "value", "keys"),
    [
        ("VLLM_API_KEY", "sk-1", ("sk-1",)),
        ("VLLM_API_KEY", "sk,1", ("sk,1",)),  # vLLM has one key there
        ("LLAMA_API_KEY", "a, b", ("a", "b")),  # llama.cpp splits at commas
        ("LLAMA_ARG_API_KEY", "a", ("a",)),
        ("SGLANG_API_KEY", "a\n", ("a",)),
    ],
)
def test_a_key_of_another_server_is_in_force(name: str, value: str, keys: tuple[str, ...]) -> None:
    settings, notes = load({}, {name: value})
    assert settings.api_key == keys and settings.needs_key
    assert notes == [f"{name} is taken as the API key; its name here is COHORT_API_KEY"]
    assert client_key({name: value}) == keys[0]


def test_a_file_of_keys_is_in_force() -> None:
    settings, notes = load({}, {"LLAMA_ARG_API_KEY_FILE": "/keys"})
    assert settings.api_key_file == "/keys" and len(notes) == 1


def test_two_servers_keys_both_open() -> None:
    settings, notes = load({}, {"VLLM_API_KEY": "a", "LLAMA_API_KEY": "b"})
    assert set(settings.api_key) == {"a", "b"} and len(notes) == 2


@pytest.mark.parametrize(
    ("flags", "environ"),
    [
        ({}, {"COHORT_API_KEY": "own"}),
        ({"api_key": ["own"]}, {}),
        ({"api_key_file": "/keys"}, {}),
        ({}, {"COHORT_API_KEY_FILE": "/keys"}),
    ],
)
def test_own_keys_win_with_a_line(flags: dict[str, object], environ: dict[str, str]) -> None:
    settings, notes = load(flags, {**environ, "VLLM_API_KEY": "theirs"})
    assert "theirs" not in settings.api_key and settings.needs_key
    assert notes == ["VLLM_API_KEY is not in force: --api-key or --api-key-file is"]
    assert load({"api_key": ["same", "b"]}, {"VLLM_API_KEY": "same"})[1] == []


@pytest.mark.parametrize(
    "name",
    ["VLLM_ADMIN_API_KEY", "SGLANG_ADMIN_API_KEY", "LLAMA_ARG_ADMIN_KEY", "TABBY_API_KEY", "LMDEPLOY_API_KEYS", "TGI_API_KEY"],
)  # fmt: skip
def test_a_secret_of_unknown_meaning_ends_the_start(name: str) -> None:
    with pytest.raises(SettingsError, match=rf"^{name} looks like a key .* COHORT_API_KEY") as error:
        load({}, {name: "hunter2"})
    assert "hunter2" not in str(error.value) and "\n" not in str(error.value)
    assert load({}, {name: ""})[1] == []


def test_an_empty_key_of_another_server_is_a_line() -> None:
    settings, notes = load({}, {"VLLM_API_KEY": ""})
    assert not settings.needs_key
    assert notes == ["VLLM_API_KEY is empty: requests need no key"]
    assert load({}, {"VLLM_API_KEY": "", "COHORT_API_KEY": "x"})[1] == []


def test_tgi_has_no_prefix() -> None:
    settings, notes = load({}, {"MODEL_ID": "x/y", "API_KEY": "k", "MAX_TOTAL_TOKENS": "5"})
    assert settings.api_key == ("k",)
    assert notes[1:] == [
        "MAX_TOTAL_TOKENS is not read here: use --max-model-len 5",
        "MODEL_ID is not read here: use --model x/y",
    ]
    settings, [note] = load({}, {"API_KEY": "k"})
    assert not settings.needs_key and note.startswith("API_KEY is not read here: ")
    assert foreign_notes({"MAX_TOTAL_TOKENS": "5", "PORT": "80", "DTYPE": "x"}) == []


def test_no_child_inherits_a_secret() -> None:
    environ = {
        "VLLM_API_KEY": "a",
        "API_KEY": "b",
        "OLLAMA_API_KEY": "c",
        "PATH": "/bin",
        "SGLANG_X_API_KEY": "d",
    }
    assert server_secrets(environ) == ["VLLM_API_KEY", "API_KEY", "SGLANG_X_API_KEY"]
    remove_secrets(environ)
    assert environ == {"OLLAMA_API_KEY": "c", "PATH": "/bin"}


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("OLLAMA_HOST", "0.0.0.0", "use --host 0.0.0.0 --port 11434"),
        ("OLLAMA_HOST", "0.0.0.0:8080", "use --host 0.0.0.0 --port 8080"),
        ("OLLAMA_HOST", ":8080", "use --host 0.0.0.0 --port 8080"),
        ("OLLAMA_HOST", "http://box", "use --host box --port 80"),
        ("OLLAMA_HOST", "https://[::1]:11/x", "use --host ::1 --port 11"),
        ("OLLAMA_HOST", "::1", "use --host ::1 --port 11434"),
        ("OLLAMA_CONTEXT_LENGTH", "8192", "use --max-model-len 8192"),
        ("OLLAMA_NUM_PARALLEL", "4", "use --max-num-seqs 4"),
        ("OLLAMA_KV_CACHE_TYPE", "q8_0", "use --kv-cache-dtype int8"),
        ("OLLAMA_KV_CACHE_TYPE", "f16", "leave it out"),
        ("OLLAMA_DEBUG", "1", "use --log-level debug"),
        ("OLLAMA_DEBUG", "false", "leave it out"),
        ("OLLAMA_KEEP_ALIVE", "5m", "leave it out: "),
        ("OLLAMA_NEW", "5m", "Ollama alone knows it"),
        ("VLLM_LOGGING_LEVEL", "DEBUG", "use --log-level debug"),
        ("VLLM_CPU_KVCACHE_SPACE", "40", "use --kv-cache-memory-bytes 40GiB"),
        ("VLLM_BATCH_INVARIANT", "1", "use --deterministic"),
        ("VLLM_USE_V1", "1", "vLLM alone knows it"),
        ("SGLANG_ANYTHING", "1", "SGLang alone knows it"),
        ("LLAMA_ARG_CTX_SIZE", "4096", "use --max-model-len 4096"),
        ("LLAMA_ARG_HOST", "0.0.0.0", "use --host 0.0.0.0"),
        ("LLAMA_ARG_TEMPERATURE", "0.3", "use --override-generation-config '{\"temperature\": 0.3}'"),
        ("LLAMA_ARG_MODEL", "/m/a b.gguf", "--model '/m/a b.gguf'"),
        ("LLAMA_ARG_CONT_BATCHING", "1", "leave it out: batching is always continuous"),
        ("LLAMA_ARG_FUTURE", "1", "llama.cpp alone knows it"),
        ("LLAMA_ARG_SSL_CERT_FILE", "/c.pem", "use --ssl-certfile /c.pem"),
    ],
)
def test_every_other_variable_is_a_line(name: str, value: str, words: str) -> None:
    _, notes = load({}, {name: value})
    [note] = notes
    assert note.startswith(f"{name} is not read here: ") and words in note and "\n" not in note
    assert load({}, {name: ""})[1] == []


def test_what_is_read_or_belongs_to_kubernetes_is_no_line() -> None:
    links = {
        "VLLM_SERVICE_HOST": "10.0.0.1",
        "VLLM_PORT": "tcp://10.0.0.1:8000",
        "OLLAMA_PORT_11434_TCP": "tcp://10.0.0.1:11434",
    }
    assert load({}, {**links, "OLLAMA_MODELS": "/store", "LLAMA_CACHE": "/c", "OPENAI_API_KEY": "x"})[1] == []


def test_a_key_of_a_client_is_a_line_and_is_not_shown() -> None:
    settings, [note] = load({}, {"OLLAMA_API_KEY": "hunter2"})
    assert not settings.needs_key and "hunter2" not in note


def test_the_settings_in_answers_exist() -> None:
    import re

    for name, advice in {**VLLM, **OLLAMA, **LLAMA_CPP, **TGI}.items():
        words = advice if isinstance(advice, str) else advice("1")
        flags = re.findall(r"--[a-z][\w-]+", words)
        assert flags or words.startswith(("leave it out", "the environment variable")), name
        assert set(flags) <= {*OWN, "--replicas"}, name


def test_an_empty_variable_is_not_set() -> None:
    empty = {
        row.variable: ""
        for row in TABLE.values()
        if row.name not in ("api_key", "api_key_file", "metrics_key")
    }
    assert load({}, {**empty, "COHORT_CONFIG": "", "COHORT_UNKNOWN": ""}) == load({}, {})
    assert load({"port": "9"}, {"COHORT_PORT": ""})[0].port == 9


@pytest.mark.parametrize("name", ["COHORT_API_KEY", "COHORT_API_KEY_FILE", "COHORT_METRICS_KEY"])
def test_an_empty_key_does_not_open_the_server(name: str) -> None:
    with pytest.raises(SettingsError, match=rf"^{name}: it is given but empty; leave it out"):
        load({}, {name: ""})
