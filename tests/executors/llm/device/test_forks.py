"""A process that forks executors asks no driver: torch lets no process use a GPU whose parent has asked CUDA anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from executors.contract import ConfigError, ExecutorConfig, OptimizationConfig
from executors.llm.device import cuda
from executors.llm.device.table import shares_weights
from executors.llm.factory import LlmFactory
from tests.executors.checkpoints import write_checkpoint
from tests.executors.llm.encoder import test_encoders
from tests.gpu.workloads import SMALL


@pytest.fixture
def questions(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """A torch built for CUDA on a machine with a GPU, whose driver counts what it is asked."""
    asked: list[str] = []
    monkeypatch.setattr(torch.cuda, "_is_compiled", lambda: True)
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    for name, answer in (("_cuda_getDeviceCount", 1), ("_cuda_init", None), ("_cuda_getArchFlags", "sm_90")):

        def ask(name: str = name, answer: Any = answer) -> Any:
            asked.append(name)
            return answer

        monkeypatch.setattr(torch._C, name, ask, raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("PYTORCH_NVML_BASED_CUDA_CHECK", raising=False)
    files = tmp_path / "dev"
    files.mkdir()
    (files / "nvidia0").touch()
    monkeypatch.setattr(cuda, "_DEVICES_FOLDER", files)
    return asked


def _loaded(path: Path, device: str, **optimization: Any) -> object:
    config = ExecutorConfig(
        "llm", str(path), device=device, optimization=OptimizationConfig(num_threads=1, **optimization)
    )
    return LlmFactory().load_shared(config, lambda stage, done, total: None)


@pytest.mark.parametrize("device", ["auto", "cuda", "cuda:1"])
def test_a_load_for_a_gpu_asks_it_nothing(device: str, questions: list[str], tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "model", SMALL)
    assert _loaded(path, device) is None
    assert not questions
    assert torch.cuda.is_available() and questions  # what the fake is there for


def test_a_load_of_an_encoder_for_a_gpu_asks_it_nothing(questions: list[str], tmp_path: Path) -> None:
    test_encoders.made(tmp_path / "model", "bert")
    assert _loaded(tmp_path / "model", "auto") is None
    assert not questions


def test_weights_are_shared_on_a_cpu_beside_a_gpu(questions: list[str], tmp_path: Path) -> None:
    assert _loaded(write_checkpoint(tmp_path / "model", SMALL), "cpu") is not None
    assert not questions


@pytest.mark.parametrize(
    ("without", "hidden", "shared"),
    [("files", None, True), ("build", None, True), (None, "", True), (None, "-1", True), (None, "0", False)],
)
def test_where_no_gpu_can_be_used_weights_are_shared(
    without: str | None,
    hidden: str | None,
    shared: bool,
    questions: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if without == "files":
        (cuda._DEVICES_FOLDER / "nvidia0").unlink()
    if without == "build":
        monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: False)
    if hidden is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    assert shares_weights("auto") is shared
    assert not questions


def test_other_names_are_refused() -> None:
    with pytest.raises(ConfigError, match="device 'tpu' is not supported"):
        shares_weights("tpu")
