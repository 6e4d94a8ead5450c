"""Devices that are played on a CPU are the same where there is a GPU: a start of theirs takes no steps to measure its pace."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

_ROOT = Path(__file__).resolve().parents[2]
_COUNTS_STEPS = "tests/gpu/test_graphs.py::test_under_load_what_is_missed_often_is_captured_between_two_steps"
_WITH_A_GPU = """
import sys, pytest, torch
torch.cuda.is_available = lambda: True
sys.exit(pytest.main(sys.argv[1:]))
"""


@pytest.mark.timeout(120)  # imports torch and all that pytest does once more
def test_the_steps_that_are_counted_are_the_tests_own() -> None:
    """In a process of its own: conftest.py asks for a GPU while it is imported."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "TRITON_"))}
    plugins = ("-p", "pytest_asyncio.plugin", "-p", "pytest_timeout", "-p", "no:cacheprovider")
    done = subprocess.run(
        [sys.executable, "-c", _WITH_A_GPU, _COUNTS_STEPS, "-q", "-m", "", *plugins],
        cwd=_ROOT, env={**kept, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout + done.stderr
