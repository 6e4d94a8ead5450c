"""What docs/not-supported.md lists as missing on GPUs is refused. A feature that arrives makes its test here fail: its row in
`tools/missing_docs.py` goes with the test."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from executors.contract import OptimizationConfig
from executors.contract.errors import ConfigError
from executors.llm.checkpoint.loader import choose_kernels, refuse_without_kernels
from tests.executors.llm.driver import config

GPU = torch.device("cuda:0")


def test_deterministic(tmp_path: Path) -> None:
    asked = replace(config(tmp_path), optimization=OptimizationConfig(deterministic=True))
    kernels, missing = choose_kernels(asked, GPU)
    assert kernels is None
    with pytest.raises(ConfigError, match=r"^deterministic: needs Cohort's own kernels"):
        refuse_without_kernels(asked, GPU, missing)
