from pathlib import Path

import pytest

from tests.executors.checkpoints import QWEN3, write_checkpoint


@pytest.fixture(scope="session")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Qwen3 with grouped queries and tied embeddings."""
    return write_checkpoint(tmp_path_factory.mktemp("qwen3"), QWEN3)
