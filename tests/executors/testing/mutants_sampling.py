"""Broken fakes: sampling, logprobs and verification go wrong. Each is named with the cases that must catch it."""

import dataclasses
from dataclasses import replace

import numpy as np

from executors.contract import reference_sampler
from executors.contract.batch import SampledToken
from executors.testing.fakes import oracle
from executors.testing.fakes.echo import EchoExecutor
from tests.executors.testing.conformance_subjects import caught_by


def _sampling(name, change, *cases):
    """A mutant whose sampling parameters are changed on admission."""

    class Mutant(EchoExecutor):
        def _admit(self, starts):
            super()._admit(tuple(replace(s, sampling=s.sampling and change(s)) for s in starts))

        def _verify(self, digests, params, drafts, positions):
            fake = dataclasses.make_dataclass("Start", ["sampling", "slot"])(params, 3)
            return super()._verify(digests, change(fake), drafts, positions)

    Mutant.__name__ = name
    return caught_by(*cases)(Mutant)


_REFERENCE = "sampling_follows_the_reference"
_sampling("SeedIgnored", lambda s: replace(s.sampling, seed=0), "seeds_and_choices_differ", _REFERENCE)
_sampling("ChoiceIgnored", lambda s: replace(s.sampling, choice=0), "seeds_and_choices_differ", _REFERENCE)
_sampling("TopKIgnored", lambda s: replace(s.sampling, top_k=0), _REFERENCE)
_sampling("TopPIgnored", lambda s: replace(s.sampling, top_p=1.0), _REFERENCE)
_sampling(
    "TemperatureIgnored",
    lambda s: replace(s.sampling, temperature=min(s.sampling.temperature, 1.0)),
    _REFERENCE,
)
SeedMixedWithSlot = _sampling(
    "SeedMixedWithSlot",
    lambda s: replace(s.sampling, seed=s.sampling.seed + s.slot),
    "seeded_sampling_is_reproducible",
)


@caught_by("sampling_follows_the_reference")
class PositionIgnored(EchoExecutor):
    def _verify(self, digests, params, drafts, positions):
        return super()._verify(digests, params, drafts, positions * 0)


@caught_by("logprobs_are_consistent")
class LogprobsAtTemperature(EchoExecutor):
    def _verify(self, digests, params, drafts, positions):
        self._temperature = params.temperature or 1.0
        return super()._verify(digests, params, drafts, positions)

    def _describe(self, digest, token, num_alternatives):
        if num_alternatives is None:
            return SampledToken(token)
        row = oracle.logits_rows(digest, self.vocab_size)[0] / np.float32(self._temperature)
        return reference_sampler.describe(row, token, num_alternatives)


@caught_by("prompt_logprobs_are_consistent")
class PromptLogprobsOffByOne(EchoExecutor):
    def _prompt_logprobs(self, start, pos, digests):
        return super()._prompt_logprobs(start, pos, np.roll(digests, 1))


@caught_by("prompt_logprobs_are_consistent")
class PromptLogprobsOfFinalChunksOnly(EchoExecutor):
    def _item(self, batch, i, work, computed):
        item = super()._item(batch, i, work, computed)
        return item if batch.is_final_chunk[i] else None


@caught_by("verify_equals_sequential", "verify_in_a_mixed_batch")
class AcceptsOneTooMany(EchoExecutor):
    def _verify(self, digests, params, drafts, positions):
        tokens = super()._verify(digests, params, drafts, positions)
        if 1 <= len(tokens) <= len(drafts):
            tokens = (*tokens[:-1], SampledToken(int(drafts[len(tokens) - 1])), tokens[-1])
        return tokens


class Drafting(EchoExecutor):
    """No mutant: it drafts, and is wrong now and then."""

    default_drafts_right = 0.7


@caught_by("verify_equals_sequential", "own_drafts_change_no_token")
class AcceptsDraftsUnchecked(Drafting):
    def _verify(self, digests, params, drafts, positions):
        tokens = [SampledToken(int(draft)) for draft in drafts]
        return (*tokens, *super()._verify(digests[-1:], params, drafts[:0], positions[-1:]))


@caught_by("verify_equals_sequential", "own_drafts_change_no_token")
class SamplesFromTheNextRow(Drafting):
    """Each draft is compared with what comes one place later."""

    def _verify(self, digests, params, drafts, positions):
        rows = np.minimum(np.arange(len(digests)) + 1, len(digests) - 1)
        return super()._verify(digests[rows], params, drafts, positions)


@caught_by("own_drafts_change_no_token")
class KeepsRejectedDraftsOfItsOwn(Drafting):
    def _rewind(self, row, new_len, tables):
        if new_len == 0:
            super()._rewind(row, new_len, tables)

    def _read(self, work):
        held = self._lengths[work.rows]
        return self._prefix[work.rows, held], self._digest[work.rows, held]


@caught_by("drafts_come_as_asked")
class DraftsOneTooMany(Drafting):
    def _drafts(self, batch, wanted, work, computed, output):
        return super()._drafts(batch, wanted + (wanted > 0), work, computed, output)


@caught_by("verify_equals_sequential")
class AcceptsOneTooFew(EchoExecutor):
    def _verify(self, digests, params, drafts, positions):
        tokens = super()._verify(digests, params, drafts, positions)
        return tokens[:-1] if len(tokens) > 1 else tokens


@caught_by("verify_equals_sequential")
class KeepsRejectedDrafts(EchoExecutor):
    """Its history goes on after the drafts that were refused."""

    def _rewind(self, row, new_len, tables):
        if new_len == 0:
            super()._rewind(row, new_len, tables)

    def _read(self, work):
        held = self._lengths[work.rows]
        return self._prefix[work.rows, held], self._digest[work.rows, held]


@caught_by("verify_in_a_mixed_batch")
class ComparesWithTheLastDrafts(EchoExecutor):
    def _native_step(self, batch, *failing):
        self._tokens = batch.token_ids
        return super()._native_step(batch, *failing)

    def _verify(self, digests, params, drafts, positions):
        return super()._verify(digests, params, self._tokens[len(self._tokens) - len(drafts) :], positions)


@caught_by("single_sequence_verification")
class IgnoresTheThreshold(EchoExecutor):
    async def speculative_decode(self, request, draft_tokens, acceptance_threshold=1.0):
        return await super().speculative_decode(request, draft_tokens)


@caught_by("single_sequence_verification")
class VerifiesTheFirstOnly(EchoExecutor):
    async def forward_verify(self, inputs):
        return [await self.decode(inputs[0])] * len(inputs)


def _settings(name, change, *cases):
    """A mutant that takes other settings than a sequence was started with."""

    class Mutant(EchoExecutor):
        def _native_step(self, batch, *failing):
            starts = tuple(replace(s, sampling=s.sampling and change(s.sampling)) for s in batch.starts)
            return super()._native_step(replace(batch, starts=starts), *failing)

    Mutant.__name__ = name
    caught_by(*cases)(Mutant)


_SETTINGS = "settings_follow_the_reference"
_settings("RepetitionIgnored", lambda p: replace(p, repetition_penalty=1.0), _SETTINGS)
_settings("PresenceIgnored", lambda p: replace(p, presence_penalty=0.0), _SETTINGS)
_settings("FrequencyIgnored", lambda p: replace(p, frequency_penalty=0.0), _SETTINGS)
_settings("BiasIgnored", lambda p: replace(p, logit_bias=()), _SETTINGS)
_settings("BadWordsIgnored", lambda p: replace(p, bad_words=()), _SETTINGS)
_settings("MinTokensIgnored", lambda p: replace(p, min_tokens=0), _SETTINGS)
_settings("AllowedIgnored", lambda p: replace(p, allowed_token_ids=None), _SETTINGS)
_settings("TypicalIgnored", lambda p: replace(p, typical_p=1.0), _SETTINGS)


@caught_by("settings_survive_rollback")
class ForgetsCountsWhenRolledBack(EchoExecutor):
    def truncate_kv(self, handle, new_len):
        self.table._histories.clear()
        return super().truncate_kv(handle, new_len)


@caught_by("settings_survive_rollback")
class CountsWhatWasForgotten(EchoExecutor):
    def _native_step(self, batch, *failing):
        for history in self.table._histories.values():
            history.sync = lambda position, tokens: None
        return super()._native_step(batch, *failing)


@caught_by("settings_with_drafts")
class CountsDraftsTooLate(EchoExecutor):
    def _native_step(self, batch, *failing):
        held = {}
        if batch.num_draft_tokens.any():
            for slot in batch.slots.tolist():
                history = self.table.history_of(slot)
                held[slot], history.append = history, lambda token: None
        output = super()._native_step(batch, *failing)
        for history in held.values():
            del history.append
        return output


@caught_by("an_error_ends_nobody_elses_step")
class ForgetsWhatAnErrorDidNotSample(EchoExecutor):
    def _item(self, batch, i, work, computed):
        output = super()._item(batch, i, work, computed)
        if output is not None and output.error is not None:
            self._pool_positions[work.rows[i], :] = -1
        return output
