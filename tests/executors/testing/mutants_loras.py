"""Broken fakes: adapters go wrong. Each is named with the cases that must catch it."""

from dataclasses import replace

import numpy as np

from executors.testing.fakes import oracle
from executors.testing.fakes.echo import EchoExecutor
from executors.testing.fakes.paged import PagedFakeExecutor
from tests.executors.testing.conformance_subjects import caught_by


@caught_by("adapters_share_a_batch")
class IgnoresLoras(EchoExecutor):
    def _salt(self, adapter):
        super()._salt(adapter)
        return np.uint64(0)


@caught_by("adapters_share_a_batch")
class GivesABatchTheLoraOfItsFirst(EchoExecutor):
    def _forward(self, work):
        work.salts = np.full_like(work.salts, work.salts[0])
        return super()._forward(work)


@caught_by("an_adapter_stays_with_its_sequence")
class LosesTheLoraWhenRolledBack(EchoExecutor):
    def truncate_kv(self, handle, new_len):
        row = self._row_of(handle.cache_id)
        if row is not None:
            self._salts[row] = 0
        return super().truncate_kv(handle, new_len)


@caught_by("an_adapter_stays_with_its_sequence", "an_adapter_outlives_its_executor")
class ResumesWithoutTheLora(EchoExecutor):
    def _admit(self, starts):
        super()._admit(tuple(
            replace(start, adapter=None) if len(start.output_token_ids) else start for start in starts
        ))  # fmt: skip


@caught_by("a_slot_forgets_its_adapter")
class KeepsTheLoraOfASlot(EchoExecutor):
    def _admit(self, starts):
        kept = {start.slot: self._salts[start.slot] for start in starts}
        super()._admit(starts)
        for start in starts:
            if start.adapter is None and kept[start.slot]:
                self._salts[start.slot] = kept[start.slot]


@caught_by("forks_keep_their_adapter")
class PrefixHitsLoseTheLora(PagedFakeExecutor):
    def _forward(self, work):
        hit = np.isin(work.rows, [start.slot for start in self._fresh]) & (work.pos > 0)
        work.salts = np.where(hit, np.uint64(0), work.salts)
        return super()._forward(work)

    def _native_step(self, batch, ruined, spoiling):
        self._fresh = batch.starts
        return super()._native_step(batch, ruined, spoiling)


@caught_by("prompt_logprobs_are_of_the_adapter")
class PromptsAreComputedWithoutTheLora(EchoExecutor):
    """Where their logprobs are asked for."""

    def _admit(self, starts):
        super()._admit(tuple(
            replace(start, adapter=None) if start.prompt_logprobs is not None else start for start in starts
        ))  # fmt: skip


@caught_by("adapters_come_and_go")
class UnloadsWhatIsInUse(EchoExecutor):
    async def unload_adapter(self, name):
        self.adapters.pop(name, None)


@caught_by("adapters_come_and_go")
class TakesWhatIsNotLoadedForNone(EchoExecutor):
    def _salt(self, adapter):
        return self.adapters.get(adapter, np.uint64(0))


@caught_by("adapters_come_and_go")
class KnowsLorasByTheirNames(EchoExecutor):
    async def load_adapter(self, name, path, digest):
        await super().load_adapter(name, path, digest)
        self.adapters[name] = oracle.adapter_salt(name)


@caught_by("an_adapter_outlives_its_executor")
class SaltsLorasAnewInEachLife(EchoExecutor):
    async def load_adapter(self, name, path, digest):
        await super().load_adapter(name, path, digest)
        self.adapters[name] = oracle.adapter_salt(f"{digest} {id(self)}")
