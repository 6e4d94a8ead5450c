"""The stages of a step on one rank, where they are not those of a single process.

    take in    every rank checks the step and stores what is new; if one refuses, all do, and nothing has happened
    forward    sums over ranks
    sample     rank 0 samples and tells the others the tokens, together with a digest of what it computed from

What fails on one rank after the first sum ends all of them, because the others wait for it. What fails on rank 0 while it
samples fails the step on all ranks.
"""

from __future__ import annotations

import zlib

import numpy as np
import torch

from executors.contract.batch import UnifiedBatch, UnifiedOutput
from executors.contract.errors import (
    ExecutorDied,
    ExecutorError,
    InvalidInput,
    OutOfMemory,
    StepFailed,
    Unsupported,
)
from executors.llm.faults import step_fault
from executors.llm.memory.paged_kv import PagedKv
from executors.llm.parallel.ranks import Ranks
from executors.llm.step.direct import DirectItem, DirectResult, NoTokenSampled, RunDirect
from executors.llm.step.pipeline import Compute, TakeIn
from executors.llm.step.runner import ModelRunner
from executors.llm.step.sampled_rows import SampledRows
from executors.llm.step.sampling import HostSampling
from executors.llm.step.states import SequenceStates
from executors.llm.step_arrays import StepArrays

_FAULTS: tuple[type[ExecutorError], ...] = (InvalidInput, Unsupported, StepFailed, OutOfMemory)
"""What ranks tell each other by number, from 1 on; 0: all went well."""


class _FailedOnAll(Exception):
    """A fault that all ranks know of: the process goes on."""

    def __init__(self, error: ExecutorError) -> None:
        super().__init__(str(error))
        self.error = error


def agree(ranks: Ranks, fault: ExecutorError | None) -> None:
    """Raise `fault`, or an error of the same kind if another rank has one."""
    worst = -ranks.least([-_number(fault)])[0]
    if fault is not None:
        raise fault
    if worst:
        raise _FAULTS[worst - 1]("another rank refused or failed; its log says why")


class AgreedIntake:
    """Takes a step in on all ranks or on none."""

    def __init__(self, ranks: Ranks, take_in: TakeIn) -> None:
        self._ranks = ranks
        self._take_in = take_in

    def __call__(self, batch: UnifiedBatch) -> None:
        """See `TakeIn`."""
        fault: ExecutorError | None = None
        try:
            self._take_in(batch)
        except Exception as error:
            fault = step_fault(error)
        agree(self._ranks, fault)


def ending(ranks: Ranks, compute: Compute) -> Compute:
    """Return `compute` for which what fails on this rank alone is ExecutorDied: the others wait for it."""

    def computed(batch: UnifiedBatch) -> UnifiedOutput:
        try:
            return compute(batch)
        except _FailedOnAll as failed:
            raise failed.error from None
        except (ExecutorDied, InvalidInput):  # of the latter all ranks know: it comes before the first sum
            raise
        except Exception as error:
            raise ExecutorDied(f"rank {ranks.rank}: {step_fault(error)}") from error

    return computed


class RankSampling:
    """Samples on rank 0, and gives its tokens to the others."""

    def __init__(
        self, ranks: Ranks, sampling: HostSampling, states: SequenceStates, runner: ModelRunner
    ) -> None:
        self._ranks = ranks
        self._sampling = sampling
        self._states = states
        self._runner = runner
        self._digest = 0
        """Digest of the step that is being computed."""

    def observe(self, step: StepArrays, ids: torch.Tensor) -> None:
        """Take in what the forward computes from, before it does."""
        token_ids = ids.numpy() if ids.device.type == "cpu" else step.token_ids
        digest = 0
        for part in (token_ids, step.q_lens, step.pos_offsets, step.tables, *step.more_tables):
            digest = zlib.crc32(part.tobytes(), digest)
        self._digest = digest

    def rows(self, batch: UnifiedBatch, step: StepArrays) -> SampledRows:
        """See `Sample`."""
        return self._sampling.rows(batch, step)

    def __call__(
        self, batch: UnifiedBatch, step: StepArrays, hidden: torch.Tensor, where: SampledRows
    ) -> UnifiedOutput:
        """See `Sample`."""
        n, rows = len(batch), len(where.item)
        output: UnifiedOutput | None = None
        logits = maxima = None
        if rows:
            logits, maxima = self._runner.logits_for_sampling(hidden, where.rows)
        # Fault, digest, tokens of all rows, number of tokens that each item keeps, and those tokens.
        message = np.zeros(2 + 2 * rows + n, np.int64)
        message[1] = self._digest
        fault: ExecutorError | None = None
        if rows and self._ranks.leads:
            assert logits is not None
            try:
                output = self._sampling.sample_from(batch, step, where, logits, maxima)
            except Exception as error:
                fault = step_fault(error)
                message[0] = _number(fault)
            else:
                sampled = self._states.pool.view(-1).index_select(0, self._sampled_at(batch, step, where))
                message[2 : 2 + rows] = sampled.cpu().numpy()
                message[2 + rows : 2 + rows + n] = output.num_tokens
                message[2 + rows + n :][: len(output.token_ids)] = output.token_ids
        message = np.array(self._ranks.from_first(message.tolist()), np.int64)
        if message[0]:
            raise _FailedOnAll(fault or _FAULTS[int(message[0]) - 1]("rank 0 could not sample"))
        if message[1] != self._digest:
            raise ExecutorDied(f"rank {self._ranks.rank} computed another step than rank 0")
        if output is not None:
            return output
        if rows:
            tokens = torch.from_numpy(message[2 : 2 + rows].astype(np.int32)).to(self._runner.device)
            self._states.pool.view(-1).index_copy_(0, self._sampled_at(batch, step, where), tokens)
        num_tokens = message[2 + rows : 2 + rows + n].astype(np.int32)
        token_ids = message[2 + rows + n :][: int(num_tokens.sum())].astype(np.int32)
        return UnifiedOutput(num_tokens, token_ids)

    def _sampled_at(self, batch: UnifiedBatch, step: StepArrays, where: SampledRows) -> torch.Tensor:
        """Places in the token pool of the tokens of sampled rows."""
        return self._states.pool_index(batch.slots[where.item], step.positions[where.rows] + 1)


def ending_direct(run: RunDirect) -> RunDirect:
    """Return `run` of direct calls for which what fails within a forward ends the process: the other ranks wait for it."""

    def ran(items: list[DirectItem], cache: PagedKv) -> list[DirectResult]:
        try:
            return run(items, cache)
        except (InvalidInput, Unsupported, NoTokenSampled, ExecutorDied):
            raise
        except Exception as error:
            raise ExecutorDied(str(step_fault(error))) from error

    return ran


def _number(fault: ExecutorError | None) -> int:
    if fault is None:
        return 0
    return next((i for i, kind in enumerate(_FAULTS, 1) if type(fault) is kind), 3)
