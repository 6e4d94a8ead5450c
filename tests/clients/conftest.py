"""Where the server is. Standard library and pytest only: every client's environment reads this."""

from __future__ import annotations

import os

import pytest


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
