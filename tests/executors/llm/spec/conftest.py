"""Checkpoints with MTP heads."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.executors.llm.models import Reference
from tests.executors.llm.spec.mtp_heads import HeadReference, Heads, with_head


@pytest.fixture(scope="session")
def head(reference: Callable[[str], Reference], tmp_path_factory: pytest.TempPathFactory) -> Heads:
    """The checkpoint of a shape with a head, see `with_head`."""
    made: dict[tuple[str, float | None], HeadReference] = {}

    def get(name: str, right: float | None = None) -> HeadReference:
        if (name, right) not in made:
            folder = tmp_path_factory.mktemp("heads") / f"{name}-{right}"
            made[name, right] = with_head(reference(name), folder, right=right, apart=name == "qwen3-next")
        return made[name, right]

    return get
