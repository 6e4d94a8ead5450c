"""A sequence: the mutable progress of one request."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

import numpy as np

from engine.core.mailbox import Mailbox
from engine.request import FinishReason, Request
from executors.contract import Int32Array, SampledToken, SequenceStart


class SequenceStatus(enum.StrEnum):
    """Where a sequence is: waiting for its first grant, in the running list, rolled back, or over."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Sequence:
    """Progress of one request. Written by the loop task only (through scheduler, KV manager and journal).

    One idea drives everything: `num_computed_tokens` (KV written) catches up with `num_tokens` (known ids). A prefill, a
    chunk, a decode step and a recompute are all the same grant of tokens.

        tokens    p0 p1 p2 p3 | o0 o1          prompt_len 4, num_tokens 6
        computed  ------------------           num_computed_tokens 5: the next grant computes o1 and samples o2
    """

    seq_id: int
    request: Request
    mailbox: Mailbox
    mailbox_key: int
    output: list[SampledToken] = field(default_factory=list)
    """Committed tokens: the journal's record, appended by `Journal.commit` alone."""
    output_token_ids: list[int] = field(default_factory=list)
    status: SequenceStatus = SequenceStatus.WAITING
    num_computed_tokens: int = 0
    slot: int | None = None
    started_epoch: int | None = None
    """The executor life that knows this sequence; None if none does."""
    block_table: list[int] = field(default_factory=list)
    """Owned by KvCacheManager."""
    in_flight: bool = False
    """True while a step that computes this sequence is out."""
    finish_reason: FinishReason | None = None
    last_token_time: float | None = None

    @property
    def prompt_len(self) -> int:
        """Prompt tokens."""
        return len(self.request.prompt_token_ids)

    @property
    def num_tokens(self) -> int:
        """Known tokens: prompt and committed output."""
        return len(self.request.prompt_token_ids) + len(self.output_token_ids)

    @property
    def num_uncomputed_tokens(self) -> int:
        """What the next grants have to compute; at least 1 for a live sequence."""
        return self.num_tokens - self.num_computed_tokens

    @property
    def finished(self) -> bool:
        """No more tokens will come."""
        return self.status is SequenceStatus.FINISHED

    def token_ids(self, begin: int, end: int) -> Int32Array | list[int]:
        """Known ids at positions begin .. end - 1."""
        prompt_len = self.prompt_len
        if begin >= prompt_len:
            return self.output_token_ids[begin - prompt_len : end - prompt_len]
        head = self.request.prompt_token_ids[begin : min(end, prompt_len)]
        if end <= prompt_len:
            return head
        return np.concatenate([head, np.array(self.output_token_ids[: end - prompt_len], np.int32)])

    def start(self) -> SequenceStart:
        """What an executor must know that never met this sequence. Requires a slot."""
        assert self.slot is not None, "a sequence starts in a slot"
        return SequenceStart(
            seq_id=self.seq_id,
            slot=self.slot,
            prompt_token_ids=self.request.prompt_token_ids,
            output_token_ids=np.array(self.output_token_ids, np.int32),
            sampling=self.request.sampling,
            adapter=self.request.adapter,
        )

    def __repr__(self) -> str:
        return (
            f"<Sequence {self.seq_id} {self.status} slot={self.slot} "
            f"{self.num_computed_tokens}/{self.num_tokens} of {self.prompt_len}+{self.request.max_tokens}>"
        )
