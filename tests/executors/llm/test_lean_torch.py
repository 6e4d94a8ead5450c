"""What the fork server leaves out of torch is there for those who ask for it."""

import subprocess
import sys
from pathlib import Path

import pytest

from executors.llm import lean_torch

_LEFT_OUT = """
import sys
from executors.llm.lean_torch import import_torch
import_torch()
import executors.llm.imports
import torch
assert "torch._meta_registrations" not in sys.modules and not hasattr(torch, "_meta_registrations")
empty = torch.nn.Linear(3, 2, device="meta")
assert empty.to_empty(device="cpu").weight.shape == (2, 3)
assert torch.nn.functional.softmax(torch.ones(2, 3), -1).sum() == 2
from executors.llm.lean_torch import random_numbers
assert torch.rand(3, generator=random_numbers(1)).tolist() == torch.rand(3, generator=random_numbers(1)).tolist()
import torch._meta_registrations
x = torch.empty(2, 4, 4, device="meta")
assert torch.linalg.det(x).shape == (2,)
"""
_NEEDED = """
import sys
from executors.llm import lean_torch
absent = sys.modules[lean_torch._NAME] = lean_torch._Absent()
assert absent.register_meta is sys.modules[lean_torch._NAME].register_meta
assert sys.modules[lean_torch._NAME] is not absent
"""


@pytest.mark.parametrize("code", [_LEFT_OUT, _NEEDED], ids=["left out", "needed"])
def test_in_a_process_of_its_own(code: str) -> None:
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def test_executors_make_generators_by_the_helper_alone() -> None:
    root = Path(lean_torch.__file__).parents[1]
    found = [path for path in root.rglob("*.py") if "torch.Generator(" in path.read_text()]
    assert found == [Path(lean_torch.__file__)]
