"""A sequence: the mutable progress of one request."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

import numpy as np

from engine.mailbox import Mailbox
from engine.request import FinishReason, Request
from executors.contract import SampledToken, SequenceStart


class SequenceStatus(enum.StrEnum):
    """Where a sequence is: waiting for its first grant, in the running list, rolled back, or over."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Sequence:
    """Progress of one request. Written by the loop task only (through scheduler, KV manager and journal).

    One idea drives everything: `num_computed_tokens` catches up with `num_tokens`. A prefill, a chunk, a decode step and a
    recompute are all the same grant of tokens.

        tokens    p0 p1 p2 p3 | o0 o1 | x       prompt_len 4, num_known_tokens 6, num_pending_tokens 1
        computed  -------------------           num_computed_tokens 6: the next grant computes x, whatever it will be

    What counts as computed is what has been submitted: steps run in the order of their submission. A pending token is being
    sampled by a step in flight; the executor will know it when the next step needs it, the host only later.
    """

    seq_id: int
    request: Request
    mailbox: Mailbox
    mailbox_key: int
    siblings: list[Sequence] = field(default_factory=list)
    """All choices of one prompt, this one included, which may share the prompt's KV; empty for an only one, and at its end:
    choices that knew each other for ever would stay, with their prompt, until the garbage collector came."""
    is_first: bool = True
    """Of those choices: the one that looks the prompt up and computes it."""
    output_token_ids: list[int] = field(default_factory=list)
    """Committed tokens: the journal's record, appended by `Journal` alone. What else is told of them (logprobs) is the
    mailbox's: nothing is computed from it."""
    prompt_logprobs: list[SampledToken] = field(default_factory=list)
    """Of prompt tokens 1, 2, ... as far as they are committed; appended by `Journal.commit_prompt` alone."""
    status: SequenceStatus = SequenceStatus.WAITING
    slot: int | None = None
    started_epoch: int | None = None
    """The executor life that knows this sequence; None if none does."""
    prompt_len: int = field(init=False)
    max_len: int = field(init=False)
    """Tokens of the prompt and of the longest output that was asked for."""
    num_known_tokens: int = field(init=False)
    """Prompt and committed output; kept by the journal."""
    num_computed_tokens: int = 0
    num_pending_tokens: int = 0
    in_flight: int = 0
    """Steps out that compute this sequence."""
    last_step: int = 0
    """The number of steps when it was granted tokens last."""
    drafting: bool = False
    """A step in flight verifies drafts: how many tokens come of it, nobody knows."""
    num_void_results: int = 0
    """Results of steps in flight that are worth nothing: the oldest so many."""
    alone: bool = False
    """Share no KV: it failed with KV that others had written, and is computed once more with its own."""
    num_cached_tokens: int = 0
    """Prompt tokens that were not computed when it was first admitted: found in the cache, or shared by a sibling."""
    num_charged_tokens: int = 0
    """Where the last position ends that the queue policy was charged with. Never lowered: what a failure or a preemption undoes
    is computed anew at nobody's cost."""
    num_failed_steps: int = 0
    """Steps that failed with this sequence in them since its last committed token."""
    block_table: list[int] = field(default_factory=list)
    """Owned by KvCacheManager, as the following four."""
    block_keys: list[bytes] = field(default_factory=list)
    num_shared_blocks: int = 0
    """Blocks at the table's beginning that others have written (a copied one included)."""
    num_keyed_blocks: int = 0
    """Blocks at the table's beginning that can be found by their key."""
    num_prepared_tokens: int = 0
    """Where the tokens end that can be computed without a block more and without another block to be named."""
    seen_runs: dict[tuple[int, ...], int] = field(default_factory=dict)
    """Kept by the n-gram drafter: the position after each short run of tokens, and how many tokens it has looked at."""
    num_seen_tokens: int = 0
    finish_reason: FinishReason | None = None
    last_token_time: float | None = None

    def __post_init__(self) -> None:
        self.prompt_len = self.num_known_tokens = len(self.request.prompt_token_ids)
        self.max_len = self.prompt_len + self.request.max_tokens

    @property
    def num_tokens(self) -> int:
        """Known and pending tokens."""
        return self.num_known_tokens + self.num_pending_tokens

    @property
    def num_uncomputed_tokens(self) -> int:
        """What the next grants have to compute."""
        return self.num_known_tokens + self.num_pending_tokens - self.num_computed_tokens

    @property
    def num_uncharged_tokens(self) -> int:
        """What its tenant will be charged with for those."""
        return max(0, self.num_tokens - max(self.num_computed_tokens, self.num_charged_tokens))

    @property
    def was_begun(self) -> bool:
        """A step was to compute some of it."""
        return bool(self.num_computed_tokens or self.output_token_ids or self.last_step)

    @property
    def num_to_generate(self) -> int:
        """Output tokens that no step has been asked for yet."""
        return self.max_len - self.num_tokens

    @property
    def needs_whole_prompt(self) -> bool:
        """True if every position of the prompt must be computed, in this sequence's own name."""
        wanted = self.request.needs_whole_prompt
        return wanted and not (self.output_token_ids or len(self.prompt_logprobs) == self.prompt_len - 1 > 0)

    @property
    def finished(self) -> bool:
        """No more tokens will come."""
        return self.status is SequenceStatus.FINISHED

    def token_ids(self, begin: int, end: int) -> list[int]:
        """Known ids at positions begin .. end - 1."""
        prompt_len = self.prompt_len
        if begin >= prompt_len:
            return self.output_token_ids[begin - prompt_len : end - prompt_len]
        head: list[int] = self.request.prompt_token_ids[begin:end].tolist()
        return head + self.output_token_ids[: end - prompt_len] if end > prompt_len else head

    def start(self) -> SequenceStart:
        """What an executor must know that never met this sequence. Requires a slot."""
        assert self.slot is not None, "a sequence starts in a slot"
        return SequenceStart(
            seq_id=self.seq_id,
            slot=self.slot,
            prompt_token_ids=self.request.prompt_token_ids,
            output_token_ids=np.array(self.output_token_ids, np.int32),
            sampling=self.request.sampling if self.request.pooling is None else None,
            adapter=self.request.adapter,
            grammar=self.request.grammar,
            prompt_logprobs=self.request.prompt_logprobs if self.needs_whole_prompt else None,
            pooling=self.request.pooling,
        )

    def __repr__(self) -> str:
        return (
            f"<Sequence {self.seq_id} {self.status} slot={self.slot} "
            f"{self.num_computed_tokens}/{self.num_tokens} of {self.prompt_len}+{self.request.max_tokens}>"
        )
