"""A step: what it grants, and how that is packed for the executor."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from engine.core.sequence import Sequence
from engine.kv.kv_cache_manager import KvCacheManager
from executors.contract import SequenceStart, UnifiedBatch

PENDING = -1
"""In place of an input token that a step in flight is still sampling."""


@dataclass(slots=True)
class StepPlan:
    """What one step grants; filled by `Scheduler.schedule`, then packed into a UnifiedBatch."""

    budget: int
    """Tokens that are left of the step."""
    for_prompts: int = 0
    """Tokens of those that prompts may take without making the running streams wait too long."""
    grants: dict[Sequence, int] = field(default_factory=dict)
    drafts: dict[Sequence, list[int]] = field(default_factory=dict)
    preempted: bool = False


def pack(plan: StepPlan, step_id: int, epoch: int, kv: KvCacheManager) -> UnifiedBatch:
    """Arrays for the executor; the grants count as computed from here on."""
    seqs, n = list(plan.grants), len(plan.grants)
    computed = np.fromiter([seq.num_computed_tokens for seq in seqs], np.int32, n)
    tokens: list[int] = []
    final: list[bool] = []
    starts: list[SequenceStart] = []
    for seq, count in plan.grants.items():
        begin, known = seq.num_computed_tokens, seq.num_known_tokens
        seq.num_computed_tokens = end = begin + count
        if begin < known:
            tokens += seq.token_ids(begin, min(end, known))
        if end > known:
            tokens += plan.drafts.get(seq) or [PENDING]
        final.append(end >= known + seq.num_pending_tokens)
        if final[-1] and not seq.drafting:
            seq.num_pending_tokens += 1
        seq.in_flight += 1
        if seq.started_epoch != epoch:
            starts.append(seq.start())
            seq.started_epoch = epoch
    token_ids = np.array(tokens, np.int32)
    pending = token_ids == PENDING
    return UnifiedBatch(
        epoch=epoch,
        step_id=step_id,
        seq_ids=np.fromiter([seq.seq_id for seq in seqs], np.int64, n),
        slots=np.fromiter([seq.slot for seq in seqs], np.int32, n),
        num_q_tokens=np.fromiter(plan.grants.values(), np.int32, n),
        pos_offsets=computed,
        is_final_chunk=np.array(final, np.bool_),
        num_draft_tokens=np.fromiter([len(plan.drafts.get(seq, ())) for seq in seqs], np.int32, n)
        if plan.drafts
        else np.zeros(n, np.int32),
        token_ids=token_ids,
        pending=pending if pending.any() else None,
        starts=tuple(starts),
        tables=kv.take_updates(),
        block_copies=kv.take_copies(),
    )
