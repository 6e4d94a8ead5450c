"""`ModelDrafts`: the guesses of the executor's draft model: how many a step is asked for, and where they are kept."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from engine.core.plan import StepPlan
from engine.core.policies import Policies
from engine.core.sequences import Sequences
from engine.kv.kv_cache_manager import KvCacheManager
from engine.policies.drafter import ModelDrafter
from engine.sequence import Sequence, SequenceStatus
from executors.contract import Drafts


class ModelDrafts:
    """Does nothing unless the drafter is a `ModelDrafter`. Used by the scheduler."""

    def __init__(self, policies: Policies, kv: KvCacheManager, sequences: Sequences) -> None:
        self._policies = policies
        self._kv = kv
        self._sequences = sequences

    def request(self, plan: StepPlan) -> None:
        """Ask the executor's draft model for guesses of what the next step may verify. Sequences grow for them as far as blocks
        are free that no running sequence may need at once."""
        if not isinstance(self._policies.drafter, ModelDrafter):
            return
        lengths, num_seqs = self._policies.lengths, len(self._sequences.running)
        if self._sequences.waiting:
            num_seqs = min(self._sequences.num_slots, num_seqs + len(self._sequences.waiting))
        if not lengths.could_pay(num_seqs):
            return
        sampling = [seq for seq in plan.grants if seq.request.speculative and seq.request.pooling is None]
        for seq, most in zip(sampling, lengths.wanted(num_seqs, sampling), strict=True):
            count = plan.grants[seq]
            end = seq.num_computed_tokens + count
            if end < seq.num_tokens:
                if most:
                    plan.drafts_wanted[seq] = most
                continue
            extra = min(most, seq.max_len - end - 2, self._kv.room(seq, len(self._sequences.running)) - count)
            if extra > 0 and self._kv.grow(seq, end + extra):
                plan.drafts_wanted[seq] = extra

    def receive(self, seqs: SequenceOf[Sequence], drafts: Drafts) -> None:
        """Keep the draft model's guesses for the next step."""
        if isinstance(drafter := self._policies.drafter, ModelDrafter):
            for i, token_ids in drafts.by_item().items():
                if seqs[i].status is SequenceStatus.RUNNING:
                    drafter.receive(seqs[i], token_ids)
