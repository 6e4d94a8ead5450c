"""What `make install` names, deletes and refuses."""

from __future__ import annotations

import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest

from tools import heartbeat, install, torch_choice

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT = (ROOT / "pyproject.toml").read_text("utf-8")


def test_running_needs_no_package_of_the_workshop() -> None:
    run_time, workshop = install.requirements(PYPROJECT, False), install.requirements(PYPROJECT, True)
    project = tomllib.loads(PYPROJECT)["project"]
    assert workshop == project["optional-dependencies"]["dev"]
    assert {"torch==2.13.0", *run_time} == set(project["dependencies"]) and "torch==2.13.0" not in run_time
    names = [re.split(r"[^\w-]", line)[0].lower() for line in run_time]
    assert not {"pytest", "mypy", "ruff", "transformers", "matplotlib", "openai", "hatchling"} & set(names)


def test_devices(tmp_path: Path) -> None:
    assert not install.has_nvidia_device(tmp_path)
    (tmp_path / "nvidiactl").touch()
    assert not install.has_nvidia_device(tmp_path)
    (tmp_path / "nvidia0").touch()
    assert install.has_nvidia_device(tmp_path)


def test_only_test_programs_are_deleted(tmp_path: Path) -> None:
    programs = ["bin/torch_shm_manager", "bin/test_api", "bin/protoc-3.13.0.0", "test/ops_test"]
    others = ["bin/model.pt", "test/helper.py", "lib/libtorch.so", "include/test/a.h", "testing/x"]
    for name in [*programs, *others]:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"12345")
        path.chmod(0o755 if name in programs or name.endswith(".so") else 0o644)
    assert install.slim(tmp_path) == 15
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {programs[0], *others}
    assert install.slim(tmp_path) == install.slim(tmp_path / "missing") == 0


def test_a_failed_step_ends_the_installation(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        install.main(["venv", "/dev/null/environment"])
    assert str(ended.value).endswith("Making the virtual environment /dev/null/environment failed.")
    with pytest.raises(SystemExit) as ended:
        install.main(["all", "--torch", "2.13.0", "--backend", "rocm"])
    assert str(ended.value) == "TORCH_BACKEND=rocm: it should be cpu, cuda or empty"
    assert "Installing" not in capsys.readouterr().out


def test_size_and_time_are_said_before_anything_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And the kernels, which are compiled meanwhile, end with an installation that fails."""
    compilers: list[subprocess.Popen[bytes]] = []

    def spawn(command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
        log.touch()
        compilers.append(subprocess.Popen(["sleep", "60"], process_group=0))
        return compilers[-1]

    def refuse(*arguments: object) -> None:
        raise torch_choice.TorchRefused("no torch")

    monkeypatch.setenv("PIP_PROGRESS_BAR", "as it was")
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(heartbeat, "spawn", spawn)
    monkeypatch.setattr(torch_choice, "install", refuse)
    with pytest.raises(SystemExit, match="no torch"):
        install.main(["all", "--torch", "2.13.0"])
    packages, kernels = capsys.readouterr().out.splitlines()
    assert re.search(r"[\d.]+ GB to download and [\d.]+ GB on disk .* minutes", packages)
    assert "Compiling the CPU kernels" in kernels and re.search(r"\d+ to \d+ seconds", kernels)
    assert compilers[0].returncode == -9 and not list(tmp_path.iterdir())


def test_kernels_that_cannot_be_compiled_are_no_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log"
    for code, line in (
        ("raise SystemExit('no C++ compiler found')", "no C++ compiler found"),
        ("print('a.so')", "a.so"),
    ):
        install._finish_kernels(heartbeat.spawn([sys.executable, "-c", code], log), time.monotonic(), log)
        out = capsys.readouterr().out.splitlines()[-1]
        assert out.endswith(line) and out.startswith("The CPU kernels could not") == (line != "a.so")


def test_targets_ask_for_what_they_need() -> None:
    """What serves needs the run-time packages only; what tests or checks needs the workshop's too."""
    rules = dict(re.findall(r"^([a-z-]+): *([^#\n]*)", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    for target in ("install", "serve", "demo", "bench"):
        assert rules[target].split() == ["$(STAMP)"], target
    for target in (
        "dev",
        "test",
        "test-fast",
        "test-all",
        "test-external",
        "check",
        "format",
        "lock",
    ):
        assert "$(DEV)" in rules[target].split(), target
