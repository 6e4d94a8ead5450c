"""Lives of an executor whose blocks outlive it, and what the engine owes: true seals, and streams that go on where they were."""

from __future__ import annotations

import random
from typing import Any

from engine.core.scheduler import Scheduler
from engine.core.sequences import Sequences
from engine.kv.adoption import Adopted, NewLife
from engine.kv.hit import Hit
from engine.sequence import Sequence
from executors.contract import SealedBlocks, UnifiedBatch, UnifiedOutput
from executors.testing.fakes.sealing import SealingFake


class Broken(AssertionError):
    """The engine did what it must not do."""


class Lives:
    """Ends the lives of a fake: some scribble before they die, and some have another fingerprint than the one before."""

    def __init__(self, inner: SealingFake, rng: random.Random, scribbling: float, other: float) -> None:
        """`scribbling`: share of blocks in which a dying life flips a bit. `other`: share of lives with another fingerprint."""
        self._inner = inner
        self._rng = rng
        self._scribbling = scribbling
        self._other = other
        self._scribbled: set[tuple[int, int]] = set()

    def die(self) -> None:
        """The life ends; the next one may be another program."""
        inner = self._inner
        for group, num_blocks in enumerate(inner.kv_layout().num_sealable):
            blocks = [block for block in range(num_blocks) if self._rng.random() < self._scribbling]
            inner.scribble(group, blocks)
            self._scribbled |= {(group, block) for block in blocks}
        if self._rng.random() < self._other:
            inner.fingerprint = "b" if inner.fingerprint == "a" else "a"

    def check(self, offered: SealedBlocks | None) -> None:
        """Raises Broken unless each offered block holds what was sealed, but for those that a dying life scribbled in."""
        if offered is not None:
            now = self._inner.checksums(offered.groups, offered.blocks) == offered.checksums
            for group, block, same in zip(
                offered.groups.tolist(), offered.blocks.tolist(), now.tolist(), strict=True
            ):
                if not same and (group, block) not in self._scribbled:
                    raise Broken(f"block {block} of group {group} was written after it had been sealed")
        self._scribbled.clear()


class ReturnWatch:
    """From now on raises Broken where a sequence that ran when the executor failed comes back without the KV that committed steps
    had computed, but for its last block and what the steps in flight added meanwhile. Where layers have states: without what was
    computed up to its deepest sealed snapshot."""

    def __init__(self, scheduler: Scheduler, lag: int) -> None:
        """`lag`: tokens by which the seals of a sequence may lag behind what committed steps computed, without the last block."""
        self._lag = lag + scheduler.kv.layout.block_size
        self._kv = scheduler.kv
        self._reach: dict[int, int] = {}
        """Tokens of each sequence that committed steps have computed since it was admitted last."""
        self._owed: dict[int, int] = {}
        """Tokens whose KV each sequence must come back with."""
        self.num_checked = 0
        """Sequences that came back with some."""
        self._watch(scheduler)

    def _watch(self, scheduler: Scheduler) -> None:
        sequences, results = scheduler.sequences, scheduler.results
        commit, rewind, settle, admit = results.commit, sequences.rewind, sequences.settle, sequences.admit

        def watched_commit(batch: UnifiedBatch, output: UnifiedOutput, now: float) -> Any:
            gains = commit(batch, output, now)
            self._committed(batch, output)
            return gains

        def watched_rewind(*arguments: Any, keep: bool = False, **named: Any) -> list[Sequence]:
            owed = self._owed_to(sequences) if keep else {}
            suspects = rewind(*arguments, keep=keep, **named)
            self._owed = {} if sequences.suspects else owed
            return suspects

        def watched_settle(life: NewLife) -> Adopted:
            outcome = settle(life)
            if life.offered is None or len(life.adopted) < len(life.offered):
                self._owed = {}
            return outcome

        def watched_admit(seq: Sequence, hit: Hit) -> None:
            self._reach.pop(seq.seq_id, None)
            owed = self._owed.pop(seq.seq_id, 0)
            if hit.num_tokens < owed:
                raise Broken(f"{seq} comes back with {hit.num_tokens} tokens, {owed} were sealed")
            self.num_checked += owed > 0
            admit(seq, hit)

        results.commit = watched_commit  # type: ignore[method-assign]
        sequences.rewind = watched_rewind  # type: ignore[method-assign]
        sequences.settle, sequences.admit = watched_settle, watched_admit  # type: ignore[method-assign]

    def _committed(self, batch: UnifiedBatch, output: UnifiedOutput) -> None:
        counts = output.num_tokens.tolist()
        for i, seq_id in enumerate(batch.seq_ids.tolist()):
            drafts = int(batch.num_draft_tokens[i])
            computed = int(batch.num_q_tokens[i]) - drafts + (max(0, counts[i] - 1) if drafts else 0)
            self._reach[seq_id] = int(batch.pos_offsets[i]) + computed

    def _owed_to(self, sequences: Sequences) -> dict[int, int]:
        """What the running sequences must come back with, and those that have not come back since the failure before."""
        # In a full pool a sequence that comes back first may take the last blocks of another: one, or all it needs where it finds
        # nothing.
        needed = sum(
            self._kv.blocks_for(seq.num_known_tokens) if seq.alone or seq.needs_whole_prompt else 1
            for seq in sequences.running
        )
        if any(group.pool.num_free < needed for group in self._kv.groups):
            return {}
        owed = dict(self._owed)
        for seq in sequences.running:
            if not (seq.alone or seq.needs_whole_prompt):
                computed = min(self._reach.get(seq.seq_id, 0), seq.num_known_tokens - 1)
                owed[seq.seq_id] = self._to_snapshot(seq, max(0, computed - self._lag))
        return owed

    def _to_snapshot(self, seq: Sequence, num_tokens: int) -> int:
        """At most so many tokens, up to the deepest snapshot that is sealed."""
        kv, size = self._kv, self._kv.layout.block_size
        if kv.states is None:
            return num_tokens
        if not kv.prefix_caching and any(group.window is not None for group in kv.groups):
            return 0  # a window leaves what lies before its snapshots: no later sequence could use it
        keys = kv.keys_of(seq, num_tokens // size)
        sealed = [kv.states.find(key) in kv.states.seals.checksums for key in keys]
        return size * max((index for index, one in enumerate(sealed, 1) if one), default=0)
