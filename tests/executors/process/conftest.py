"""Executors of the stub, shut down after each test."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from executors.process.client import RemoteExecutor
from executors.process.watch import Limits
from tests.executors.process.helpers import Make, config


@pytest.fixture
async def remote() -> AsyncIterator[Make]:
    """Makes remote executors: `remote(limits=..., load="config", ...)`."""
    made: list[RemoteExecutor] = []

    def make(
        limits: Limits | None = None, command: Any = None, on_death: Any = None, **options: Any
    ) -> RemoteExecutor:
        extra = {"command": command} if command else {}
        made.append(RemoteExecutor(config(**options), limits=limits, on_death=on_death, **extra))
        return made[-1]

    yield make
    for executor in made:
        await executor.shutdown()
