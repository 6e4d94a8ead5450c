"""The LLM executor, but it can be told to hold, to die at an exact position and in which way; and some seeds are poison.

--executor tests.chaos.crashing_executor:CrashingFactory, with the environment variable CHAOS_FOLDER:

    hold      while this file exists it does not get ready: what arrives meanwhile becomes one cohort
    strike    JSON of a `Strike`: this process dies at that position, once, and leaves word of where it was
    struck    JSON: by seed, the positions (0 is the first output token) that were being computed when it died
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn, Self

import numpy as np
import torch

from executors.contract import InvalidInput, UnifiedBatch, UnifiedOutput
from executors.llm.executor import LlmExecutor
from executors.llm.factory import LlmFactory

POISON, NOT_A_NUMBER, LATER_NOT_A_NUMBER, REFUSED = 666, 667, 668, 669
"""Seeds. Whoever has it: ends the process with its first token; gets logits of NaN, at once or after `LATER` tokens; is
refused by the executor."""
LATER = 5
EXIT_CODE = 3
FOLDER = "CHAOS_FOLDER"


@dataclass(frozen=True)
class Strike:
    """When and how to die: in the step that computes the output token at `position` of the request with this seed (of any
    of its choices), or, with `position` None, a chunk of its prompt that is neither the first nor the last.

    - `how`: a signal to itself, an exit by itself, or a closed socket of a process that is still there.
    - `behind`: the step is computed, and its result lost; otherwise not even begun.
    """

    seed: int
    position: int | None
    how: str = "SIGKILL"
    behind: bool = False

    def leave(self, folder: Path) -> None:
        """For an executor to find."""
        _leave(folder / "strike", asdict(self))

    @classmethod
    def find(cls, folder: Path) -> Self | None:
        """None if there is none."""
        try:
            return cls(**json.loads((folder / "strike").read_text()))
        except FileNotFoundError:
            return None

    def falls(self, positions: dict[int, list[int]], chunks: dict[int, int]) -> bool:
        """Whether this step is the one: output positions by seed, and where unfinished chunks of prompts begin."""
        if self.position is None:
            return chunks.get(self.seed, 0) > 0
        computed = positions.get(self.seed, [])
        return self.position in computed or min(computed, default=-1) > self.position


class CrashingExecutor(LlmExecutor):
    """See the module."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._seeds: dict[int, int] = {}
        """By sequence, as the length of its prompt; -1 for what does not sample."""
        self._prompts: dict[int, int] = {}
        self._bad_rows: list[int] = []
        """Of the rows sampled in this step, those whose logits are to be NaN."""

    async def warmup(self) -> None:
        await super().warmup()
        _hold()
        assert self._runtime is not None
        runner = self._runtime.runner
        compute = runner.logits_for_sampling

        def spoiled(hidden: torch.Tensor, rows: np.ndarray) -> tuple[torch.Tensor, torch.Tensor | None]:
            for at in self._bad_rows:
                hidden[rows[at] if len(rows) < len(hidden) else at] = torch.nan
            return compute(hidden, rows)

        runner.logits_for_sampling = spoiled  # type: ignore[method-assign]

    async def unified_decode(self, batch: UnifiedBatch) -> UnifiedOutput:
        for start in batch.starts:
            self._seeds[start.seq_id] = -1 if start.sampling is None else start.sampling.seed
            self._prompts[start.seq_id] = len(start.prompt_token_ids)
        seeds = [self._seeds[seq_id] for seq_id in batch.seq_ids.tolist()]
        if POISON in seeds:
            os._exit(11)
        if REFUSED in seeds:
            raise InvalidInput("refused, as asked for")
        sampled = self._sampled(batch)
        self._bad_rows = [
            row
            for row, (seed, position) in enumerate(sampled)
            if seed == NOT_A_NUMBER or (seed == LATER_NOT_A_NUMBER and position >= LATER)
        ]
        if FOLDER in os.environ:
            await self._look(Path(os.environ[FOLDER]), batch, sampled)
        return await super().unified_decode(batch)

    def _sampled(self, batch: UnifiedBatch) -> list[tuple[int, int]]:
        """Seed and output position of each item that samples, in order."""
        seq_ids, final = batch.seq_ids.tolist(), batch.is_final_chunk.tolist()
        ends = (batch.pos_offsets + batch.num_q_tokens).tolist()
        return [
            (self._seeds[seq_id], end - self._prompts[seq_id])
            for seq_id, end, last in zip(seq_ids, ends, final, strict=True)
            if last
        ]

    async def _look(self, folder: Path, batch: UnifiedBatch, sampled: list[tuple[int, int]]) -> None:
        """Die, if that was asked for."""
        strike = Strike.find(folder)
        if strike is None:
            return
        positions: dict[int, list[int]] = {}
        for seed, position in sampled:
            positions.setdefault(seed, []).append(position)
        chunks = {
            self._seeds[seq_id]: begin
            for seq_id, begin, last in zip(
                batch.seq_ids.tolist(), batch.pos_offsets.tolist(), batch.is_final_chunk.tolist(), strict=True
            )
            if not last
        }
        if not strike.falls(positions, chunks):
            return
        (folder / "strike").unlink()
        _leave(folder / "struck", positions)
        if strike.behind:
            await super().unified_decode(batch)
        _die(strike.how)


def _hold() -> None:
    while FOLDER in os.environ and Path(os.environ[FOLDER], "hold").exists():
        time.sleep(0.005)


def _leave(file: Path, content: object) -> None:
    """Write a file that is found whole or not at all."""
    new = file.with_suffix(".new")
    new.write_text(json.dumps(content))
    new.rename(file)


def _die(how: str) -> NoReturn:
    if how == "exit":
        os._exit(EXIT_CODE)
    if how == "closed":
        # The other end reads the end of the stream; this process stays, and says nothing that would make it exit: no other
        # thread gets the interpreter between the two calls.
        sys.setswitchinterval(60)
        here = ctypes.PyDLL(None)
        here.shutdown(int(sys.argv[1]), socket.SHUT_WR)
        here.kill(os.getpid(), signal.SIGSTOP)
    os.kill(os.getpid(), signal.Signals[how])
    time.sleep(3600)  # stopped, or dead, before it gets here
    raise AssertionError(how)


class CrashingFactory(LlmFactory):
    def executor_class(self) -> type[CrashingExecutor]:
        return CrashingExecutor
