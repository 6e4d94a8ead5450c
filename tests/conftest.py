"""What every test can rely on: no network look-ups, no settings leaking in, no GPU tests without a GPU."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import settings

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
for name in [name for name in os.environ if name.startswith("COHORT_")]:
    del os.environ[name]

# The time-out per test is pytest's; the examples are the same in every run.
settings.register_profile("cohort", deadline=None, derandomize=True)
settings.load_profile("cohort")


@pytest.fixture(autouse=True)
def _collector() -> Iterator[None]:
    """No test leaves the garbage collector off for those behind it."""
    assert gc.isenabled()
    yield
    assert gc.isenabled()


@pytest.fixture
def no_collector() -> Iterator[None]:
    """What is gone was let go of: the garbage collector does not come."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.option.collectonly or any(Path("/dev").glob("nvidia[0-9]*")):
        return
    without_gpu = [item for item in items if item.get_closest_marker("gpu") is None]
    config.hook.pytest_deselected(items=[item for item in items if item not in without_gpu])
    items[:] = without_gpu


@pytest.fixture(autouse=True, scope="session")
def loggers_that_can_be_captured() -> Iterator[None]:
    """A logger that was cached under one configuration keeps its level for the rest of the process, and `LLM` configures loggers
    in the test's own."""
    configure = structlog.configure

    def without_cache(**settings: Any) -> None:
        configure(**settings | {"cache_logger_on_first_use": False})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(structlog, "configure", without_cache)
        yield


@pytest.fixture(autouse=True, scope="module")
def loggers_as_they_were() -> Iterator[None]:
    """The level that a module's tests configured hides no lines from the next module's."""
    yield
    structlog.reset_defaults()
