"""A walk of sequences through a model whose windows have blocks of their own: what it gives has to be what one group gives."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pytest
import torch

from executors.contract.batch import SamplingParams, UnifiedOutput
from executors.llm.executor import LlmExecutor
from executors.llm.memory import kv_sizes
from executors.llm.memory.paged_kv import PagedKv
from tests.executors.llm.driver import Driver, Sequence

ASKED = SamplingParams(temperature=0.0, logprobs=2)
Found = list[tuple[str, Any]]


def one_group() -> AbstractContextManager[pytest.MonkeyPatch]:
    """Within it every model has one group of blocks, as if no layer had a window."""
    patch = pytest.MonkeyPatch()
    patch.setattr(kv_sizes, "group_windows", lambda *_: (None,))
    return _Undone(patch)


class _Undone:
    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch

    def __enter__(self) -> pytest.MonkeyPatch:
        return self._patch

    def __exit__(self, *_: object) -> None:
        self._patch.undo()


def nothing(kv: torch.Tensor, blocks: Any) -> None:
    """Fill blocks with what is not a number."""
    if kv.dtype in (torch.int8, torch.float8_e4m3fn):
        kv.view(torch.uint8)[:, blocks] = 0xFF if kv.dtype is torch.int8 else 0x7F
    else:
        kv[:, blocks] = torch.nan


class Walk:
    """Prompts longer than several windows in chunks, decodes beside them, a fork in the middle of a block, a hit, a preemption,
    drafts, prompt logprobs. Blocks hold no numbers until they are written, and once windows have passed them."""

    def __init__(self, executor: LlmExecutor, vocabulary: int = 200) -> None:
        assert executor._runtime is not None
        self.kv: PagedKv = executor._runtime.runner.cache
        self.driver = Driver(executor, seed=3)
        self.driver.on_freed = self._freed  # type: ignore[method-assign]
        self.freed = 0
        self.found: Found = []
        self._vocabulary = vocabulary
        for layer in self.kv.layers:
            nothing(layer, slice(None))

    def _freed(self, group: int, block: int) -> None:
        self.freed += 1
        for layer in self.kv.of_group(group).layers:
            nothing(layer, block)

    def add(self, length: int, seed: int, **extra: Any) -> Sequence:
        ids = np.random.default_rng(seed).integers(0, self._vocabulary, length)
        return self.driver.add(ids.tolist(), ASKED, **extra)

    async def step(self, *grants: tuple[Sequence, int]) -> UnifiedOutput:
        """Each sequence computes so many of its tokens."""
        items = []
        for seq, count in grants:
            tokens = seq.tokens[seq.computed : seq.computed + count]
            items.append((seq, tokens, seq.computed + len(tokens) == len(seq.tokens), 0))
        output = await self.driver.step(items)
        for i in range(len(items)):
            if output[i] is not None:
                assert output[i].error is None, (output[i].error, self.driver.steps, i)
                self.found.append((f"{len(self.found)}", (output[i].tokens, output[i].prompt_logprobs)))
        return output

    async def take(self) -> Found:
        """Returns all that was sampled."""
        first, second, other = self.add(120, 1), self.add(9, 2), self.add(120, 5)
        for _ in range(7):
            await self.step((first, 17), (second, 1000), (other, 16))
        # A fork within a block of each group, and a hit at the end of a block.
        size = self.driver.block_size
        assert first.computed == 119 and other.computed == 112 and other.computed % size == 0
        fork, hit = self._sharing(first), self._sharing(other)
        third = self.add(70, 4, prompt_logprobs=1)
        copies = [
            (group, old[119 // size], new[119 // size])
            for group, (old, new) in enumerate(zip(tables(first), tables(fork), strict=True))
        ]
        await self._step_with(copies, [(fork, 1000), (hit, 1000), (third, 33), (second, 1)])
        for _ in range(12):
            await self.step((fork, 1), (third, 30), (hit, 1), (second, 1))
        # Preempted: from the beginning, with what it has said, into other blocks and the same slot.
        tokens, slot = third.tokens, third.slot
        self.driver.release(third)
        self.driver.slots.remove(slot)
        self.driver.slots.append(slot)
        again = self.driver.add(tokens, ASKED)
        assert again.slot == slot
        while again.computed < len(tokens):
            await self.step((again, 31), (fork, 1))
        # Drafts of which some are wrong.
        await self._drafted(fork)
        for _ in range(25):
            await self.step((again, 1), (fork, 1), (hit, 1))
        return self.found

    def _sharing(self, other: Sequence) -> Sequence:
        """A sequence with the tokens and blocks of another, which is not computed further."""
        size, computed = self.driver.block_size, other.computed
        seq = self.driver.add(other.tokens, ASKED)
        seq.computed, whole = computed, computed // size
        for group, (mine, theirs) in enumerate(zip(tables(seq), tables(other), strict=True)):
            mine += theirs[:whole] + ([self.driver.frees[group].pop()] if computed % size else [])
            seq.freed[group] = whole  # those that are shared stay with the other
            seq.begins[group] = other.freed[group]
        return seq

    async def _step_with(
        self, copies: list[tuple[int, int, int]], grants: list[tuple[Sequence, int]]
    ) -> None:
        made = self.driver.batch

        def batch(items: Any, **fields: Any) -> Any:
            return made(items, **fields, block_copies=np.array(copies, np.int32))

        self.driver.batch = batch  # type: ignore[method-assign]
        await self.step(*grants)
        self.driver.batch = made  # type: ignore[method-assign]

    async def _drafted(self, seq: Sequence) -> None:
        drafts = [seq.tokens[-1], 3, 3]
        output = await self.driver.step([(seq, [seq.tokens[-1], *drafts], True, 3)])
        self.found.append(("drafts", output[0].tokens))


def tables(seq: Sequence) -> list[list[int]]:
    return [seq.blocks, *seq.others]
