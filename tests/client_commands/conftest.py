"""Tests of `clients/`. Their folder is not tests/clients because that one holds client programs of others."""

from collections.abc import Iterator

import pytest

from server.model_files import default_model
from tests.server.conftest import templates_are_compiled_once, uvicorn_ends_soon
from tests.server.fakes import House

__all__ = ["templates_are_compiled_once", "uvicorn_ends_soon"]


@pytest.fixture(autouse=True)
def _no_default_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default model may or may not have been fetched on this machine."""
    monkeypatch.setattr(default_model, "find", lambda: None)


@pytest.fixture
def house() -> Iterator[House]:
    """A server over fakes, fresh for each test."""
    house = House()
    yield house
    house.state.threads.close()
    assert not house.engine.open, "a generation was never left"
