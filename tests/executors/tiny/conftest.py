"""Shared fixtures: the shipped tokenizer."""

import pytest
from tokenizers import Tokenizer

from executors.tiny import weights_dir


@pytest.fixture(scope="session")
def shipped_tokenizer() -> Tokenizer:
    """The tokenizer next to the embedded weights."""
    return Tokenizer.from_file(str(weights_dir() / "tokenizer.json"))
