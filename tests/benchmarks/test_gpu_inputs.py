"""What gpu-check's kernels are measured on: the same numbers whatever was drawn before."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import torch

from benchmarks.gpu import sampling as check_sampling
from benchmarks.gpu.part import ROOT
from benchmarks.gpu.timing import noise

CPU = torch.device("cpu")
DRAWS = {"rand", "randn", "randint", "randperm", "normal_", "uniform_", "random_", "multinomial", "bernoulli"}


def draws() -> Iterator[tuple[str, ast.Call]]:
    """Calls of torch's generators in gpu-check, by where they stand."""
    for path in sorted((ROOT / "benchmarks" / "gpu").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in DRAWS
            ):
                owner = node.func.value
                if not (isinstance(owner, ast.Name) and owner.id in ("draw", "rng")):  # Python's, NumPy's
                    yield f"{path.name}:{node.lineno}", node


def test_nothing_is_drawn_from_the_generator_that_all_share() -> None:
    found = list(draws())
    assert len(found) >= 8
    assert [place for place, call in found if "generator" not in [one.arg for one in call.keywords]] == []


def test_inputs_do_not_depend_on_what_was_drawn_before() -> None:
    first = (
        check_sampling.language_logits(2, 50, noise(CPU)),
        check_sampling.device_settings(3, {}, noise(CPU)),
    )
    torch.rand(5)
    state = torch.get_rng_state()
    again = (
        check_sampling.language_logits(2, 50, noise(CPU)),
        check_sampling.device_settings(3, {}, noise(CPU)),
    )
    assert torch.equal(first[0], again[0]) and torch.equal(first[1].u, again[1].u)
    assert torch.equal(torch.get_rng_state(), state)
    assert len(set(first[1].u.tolist())) == 3
