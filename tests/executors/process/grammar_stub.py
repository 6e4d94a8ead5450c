"""A stub whose grammars take as long as a test wants: the text is the path of a file that is waited for on a thread."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import replace
from pathlib import Path

from executors.contract import ExecutorCapabilities, ExecutorConfig, InvalidInput, ModelExecutor
from tests.executors.process import stub

REFUSED, DEADLY = "refused", "deadly"


class GrammarStub(stub.Stub):
    """`REFUSED` is no grammar, at `DEADLY` the process ends, anything else is waited for."""

    def capabilities(self) -> ExecutorCapabilities:
        return replace(super().capabilities(), grammars=True)

    async def prepare_grammar(self, grammar: str) -> None:
        if grammar == REFUSED:
            raise InvalidInput("unexpected\nend")
        if grammar == DEADLY:
            os._exit(9)
        await asyncio.to_thread(_wait_for, Path(grammar))


def _wait_for(path: Path) -> None:
    path.with_suffix(".waiting").touch()
    while not path.exists():
        time.sleep(0.005)


class Factory(stub.Factory):
    def create_executor(self, config: ExecutorConfig) -> ModelExecutor:
        return GrammarStub(config)
