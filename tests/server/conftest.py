"""A server over fakes, fresh for each test."""

from collections.abc import AsyncIterator, Iterator

import pytest

from server.model_files import default_model
from tests.server.fakes import House
from tests.server.http.raw_http import serving
from tests.server.startup.test_lifecycle import Running


@pytest.fixture(autouse=True)
def _no_default_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default model may or may not have been fetched on this machine."""
    monkeypatch.setattr(default_model, "find", lambda: None)


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
