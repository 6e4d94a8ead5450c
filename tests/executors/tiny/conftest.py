"""Shared fixtures: the shipped tokenizer, and one thread for PyTorch."""

from collections.abc import Iterator

import pytest
import torch
from tokenizers import Tokenizer

from executors.tiny import weights_dir


@pytest.fixture(scope="session")
def shipped_tokenizer() -> Tokenizer:
    """The tokenizer next to the embedded weights."""
    return Tokenizer.from_file(str(weights_dir() / "tokenizer.json"))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Compute on one thread: with more, a busy machine makes these tiny steps wait for each other for seconds."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
