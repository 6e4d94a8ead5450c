"""Servers that many tests share, one process each for the whole session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.checkpoints import VOCAB_SIZE, write_tokenizer
from tests.e2e.reference import Reference, write_reference
from tests.e2e.server_process import ServerProcess

ECHO = ["--executor", "echo", "--executor-option", f"vocab_size={VOCAB_SIZE}"]


@pytest.fixture(scope="session")
def tokenizer_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a byte tokenizer and a chat template, for executors without a model."""
    return write_tokenizer(tmp_path_factory.mktemp("echo-model"))


@pytest.fixture(scope="session")
def echo_server(tokenizer_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """The echo executor in its own process, 5 ms a step: long enough to be interrupted."""
    args = [str(tokenizer_dir), *ECHO, "--executor-option", "step_delay_ms=5", "--served-model-name", "echo"]
    with ServerProcess([*args, "--served-model-name", "org/echo"], tmp_path_factory.mktemp("echo")) as server:
        yield server


@pytest.fixture(scope="session")
def tiny_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """The embedded model, by its name: the default model is another one where it was fetched."""
    with ServerProcess(["cohort-tiny"], tmp_path_factory.mktemp("tiny")) as server:
        yield server


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """A random checkpoint in fp32, and transformers' numbers for it."""
    return write_reference(tmp_path_factory.mktemp("reference"))


@pytest.fixture(scope="session")
def reference_server(
    reference: Reference, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """That checkpoint served, with steps so small that prompts come in chunks."""
    args = [str(reference.path), "--dtype", "float32", "--served-model-name", "reference"]
    args += ["--max-num-batched-tokens", "64", "--max-num-seqs", "16"]
    with ServerProcess(args, tmp_path_factory.mktemp("reference-server")) as server:
        yield server
