"""The scheduler: which sequences compute how many tokens in the next step.

There is no prefill phase and no decode phase. Every sequence has `num_computed_tokens` catching up with its tokens, and a
step grants each some of the difference within a token budget. Chunked prefill, decode, verification of drafts, prefix hits
and recompute after preemption or a crash are the same grant.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf

from engine.core.journal import Journal
from engine.core.lora import LoraAdapters
from engine.core.model_drafts import ModelDrafts
from engine.core.plan import StepPacker, StepPlan
from engine.core.policies import Policies
from engine.core.results import StepResults
from engine.core.sequences import Sequences
from engine.core.step_budget import StepBudget
from engine.kv.kv_cache_manager import KvCacheManager
from engine.observer import Observer
from engine.policies.budget import MIN_CHUNK
from engine.policies.drafter import Drafter
from engine.sequence import Sequence, SequenceStatus
from engine.story import WaitReason
from engine.waiting.queue import WaitingQueue
from executors.contract import UnifiedBatch

_PASSED_OVER = 65536
"""Tokens of prompts that wait for what this step computes, after which the search of the queue ends: naming the blocks of so
many tokens takes 10 ms, and a queue may hold millions."""
_LOOKED_PAST = 256
"""Prompts that cannot be cut and are too long for the rest of a step, after which the search of the queue ends."""
_PART_FOR_SHORT = 16
"""The part of a step, one of so many, that is left to prompts that cannot be cut and have at most half as many tokens."""


class Scheduler:
    """Makes steps of the sequences; `results` takes their results in. Called by the loop task only; never waits, touches no
    executor."""

    def __init__(
        self,
        kv: KvCacheManager,
        journal: Journal,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        policies: Policies | None = None,
        waiting: WaitingQueue | None = None,
        adapters: LoraAdapters | None = None,
        observer: Observer | None = None,
        whole_prompts_only: bool = False,
    ) -> None:
        """`whole_prompts_only`: as in `ExecutorCapabilities`."""
        self._whole_prompts_only = whole_prompts_only
        self.policies = policies or Policies()
        self.adapters = adapters
        self.kv = kv
        self.journal = journal
        self.waiting = WaitingQueue() if waiting is None else waiting
        self.sequences = Sequences(kv, journal, max_num_seqs, self.waiting, observer or Observer())
        self.running = self.sequences.running
        self.step_budget = StepBudget(max_num_batched_tokens)
        self.most_tokens: int | None = None
        """Tokens that the next step may have while other engines have work for the same cores; None: no such limit. Written by
        the loop."""
        self._last_step_id = 0
        self._packer = StepPacker()
        self._model_drafts = ModelDrafts(self.policies, kv, self.sequences)
        self.results = StepResults(self.policies, self.sequences, self.step_budget, self._model_drafts)

    # -- a step ------------------------------------------------------------------------------------------------------

    def schedule(self) -> UnifiedBatch | None:
        """The next step, or None if nothing can be computed. Modifies sequences and KV tables, touches no executor."""
        tokens = self.step_budget.tokens
        if self.most_tokens is not None and not self._whole_prompts_only:
            tokens = min(tokens, max(self.most_tokens, len(self.running)))
        plan = StepPlan(tokens)
        self.waiting.reasons.begin_step()
        self.kv.begin_step()
        if self.adapters is not None:
            self.adapters.begin_step()
        if self.sequences.suspects:
            self._grant_suspect(plan)
        else:
            self._grant_all(plan)
        self.waiting.reasons.end_step(plan.blocked)
        return self._pack(plan) if plan.grants else None

    def _grant_all(self, plan: StepPlan) -> None:
        """Grant decodes first, then the prompts of running and of waiting sequences."""
        chunks = self._grant_decodes(plan)
        if chunks or (self.waiting and self.sequences.has_slot_to_run_in()):
            self._grant_prompts(chunks, plan)
        elif self.waiting:
            self.sequences.no_room()
            plan.blocked = WaitReason.SLOTS

    def _grant_prompts(self, chunks: SequenceOf[Sequence], plan: StepPlan) -> None:
        """Prompts go on that are started already, and others are admitted: behind them, unless the policy says otherwise."""
        # How much of them the running streams can bear beside them, with or without a token in this very step.
        streams = len(self.running) - len(chunks)
        plan.for_prompts = plan.budget
        if not self._stream_waits(chunks):
            plan.for_prompts = min(plan.budget, self.policies.budget.prompt_tokens(streams, plan.budget))
        for seq in chunks:
            if plan.budget > 0 and seq.status is SequenceStatus.RUNNING:
                self._admit_waiting(plan, before=seq)
                self._grant_prompt(seq, plan)
        self._admit_waiting(plan)

    def _share(self, seq: Sequence, plan: StepPlan) -> int:
        """Tokens of its prompt that the step has room for."""
        return min(plan.budget, max(plan.for_prompts, self.waiting.policy.owed(seq)))

    def _grant_prompt(self, seq: Sequence, plan: StepPlan) -> None:
        """Its next chunk, or all that is left of it."""
        count = self.kv.until_fork(seq, min(seq.num_uncomputed_tokens, self._share(seq, plan)))
        if self._grant(seq, count, plan):
            plan.for_prompts = max(0, plan.for_prompts - count)

    def _stream_waits(self, chunks: SequenceOf[Sequence]) -> bool:
        """Whether a stream is stalled until its KV is recomputed, after a restart or a preemption. Small chunks would spare the
        running streams at its cost."""
        first = next(iter(self.waiting), None)
        return any(seq.output_token_ids for seq in ((*chunks, first) if first is not None else chunks))

    def _grant_suspect(self, plan: StepPlan) -> None:
        """Compute a sequence that took part in two consecutive failed steps alone, with no other step in flight, until it gives
        a token or fails a third step."""
        plan.blocked = WaitReason.RECOVERY
        if self.sequences.by_step:
            return
        seq = next(iter(self.sequences.suspects))
        if seq.status is not SequenceStatus.RUNNING:
            if not self._has_adapter(seq):
                return
            hit = self.kv.find(seq)
            while not self.kv.fits(seq, hit):
                if not self.running:
                    return  # a sequence that has ended with a step in flight holds the missing blocks
                self.sequences.preempt(self.policies.victim(self.running))
                hit = self.kv.find(seq)
            self.sequences.admit(seq, hit)
            self.waiting.remove(seq)
        if self._whole_prompts_only:
            self._makes_room(seq, plan)
        self._grant(seq, min(seq.num_uncomputed_tokens, plan.budget), plan)

    def _grant_decodes(self, plan: StepPlan) -> list[Sequence]:
        """A token (and drafts) for each sequence with only its last token to compute; returns those with more."""
        decodes: list[Sequence] = []
        chunks: list[Sequence] = []
        drafting = 0
        for seq in self.waiting.policy.ordered(self.running):
            # `num_uncomputed_tokens` and `num_to_generate`, without the calls: there may be a thousand sequences.
            tokens = seq.num_known_tokens + seq.num_pending_tokens
            uncomputed = tokens - seq.num_computed_tokens
            if uncomputed > 1 and uncomputed > 1 + seq.num_replayed_tokens:
                chunks.append(seq)
            elif seq.drafting:
                drafting += 1
            elif uncomputed and seq.max_len > tokens:
                decodes.append(seq)
        decodes = self._in_turn(decodes, chunks, plan)
        # Sequences whose drafts are being verified belong to the batch: those beside them wait for them.
        if self.policies.drafter is None or not self.policies.lengths.could_pay(len(decodes) + drafting):
            if self.policies.drafter is not None and self.kv.states is not None:
                for seq in decodes:
                    if seq.num_replayed_tokens and seq.status is SequenceStatus.RUNNING:
                        self._draft(seq, [], 0, plan)
                decodes = [seq for seq in decodes if seq not in plan.grants]
            self._grant_one_each(decodes, plan)
        else:
            self._grant_with_drafts(decodes, self.policies.drafter, bool(chunks), plan)
        return chunks

    def _grant_with_drafts(
        self, decodes: SequenceOf[Sequence], drafter: Drafter, chunks: bool, plan: StepPlan
    ) -> None:
        """A token for each, and guesses of what follows it: they take what is left when every stream has its token and prompts
        get on; no sequence is preempted for them."""
        lengths = self.policies.lengths
        if (
            lengths.overlaps
            and not chunks
            and any(seq.num_pending_tokens or seq.drafting for seq in self.running)
        ):
            return  # all together when those have landed: else halves of the batch would take turns for good
        decodes = [seq for seq in decodes if not seq.num_pending_tokens]
        proposals, is_settled = [], True
        for seq in decodes:
            if seq.request.speculative:
                proposal = drafter.propose(seq)
                is_settled &= proposal is not None
                proposals.append((seq, proposal or []))
        parts = lengths.verified(len(decodes), proposals, is_settled)
        drafts = {seq: part for (seq, _), part in zip(proposals, parts, strict=True)}
        reserve = MIN_CHUNK if chunks or len(self.waiting) else 0
        for number, seq in enumerate(decodes, 1):
            if seq.status is SequenceStatus.RUNNING:  # not preempted in this step
                others = len(decodes) - number
                room = min(plan.budget - others - reserve, self.kv.room(seq, others))
                self._draft(seq, drafts.get(seq, []), room - seq.num_uncomputed_tokens, plan)

    def _grant_one_each(self, decodes: SequenceOf[Sequence], plan: StepPlan) -> None:
        """A token for each. Most need neither a block nor a name for one: their `_grant` comes down to this."""
        grants, charge = plan.grants, self.waiting.policy.charge if self.waiting.policy.charges else None
        for seq in decodes:
            if seq.status is not SequenceStatus.RUNNING:
                continue  # preempted in this step
            end = seq.num_computed_tokens + 1
            if plan.budget < 1 or (
                end > seq.num_prepared_tokens
                and not (seq.num_pending_tokens and end <= seq.num_prepared_pending)
            ):
                self._grant(seq, 1, plan)
                continue
            if charge is not None and (count := seq.charge(end - 1, end)):
                charge(seq, count)
            grants[seq] = 1
            plan.budget -= 1

    def _in_turn(
        self, decodes: list[Sequence], chunks: SequenceOf[Sequence], plan: StepPlan
    ) -> list[Sequence]:
        """The decodes that the step has room for: all, unless lack of memory made steps smaller than the number of streams. Then
        the streams that have waited longest, so that each gets its turn; half of the step is for sequences to be recomputed."""
        if self.step_budget.tokens == self.step_budget.most:
            return decodes
        others = plan.budget // 2 if chunks or self._stream_waits(()) else 0
        if len(decodes) <= (room := plan.budget - others):
            return decodes
        decodes.sort(key=lambda seq: seq.last_step)
        return list(self.waiting.policy.ordered(decodes))[:room]

    def _draft(self, seq: Sequence, drafts: list[int], most: int, plan: StepPlan) -> None:
        """Grant the last token, behind those that a rejected draft makes it compute again, and at most so many guesses of
        what follows it, never past the sequence's end."""
        count = seq.num_uncomputed_tokens
        drafts = drafts[: max(0, min(seq.num_to_generate - 1, most))]
        if drafts and not self._can_verify(seq, count, len(drafts)):
            drafts = []
        if self._grant(seq, min(count + len(drafts), plan.budget), plan, len(drafts)) and drafts:
            plan.drafts[seq] = drafts
            seq.verify_drafts()

    def _can_verify(self, seq: Sequence, count: int, num_drafts: int) -> bool:
        """Whether a step may verify drafts behind `count` tokens: with states not behind more than the drafts replace, and not
        where a snapshot is due."""
        few = not seq.num_replayed_tokens or count <= num_drafts + 1
        return few and self.kv.allows_drafts(seq, seq.num_computed_tokens + count + num_drafts)

    def _grant(self, seq: Sequence, count: int, plan: StepPlan, num_drafts: int = 0) -> bool:
        """Let the step compute the next `count` tokens of a running sequence, if there is budget and room. The last `num_drafts`
        of them are guesses."""
        if not 0 < count <= plan.budget:
            return False
        end = seq.num_computed_tokens + count
        while not self.kv.grow(seq, end):
            victim = self.policies.victim(s for s in self.running if s not in plan.grants)
            self.sequences.preempt(victim)
            plan.preempted = True
            if victim is seq:
                return False
        if not self.kv.advance_state(seq, end, num_drafts):
            return False  # every slot of a state is in use in this step
        self.kv.register(seq, self.kv.num_named(seq, end, num_drafts))
        # Drafts lie behind what is known: they are charged when it turns out which are accepted.
        self.waiting.charge(seq, seq.num_computed_tokens, min(end, seq.num_tokens))
        plan.grants[seq] = count
        plan.budget -= count
        return True

    def _admit_waiting(self, plan: StepPlan, before: Sequence | None = None) -> None:
        """Admit in order while slots, blocks and budget last: the prompts admitted together are this step's cohort. With
        `before` only those that the policy puts before that running sequence.

        Room for all its known tokens is taken at once: admitted sequences never starve each other half way. One that would
        read what this very step computes is passed over, for this step only. So is a prompt that cannot be cut and is too long
        for what is left of the step: the next one begins with it.
        """
        admitted: list[Sequence] = []
        passed_over = too_long = 0
        for seq in self._candidates(plan, before):
            if self._whole_prompts_only and not self._makes_room(seq, plan):
                plan.blocked = WaitReason.TOKENS
                too_long += 1
                if too_long > _LOOKED_PAST:
                    break
                continue
            hit = self.kv.find(seq)
            if hit.pending:
                self.waiting.reasons.hold(seq, WaitReason.PREFIX)
                passed_over += seq.num_known_tokens
                if passed_over > _PASSED_OVER:
                    plan.blocked = WaitReason.PREFIX
                    break
                continue
            if not self.kv.fits(seq, hit):
                self.sequences.no_room()
                plan.blocked = WaitReason.KV_BLOCKS
                break
            if self.sequences.tier is not None and self.sequences.tier.begins(seq, hit):
                self.waiting.reasons.hold(seq, WaitReason.TIER)
                continue
            self.sequences.admit(seq, hit)
            admitted.append(seq)
            self._grant_prompt(seq, plan)
        for seq in admitted:
            self.waiting.remove(seq)

    def _makes_room(self, seq: Sequence, plan: StepPlan) -> bool:
        """Whether the step has room for all of a prompt that cannot be cut. A step has room for one, also after its budget was
        cut for want of memory: it could never be computed otherwise. The end of a step is left to short prompts, which then wait
        for the steps in flight alone, however many long ones wait."""
        count = seq.num_known_tokens
        if not plan.grants:
            plan.budget = plan.for_prompts = max(plan.budget, count)
            return True
        for_short = self.step_budget.tokens // _PART_FOR_SHORT
        return count + (for_short if count > for_short // 2 else 0) <= self._share(seq, plan)

    def _candidates(self, plan: StepPlan, before: Sequence | None) -> Iterator[Sequence]:
        """Waiting sequences that could be admitted now if they fit, in order; the caller may admit each as it comes. While some
        return after a failure there are no others: these could take blocks that were adopted."""
        if plan.preempted:
            plan.blocked = WaitReason.KV_BLOCKS
            return  # the preempted sequence gave its blocks for running ones, not for new ones
        tier = self.sequences.tier
        returning = list(self.sequences.returning)
        for seq in returning or self.waiting.policy.candidates(self.sequences.num_slots):
            if not self.sequences.has_slot_to_run_in():
                plan.blocked = WaitReason.SLOTS
                return
            if self._share(seq, plan) <= 0:
                plan.blocked = WaitReason.TOKENS
                return
            if before is not None and not self.waiting.policy.precedes(seq, before):
                return
            if seq.in_flight:
                self.waiting.reasons.hold(seq, WaitReason.STEP)
            elif not self.sequences.can_admit(seq):
                plan.blocked = WaitReason.SLOTS
            elif tier is not None and tier.waits(seq):
                self.waiting.reasons.hold(seq, WaitReason.TIER)
            elif self._has_adapter(seq):
                yield seq
            else:
                self.waiting.reasons.hold(seq, WaitReason.ADAPTER)
        if plan.blocked is None and returning:
            plan.blocked = WaitReason.RECOVERY
        elif plan.blocked is None and self.waiting.policy.keeps_slots:
            plan.blocked = WaitReason.FAIR_SHARE

    def _has_adapter(self, seq: Sequence) -> bool:
        """Whether the executor holds the adapter of a waiting sequence, if it has one."""
        return seq.request.adapter is None or (self.adapters is not None and self.adapters.ready(seq))

    def _pack(self, plan: StepPlan) -> UnifiedBatch:
        """The step for the executor; the grants count as computed from here on."""
        self._last_step_id += 1
        self._model_drafts.request(plan)
        self.sequences.submitted(self._last_step_id, list(plan.grants))
        batch = self._packer.pack(plan, self._last_step_id, self.journal.epoch, self.kv)
        self.waiting.estimate.submitted(batch)
        return batch
