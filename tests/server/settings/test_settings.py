"""Settings from file, environment and flags; flags of other servers; what the command line answers."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cohort_server.command_line import application, known_options
from engine.config import EngineConfig
from server.hub import HubModel
from server.settings.load import SettingsError, load
from server.settings.table import TABLE, Settings
from server.startup.core_configs import engine_config, executor_config
from server.startup.model_loader import ModelLoader
from server.startup.model_source import LocalModel
from server.system.paths import configs_dir


def settings(flags: dict[str, Any] | None = None, **environ: str) -> Settings:
    return load(flags or {}, environ)[0]


def error(flags: dict[str, Any] | None = None, **environ: str) -> str:
    with pytest.raises(SettingsError) as caught:
        load(flags or {}, environ)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_file_then_environment_then_flags(tmp_path: Path) -> None:
    file = tmp_path / "my.yaml"
    file.write_text("port: 1\nmax_num_seqs: 1\nblock_size: 8\nserved_model_name: [a, b]\n")
    chosen = settings(
        {"config": str(file), "port": 3}, COHORT_PORT="2", COHORT_MAX_NUM_SEQS="2", COHORT_API_KEY="x, y"
    )
    assert (chosen.port, chosen.max_num_seqs, chosen.block_size) == (3, 2, 8)
    assert chosen.served_model_name == ("a", "b")
    assert chosen.api_key == ("x", "y")
    assert chosen.host == "127.0.0.1"


def test_config_may_be_named_by_the_environment(tmp_path: Path) -> None:
    (tmp_path / "my.yaml").write_text("port: 7")
    assert settings(COHORT_CONFIG=str(tmp_path / "my.yaml")).port == 7


def test_a_flag_that_names_the_file_wins_over_the_environment(tmp_path: Path) -> None:
    (tmp_path / "my.yaml").write_text("port: 7")
    assert settings({"config": str(tmp_path / "my.yaml")}, COHORT_CONFIG="gpu").port == 7


def test_values_that_yaml_cannot_read_are_one_line(tmp_path: Path) -> None:
    for text in ("b=[1,2", "b={"):
        assert error({"executor_option": [text]}).startswith("--executor-option: it should be NAME=VALUE")
    file = tmp_path / "my.yaml"
    file.write_text("revision: [1")
    assert error({"config": str(file)}).startswith(f"{file}: not valid YAML")


def test_a_metrics_key_is_what_the_header_will_have() -> None:
    assert settings(COHORT_METRICS_KEY=" abc\n").metrics_key == "abc"
    for value in ("", " ", "\n"):
        assert error(COHORT_METRICS_KEY=value).startswith("COHORT_METRICS_KEY: it is given but empty")


@pytest.mark.parametrize("preset", sorted(path.stem for path in configs_dir().glob("*.yaml")))
def test_presets(preset: str) -> None:
    chosen = settings({"config": preset})
    assert chosen.device == {"cpu": "cpu", "gpu": "cuda"}.get(preset, "auto")


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("4GiB", 2**32),
        ("512MiB", 2**29),
        ("1.5g", 1_500_000_000),
        ("2KB", 2000),
        ("10", 10),
        (" 1 Ti ", 2**40),
    ],
)
def test_byte_sizes(text: str, number: int) -> None:
    assert settings({"kv_cache_memory_bytes": text}).kv_cache_memory_bytes == number
    assert settings(COHORT_KV_CACHE_MEMORY_BYTES=text).kv_cache_memory_bytes == number


@pytest.mark.parametrize(
    ("text", "number"),
    [("32k", 32000), ("32K", 32768), ("1M", 2**20), ("2.5k", 2500), (" 1m ", 10**6), ("0.5K", 512)],
)
def test_whole_numbers_with_a_unit(text: str, number: int) -> None:
    assert settings({"max_model_len": text}).max_model_len == number
    for wrong in ("1.23456k", "k", "-1k", "1kk", "1 k", "1e3k", "\u0663k"):
        assert error({"max_model_len": wrong}).startswith("--max-model-len: it should be a valid integer, ")


def test_executor_options() -> None:
    chosen = settings({"executor_option": ["step_delay_ms=2.5", "native=false", "fail=die@5"]})
    assert chosen.executor_option == {"step_delay_ms": 2.5, "native": False, "fail": "die@5"}


def test_what_the_engine_is_told(tmp_path: Path) -> None:
    assert engine_config(settings({"num_speculative_tokens": 0})) == EngineConfig()
    file = tmp_path / "my.yaml"
    file.write_text("scheduling_policy: priority\ntarget_itl_ms: 50\nenable_prefix_caching: false\n")
    chosen = settings({"config": str(file)}, COHORT_MAX_IN_FLIGHT="1", COHORT_NUM_SPECULATIVE_TOKENS="4")
    assert engine_config(chosen) == EngineConfig(
        scheduling_policy="priority",
        target_itl=0.05,
        prefix_caching=False,
        max_in_flight=1,
        num_speculative_tokens=4,
    )
    assert engine_config(settings({"target_itl_ms": 0})).target_itl == 0, (
        "as fast as possible, not the default"
    )


def test_a_switch_is_true_or_false_everywhere(tmp_path: Path) -> None:
    file = tmp_path / "my.yaml"
    for text, on in (("true", True), ("false", False), ("on", True), ("off", False)):
        file.write_text(f"enable_prefix_caching: {text}")
        assert settings({"config": str(file)}).enable_prefix_caching is on
        assert settings(COHORT_ENABLE_PREFIX_CACHING=text).enable_prefix_caching is on
    file.write_text("enable_prefix_caching: on")
    given = {"config": str(file), "enable_prefix_caching": False}
    assert settings(given).enable_prefix_caching is False, "a flag wins also where it says no"
    words = "COHORT_ENABLE_PREFIX_CACHING: it should be true or false (not 'maybe')"
    assert error(COHORT_ENABLE_PREFIX_CACHING="maybe") == words
    file.write_text("enable_prefix_caching: 2")
    assert error({"config": str(file)}).endswith(
        "enable_prefix_caching: it should be true or false (not '2')"
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("scheduling_policy", "lifo"), ("target_itl_ms", "-1"), ("target_itl_ms", "nan"), ("target_itl_ms", "inf"),
        ("target_itl_ms", "1e9"), ("target_itl_ms", ""), ("max_in_flight", "0"), ("max_in_flight", "1.5"),
        ("num_speculative_tokens", "-1"), ("num_speculative_tokens", "33"), ("enable_prefix_caching", ""),
    ],
)  # fmt: skip
def test_values_the_engine_never_gets(name: str, value: str) -> None:
    assert error({name: value}).startswith(f"--{name.replace('_', '-')}: it should ")


def test_service_links_of_kubernetes_are_ignored_with_a_line() -> None:
    links = {
        "COHORT_SERVICE_HOST": "10.0.0.1",
        "COHORT_SERVICE_PORT": "8000",
        "COHORT_SERVICE_PORT_HTTP": "8000",
        "COHORT_PORT": "tcp://10.0.0.1:8000",
        "COHORT_PORT_8000_TCP": "tcp://10.0.0.1:8000",
        "COHORT_PORT_8000_TCP_ADDR": "10.0.0.1",
    }
    chosen, notes = load({}, links)
    assert chosen.port == 8000
    assert len(notes) == len(links)


def test_one_line_says_what_is_wrong_and_where(tmp_path: Path) -> None:
    file = tmp_path / "my.yaml"
    assert error(COHORT_PROT="1") == "COHORT_PROT: no such setting; did you mean COHORT_PORT?"
    assert error(COHORT_PORT="eighty").startswith("COHORT_PORT: it should be a valid integer")
    assert error({"port": 70000}) == "--port: it should be less than or equal to 65535 (not '70000')"
    assert error({"max_num_seqs": 0}).startswith("--max-num-seqs: ")
    assert error({"kv_cache_memory_bytes": "lots"}).startswith("--kv-cache-memory-bytes: ")
    for share in (0, 1.01, "nan"):
        assert error({"gpu_memory_utilization": share}).startswith("--gpu-memory-utilization: ")
    assert error({"executor_mode": "thread"}).startswith("--executor-mode: ")
    assert error({"executor_option": ["x"]}).startswith("--executor-option: it should be NAME=VALUE")
    assert "presets: cpu, default, gpu" in error({"config": "nope"})
    assert "No such file" in error({"config": str(tmp_path / "nope.yaml")})
    for text, words in (
        ("prot: 1", "prot: no such setting; did you mean port?"),
        ("[1]", "a mapping of settings is expected"),
        ("a: [", "not valid YAML"),
        ("port: x", "port: it should be a valid integer"),
    ):
        file.write_text(text)
        assert words in error({"config": str(file)})


def test_keys_are_never_repeated_in_errors() -> None:
    assert "hunter2" not in error({"metrics_key": ["hunter2"]})


def test_models_that_are_no_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for model, words in (
        ("gpt2", "no such directory or file, and not a hub name, which is ORG/NAME"),
        (str(tmp_path / "none"), "no such directory"),
        (str(tmp_path / "file"), "this is a file and no GGUF file"),
        ("./a/b", "no such directory"),
    ):
        with pytest.raises(SettingsError, match=words):
            ModelLoader(settings({"model": model}))


def test_the_name_of_a_model(tmp_path: Path) -> None:
    assert ModelLoader(settings({"model": "cohort-tiny"})).names == ("cohort-tiny",)
    assert ModelLoader(settings({"model": str(tmp_path)})).names == (tmp_path.name,)
    assert ModelLoader(settings({"served_model_name": ["a", "b/c"]})).names == ("a", "b/c")
    assert ModelLoader(settings({"model": "Qwen/Qwen3-0.6B"})).names == ("Qwen/Qwen3-0.6B",)


def test_a_directory_wins_over_a_hub_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    asked = {"model": "acme/tiny", "revision": "v1", "download_dir": "/d", "load_format": "dummy"}
    assert ModelLoader(settings(asked)).source == HubModel("acme/tiny", "v1", "/d", weights=False)
    (tmp_path / "acme" / "tiny").mkdir(parents=True)
    source = ModelLoader(settings({"model": "acme/tiny", "download_dir": "/d"})).source
    assert source == LocalModel(tmp_path / "acme/tiny", "tiny")
    for model, called in ({"model": "acme/tiny"}, "acme/tiny"), ({"model": "cohort-tiny"}, "cohort-tiny"):
        with pytest.raises(SettingsError, match=f"^--revision v1: {called} is a directory, which has no "):
            ModelLoader(settings({**model, "revision": "v1"}))


def test_a_link_names_a_model_and_perhaps_its_revision() -> None:
    link = "https://huggingface.co/acme/tiny/tree/v1"
    for revision in (None, "v1"):
        found = ModelLoader(settings({"model": link, "revision": revision}))
        assert found.source == HubModel("acme/tiny", "v1", None)
        assert found.names == ("acme/tiny",)
    with pytest.raises(SettingsError, match=r"^--revision v2: the link names v1; leave one of them out$"):
        ModelLoader(settings({"model": link, "revision": "v2"}))


def test_a_json_object() -> None:
    wanted = {"temperature": 0.5}
    assert (
        settings({"override_generation_config": '{"temperature": 0.5}'}).override_generation_config == wanted
    )
    given = settings(COHORT_OVERRIDE_GENERATION_CONFIG='{"temperature": 0.5}')
    assert given.override_generation_config == wanted
    assert error({"override_generation_config": "0.5,"}).startswith(
        "--override-generation-config: it should be a JSON object such as"
    )
    assert error({"override_generation_config": "[1]"}).startswith("--override-generation-config: ")


def serve_options() -> dict[str, bool]:
    import typer

    command: Any = typer.main.get_command(application())
    return known_options(command.commands["serve"])


def test_every_setting_has_its_flag() -> None:
    options = {name for name in serve_options() if name.startswith("--")} - {"--help", "--config", "--check"}
    switches = {name for name, row in TABLE.items() if row.is_switch}
    names = [*TABLE, *(f"no_{name}" for name in switches)]
    assert options == {f"--{name.replace('_', '-')}" for name in names}


def run(*argv: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """At this level a start on a busy machine tells nothing of its imports."""
    command = [str(Path(sys.executable).with_name("cohort")), *argv]
    env = {**os.environ, "COHORT_LOG_LEVEL": "warning", **environ}
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=30)


@pytest.mark.parametrize(
    ("argv", "environ", "words"),
    [
        (("serve", "--ctx-size", "5"), {}, "use --max-model-len"),
        (("serve", "--port", "80000"), {}, "--port"),
        (("serve", "gpt2", "--port", "0"), {}, "hub name"),
        (
            ("serve", "cohort-tiny", "--revision", "v1", "--port", "0"),
            {},
            "--revision v1: cohort-tiny is a directory",
        ),
        (("serve", "a", "--model", "b"), {}, "two models"),
        (("serve",), {"COHORT_NO_SUCH": "1"}, "COHORT_NO_SUCH"),
        (
            ("serve", "--no-enable-prefix-caching", "--target-itl-ms", "-1"),
            {},
            "--target-itl-ms: it should be",
        ),
    ],
)
def test_exit_code_2_and_one_line(argv: tuple[str, ...], environ: dict[str, str], words: str) -> None:
    done = run(*argv, **environ)
    assert done.returncode == 2
    assert done.stdout == ""
    [line] = done.stderr.splitlines()
    assert line.startswith("cohort: error: ")
    assert words in line


def test_help_and_version() -> None:
    assert "serve" in run("--help").stdout
    assert "--max-num-seqs" in run("serve", "--help").stdout
    assert run("--version").stdout == run("version").stdout
    assert run("nonsense").returncode == 2


def test_an_empty_key_is_no_open_server(tmp_path: Path) -> None:
    for value in ("", " , ", "a,,b", ","):
        assert error(COHORT_API_KEY=value).startswith("COHORT_API_KEY: it is given but empty")
    assert error({"api_key": [""]}).startswith("--api-key: it is given but empty")
    file = tmp_path / "my.yaml"
    for text in ('""', "[]", '[" "]'):
        file.write_text(f"api_key: {text}")
        assert "api_key: it is given but empty" in error({"config": str(file)})
    assert settings().api_key == ()


def test_an_empty_model_is_not_the_embedded_one() -> None:
    for name in ("model", "tokenizer", "chat_template", "host"):
        assert error({name: ""}).startswith(f"--{name.replace('_', '-')}: ")


@pytest.mark.parametrize(
    "name",
    [
        "port",
        "max_num_seqs",
        "seed",
        "drain_timeout",
        "max_body_bytes",
        "max_model_len",
        "target_itl_ms",
        "max_in_flight",
    ],
)
def test_numbers_are_no_switches(tmp_path: Path, name: str) -> None:
    file = tmp_path / "my.yaml"
    file.write_text(f"{name}: true")
    assert f"{name}: it should not be true or false" in error({"config": str(file)})


def test_a_step_has_room_for_every_sequence() -> None:
    message = error({"max_num_batched_tokens": 8, "max_num_seqs": 9})
    assert "--max-num-batched-tokens 8" in message
    assert "--max-num-seqs 9" in message
    assert settings({"max_num_batched_tokens": 9, "max_num_seqs": 9}).max_num_seqs == 9


def test_service_links_of_services_called_cohort_something() -> None:
    links = {
        "COHORT_GPU_SERVICE_HOST": "10.0.0.1",
        "COHORT_GPU_SERVICE_PORT": "8000",
        "COHORT_GPU_SERVICE_PORT_HTTP": "8000",
        "COHORT_GPU_PORT": "tcp://10.0.0.1:8000",
        "COHORT_GPU_PORT_53_UDP": "udp://10.0.0.1:53",
        "COHORT_GPU_PORT_8000_TCP_ADDR": "10.0.0.1",
        "COHORT_PORT": "udp://10.0.0.1:53",
    }
    chosen, notes = load({}, links)
    assert chosen.port == 8000
    assert len(notes) == len(links)
    assert "no such setting" in error(COHORT_GPU_PORT="80")
    assert error(COHORT_SERVED_MODEL="x").endswith("did you mean COHORT_SERVED_MODEL_NAME?")


def test_graphs_can_be_left_out(tmp_path: Path) -> None:
    for chosen, on in ((settings(), False), (settings({"enforce_eager": True}), True)):
        assert executor_config(chosen, tmp_path).optimization.enforce_eager is on
