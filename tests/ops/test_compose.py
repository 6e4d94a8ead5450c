"""Settings reach the server through Docker Compose: every one, from `.env` and from the shell."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from server.settings import load as settings
from server.settings.config_file import from_file
from server.settings.load import SettingsError
from server.settings.table import TABLE, Settings
from tests.ops import dockerfile
from tests.ops.compose import ComposeFile, read_dotenv
from tests.ops.expressions import ROOT

OTHERS = ["HF_TOKEN", "HF_ENDPOINT", "HF_HUB_OFFLINE", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"]
IMAGE = dockerfile.env()


def project(folder: Path, dotenv: str | None = None, shell: dict[str, str] | None = None) -> ComposeFile:
    """The compose file in a folder of its own, beside a `.env`."""
    shutil.copy(ROOT / "docker-compose.yml", folder)
    if dotenv is not None:
        (folder / ".env").write_text(dotenv, "utf-8")
    return ComposeFile(folder / "docker-compose.yml", shell or {})


def started_with(compose: ComposeFile) -> Settings:
    """The settings of the server in its container."""
    return settings.load({}, IMAGE | compose.environment("server"))[0]


def test_all_settings_are_passed_on_in_their_order() -> None:
    names = ComposeFile(ROOT / "docker-compose.yml", {}).services["server"]["environment"]
    assert names == [f"COHORT_{name.upper()}" for name in ("config", *TABLE)] + OTHERS


@pytest.mark.parametrize("source", ["file", "shell"])
def test_a_setting_that_few_people_change_reaches_the_server(tmp_path: Path, source: str) -> None:
    odd = {"COHORT_RECOVERY_TIMEOUT": "77.5", "COHORT_EXECUTOR_OPTION": "step_delay_ms=3", "SERVER_CPUS": "1"}
    if source == "file":
        lines = ["# ours", *(f"{name}={value}" for name, value in odd.items()), "COHORT_SEED='7'  # lucky"]
        compose = project(tmp_path, "\n".join(lines))
    else:
        compose = project(tmp_path, shell=odd | {"COHORT_SEED": "7"})
    found = started_with(compose)
    assert (found.recovery_timeout, found.seed) == (77.5, 7)
    assert found.executor_option == {"step_delay_ms": 3}
    assert found.host == "0.0.0.0", "the image's"
    assert found.explicit == {"recovery_timeout", "seed", "executor_option", "host"}


def test_every_setting_of_the_file_reaches_the_server(tmp_path: Path) -> None:
    names = [f"COHORT_{name.upper()}" for name in ("config", *TABLE)] + OTHERS
    compose = project(tmp_path, "".join(f"{name}=of {name}\n" for name in names))
    assert compose.environment("server") == {name: f"of {name}" for name in names}


def test_without_a_file_nothing_but_the_image_decides(tmp_path: Path) -> None:
    compose = project(tmp_path)
    assert compose.environment("server") == {}
    assert started_with(compose).explicit == {"host"} | set(_preset())


def test_the_shell_wins_over_the_file(tmp_path: Path) -> None:
    compose = project(tmp_path, "COHORT_SEED=1\nCOHORT_BLOCK_SIZE=32\n", {"COHORT_SEED": "2"})
    found = started_with(compose)
    assert (found.seed, found.block_size) == (2, 32)


def test_a_misspelt_setting_in_the_file_stops_the_server(tmp_path: Path) -> None:
    compose = project(tmp_path, "COHORT_MAX_QUEUE_WAITS=5\n")
    with pytest.raises(
        SettingsError, match=r"COHORT_MAX_QUEUE_WAITS: no such setting.*COHORT_MAX_QUEUE_WAIT"
    ):
        started_with(compose)
    run = subprocess.run(
        [sys.executable, "-m", "server.cli", "serve"],
        env={"PATH": IMAGE["PATH"], **compose.environment("server")},
        cwd=ROOT, capture_output=True, text=True, timeout=50,
    )  # fmt: skip
    assert run.returncode == 2 and "COHORT_MAX_QUEUE_WAITS" in run.stderr


def test_the_port_that_is_published_is_the_one_that_the_server_listens_on(tmp_path: Path) -> None:
    assert project(tmp_path).services["server"]["ports"] == ["127.0.0.1:8000:8000"]
    compose = project(tmp_path, "COHORT_PORT=9001\n")
    assert compose.services["server"]["ports"] == ["127.0.0.1:9001:9001"]
    assert started_with(compose).port == 9001


@pytest.mark.parametrize("source", ["shell", "single", "double", "bare"])
def test_json_reaches_the_server_whole(tmp_path: Path, source: str) -> None:
    name, value = "COHORT_OVERRIDE_GENERATION_CONFIG", '{"temperature": 0.5, "top_k": 3}'
    escaped = value.replace('"', '\\"')
    written = {"single": f"'{value}'", "double": f'"{escaped}"', "bare": value}
    if source == "shell":
        compose = project(tmp_path, shell={name: value})
    else:
        compose = project(tmp_path, f"{name}={written[source]}  # ours\n")
    assert started_with(compose).override_generation_config == {"temperature": 0.5, "top_k": 3}


def test_lines_of_a_file() -> None:
    text = "\n# note\nA=1\nexport B = two words \nC='#3' # x\nD=\"4 5\"\nE=\nF=a#b # c\n"
    assert read_dotenv(text) == {"A": "1", "B": "two words", "C": "#3", "D": "4 5", "E": "", "F": "a#b"}
    with pytest.raises(ValueError, match="not NAME=VALUE"):
        read_dotenv("A 1\n")


def _preset() -> dict[str, object]:
    return from_file(settings.DEFAULT_PRESET)[0]
