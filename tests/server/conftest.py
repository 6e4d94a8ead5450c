"""A server over fakes, fresh for each test."""

from collections.abc import Iterator

import pytest

from tests.server.fakes import House


@pytest.fixture
def house() -> Iterator[House]:
    house = House()
    yield house
    house.state.threads.close()
    assert not house.engine.open, "a generation was never left"
