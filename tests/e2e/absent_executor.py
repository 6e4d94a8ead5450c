"""A third party's executor whose device is not there yet: the first line of what it is asked to load fails."""

from __future__ import annotations

from executors.contract import ExecutorConfig, Unavailable
from executors.testing.fakes.echo import EchoExecutor, EchoFactory


class AbsentExecutor(EchoExecutor):
    async def warmup(self) -> None:
        raise Unavailable("device 'cuda': no CUDA device is available")


class AbsentFactory(EchoFactory):
    def create_executor(self, config: ExecutorConfig) -> AbsentExecutor:
        return AbsentExecutor(config)
