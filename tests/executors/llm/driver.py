"""A tiny engine for tests: slots, block tables and packed batches, as plainly as possible."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from executors.contract.batch import SamplingParams, SequenceStart, TableUpdates, UnifiedBatch, UnifiedOutput
from executors.contract.config import (
    ExecutorAttentionConfig,
    ExecutorConfig,
    ExecutorMemoryConfig,
    OptimizationConfig,
)
from executors.llm.executor import LlmExecutor

GREEDY = SamplingParams(temperature=0.0)


def config(path: Path, **changes) -> ExecutorConfig:
    """A small configuration over the checkpoint at `path`."""
    settings = {
        "executor": "llm", "model": str(path), "max_num_seqs": 16, "max_num_batched_tokens": 512, "device": "cpu",
        "attention": ExecutorAttentionConfig(block_size=changes.pop("block_size", 4)),
        "memory": ExecutorMemoryConfig(kv_cache_memory_bytes=changes.pop("kv_bytes", 16 << 20)),
        # Threads that wait for each other on a busy machine make small tests ten times slower.
        "optimization": OptimizationConfig(num_threads=1),
    }  # fmt: skip
    return ExecutorConfig(**{**settings, **changes})


@dataclass
class Sequence:
    seq_id: int
    slot: int
    tokens: list[int]
    num_prompt: int
    sampling: SamplingParams | None
    blocks: list[int] = field(default_factory=list)
    others: list[list[int]] = field(default_factory=list)
    """Blocks of the other groups of the layout; `blocks` are those of the first."""
    freed: list[int] = field(default_factory=list)
    """How many blocks at the beginning of each group's table are freed."""
    begins: list[int] = field(default_factory=list)
    """Where each group's table begins for the executor, which knows nothing of what is before."""
    computed: int = 0
    started: bool = False
    extra: dict = field(default_factory=dict)
    state: int = -1
    """The slot of its state; -1 where none is given out."""


class Driver:
    """Feeds an executor. Blocks are handed out in random order, so that no order is relied upon. Blocks that windows have passed
    are freed before each step, and `on_freed(group, block)` is called for each."""

    on_freed: Callable[[int, int], None] = staticmethod(lambda group, block: None)

    def __init__(self, executor: LlmExecutor, seed: int = 0, epoch: int = 1) -> None:
        self.executor = executor
        layout = executor.kv_layout()
        self.block_size = layout.block_size
        self.groups = layout.groups
        self.frees = [list(range(group.num_blocks)) for group in layout.groups]
        for group, free in enumerate(self.frees):
            random.Random(seed + 1000 * group).shuffle(free)
        self.free = self.frees[0]
        self.states = list(range(layout.state.num_slots)) if layout.state else []
        random.Random(seed + 1).shuffle(self.states)
        self.slots = list(range(16))
        random.Random(seed).shuffle(self.slots)
        self.epoch = epoch
        self.steps = 0
        self.next_id = 100

    def add(self, prompt: list[int], sampling: SamplingParams | None = GREEDY, **extra) -> Sequence:
        self.next_id += 1
        return Sequence(
            self.next_id, self.slots.pop(), list(prompt), len(prompt), sampling, others=[[] for _ in self.groups[1:]],
            freed=[0] * len(self.groups), begins=[0] * len(self.groups), extra=extra,
            state=self.states.pop() if self.states else -1,
        )  # fmt: skip

    def slide(self, seq: Sequence) -> None:
        """Free the blocks that lie before the windows of every token to be computed."""
        for group, (one, blocks) in enumerate(zip(self.groups, [seq.blocks, *seq.others], strict=True)):
            while one.window and (seq.freed[group] + 1) * self.block_size <= seq.computed - one.window + 1:
                block = blocks[seq.freed[group]]
                self.frees[group].insert(0, block)
                self.on_freed(group, block)
                seq.freed[group] += 1

    def batch(self, items: list[tuple[Sequence, list[int], bool, int]], **fields) -> UnifiedBatch:
        """Items of (sequence, query tokens, is final, drafts); tables grow as needed."""
        starts, updates = [], []
        for seq, q_tokens, _, _ in items:
            if not seq.started:
                prompt = np.array(seq.tokens[: seq.num_prompt], np.int32)
                output = np.array(seq.tokens[seq.num_prompt :], np.int32)
                starts.append(SequenceStart(seq.seq_id, seq.slot, prompt, output, seq.sampling, **seq.extra))
                seq.started = True
                for group, blocks in enumerate([seq.blocks, *seq.others]):
                    if blocks:
                        begin = seq.begins[group]
                        updates.append((seq.slot, group, begin, blocks[begin:]))
            self.slide(seq)
            needed = -(-(seq.computed + len(q_tokens)) // self.block_size)
            for group, blocks in enumerate([seq.blocks, *seq.others]):
                if needed > len(blocks):
                    new = [self.frees[group].pop() for _ in range(needed - len(blocks))]
                    updates.append((seq.slot, group, len(blocks), new))
                    blocks += new
        tables = TableUpdates(
            np.array([u[0] for u in updates], np.int32), np.array([u[1] for u in updates], np.int32),
            np.array([u[2] for u in updates], np.int32), np.array([len(u[3]) for u in updates], np.int32),
            np.array([b for u in updates for b in u[3]], np.int32),
        )  # fmt: skip
        self.steps += 1
        values = {
            "epoch": self.epoch, "step_id": self.steps,
            "seq_ids": np.array([s.seq_id for s, *_ in items], np.int64),
            "slots": np.array([s.slot for s, *_ in items], np.int32),
            "num_q_tokens": np.array([len(q) for _, q, *_ in items], np.int32),
            "pos_offsets": np.array([s.computed for s, *_ in items], np.int32),
            "is_final_chunk": np.array([final for *_, final, _ in items], np.bool_),
            "num_draft_tokens": np.array([drafts for *_, drafts in items], np.int32),
            "token_ids": np.array([t for _, q, *_ in items for t in q], np.int32),
            "starts": tuple(starts), "tables": tables,
        }  # fmt: skip
        if items[0][0].state >= 0:
            targets = [seq.state for seq, *_ in items]
            values["state_src"] = np.array([seq.state if seq.computed else -1 for seq, *_ in items], np.int32)
            values["state_dst"] = np.array(targets, np.int32)
        return UnifiedBatch(**{**values, **fields})

    async def step(self, items: list[tuple[Sequence, list[int], bool, int]], **fields) -> UnifiedOutput:
        output = await self.executor.unified_decode(self.batch(items, **fields))
        for i, (seq, q_tokens, final, drafts) in enumerate(items):
            tokens = [t.token_id for t in output[i].tokens] if output[i] else []
            seq.computed += len(q_tokens) - (drafts - len(tokens) + 1 if drafts else 0)
            if final:
                seq.tokens += tokens
        return output

    async def generate(self, seqs: list[Sequence], n: int, chunk: int = 1000) -> list[list[int]]:
        """n tokens for each: every step grants each sequence at most `chunk` tokens, all in one batch."""
        goal = {seq.seq_id: len(seq.tokens) + n for seq in seqs}
        while live := [seq for seq in seqs if len(seq.tokens) < goal[seq.seq_id]]:
            items = []
            for seq in live:
                q_tokens = seq.tokens[seq.computed : seq.computed + chunk]
                items.append((seq, q_tokens, seq.computed + len(q_tokens) == len(seq.tokens), 0))
            await self.step(items)
        return [seq.tokens[goal[seq.seq_id] - n :] for seq in seqs]

    def release(self, seq: Sequence) -> None:
        self.executor.release_cache(seq.seq_id)
        for free, blocks, freed in zip(self.frees, [seq.blocks, *seq.others], seq.freed, strict=True):
            free += blocks[freed:]
        self.slots.append(seq.slot)
        if seq.state >= 0:
            self.states.append(seq.state)


async def logprobs_in_steps(
    executor: LlmExecutor, prompts: list[list[int]], cuts: list[list[int]], seed: int = 0
) -> list[np.ndarray]:
    """Log-probabilities of the whole vocabulary behind every token but the last, float32 [tokens - 1, V] of each prompt. Step k
    computes, in one batch, the k-th of each prompt's cuts: numbers of tokens, which together are the prompt."""
    driver = Driver(executor, seed)
    vocabulary = executor.info().vocab_size
    seqs = [driver.add(prompt, None, prompt_logprobs=vocabulary) for prompt in prompts]
    found: list[list[np.ndarray]] = [[] for _ in prompts]
    for step in range(max(map(len, cuts))):
        live = [i for i, one in enumerate(cuts) if step < len(one)]
        items = []
        for i in live:
            q_tokens = seqs[i].tokens[seqs[i].computed : seqs[i].computed + cuts[i][step]]
            items.append((seqs[i], q_tokens, step + 1 == len(cuts[i]), 0))
        output = await driver.step(items)
        for place, i in enumerate(live):
            for token in output[place].prompt_logprobs or ():
                row = np.zeros(vocabulary, np.float32)
                ids, values = zip(*token.top_logprobs, strict=True)
                row[list(ids)] = values
                found[i].append(row)
    for seq in seqs:
        driver.release(seq)
    return [np.array(rows) for rows in found]


async def start(path: Path, **changes) -> LlmExecutor:
    """A warmed executor in epoch 1."""
    executor = LlmExecutor.from_config(config(path, **changes))
    await executor.warmup()
    await executor.begin_epoch(1)
    return executor
