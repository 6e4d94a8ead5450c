"""A third party's executor, named by `--executor tests.e2e.late_executor:LateFactory`: it loads for seconds and says nothing.

Options: `load_s`, besides those of the echo executor."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from executors.contract import ExecutorConfig
from executors.testing.fakes.echo import EchoExecutor, EchoFactory


class LateExecutor(EchoExecutor):
    load_s = 4.0

    async def warmup(self) -> None:
        await asyncio.sleep(self.load_s)
        await super().warmup()


class LateFactory(EchoFactory):
    def create_executor(self, config: ExecutorConfig) -> LateExecutor:
        options = dict(config.options)
        seconds = float(options.pop("load_s", 4.0))
        made = LateExecutor(replace(config, options=options))
        made.load_s = seconds
        return made
