"""What docs/not-supported.md lists as missing on GPUs is refused. A feature that arrives makes its test here fail: its row in
`tools/missing_docs.py` goes with the test."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from executors.contract import OptimizationConfig
from executors.contract.errors import ConfigError
from executors.llm.checkpoint.draft import load_draft
from executors.llm.checkpoint.loader import choose_kernels, refuse_without_kernels
from tests.executors.llm.driver import config
from tests.server.fakes import INFO

GPU = torch.device("cuda:0")


def test_draft_models(tmp_path: Path) -> None:
    asked = replace(config(tmp_path), optimization=OptimizationConfig(draft_model=str(tmp_path)))
    with pytest.raises(ConfigError, match="draft models are computed on a CPU only"):
        load_draft(asked, replace(INFO, device="cuda:0"), lambda stage, done, total: None)


def test_deterministic(tmp_path: Path) -> None:
    asked = replace(config(tmp_path), optimization=OptimizationConfig(deterministic=True))
    kernels, missing = choose_kernels(asked, GPU)
    assert kernels is None
    with pytest.raises(ConfigError, match=r"^deterministic: needs Cohort's own kernels"):
        refuse_without_kernels(asked, GPU, missing)
