"""A server over fakes, fresh for each test."""

import asyncio
import functools
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from server.model_files import default_model
from server.templates import template
from tests.server.fakes import House
from tests.server.http.raw_http import serving
from tests.server.startup.test_lifecycle import Running


@pytest.fixture(autouse=True)
def _no_default_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default model may or may not have been fetched on this machine."""
    monkeypatch.setattr(default_model, "find", lambda: None)


class _Asyncio:
    """asyncio, in which every time is a tenth."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / 10)


@pytest.fixture(autouse=True, scope="session")
def uvicorn_ends_soon() -> Iterator[None]:
    """Uvicorn looks every 0.1 s whether it is to end, and gives its connections as long to end: most of a test's time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("uvicorn.server.asyncio", _Asyncio())
        yield


@pytest.fixture(autouse=True, scope="session")
def templates_are_compiled_once() -> Iterator[None]:
    """Most servers of tests have the same template, which takes half of the time to make one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(template, "compiled_source", functools.lru_cache(100)(template.compiled_source))
        yield


@pytest.fixture
def house() -> Iterator[House]:
    house = House()
    yield house
    house.state.threads.close()
    assert not house.engine.open, "a generation was never left"


@pytest.fixture
async def running(house: House) -> AsyncIterator[Running]:
    """Over real sockets, and ready."""
    async with serving(house) as one:
        yield one
