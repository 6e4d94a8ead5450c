"""A server whose executor dies on demand."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from executors.tiny import weights_dir
from tests.chaos.client import Stream
from tests.chaos.crashing_executor import FOLDER
from tests.e2e.server_process import ServerProcess

EXACT = ["--deterministic", "--dtype", "float32", "--max-num-seqs", "256"]


class ChaosServer(ServerProcess):
    """`cohort serve` with the crashing executor, whose orders lie in `folder`. `load_s`: from the moment that it listens,
    when the executor has just been started, until it is ready."""

    def __init__(self, folder: Path, *args: str) -> None:
        self.folder = folder
        factory = "tests.chaos.crashing_executor:CrashingFactory"
        env = {"PYTHONPATH": str(Path(__file__).parents[2]), FOLDER: str(folder)}
        super().__init__(
            ["--executor", factory, "--model", str(weights_dir()), *EXACT, *args], folder, env=env
        )
        self.load_s = 0.0
        self.undisturbed: list[Stream] = []
        """What many requests were answered, for tests that ask for them again."""

    def wait_until_ready(self) -> float:
        assert self.url
        began = time.monotonic()
        found = super().wait_until_ready()
        self.load_s = time.monotonic() - began
        return found


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChaosServer]:
    with ChaosServer(tmp_path_factory.mktemp("chaos")) as running:
        yield running
