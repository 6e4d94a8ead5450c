"""`ParallelUnifiedRunner`: a step on one rank.

    take in    every rank checks the step and stores what is new; if one refuses, all do, and nothing has happened
    forward    sums over ranks
    sample     rank 0 samples and tells the others the tokens, together with a digest of what it computed from

What fails on one rank after the first sum ends all of them, because the others wait for it. What fails on rank 0 while it
samples fails the step on all ranks.
"""

from __future__ import annotations

import zlib
from concurrent.futures import Future

import numpy as np
import torch

from executors.contract.batch import SequenceStart, UnifiedBatch, UnifiedOutput
from executors.contract.errors import (
    ExecutorDied,
    ExecutorError,
    InvalidInput,
    OutOfMemory,
    StepFailed,
    Unsupported,
)
from executors.llm.faults import step_fault
from executors.llm.parallel.ranks import Ranks
from executors.llm.sampling.grammar import GrammarCompiler
from executors.llm.sampling.slot_grammars import ItemMasks
from executors.llm.step.pipeline import SampledRows, UnifiedRunner
from executors.llm.step.runner import ModelRunner
from executors.llm.step_arrays import StepArrays

_FAULTS: tuple[type[ExecutorError], ...] = (InvalidInput, Unsupported, StepFailed, OutOfMemory)
"""What ranks tell each other by number, from 1 on; 0: all went well."""


class _FailedOnAll(Exception):
    """A fault that all ranks know of: the process goes on."""

    def __init__(self, error: ExecutorError) -> None:
        super().__init__(str(error))
        self.error = error


class ParallelUnifiedRunner(UnifiedRunner):
    """See the module."""

    def __init__(
        self, ranks: Ranks, runner: ModelRunner, num_slots: int, max_batch_size: int, max_model_len: int,
        compiler: GrammarCompiler,
    ) -> None:  # fmt: skip
        super().__init__(runner, num_slots, max_batch_size, max_model_len, compiler)
        self.ranks = ranks
        self._digest = 0
        """Digest of the step that is being computed."""

    def run(self, batch: UnifiedBatch) -> UnifiedOutput:
        """See `UnifiedRunner`. Raises ExecutorDied for what fails on this rank alone."""
        if not len(batch):
            return super().run(batch)
        fault: ExecutorError | None = None
        try:
            self._take_in(batch)
        except Exception as error:
            fault = step_fault(error)
        self.agree(fault)
        try:
            return self._compute(batch)
        except _FailedOnAll as failed:
            raise failed.error from None
        except (ExecutorDied, InvalidInput):  # of the latter all ranks know: it comes before the first sum
            raise
        except Exception as error:
            raise ExecutorDied(f"rank {self.ranks.rank}: {step_fault(error)}") from error

    def agree(self, fault: ExecutorError | None) -> None:
        """Raise `fault`, or an error of the same kind if another rank has one."""
        worst = -self.ranks.least([-_number(fault)])[0]
        if fault is not None:
            raise fault
        if worst:
            raise _FAULTS[worst - 1]("another rank refused or failed; its log says why")

    def _begin(self, start: SequenceStart) -> None:
        super()._begin(start)
        if not self.ranks.leads:
            self.grammars.drop(start.slot)

    def _start_masks(
        self, batch: UnifiedBatch, step: StepArrays, counts: np.ndarray
    ) -> Future[dict[int, ItemMasks]] | None:
        return super()._start_masks(batch, step, counts) if self.ranks.leads else None

    def _token_ids(self, batch: UnifiedBatch, step: StepArrays) -> torch.Tensor:
        ids = super()._token_ids(batch, step)
        known = ids.numpy() if ids.device.type == "cpu" else step.token_ids
        digest = 0
        for part in (known, step.q_lens, step.pos_offsets, step.tables):
            digest = zlib.crc32(part.tobytes(), digest)
        self._digest = digest
        return ids

    def _sample(
        self, batch: UnifiedBatch, step: StepArrays, hidden: torch.Tensor, where: SampledRows
    ) -> UnifiedOutput:
        n, rows = len(batch), len(where.item)
        output: UnifiedOutput | None = None
        logits = maxima = None
        if rows:
            logits, maxima = self.runner.logits_for_sampling(hidden, where.rows)
        # Fault, digest, tokens of all rows, number of tokens that each item keeps, and those tokens.
        told = np.zeros(2 + 2 * rows + n, np.int64)
        told[1] = self._digest
        fault: ExecutorError | None = None
        if rows and self.ranks.leads:
            assert logits is not None
            try:
                output = self._sample_from(batch, step, where, logits, maxima)
            except Exception as error:
                fault = step_fault(error)
                told[0] = _number(fault)
            else:
                sampled = self.pool.view(-1).index_select(0, self._sampled_at(batch, step, where))
                told[2 : 2 + rows] = sampled.cpu().numpy()
                told[2 + rows : 2 + rows + n] = output.num_tokens
                told[2 + rows + n :][: len(output.token_ids)] = output.token_ids
        told = np.array(self.ranks.told(told.tolist()), np.int64)
        if told[0]:
            raise _FailedOnAll(fault or _FAULTS[int(told[0]) - 1]("rank 0 could not sample"))
        if told[1] != self._digest:
            raise ExecutorDied(f"rank {self.ranks.rank} computed another step than rank 0")
        if output is not None:
            return output
        if rows:
            tokens = torch.from_numpy(told[2 : 2 + rows].astype(np.int32)).to(self.runner.device)
            self.pool.view(-1).index_copy_(0, self._sampled_at(batch, step, where), tokens)
        num_tokens = told[2 + rows : 2 + rows + n].astype(np.int32)
        kept = told[2 + rows + n :][: int(num_tokens.sum())].astype(np.int32)
        return UnifiedOutput(num_tokens, kept)

    def _sampled_at(self, batch: UnifiedBatch, step: StepArrays, where: SampledRows) -> torch.Tensor:
        """Places in the token pool of the tokens of sampled rows."""
        return self._pool_index(batch.slots[where.item], step.positions[where.rows] + 1)


def _number(fault: ExecutorError | None) -> int:
    if fault is None:
        return 0
    return next((i for i, kind in enumerate(_FAULTS, 1) if type(fault) is kind), 3)
