"""Where the server is. Standard library and pytest only: every client's environment reads this."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def _without_collector() -> Iterator[None]:
    """The garbage collector runs between these tests alone, see below. A fixture and no hook: who collects all of tests/ loads
    this file too. What clients bring along at import is not gone through after each test: with LiteLLM that is a quarter of
    a second."""
    gc.disable()
    gc.freeze()
    yield
    gc.unfreeze()
    gc.enable()


@pytest.fixture(autouse=True)
def _collected(_without_collector: None) -> Iterator[None]:
    """
    httpcore (1.0.9, its issue 990) waits for itself for ever where the collector finds a stream that was not read to its end
    while the same thread holds the pool's lock. LiteLLM leaves such streams behind: it stops at `[DONE]` and closes nothing.
    That is between these two, whatever the server; here nothing holds the lock.
    """
    yield
    gc.collect()


@pytest.fixture(scope="session")
def url() -> str:
    """Of the server, without /v1."""
    return os.environ["CLIENT_URL"]


@pytest.fixture(scope="session")
def api_key() -> str:
    return os.environ["CLIENT_API_KEY"]


@pytest.fixture(scope="session")
def model() -> str:
    """The name that the server gives its model: cohort-tiny, in fp32."""
    return os.environ["CLIENT_MODEL"]


@pytest.fixture(scope="session")
def model_dir() -> str:
    """The directory the model is from, tokenizer included: clients that count tokens have no hub to look at."""
    return os.environ["CLIENT_MODEL_DIR"]
