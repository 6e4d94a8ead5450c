"""Random steps of a small server, made beforehand: whoever plays them must hear the same tokens.

Sampled tokens are never told: the inputs of decode steps are pending, as an engine with two steps out leaves them.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict, deque
from typing import Any

import numpy as np

from executors.contract import ModelExecutor
from executors.contract.batch import SamplingParams, UnifiedBatch, UnifiedOutput
from tests.executors.checkpoints import QWEN3
from tests.executors.llm.driver import GREEDY, Driver, Sequence

SMALL = {
    **QWEN3,
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "tie_word_embeddings": False,
}
"""A model that interpreted kernels compute in no time. Its greedy texts do not repeat one token: one in a wrong place is seen."""
Op = UnifiedBatch | int
"""A step, or the id of a sequence to release."""
PLAIN = (
    GREEDY,
    SamplingParams(temperature=0.75, seed=11),
    SamplingParams(temperature=1.25, top_k=9, seed=2**63 + 5),
    SamplingParams(temperature=0.5, top_p=0.75, seed=3, choice=2),
    SamplingParams(temperature=1.5, min_p=0.125, top_k=30, top_p=0.9375, seed=4),
)
SHAPED = (
    SamplingParams(temperature=0.75, seed=6, repetition_penalty=1.3, presence_penalty=0.5),
    SamplingParams(temperature=0.0, frequency_penalty=1.5, repetition_penalty=0.5),
    SamplingParams(
        temperature=1.0, seed=8, allowed_token_ids=tuple(range(0, 200, 7)), frequency_penalty=-0.5
    ),
    SamplingParams(
        temperature=1.5, top_k=20, seed=9, logit_bias=((5, 4.0), (77, -3.0)), bad_words=((60,), (61,))
    ),
    SamplingParams(temperature=0.5, top_p=0.9, seed=10, min_tokens=4, stop_token_ids=tuple(range(0, 200, 2))),
)
"""Penalties, biases and bans: the device's own, too."""
HOSTED = (
    SamplingParams(temperature=0.75, seed=5, logprobs=2),
    SamplingParams(temperature=0.75, seed=6, repetition_penalty=1.3, bad_words=((1, 2), (3,))),
    SamplingParams(temperature=0.75, seed=7, typical_p=0.5),
)
"""Settings that need the host between forward and sampling."""


class Maker:
    """Makes operations against the layout of an executor, which it does not touch."""

    def __init__(self, executor: Any, seed: int, settings: tuple[SamplingParams, ...]) -> None:
        self._driver = Driver(executor, seed)
        self._rng = random.Random(seed)
        self._settings = settings
        self._live: list[tuple[Sequence, int]] = []

    def _join(self) -> None:
        rng = self._rng
        prompt = [rng.randrange(211) for _ in range(rng.choice((1, 2, 5, 17, 30)))]
        seq = self._driver.add(prompt, rng.choice(self._settings))
        self._live.append((seq, rng.randrange(2, 9)))

    def _step(self, most: int) -> UnifiedBatch:
        rng, items, pending = self._rng, [], []
        chosen = rng.sample(self._live, rng.randint(1, min(most, len(self._live))))
        for seq, _ in chosen:
            left = seq.num_prompt - seq.computed
            if left > 0:
                taken = min(left, rng.choice((1, 3, 8, 40)))
                tokens = seq.tokens[seq.computed : seq.computed + taken]
                items.append((seq, tokens, taken == left, 0))
                pending += [False] * taken
            else:
                items.append((seq, [-1], True, 0))
                pending.append(True)
        batch = self._driver.batch(items, pending=np.array(pending, np.bool_))
        for seq, tokens, _, _ in items:
            seq.computed += len(tokens)
        return batch

    def make(self, steps: int, most: int = 10) -> list[Op]:
        """So many steps of at most `most` items, with releases between them."""
        made: list[Op] = []
        while len(made) < steps:
            while len(self._live) < most and self._rng.random() < 0.6:
                self._join()
            if self._live:
                made.append(self._step(most))
            for one in list(self._live):
                seq, wanted = one
                if seq.computed >= seq.num_prompt + wanted:
                    self._live.remove(one)
                    made.append(seq.seq_id)
                    self._driver.free += seq.blocks
                    self._driver.slots.append(seq.slot)
        return made


async def play(executor: ModelExecutor, ops: list[Op], out: int = 1) -> dict[int, list[Any]]:
    """What each sequence hears, with up to `out` steps submitted before the first is answered."""
    heard: dict[int, list[Any]] = defaultdict(list)
    flights: deque[tuple[UnifiedBatch, asyncio.Task[UnifiedOutput]]] = deque()

    async def land() -> None:
        batch, task = flights.popleft()
        for seq_id, item in zip(batch.seq_ids.tolist(), await task, strict=True):
            if item is not None:
                heard[seq_id] += [(t.token_id, t.logprob) for t in item.tokens] or [item.error]

    for op in ops:
        if isinstance(op, int):
            while any(op in batch.seq_ids for batch, _ in flights):
                await land()
            executor.release_cache(op)
            continue
        flights.append((op, asyncio.create_task(executor.unified_decode(op))))
        await asyncio.sleep(0)
        while len(flights) >= out:
            await land()
    while flights:
        await land()
    return dict(heard)
