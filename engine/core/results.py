"""`StepResults`: takes in what a step computed: commits tokens, ends sequences, and tells the policies how long it took."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

import numpy as np
from numpy.typing import NDArray

from engine.core.gains import StepGains
from engine.core.model_drafts import ModelDrafts
from engine.core.policies import Policies
from engine.core.sequences import Sequences
from engine.core.step_budget import StepBudget
from engine.errors import InvalidRequest, SequenceFailed
from engine.request import PLAIN_TOKENS, FinishReason, TokenDelta
from engine.sequence import Sequence, SequenceStatus
from executors.contract import ItemFault, SampledToken, UnifiedBatch, UnifiedOutput


class StepResults:
    """The half of `Scheduler` behind a step. Called by the loop task only; never waits, touches no executor.

    A step of an older epoch has no place here: its output does not count, and its time is that of a restart.
    """

    def __init__(
        self, policies: Policies, sequences: Sequences, step_budget: StepBudget, model_drafts: ModelDrafts
    ) -> None:
        self._policies = policies
        self._sequences = sequences
        self._kv = sequences.kv
        self._journal = sequences.journal
        self._waiting = sequences.waiting
        self._step_budget = step_budget
        self._model_drafts = model_drafts

    def observe(self, batch: UnifiedBatch, output: UnifiedOutput, seconds: float, host: float = 0.0) -> None:
        """A step took `seconds`, after the executor had waited for it for `host` seconds: the policies of budget and drafts and
        the wait estimate learn from it."""
        spared = self._sequences.spared_by(batch.step_id)
        prompt_tokens = batch.num_prompt_tokens
        self._policies.budget.observe(batch.num_decodes, prompt_tokens, seconds)
        self._waiting.estimate.observe(seconds, prompt_tokens + spared)
        if self._policies.drafter is not None and not prompt_tokens:
            lengths, drafts = self._policies.lengths, output.drafts
            drafting = 0.0 if drafts is None else drafts.seconds
            self._waiting.estimate.gained(len(output.token_ids) / len(batch))
            ahead = batch.pending is not None and bool(batch.pending.all())
            lengths.observe(
                len(batch), int(batch.num_draft_tokens.sum()), max(0.0, seconds - drafting), host, ahead
            )
            if drafts is not None and batch.drafts_wanted is not None:
                lengths.observe_drafting(int(np.count_nonzero(batch.drafts_wanted)), drafts.rounds, drafting)
        elif self._policies.drafter is not None and batch.num_decodes:
            self._policies.lengths.step_landed()

    def commit(self, batch: UnifiedBatch, output: UnifiedOutput, now: float) -> StepGains:
        """Take in a step's result, which came at `now`, in seconds of the engine's clock; returns what each sequence gained."""
        seqs = self._sequences.done(batch.step_id)
        self._step_budget.went_well()
        ids, gains = output.token_ids.tolist(), StepGains(now)
        if self._gives_one_each(batch, output):
            self._commit_one_each(gains, seqs, ids)
        else:
            self._commit_each(gains, seqs, ids, batch, output)
        # What failed is withdrawn by now.
        self._kv.seals.commit(batch, output)
        if output.drafts is not None:
            self._model_drafts.receive(seqs, output.drafts)
        return gains

    def _gives_one_each(self, batch: UnifiedBatch, output: UnifiedOutput) -> bool:
        """Whether each item of the step has one token and nothing else, as in nearly every step of running streams."""
        return (
            len(output.token_ids) == len(batch)
            and not output.details
            and bool(batch.is_final_chunk.all())
            and not batch.num_draft_tokens.any()
        )

    def _commit_one_each(self, gains: StepGains, seqs: SequenceOf[Sequence], ids: SequenceOf[int]) -> None:
        now, tokens, times = gains.at, gains.tokens, list[float]()
        for seq, token_id in zip(seqs, ids, strict=True):
            if (previous := seq.take_plain(token_id, now)) is not None:
                tokens.append((seq.mailbox, seq.mailbox_key, token_id, seq.num_cached_tokens))
                times.append(previous)
            elif seq.receive(True):
                gains.deltas.append((seq, self._append(seq, (PLAIN_TOKENS[token_id],))))
            elif seq.finished and not seq.in_flight:
                self._sequences.let_go(seq)
        gains.previous.update(times)

    def _commit_each(
        self,
        gains: StepGains,
        seqs: SequenceOf[Sequence],
        ids: SequenceOf[int],
        batch: UnifiedBatch,
        output: UnifiedOutput,
    ) -> None:
        now, deltas = gains.at, gains.deltas
        counts, details = output.num_tokens.tolist(), output.details
        drafts, sampled = batch.num_draft_tokens.tolist(), batch.is_final_chunk.tolist()
        if verified := any(drafts):  # how many tokens come of drafts is settled below
            sampled = [final and not count for final, count in zip(sampled, drafts, strict=True)]
        at = 0
        for i, (seq, count, samples) in enumerate(zip(seqs, counts, sampled, strict=True)):
            begin, at = at, at + count
            is_plain = (
                samples and count == 1 and not (verified and drafts[i]) and not (details and i in details)
            )
            if is_plain and (previous := seq.take_plain(ids[begin], now)) is not None:
                gains.tokens.append((seq.mailbox, seq.mailbox_key, ids[begin], seq.num_cached_tokens))
                gains.previous[previous] += 1
                continue
            if not seq.receive(samples):
                if seq.finished and not seq.in_flight:
                    self._sequences.let_go(seq)
                continue
            if verified and drafts[i]:
                begin_at = int(batch.pos_offsets[i])
                computed = begin_at + int(batch.num_q_tokens[i]) - drafts[i] - 1 + count
                seq.settle(computed)
                if self._kv.states is not None:
                    self._settle_state(seq, begin_at, accepted=count == drafts[i] + 1)
                self._waiting.charge(seq, 0, computed)
                self._policies.lengths.verdict(drafts[i], max(0, count - 1))
            detail = details.get(i) if details else None
            if detail is None and count == 1:
                deltas.append((seq, self._append(seq, (PLAIN_TOKENS[ids[begin]],))))
                continue
            if detail is not None and detail.prompt_logprobs:
                self._journal.commit_prompt(seq, int(batch.pos_offsets[i]), detail.prompt_logprobs)
            if detail is not None and detail.error is not None:
                if (failed := self._fail(seq, detail.fault, detail.error)) is not None:
                    deltas.append((seq, failed))
            elif at > begin:
                tokens = detail.tokens if detail is not None else [PLAIN_TOKENS[id_] for id_ in ids[begin:at]]
                deltas.append((seq, self._append(seq, tokens)))
            elif detail is not None and detail.pooled is not None:
                if np.isfinite(detail.pooled).all():
                    deltas.append((seq, self._pooled(seq, detail.pooled)))
                elif (
                    failed := self._fail(seq, ItemFault.NOT_FINITE, "the vector is not finite")
                ) is not None:
                    deltas.append((seq, failed))
            else:
                seq.settle_chunk(int(batch.pos_offsets[i]) + int(batch.num_q_tokens[i]))

    def _settle_state(self, seq: Sequence, position: int, accepted: bool) -> None:
        """Drafts of a step that began at `position` were verified; unless all were accepted the state is the one of there."""
        assert self._kv.states is not None
        self._kv.states.settle(seq, accepted)
        if not accepted:
            seq.replay_from(position)

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
        self._journal.commit(seq, tokens)
        self._sequences.went_well(seq)
        if reason is not None:
            self._sequences.finish(seq, reason)
        prompt_entries = tuple(seq.prompt_logprobs) if first and request.prompt_logprobs is not None else None
        return TokenDelta(
            list(tokens), reason, stop_token_id, seq.num_cached_tokens, prompt_logprobs=prompt_entries
        )

    def _pooled(self, seq: Sequence, pooled: NDArray[np.float32]) -> TokenDelta:
        """An embedding request ends with its prompt."""
        self._sequences.went_well(seq)
        self._sequences.finish(seq, FinishReason.STOP)
        return TokenDelta(
            finish_reason=FinishReason.STOP, num_cached_tokens=seq.num_cached_tokens, pooled=pooled
        )

    def _fail(self, seq: Sequence, fault: ItemFault, message: str) -> TokenDelta | None:
        """The sequence failed alone. None if it gets another try, with KV of its own in place of what it shares."""
        if fault is ItemFault.GRAMMAR_TOO_LARGE:
            self._sequences.finish(seq, FinishReason.ABORT)
            refused = InvalidRequest(message, "grammar", "invalid_value")
            return TokenDelta(finish_reason=FinishReason.ERROR, error=refused)
        if fault is ItemFault.NOTHING_LEFT:
            # What the client asked for cannot go on; it counts with the requests taken back, not with our failures.
            self._sequences.finish(seq, FinishReason.ABORT)
            culprit = seq.request.sampling.restricted_by()
            reason = f"{message} at position {len(seq.output_token_ids)} of the output"
            error = InvalidRequest(reason, culprit, "invalid_value")
            return TokenDelta(finish_reason=FinishReason.ERROR, error=error)
        self._kv.withdraw(seq)
        if seq.num_shared_blocks:
            # The sequence that wrote the shared blocks may have failed, too, after this one had found them.
            seq.void_in_flight()
            if seq.status is SequenceStatus.RUNNING:
                self._sequences.preempt(seq, fault.value)
            return None
        self._sequences.finish(seq, FinishReason.ERROR)
        return TokenDelta(finish_reason=FinishReason.ERROR, error=SequenceFailed(message))
