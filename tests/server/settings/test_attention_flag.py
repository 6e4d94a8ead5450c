"""`--attention-backend` reaches the executor, from a flag, the environment or a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from server.settings.load import load
from server.startup.core_configs import executor_config


@pytest.mark.parametrize("source", ["flag", "environment", "file"])
def test_it_reaches_the_executor(source: str, tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("attention_backend: flash-attn\n" if source == "file" else "port: 0\n")
    flags = {"config": str(file), **({"attention_backend": "flash-attn"} if source == "flag" else {})}
    environ = {"COHORT_ATTENTION_BACKEND": "flash-attn"} if source == "environment" else {}
    settings, _ = load(flags, environ)
    attention = executor_config(settings, tmp_path).attention
    assert (attention.backend, attention.block_size) == ("flash-attn", 16)


def test_left_out_it_is_for_the_executor_to_choose(tmp_path: Path) -> None:
    settings, _ = load({"model": str(tmp_path)}, {})
    assert executor_config(settings, tmp_path).attention.backend == "auto"
