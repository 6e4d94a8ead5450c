"""`StepGuard`: one executor behind the rules that hold for every step, in a child process or on a thread.

a step raises anything but a refusal   -> later steps are answered `Skipped` until `begin_epoch`
an exception that is no ExecutorError  -> one, with the exception's type and text
"""

from __future__ import annotations

import asyncio
import logging
import traceback

import numpy as np

from executors.contract import (
    ExecutorError,
    Int32Array,
    InvalidInput,
    KvCacheHandle,
    ModelExecutor,
    NotReady,
    OutOfMemory,
    SealedBlocks,
    Skipped,
    UnifiedBatch,
    UnifiedOutput,
    Unsupported,
)
from executors.contract.faults import executor_error

_log = logging.getLogger(__name__)
_REFUSALS = (InvalidInput, Unsupported, NotReady, Skipped)
"""The executor answered without having touched any state: the next step may run."""


class StepGuard:
    """`release_cache`, `truncate_kv` and `release_memory` are called between steps: when one has ended, or where the
    executor takes several at once when it was begun."""

    def __init__(self, executor: ModelExecutor) -> None:
        self.executor = executor
        self._failed: str | None = None

    async def unified_decode(self, batch: UnifiedBatch) -> UnifiedOutput:
        """Raises as the contract says, and nothing else."""
        if self._failed is not None:
            raise Skipped(f"an earlier step of this epoch failed: {self._failed}")
        try:
            output = await self.executor.unified_decode(batch)
            if self._failed is not None:  # the one before it, meanwhile
                raise Skipped(f"an earlier step of this epoch failed: {self._failed}")
            return output
        except (Exception, asyncio.CancelledError) as error:
            if being_cancelled():
                raise
            failure = typed(error)
            self.failed(failure)
            raise failure from error

    def failed(self, failure: ExecutorError) -> None:
        """A step raised this, or its answer could not be sent."""
        if self._failed is None and not isinstance(failure, _REFUSALS):
            self._failed = str(failure)

    async def begin_epoch(self, epoch: int, adopt: SealedBlocks | None = None) -> Int32Array:
        """Ends the `Skipped` answers, unless the executor refuses."""
        adopted = await self.executor.begin_epoch(epoch, adopt)
        self._failed = None
        return adopted

    def release_cache(self, cache_id: int) -> None:
        """As the contract's. It has no answer, so an error stops the epoch: the executor's state is unknown."""
        try:
            self.executor.release_cache(cache_id)
        except Exception as error:
            self.unanswered("release_cache", error)

    def truncate_kv(self, handle: KvCacheHandle, new_len: int) -> None:
        """As release_cache."""
        try:
            self.executor.truncate_kv(handle, new_len)
        except Exception as error:
            self.unanswered("truncate_kv", error)

    def release_memory(self, group: int, block_ids: Int32Array) -> None:
        """As release_cache."""
        try:
            if block_ids.dtype != np.int32:
                raise InvalidInput(f"block_ids is {block_ids.dtype}, not int32")
            self.executor.release_memory(group, block_ids)
        except Exception as error:
            self.unanswered("release_memory", error)

    def unanswered(self, member: str, error: Exception) -> None:
        """What has no answer went wrong."""
        self._failed = f"{member}: {typed(error)}"
        _log.error("%s", self._failed)


def being_cancelled() -> bool:
    """True if the running task is being cancelled. An executor that raises CancelledError by itself does not count."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def typed(error: BaseException) -> ExecutorError:
    """`executor_error` of an exception. Unexpected ones are logged here, with their traceback."""
    fault = executor_error(error)
    if fault is not error and not isinstance(fault, OutOfMemory):
        _log.error("%s\n%s", fault, "".join(traceback.format_exception(error)))
    return fault
