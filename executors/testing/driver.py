"""`Driver`: drives an executor through `UnifiedBatch` by hand, without an engine. Standard library and NumPy only.

It assigns slots and blocks, builds the arrays of a step, and keeps each sequence's tokens. What it does not do is
decide: a test says which sequence computes how many tokens in which step. The conformance kit is written with it, and it
serves for trying out an executor:

    driver = await Driver.start(executor)
    a, b = driver.add([1, 2, 3], greedy), driver.add([4, 5], greedy)
    await driver.step(Feed(a), Feed(b, 1))      # a's whole prompt, the first token of b's
    await driver.step(Feed(a), Feed(b))         # one decode, and the rest of b's prompt
    print(a.output, b.output)
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from executors.contract import (
    InvalidInput,
    ItemOutput,
    KvCacheHandle,
    ModelExecutor,
    SampledToken,
    SamplingParams,
    SequenceStart,
    TableUpdates,
    UnifiedBatch,
)

GREEDY = SamplingParams(temperature=0.0)


@dataclass(eq=False, slots=True)
class DrivenSequence:
    """A sequence as the driver sees it. Written by the driver only; tests may read it all.

    - `tokens`: prompt and output so far. `num_computed`: how many of them have KV.
    - `samples`: what was sampled, one for each output token; `outputs`: every ItemOutput, in order, None included.
    - `state`: its slot of a state, None where the executor has none to give out; `state_src`: the slot that its next step reads.
    - `blocks`: one list of block ids per KV group; empty when the executor owns its KV. `firsts`: index of the first of them in
      the block table, above 0 where a window has left blocks behind.
    """

    seq_id: int
    slot: int
    prompt: list[int]
    sampling: SamplingParams | None
    options: dict[str, Any]
    tokens: list[int]
    blocks: list[list[int]]
    firsts: list[int]
    num_computed: int = 0
    num_sent_blocks: int = 0
    started: bool = False
    state: int | None = None
    state_src: int = -1
    restored: list[int] = field(default_factory=list)
    samples: list[SampledToken] = field(default_factory=list)
    outputs: list[ItemOutput | None] = field(default_factory=list)

    @property
    def output(self) -> list[int]:
        """Tokens after the prompt, restored ones included."""
        return self.tokens[len(self.prompt) :]

    @property
    def prompt_logprobs(self) -> list[SampledToken]:
        """All prompt logprobs so far."""
        return [entry for out in self.outputs if out for entry in out.prompt_logprobs or ()]

    def start(self) -> SequenceStart:
        """What the executor is told of it."""
        return SequenceStart(
            self.seq_id, self.slot, _ids(self.prompt), _ids(self.restored), self.sampling, **self.options
        )


@dataclass(frozen=True, slots=True)
class Feed:
    """What one sequence computes in a step: `count` of its uncomputed tokens (None: all), then `drafts`.

    `pending`: hide the id of the last known token, as when the host does not know it yet. `num_drafts`: drafts to ask of the
    executor's draft model, see `UnifiedBatch.drafts_wanted`. `snapshots`: (position, slot) of states to be kept on the way.
    """

    seq: DrivenSequence
    count: int | None = None
    drafts: Sequence[int] = ()
    pending: bool = False
    num_drafts: int = 0
    snapshots: Sequence[tuple[int, int]] = ()


class Driver:
    """See the module. Blocks of each KV group are handed out in the order of `free_blocks[group]`: ascending, in each group from
    another one on, so that no table of one group serves for another."""

    _seq_ids = itertools.count(1)  # never reused within a process, as the engine's

    def __init__(self, executor: ModelExecutor, epoch: int = 1) -> None:
        layout = executor.kv_layout()
        self.executor = executor
        self.epoch = epoch
        self.paged = layout.paged
        self.block_size, self.groups = layout.block_size, layout.groups
        self.free_blocks = [
            [*range(index, group.num_blocks), *range(min(index, group.num_blocks))]
            for index, group in enumerate(layout.groups)
        ]
        self.free_slots = list(range(executor.capabilities().max_batch_size))
        self.states = layout.state
        self.free_states = list(range(self.states.num_slots if self.states else 0))
        """Slots of states that no sequence has; a test may take some for snapshots."""
        self.live: dict[int, DrivenSequence] = {}
        self.block_copies: list[tuple[int, int, int]] = []
        self._steps = itertools.count(1)

    @classmethod
    async def start(cls, executor: ModelExecutor, epoch: int = 1) -> Driver:
        """Warm the executor up, begin an epoch and drive it. Raises as `warmup`."""
        await executor.warmup()
        await executor.begin_epoch(epoch)
        return cls(executor, epoch)

    # -- sequences -----------------------------------------------------------------------------------------------------

    def add(
        self,
        prompt: Iterable[int],
        sampling: SamplingParams | None = GREEDY,
        *,
        output: Iterable[int] = (),
        slot: int | None = None,
        shared_blocks: Sequence[Sequence[int]] = (),
        num_computed: int = 0,
        state: int | None = None,
        **options: Any,
    ) -> DrivenSequence:
        """A new sequence; the executor hears of it with its first step.

        `output`: tokens it has already (resumed). `shared_blocks`: per KV group, blocks it begins with, which hold the KV of
        its first `num_computed` tokens (a prefix hit); in a window group the last of them, as many as the next token reads.
        `state`: the slot with the state after them, which another sequence's step kept. `options`: adapter, grammar,
        prompt_logprobs, pooling, label_ids, second_segment.
        """
        chosen = self.free_slots[0] if slot is None else slot
        self.free_slots.remove(chosen)
        prompt, restored = list(prompt), list(output)
        blocks = [list(group) for group in shared_blocks] or [[] for _ in self.groups]
        end = max(num_computed // self.block_size, *(len(group) for group in blocks), 0)
        seq = DrivenSequence(
            next(self._seq_ids), chosen, prompt, sampling, options, prompt + restored, blocks,
            [end - len(group) for group in blocks], num_computed,
        )  # fmt: skip
        seq.restored = restored
        if self.states is not None:
            if num_computed and state is None:
                raise InvalidInput("a sequence whose layers have states begins with a state, or at 0")
            seq.state, seq.state_src = self.free_states.pop(0), -1 if state is None else state
        self.live[seq.seq_id] = seq
        return seq

    def release(self, seq: DrivenSequence) -> None:
        """The sequence is over: its slot and blocks are free, the executor is told."""
        del self.live[seq.seq_id]
        self.free_slots.insert(0, seq.slot)
        if seq.state is not None:
            self.free_states.insert(0, seq.state)
        for index, blocks in enumerate(seq.blocks):
            self._free(index, blocks)
        self.executor.release_cache(seq.seq_id)

    def slide(self, seq: DrivenSequence) -> None:
        """Free the blocks of window groups that the sequence's next token does not read: others may have them in that step."""
        for index, group in enumerate(self.groups):
            if group.window is not None:
                first = max(0, seq.num_computed - group.window + 1) // self.block_size
                count = max(0, first - seq.firsts[index])
                blocks = seq.blocks[index][:count]
                del seq.blocks[index][:count]
                seq.firsts[index] += count
                self._free(index, blocks)

    def _free(self, group: int, blocks: Iterable[int]) -> None:
        """The blocks that no sequence holds are handed out next."""
        for block in blocks:
            if not any(block in other.blocks[group] for other in self.live.values()):
                self.free_blocks[group].insert(0, block)

    def truncate(self, seq: DrivenSequence, new_len: int, num_tokens: int | None = None) -> None:
        """Roll KV back to `new_len` tokens, or to what the executor keeps. `num_tokens` also forgets the tokens after so many."""
        reached = self.executor.truncate_kv(self.handle(seq), new_len)
        if not 0 <= reached <= new_len:
            raise InvalidInput(f"truncate_kv was asked for {new_len} tokens and has kept {reached}")
        if reached < seq.num_computed:
            seq.state_src = -1
        seq.num_computed = min(seq.num_computed, reached)
        if num_tokens is not None:
            del seq.tokens[num_tokens:]

    def handle(self, seq: DrivenSequence) -> KvCacheHandle:
        """The sequence's KV, for members that take a handle."""
        tables = tuple(
            _ids([0] * first + blocks) for first, blocks in zip(seq.firsts, seq.blocks, strict=True)
        )
        return KvCacheHandle(seq.seq_id, tables, seq.num_computed)

    # -- steps ---------------------------------------------------------------------------------------------------------

    def grow(self, seq: DrivenSequence, num_tokens: int) -> None:
        """Give the sequence blocks for that many tokens. Raises InvalidInput when there are none left."""
        for first, blocks, free in zip(seq.firsts, seq.blocks, self.free_blocks, strict=True):
            while (first + len(blocks)) * self.block_size < num_tokens:
                if not free:
                    raise InvalidInput("the driver has no free blocks left")
                blocks.append(free.pop(0))

    def batch(self, *feeds: Feed) -> UnifiedBatch:
        """The step that these feeds make. Takes the blocks and marks the sequences as started."""
        self._take_second_slots(feeds)
        tokens: list[int] = []
        hidden: list[bool] = []
        counts, final = [], []
        snapshots = [(i, *snapshot) for i, feed in enumerate(feeds) for snapshot in feed.snapshots]
        for feed in feeds:
            seq = feed.seq
            end = len(seq.tokens) if feed.count is None else seq.num_computed + feed.count
            chunk = [*seq.tokens[seq.num_computed : end], *feed.drafts]
            self.grow(seq, seq.num_computed + len(chunk) + feed.num_drafts)
            last = len(chunk) - len(feed.drafts) - 1
            tokens += [-1 if feed.pending and i == last else token for i, token in enumerate(chunk)]
            hidden += [feed.pending and i == last for i in range(len(chunk))]
            counts.append(len(chunk))
            final.append(end == len(seq.tokens))
        copies, self.block_copies = self.block_copies, []
        starts = tuple(feed.seq.start() for feed in feeds if not feed.seq.started)
        draft_counts = [feed.num_drafts for feed in feeds]
        return UnifiedBatch(
            epoch=self.epoch,
            step_id=next(self._steps),
            seq_ids=np.array([feed.seq.seq_id for feed in feeds], np.int64),
            slots=_ids(feed.seq.slot for feed in feeds),
            num_q_tokens=_ids(counts),
            pos_offsets=_ids(feed.seq.num_computed for feed in feeds),
            is_final_chunk=np.array(final, np.bool_),
            num_draft_tokens=_ids(len(feed.drafts) for feed in feeds),
            token_ids=_ids(tokens),
            pending=np.array(hidden, np.bool_) if any(hidden) else None,
            starts=starts,
            tables=self._updates(feeds),
            block_copies=np.array(copies, np.int32).reshape(-1, 3),
            drafts_wanted=_ids(draft_counts) if any(draft_counts) else None,
            state_src=_ids(feed.seq.state_src for feed in feeds) if self.states else None,
            state_dst=_ids(feed.seq.state or 0 for feed in feeds) if self.states else None,
            snapshots=np.array(snapshots, np.int32).reshape(-1, 3),
        )

    def _take_second_slots(self, feeds: Sequence[Feed]) -> None:
        """A step with drafts writes its sequence's state to another slot than it reads."""
        for feed in feeds:
            if feed.seq.state is not None and feed.drafts and feed.seq.state == feed.seq.state_src:
                feed.seq.state = self.free_states.pop()

    def _settle_state(self, seq: DrivenSequence, count: int, rejected: bool) -> None:
        """With all drafts accepted the sequence goes on from the state behind them, else from the one before the step."""
        assert seq.state is not None
        if not rejected:
            seq.num_computed += count
            if seq.state_src >= 0:
                self.free_states.append(seq.state_src)
            seq.state_src = seq.state
        elif seq.state_src >= 0:
            self.free_states.append(seq.state)
            seq.state = seq.state_src

    def _updates(self, feeds: Sequence[Feed]) -> TableUpdates:
        rows: list[tuple[int, int, int, int]] = []
        ids: list[int] = []
        for feed in feeds:
            seq = feed.seq
            end = 0
            for index, (first, blocks) in enumerate(zip(seq.firsts, seq.blocks, strict=True)):
                end = first + len(blocks)
                begin = max(first, seq.num_sent_blocks) if seq.started else first
                if begin < end:
                    rows.append((seq.slot, index, begin, end - begin))
                    ids += blocks[begin - first :]
            seq.num_sent_blocks = end
            seq.started = True
        slots, groups, begins, counts = np.array(rows, np.int32).reshape(-1, 4).T.copy()
        return TableUpdates(slots, groups, begins, counts, _ids(ids))

    async def step(self, *feeds: Feed) -> list[ItemOutput | None]:
        """Compute a step and take in what it gave. Raises as `unified_decode`; the sequences are then as before it,
        except that they count as started."""
        batch = self.batch(*feeds)
        output = list(await self.executor.unified_decode(batch))
        for feed, item, count in zip(feeds, output, batch.num_q_tokens.tolist(), strict=True):
            seq = feed.seq
            seq.outputs.append(item)
            sampled = item.tokens if item is not None else ()
            rejected = len(feed.drafts) - max(len(sampled) - 1, 0)
            if seq.state is not None and feed.drafts:
                self._settle_state(seq, count, bool(rejected))
            else:
                seq.num_computed += count - rejected
                seq.state_src = -1 if seq.state is None else seq.state
            seq.samples += sampled
            seq.tokens += [token.token_id for token in sampled]
        return output

    async def prefill(self, *seqs: DrivenSequence) -> None:
        """All that is known of these sequences, in one step: each samples its next token."""
        await self.step(*(Feed(seq) for seq in seqs))

    async def decode(self, num_steps: int, *seqs: DrivenSequence) -> None:
        """Decode `num_steps` more tokens of each sequence, all in the same steps."""
        for _ in range(num_steps):
            await self.step(*(Feed(seq) for seq in seqs))


def _ids(values: Iterable[int]) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.fromiter(values, np.int32)
