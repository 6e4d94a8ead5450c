"""Executors of the stub, shut down after each test: their processes begin by a command, or are forked."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from executors.process.watch import Limits
from tests.executors.process.helpers import STUB, CountedExecutor, Make, config, pass_over_children


@pytest.fixture(autouse=True)
def _other_tests_children() -> None:
    pass_over_children()


@pytest.fixture(params=["command", "forked"])
async def remote(request: pytest.FixtureRequest) -> AsyncIterator[Make]:
    """Makes remote executors: `remote(limits=..., load="config", ...)`."""
    made: list[CountedExecutor] = []

    def make(
        limits: Limits | None = None, command: Any = None, on_death: Any = None, **options: Any
    ) -> CountedExecutor:
        extra: dict[str, Any] = {"command": command} if command else {}
        if request.param == "forked" and not command:
            extra["imports"] = (STUB,)
        made.append(CountedExecutor(config(**options), limits=limits, on_death=on_death, **extra))
        return made[-1]

    yield make
    for executor in made:
        await executor.shutdown()
