"""The scheduler: which sequences compute how many tokens in the next step.

There is no prefill phase and no decode phase. Every sequence has `num_computed_tokens` catching up with its tokens, and a
step grants each some of the difference within a token budget. Chunked prefill, decode, verification of drafts, prefix hits
and recompute after preemption or a crash are the same grant.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf

import numpy as np
from numpy.typing import NDArray

from engine.core.adapters import Adapters
from engine.core.journal import Journal
from engine.core.plan import StepPacker, StepPlan
from engine.core.policies import Policies
from engine.core.sequences import Sequences
from engine.core.step_budget import StepBudget
from engine.errors import InvalidRequest, SequenceFailed
from engine.kv.kv_cache_manager import KvCacheManager
from engine.policies.budget import MIN_CHUNK
from engine.policies.drafter import Drafter, ModelDrafter
from engine.request import FinishReason, TokenDelta
from engine.sequence import Sequence, SequenceStatus
from engine.story import WaitReason
from engine.waiting.queue import WaitingQueue
from executors.contract import Drafts, ItemFault, SampledToken, UnifiedBatch, UnifiedOutput

_PASSED_OVER = 65536
"""Tokens of prompts that wait for what this step computes, after which nobody further back is looked at: naming the blocks of as
many takes 10 ms, and a queue may hold millions."""


class Scheduler:
    """Makes steps of the sequences and takes in their results. Called by the loop task only; never waits, touches no executor."""

    def __init__(
        self,
        kv: KvCacheManager,
        journal: Journal,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        policies: Policies | None = None,
        waiting: WaitingQueue | None = None,
        adapters: Adapters | None = None,
    ) -> None:
        self.policies = policies or Policies()
        self.adapters = adapters
        self.kv = kv
        self.journal = journal
        self.waiting = WaitingQueue() if waiting is None else waiting
        self.sequences = Sequences(kv, journal, max_num_seqs, self.waiting)
        self.running = self.sequences.running
        self.step_budget = StepBudget(max_num_batched_tokens)
        self.num_steps = 0
        self.num_prompt_tokens = 0
        """Tokens of prompts that steps computed, those computed again after a failure included."""
        self._packer = StepPacker()
        self._plain = _PlainTokens()

    # -- a step ------------------------------------------------------------------------------------------------------

    def schedule(self) -> UnifiedBatch | None:
        """The next step, or None if nothing can be computed. Modifies sequences and KV tables, touches no executor."""
        plan = StepPlan(self.step_budget.tokens)
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
        """Decodes first, then prompts: those that are started already, and those that wait."""
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
        count = min(seq.num_uncomputed_tokens, self._share(seq, plan))
        if self._grant(seq, count, plan):
            plan.for_prompts = max(0, plan.for_prompts - count)

    def _stream_waits(self, chunks: SequenceOf[Sequence]) -> bool:
        """Whether somebody's stream stands still until it is computed anew: after a restart, or preempted. Small chunks would
        spare those who run already at its cost."""
        first = next(iter(self.waiting), None)
        return any(seq.output_token_ids for seq in ((*chunks, first) if first is not None else chunks))

    def _grant_suspect(self, plan: StepPlan) -> None:
        """After two failed steps in a row: who was in both is computed alone, with nothing else out, until it gives a token
        or fails the third step, by itself."""
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
                    return  # one that has ended, with its step still out, gives back what is missing
                self.sequences.preempt(self.policies.victim(self.running))
                hit = self.kv.find(seq)
            self.sequences.admit(seq, hit)
            self.waiting.remove(seq)
        self._grant(seq, min(seq.num_uncomputed_tokens, plan.budget), plan)

    def _grant_decodes(self, plan: StepPlan) -> list[Sequence]:
        """A token (and drafts) for each sequence with only its last token to compute; returns those with more."""
        decodes: list[Sequence] = []
        chunks: list[Sequence] = []
        for seq in self.waiting.policy.ordered(self.running):
            # `num_uncomputed_tokens` and `num_to_generate`, without the calls: there may be a thousand sequences.
            tokens = seq.num_known_tokens + seq.num_pending_tokens
            uncomputed = tokens - seq.num_computed_tokens
            if uncomputed > 1:
                chunks.append(seq)
            elif uncomputed and not seq.drafting and seq.max_len > tokens:
                decodes.append(seq)
        decodes = self._in_turn(decodes, chunks, plan)
        if self.policies.drafter is None or not self.policies.lengths.could_pay(len(decodes)):
            self._grant_one_each(decodes, plan)
        else:
            self._grant_with_drafts(decodes, self.policies.drafter, bool(chunks), plan)
        return chunks

    def _grant_with_drafts(
        self, decodes: SequenceOf[Sequence], drafter: Drafter, chunks: bool, plan: StepPlan
    ) -> None:
        """A token for each, and guesses of what follows it: they take what is left when every stream has its token and prompts
        get on; nobody is preempted for them."""
        decodes = [seq for seq in decodes if not seq.num_pending_tokens]
        proposals = [(seq, drafter.propose(seq)) for seq in decodes if seq.request.speculative]
        parts = self.policies.lengths.verified(len(decodes), proposals)
        drafts = {seq: part for (seq, _), part in zip(proposals, parts, strict=True)}
        kept = MIN_CHUNK if chunks or len(self.waiting) else 0
        for number, seq in enumerate(decodes, 1):
            if seq.status is SequenceStatus.RUNNING:  # not preempted a moment ago
                others = len(decodes) - number
                room = min(plan.budget - others - kept, self.kv.room(seq, others))
                self._draft(seq, drafts.get(seq, []), room - 1, plan)

    def _grant_one_each(self, decodes: SequenceOf[Sequence], plan: StepPlan) -> None:
        """A token for each. Most need neither a block nor a name for one: their `_grant` comes down to this."""
        grants, charge = plan.grants, self.waiting.policy.charge if self.waiting.policy.charges else None
        for seq in decodes:
            if seq.status is not SequenceStatus.RUNNING:
                continue  # preempted a moment ago
            end = seq.num_computed_tokens + 1
            if plan.budget < 1 or end > seq.num_prepared_tokens:
                self._grant(seq, 1, plan)
                continue
            if charge is not None and (count := seq.charge(end - 1, end)):
                charge(seq, count)
            grants[seq] = 1
            plan.budget -= 1

    def _in_turn(
        self, decodes: list[Sequence], chunks: SequenceOf[Sequence], plan: StepPlan
    ) -> list[Sequence]:
        """Which of them the step has room for: all, unless want of memory made steps smaller than there are streams. Then
        whoever has waited longest, so that nobody stands still until another one ends; half of the step is for those who
        have to be computed anew first."""
        if self.step_budget.tokens == self.step_budget.most:
            return decodes
        others = plan.budget // 2 if chunks or self._stream_waits(()) else 0
        if len(decodes) <= (room := plan.budget - others):
            return decodes
        decodes.sort(key=lambda seq: seq.last_step)
        return list(self.waiting.policy.ordered(decodes))[:room]

    def _draft(self, seq: Sequence, drafts: list[int], most: int, plan: StepPlan) -> None:
        """Grant the last token and at most so many guesses of what follows it, never past the sequence's end."""
        drafts = drafts[: max(0, min(seq.num_to_generate - 1, most))]
        if self._grant(seq, 1 + len(drafts), plan) and drafts:
            plan.drafts[seq] = drafts
            seq.verify_drafts()

    def _want_drafts(self, plan: StepPlan) -> None:
        """Ask the executor's draft model for guesses of what the next step may verify. Sequences grow for them as far as blocks
        are free that no running sequence may need at once."""
        if not isinstance(self.policies.drafter, ModelDrafter):
            return
        lengths, num_seqs = self.policies.lengths, len(self.running)
        if self.waiting:
            num_seqs = min(self.sequences.num_slots, num_seqs + len(self.waiting))
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
            wanted = min(most, seq.max_len - end - 2, self.kv.room(seq, len(self.running)) - count)
            if wanted > 0 and self.kv.grow(seq, end + wanted):
                plan.drafts_wanted[seq] = wanted

    def _grant(self, seq: Sequence, count: int, plan: StepPlan) -> bool:
        """Let the step compute the next `count` tokens of a running sequence, if there is budget and room."""
        if not 0 < count <= plan.budget:
            return False
        end = seq.num_computed_tokens + count
        while not self.kv.grow(seq, end):
            victim = self.policies.victim(s for s in self.running if s not in plan.grants)
            self.sequences.preempt(victim)
            plan.preempted = True
            if victim is seq:
                return False
        self.kv.register(seq, end)
        # Drafts lie behind what is known: they are charged when it turns out which are accepted.
        self._charge(seq, seq.num_computed_tokens, min(end, seq.num_tokens))
        plan.grants[seq] = count
        plan.budget -= count
        return True

    def _charge(self, seq: Sequence, begin: int, end: int) -> None:
        """Charge the queue policy with those of positions begin .. end - 1 that it was not charged with before."""
        policy = self.waiting.policy
        if policy.charges and (count := seq.charge(begin, end)):
            policy.charge(seq, count)

    def _admit_waiting(self, plan: StepPlan, before: Sequence | None = None) -> None:
        """Admit in order while slots, blocks and budget last: the prompts admitted together are this step's cohort. With
        `before` only those that the policy puts before that running sequence.

        Room for all its known tokens is taken at once: admitted sequences never starve each other half way. One that would
        read what this very step computes is passed over, for this step only.
        """
        admitted: list[Sequence] = []
        passed_over = 0
        for seq in self._candidates(plan, before):
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
            self.sequences.admit(seq, hit)
            admitted.append(seq)
            self._grant_prompt(seq, plan)
        for seq in admitted:
            self.waiting.remove(seq)

    def _candidates(self, plan: StepPlan, before: Sequence | None) -> Iterator[Sequence]:
        """Waiting sequences that could be admitted now if they fit, in order; the caller may admit each as it comes."""
        if plan.preempted:
            plan.blocked = WaitReason.KV_BLOCKS
            return  # somebody has just given way: not for newcomers
        for seq in self.waiting.policy.candidates(self.sequences.num_slots):
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
            elif self._has_adapter(seq):
                yield seq
            else:
                self.waiting.reasons.hold(seq, WaitReason.ADAPTER)
        if plan.blocked is None and self.waiting.policy.keeps_slots:
            plan.blocked = WaitReason.FAIR_SHARE

    def _has_adapter(self, seq: Sequence) -> bool:
        """Whether the executor holds the adapter of a waiting sequence, if it has one."""
        return seq.request.adapter is None or (self.adapters is not None and self.adapters.ready(seq))

    def _pack(self, plan: StepPlan) -> UnifiedBatch:
        """The step for the executor; the grants count as computed from here on."""
        self.num_steps += 1
        self._want_drafts(plan)
        self.sequences.submitted(self.num_steps, list(plan.grants))
        batch = self._packer.pack(plan, self.num_steps, self.journal.epoch, self.kv)
        self.waiting.estimate.submitted(batch)
        return batch

    # -- results -----------------------------------------------------------------------------------------------------

    def observe(self, batch: UnifiedBatch, output: UnifiedOutput, seconds: float) -> None:
        """A step took `seconds`: the policies of budget and drafts and the wait estimate learn from it. A step of an older epoch
        tells nothing: its time is that of a restart."""
        spared = self.sequences.spared_by(batch.step_id)
        if not self.journal.accepts(batch.epoch):
            return
        prompt_tokens = batch.num_prompt_tokens
        self.num_prompt_tokens += prompt_tokens
        self.policies.budget.observe(batch.num_decodes, prompt_tokens, seconds)
        self.waiting.estimate.observe(seconds, prompt_tokens + spared)
        if self.policies.drafter is not None and not prompt_tokens:
            lengths, drafts = self.policies.lengths, output.drafts
            drafting = 0.0 if drafts is None else drafts.seconds
            self.waiting.estimate.gained(len(output.token_ids) / len(batch))
            lengths.observe(len(batch), int(batch.num_draft_tokens.sum()), max(0.0, seconds - drafting))
            if drafts is not None and batch.drafts_wanted is not None:
                lengths.observe_drafting(int(np.count_nonzero(batch.drafts_wanted)), drafts.rounds, drafting)

    def commit(self, batch: UnifiedBatch, output: UnifiedOutput) -> list[tuple[Sequence, TokenDelta]]:
        """Take in a step's result; returns what each sequence gained. Output of an older epoch changes nothing."""
        seqs = self.sequences.done(batch.step_id)
        if not self.journal.accepts(batch.epoch):
            return []
        self.step_budget.went_well()
        deltas: list[tuple[Sequence, TokenDelta]] = []
        ids, counts, details = output.token_ids.tolist(), output.num_tokens.tolist(), output.details
        drafts, sampled = batch.num_draft_tokens.tolist(), batch.is_final_chunk.tolist()
        if verified := any(drafts):  # how many tokens come of drafts is settled below
            sampled = [final and not count for final, count in zip(sampled, drafts, strict=True)]
        at = 0
        for i, (seq, count, samples) in enumerate(zip(seqs, counts, sampled, strict=True)):
            begin, at = at, at + count
            if not seq.receive(samples):
                if seq.finished and not seq.in_flight:
                    self.sequences.let_go(seq)
                continue
            if verified and drafts[i]:
                computed = int(batch.pos_offsets[i]) + count
                seq.settle(computed)
                self._charge(seq, 0, computed)
                self.policies.lengths.verdict(drafts[i], max(0, count - 1))
            detail = details.get(i) if details else None
            if detail is None and count == 1:
                deltas.append((seq, self._append_plain(seq, ids[begin])))
                continue
            if detail is not None and detail.prompt_logprobs:
                self.journal.commit_prompt(seq, int(batch.pos_offsets[i]), detail.prompt_logprobs)
            if detail is not None and detail.error is not None:
                if (failed := self._fail(seq, detail.fault, detail.error)) is not None:
                    deltas.append((seq, failed))
            elif at > begin:
                tokens = detail.tokens if detail is not None else [self._plain[id_] for id_ in ids[begin:at]]
                deltas.append((seq, self._append(seq, tokens)))
            elif detail is not None and detail.pooled is not None:
                if np.isfinite(detail.pooled).all():
                    deltas.append((seq, self._pooled(seq, detail.pooled)))
                elif (
                    failed := self._fail(seq, ItemFault.NOT_FINITE, "the vector is not finite")
                ) is not None:
                    deltas.append((seq, failed))
        if output.drafts is not None:
            self._receive_drafts(seqs, output.drafts)
        return deltas

    def _receive_drafts(self, seqs: SequenceOf[Sequence], drafts: Drafts) -> None:
        """Keep the draft model's guesses for the next step."""
        if isinstance(drafter := self.policies.drafter, ModelDrafter):
            for i, token_ids in drafts.by_item().items():
                if seqs[i].status is SequenceStatus.RUNNING:
                    drafter.receive(seqs[i], token_ids)

    def _append_plain(self, seq: Sequence, token_id: int) -> TokenDelta:
        """`_append` of one token of which nothing more is told, as nearly all are."""
        token, request, output = self._plain[token_id], seq.request, seq.output_token_ids
        ends = token_id in request.stop_token_ids or len(output) + 1 >= request.max_tokens
        if ends or not output or seq.num_failed_steps:
            return self._append(seq, (token,))
        seq.commit_one(token_id)
        return TokenDelta([token], None, None, seq.num_cached_tokens)

    def _append(self, seq: Sequence, tokens: SequenceOf[SampledToken]) -> TokenDelta:
        """Commit tokens up to the first that ends the sequence."""
        request, reason, stop_token_id = seq.request, None, None
        room = request.max_tokens - len(seq.output_token_ids)
        for n, token in enumerate(tokens, 1):
            if token.token_id in request.stop_token_ids:
                reason, stop_token_id = FinishReason.STOP, token.token_id
            elif n == room:
                reason = FinishReason.LENGTH
            if reason is not None:
                tokens = tokens[:n]
                break
        first = not seq.output_token_ids
        self.journal.commit(seq, tokens)
        self.sequences.went_well(seq)
        if reason is not None:
            self.sequences.finish(seq, reason)
        told = tuple(seq.prompt_logprobs) if first and request.prompt_logprobs is not None else None
        return TokenDelta(list(tokens), reason, stop_token_id, seq.num_cached_tokens, prompt_logprobs=told)

    def _pooled(self, seq: Sequence, pooled: NDArray[np.float32]) -> TokenDelta:
        """An embedding request ends with its prompt."""
        self.sequences.went_well(seq)
        self.sequences.finish(seq, FinishReason.STOP)
        return TokenDelta(
            finish_reason=FinishReason.STOP, num_cached_tokens=seq.num_cached_tokens, pooled=pooled
        )

    def _fail(self, seq: Sequence, fault: ItemFault, message: str) -> TokenDelta | None:
        """The sequence failed alone. None if it gets another try, with KV of its own in place of what it shares."""
        if fault is ItemFault.GRAMMAR_TOO_LARGE:
            self.sequences.finish(seq, FinishReason.ABORT)
            refused = InvalidRequest(message, "grammar", "invalid_value")
            return TokenDelta(finish_reason=FinishReason.ERROR, error=refused)
        if fault is ItemFault.NOTHING_LEFT:
            # What the client asked for cannot go on; it counts with the requests taken back, not with our failures.
            self.sequences.finish(seq, FinishReason.ABORT)
            culprit = seq.request.sampling.restricted_by()
            said = f"{message} at position {len(seq.output_token_ids)} of the output"
            error = InvalidRequest(said, culprit, "invalid_value")
            return TokenDelta(finish_reason=FinishReason.ERROR, error=error)
        self.kv.withdraw(seq)
        if seq.num_shared_blocks:
            # Whoever wrote that may have failed itself, a moment too late for this one to know.
            seq.void_in_flight()
            if seq.status is SequenceStatus.RUNNING:
                self.sequences.preempt(seq, fault.value)
            return None
        self.sequences.finish(seq, FinishReason.ERROR)
        return TokenDelta(finish_reason=FinishReason.ERROR, error=SequenceFailed(message))


class _PlainTokens(dict[int, SampledToken]):
    """Tokens without logprobs, one object for each id of the vocabulary: making thousands a second costs time, and the
    garbage collector more."""

    def __missing__(self, token_id: int) -> SampledToken:
        token = self[token_id] = SampledToken(token_id)
        return token
