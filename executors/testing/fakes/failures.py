"""Failures on demand: what a fake is told to do wrong, for tests of recovery."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass

from executors.contract.batch import UnifiedBatch
from executors.contract.errors import ConfigError, ExecutorDied, OutOfMemory, StepFailed

KINDS = ("step_failed", "out_of_memory", "die", "exit", "hang", "nan", "nan_logits")


@dataclass(slots=True)
class Failure:
    """Fail the `step`-th step since warmup (1 is the first), or any step with sequence `seq`, with input token `token`, or
    with more than `above` tokens.

    Kinds: `step_failed` and `out_of_memory` raise; `die` raises ExecutorDied until the next epoch; `exit` ends the
    process (for executors in a child process only); `hang` never answers; `nan` gives `ItemOutput.error` for the item
    that matches, or for all items of the step, and spoils the KV that they write; `nan_logits` leaves the KV alone.
    Happens `times` times, then never again.
    """

    kind: str
    step: int | None = None
    seq: int | None = None
    token: int | None = None
    times: int = 1
    above: int | None = None

    def matches(self, batch: UnifiedBatch, step: int) -> bool:
        """True if this step is to fail."""
        if not self.times:
            return False
        if self.step is not None:
            return self.step == step
        if self.seq is not None:
            return self.seq in batch.seq_ids
        if self.above is not None:
            return batch.total_q_tokens() > self.above
        return self.token is not None and self.token in batch.token_ids

    def items(self, batch: UnifiedBatch) -> list[int]:
        """Indices of the items that fail alone."""
        hit = []
        for i in range(len(batch)):
            tokens = batch.token_ids[batch.q_starts[i] : batch.q_starts[i + 1]]
            by_token = self.token is not None and self.token in tokens
            of_all = self.step is not None or self.above is not None
            if of_all or by_token or self.seq == int(batch.seq_ids[i]):
                hit.append(i)
        return hit


def parse_failures(text: str) -> list[Failure]:
    """Failures from an option: "die@step=5,out_of_memory@above=64*9" (`*9`: nine times). Raises ConfigError."""
    failures = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        kind, _, rest = part.partition("@")
        name, _, value = rest.partition("=")
        value, _, times = value.partition("*")
        if kind not in KINDS or name not in ("step", "seq", "token", "above") or not value.isdigit():
            raise ConfigError(
                f"options.fail: {part!r} is not KIND@step|seq|token|above=N[*TIMES], KIND one of {', '.join(KINDS)}"
            )
        failures.append(Failure(kind, **{name: int(value)}, times=int(times or 1)))
    return failures


async def act(failure: Failure) -> None:
    """Do what the failure says; `nan` and `nan_logits` are the caller's."""
    failure.times -= 1
    if failure.kind == "step_failed":
        raise StepFailed("a failure was asked for")
    if failure.kind == "out_of_memory":
        raise OutOfMemory("an out-of-memory error was asked for")
    if failure.kind == "die":
        raise ExecutorDied("a death was asked for", cause="fake")
    if failure.kind == "exit":
        os._exit(70)
    if failure.kind == "hang":
        await asyncio.Event().wait()
