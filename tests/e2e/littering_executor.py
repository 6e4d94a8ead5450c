"""Echo that leaves a process behind: `--executor tests.e2e.littering_executor:LitteringFactory`.

The environment variable LITTER names the file that its process id is written to.
"""

from __future__ import annotations

import os
import subprocess

from executors.contract import ExecutorConfig
from executors.testing.fakes.echo import EchoExecutor, EchoFactory

FILE = "LITTER"


class LitteringExecutor(EchoExecutor):
    async def warmup(self) -> None:
        _litter()
        await super().warmup()


def _litter() -> None:
    """The shell ends at once; what it started is then an orphan, and soon a zombie of whoever inherits it."""
    subprocess.run(["sh", "-c", f"sleep 0.2 & echo $! > '{os.environ[FILE]}'"], check=True)


class LitteringFactory(EchoFactory):
    def create_executor(self, config: ExecutorConfig) -> LitteringExecutor:
        return LitteringExecutor(config)
