"""`StepGuard`: enforces the rules for every step on one executor, in a child process or on a thread.

a step raises anything but a refusal   -> later steps are answered `Skipped` until `begin_epoch`
an exception not an ExecutorError      -> becomes one, with the exception's type and text
"""

from __future__ import annotations

import asyncio
import logging
import re
import traceback

import numpy as np

from executors.contract import (
    ExecutorDied,
    ExecutorError,
    Int32Array,
    InvalidInput,
    KvCacheHandle,
    ModelExecutor,
    NotReady,
    OutOfMemory,
    Skipped,
    StepFailed,
    UnifiedBatch,
    UnifiedOutput,
    Unsupported,
)
from executors.contract.memory_faults import no_memory

_log = logging.getLogger(__name__)
_REFUSALS = (InvalidInput, Unsupported, NotReady, Skipped)
"""Errors that leave the executor's state unchanged: the next step may run."""


class StepGuard:
    """One guarded executor. `release_cache`, `truncate_kv` and `release_memory` are called between steps: after a step has ended
    or, if the executor takes several at once, after it was begun."""

    def __init__(self, executor: ModelExecutor) -> None:
        self.executor = executor
        self._failed: str | None = None

    async def unified_decode(self, batch: UnifiedBatch) -> UnifiedOutput:
        """As the contract's; raises only the contract's errors."""
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
        """Record that a step raised this error, or that its answer could not be sent."""
        if self._failed is None and not isinstance(failure, _REFUSALS):
            self._failed = str(failure)

    async def begin_epoch(self, epoch: int) -> None:
        """Ends the `Skipped` answers, unless the executor refuses."""
        await self.executor.begin_epoch(epoch)
        self._failed = None

    def release_cache(self, cache_id: int) -> None:
        """As the contract's. The call has no answer, so an error fails the epoch: the executor's state is unknown."""
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

    def release_memory(self, block_ids: Int32Array) -> None:
        """As release_cache."""
        try:
            if block_ids.dtype != np.int32:
                raise InvalidInput(f"block_ids is {block_ids.dtype}, not int32")
            self.executor.release_memory(block_ids)
        except Exception as error:
            self.unanswered("release_memory", error)

    def unanswered(self, member: str, error: Exception) -> None:
        """Record an error of a member without an answer."""
        self._failed = f"{member}: {typed(error)}"
        _log.error("%s", self._failed)


def being_cancelled() -> bool:
    """True if the running task is being cancelled. A CancelledError that an executor raises by itself does not count."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def typed(error: BaseException) -> ExecutorError:
    """The executor error that stands for any exception. Unexpected ones are logged here, with their traceback.

    Torch's errors are recognised by name and text, because torch must not be imported: a lack of memory is OutOfMemory. After
    any other error of an accelerator none of its state can be trusted, which is ExecutorDied.
    """
    if isinstance(error, ExecutorError):
        return error
    text = f"{type(error).__name__}: {' '.join(str(error).split())}"
    if no_memory(error) is not None:
        return OutOfMemory(text)
    _log.error("%s\n%s", text, "".join(traceback.format_exception(error)))
    if type(error).__name__ == "AcceleratorError" or re.search("CUDA (driver )?error", str(error)):
        return ExecutorDied(text)
    return StepFailed(text)
