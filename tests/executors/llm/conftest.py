"""Checkpoints are written once per session: importing transformers costs seconds."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.executors.llm.models import Reference, build


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Reference]:
    """The checkpoint of a shape in SHAPES, by name."""
    made: dict[str, Reference] = {}

    def get(name: str) -> Reference:
        if name not in made:
            made[name] = build(name, tmp_path_factory.mktemp("checkpoints") / name)
        return made[name]

    return get


@pytest.fixture(scope="session")
def qwen3(reference: Callable[[str], Reference]) -> Path:
    """Path of a small Qwen3."""
    return reference("qwen3-tied-gqa").path
