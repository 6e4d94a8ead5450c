"""One life of the validating process, seen from the server."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from asyncio.subprocess import Process
from collections.abc import Sequence
from pathlib import Path
from typing import Self, TypeVar

import msgspec

from cohort_server import run
from server.grammar.messages import HEADER, MAX_FRAME_BYTES, Check, Hello, Setup, Validation, frame
from server.system import log_output

COMMAND = tuple(run.command("server.grammar.validator_process"))

Message = TypeVar("Message", bound=msgspec.Struct)


class ChildDied(Exception):
    """The process exited or was killed. `outside`: by SIGKILL, which is never the result of its own fault."""

    def __init__(self, message: str, outside: bool) -> None:
        super().__init__(message)
        self.outside = outside


class Child:
    """A running process. One writer: the task that started it, which sends one question at a time and waits for the answer."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.pid = process.pid

    @classmethod
    async def start(
        cls, tokenizer: Path, logits_width: int, seconds: float, command: Sequence[str] = COMMAND
    ) -> tuple[Self, str]:
        """The process with its tokenizer loaded, and the reason why it cannot enforce grammars (empty: it can).

        Raises ChildDied if it ends within `seconds`, TimeoutError if it does not answer; then no process is left.
        """
        with log_output.pipe_for("grammar") as stderr:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=stderr,
                env=_environment(),
                start_new_session=True,  # Ctrl-C in the terminal is the server's to answer
            )
        child = cls(process)
        try:
            async with asyncio.timeout(seconds):
                hello = await child._ask(Setup(str(tokenizer), logits_width), Hello)
        except BaseException:
            await child.kill()
            raise
        return child, hello.refused

    async def check(self, grammar: str, seconds: float) -> Validation:
        """The process's answer. Raises TimeoutError or ChildDied; after either, `kill` the process."""
        async with asyncio.timeout(seconds):
            return await self._ask(Check(grammar), Validation)

    async def kill(self) -> None:
        """End the process and wait until it is gone, even if cancelled meanwhile."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()

    async def _ask(self, message: msgspec.Struct, kind: type[Message]) -> Message:
        writer, answers = self._process.stdin, self._process.stdout
        assert writer is not None and answers is not None
        try:
            if writer.is_closing():  # uvloop would raise RuntimeError
                raise ConnectionResetError
            writer.write(frame(message))
            await writer.drain()
            (length,) = HEADER.unpack(await answers.readexactly(HEADER.size))
            if length > MAX_FRAME_BYTES:
                raise ChildDied(f"it sent a message of {length} bytes", outside=False)
            return msgspec.msgpack.decode(await answers.readexactly(length), type=kind)
        except (asyncio.IncompleteReadError, ConnectionError):
            status = await self._process.wait()
            raise ChildDied(_words(status), outside=status == -signal.SIGKILL) from None
        except msgspec.DecodeError as error:
            raise ChildDied(f"it sent garbage: {error}", outside=False) from None


def _words(status: int) -> str:
    if status >= 0:
        return f"ended with exit code {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"


def _environment() -> dict[str, str]:
    """The server's environment without its settings, which include keys. Unused threads and arenas are disabled: they take
    address space, which is limited."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("COHORT_")}
    return env | {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "MALLOC_ARENA_MAX": "2"}
