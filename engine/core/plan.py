"""A step: the tokens that it grants to sequences, and their packing for the executor."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from engine.kv.kv_cache_manager import KvCacheManager
from engine.sequence import Sequence
from engine.story import WaitReason
from executors.contract import Int32Array, SequenceStart, UnifiedBatch

PENDING = -1
"""Stands for an input token that a step in flight is still sampling."""
_PENDING = (PENDING,)


@dataclass(slots=True)
class StepPlan:
    """The grants of one step; filled by `Scheduler.schedule`, then packed into a UnifiedBatch."""

    budget: int
    """Tokens that the step can still grant."""
    for_prompts: int = 0
    """Tokens of `budget` that prompts may take without delaying the running streams too long."""
    grants: dict[Sequence, int] = field(default_factory=dict)
    drafts: dict[Sequence, list[int]] = field(default_factory=dict)
    drafts_wanted: dict[Sequence, int] = field(default_factory=dict)
    """Drafts that the step is to bring for the next one."""
    preempted: bool = False
    blocked: WaitReason | None = None
    """Why the sequences wait that are not admitted and have no reason of their own; None if there are none."""


class StepPacker:
    """Makes a UnifiedBatch of each plan. The arrays that identify the sequences of a step are kept for the next one: often they
    are the same."""

    def __init__(self) -> None:
        self._ids: list[int] = []
        self._seq_ids = np.empty(0, np.int64)
        self._slots = np.empty(0, np.int32)

    def pack(self, plan: StepPlan, step_id: int, epoch: int, kv: KvCacheManager) -> UnifiedBatch:
        """Return the arrays for the executor; from here on the grants count as computed."""
        n, drafts = len(plan.grants), plan.drafts
        seq_ids, slots = self._who(list(plan.grants))
        offsets: list[int] = []
        tokens: list[int] = []
        unfinished: list[int] = []
        starts: list[SequenceStart] = []
        for seq, count in plan.grants.items():
            begin, num_known = seq.num_computed_tokens, seq.num_known_tokens
            end = begin + count
            if end == num_known and count == 1 and seq.output_token_ids:  # nearly all
                tokens.append(seq.output_token_ids[-1])
            elif begin < num_known:
                tokens += seq.token_ids(begin, min(end, num_known))
            if end > num_known:
                tokens += drafts.get(seq, _PENDING) if drafts else _PENDING
            if not seq.grant(count, step_id):
                unfinished.append(len(offsets))
            offsets.append(begin)
            if seq.started_epoch != epoch:
                starts.append(seq.start(epoch))
        token_ids = np.array(tokens, np.int32)
        pending = token_ids == PENDING
        final = np.ones(n, np.bool_)
        final[unfinished] = False
        one_each = len(tokens) == n
        states = {}
        if kv.states is not None:
            states["state_src"], states["state_dst"], states["snapshots"] = kv.states.pack(list(plan.grants))
        return UnifiedBatch(
            epoch=epoch,
            step_id=step_id,
            seq_ids=seq_ids,
            slots=slots,
            num_q_tokens=np.ones(n, np.int32) if one_each else np.fromiter(plan.grants.values(), np.int32, n),
            pos_offsets=np.fromiter(offsets, np.int32, n),
            is_final_chunk=final,
            num_draft_tokens=np.fromiter([len(drafts.get(seq, ())) for seq in plan.grants], np.int32, n)
            if drafts
            else np.zeros(n, np.int32),
            token_ids=token_ids,
            pending=pending if pending.any() else None,
            starts=tuple(starts),
            tables=kv.take_updates(),
            block_copies=kv.take_copies(),
            drafts_wanted=np.fromiter([plan.drafts_wanted.get(seq, 0) for seq in plan.grants], np.int32, n)
            if plan.drafts_wanted
            else None,
            seals=kv.seals.take(step_id),
            **states,
        )

    def _who(self, seqs: list[Sequence]) -> tuple[NDArray[np.int64], Int32Array]:
        """`seq_ids` and `slots` of the step. A sequence keeps its slot to its end, and no other has its id."""
        ids = [seq.seq_id for seq in seqs]
        if ids != self._ids:
            self._ids = ids
            self._seq_ids = np.fromiter(ids, np.int64, len(ids))
            self._slots = np.fromiter([seq.slot for seq in seqs], np.int32, len(ids))
        return self._seq_ids, self._slots
