"""Random steps with drafts, made beforehand: the texts are known, so it is known which drafts are right.

A text is what the host samples without drafts. Tokens of a position depend on the text before it and on seed and position alone,
so with any drafts the same text must come.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from executors.contract.batch import SamplingParams, UnifiedBatch
from executors.llm.executor import LlmExecutor
from tests.executors.llm.driver import Driver, Sequence
from tests.gpu.workloads import Op

VOCABULARY = 200
LENGTH = 16
"""Tokens of a text."""


@dataclass
class Text:
    """What a sequence is given, and the `tokens` that the host samples for it, one a step."""

    prompt: list[int]
    settings: SamplingParams
    extra: dict[str, Any] = field(default_factory=dict)
    tokens: list[int] = field(default_factory=list)


async def texts_of(
    executor: LlmExecutor, seed: int, settings: tuple[SamplingParams, ...], grammars: tuple[str | None, ...] = (None,),
) -> list[Text]:  # fmt: skip
    """Texts with these settings in turn, each with one of the `grammars`, sampled without drafts."""
    rng, driver = random.Random(seed), Driver(executor, seed)
    made = []
    for number in range(12):
        prompt = [rng.randrange(VOCABULARY) for _ in range(rng.choice((1, 2, 5, 17)))]
        grammar = rng.choice(grammars)
        one = Text(prompt, settings[number % len(settings)], {} if grammar is None else {"grammar": grammar})
        seq = driver.add(prompt, one.settings, **one.extra)
        inputs = prompt
        for _ in range(LENGTH):
            output = await driver.step([(seq, inputs, True, 0)])
            assert len(output.token_ids) == 1, output.details
            one.tokens += output.token_ids.tolist()
            inputs = one.tokens[-1:]
        executor.release_cache(seq.seq_id)
        driver.slots.append(seq.slot)
        made.append(one)
    return made


def guess(rng: random.Random, following: list[int], most: int) -> list[int]:
    """Up to `most` drafts of what follows: right, wrong, right up to one place, or right but for one."""
    right = following[: rng.randint(0, min(most, len(following)))]
    kind = rng.choice(("right", "right", "wrong", "from a place on", "at one place"))
    if not right or kind == "right":
        return right
    place = 0 if kind == "wrong" else rng.randrange(len(right))
    changed = len(right) if kind == "from a place on" else place + 1
    return [
        (token + rng.randrange(1, VOCABULARY)) % VOCABULARY if place <= i < changed else token
        for i, token in enumerate(right)
    ]


class DraftMaker:
    """Makes steps against the layout of an executor, which it does not touch. `heard`: what each sequence must hear;
    `accepted` and `refused`: drafts."""

    def __init__(self, executor: LlmExecutor, seed: int, texts: list[Text], most: int = 4) -> None:
        self._driver = Driver(executor, seed)
        self._rng = random.Random(seed)
        self._texts = list(texts)
        self._most = most
        self._live: list[tuple[Sequence, Text]] = []
        self._resting: list[Sequence] = []
        """Sequences whose drafts the step before verifies: what it gives is not known yet."""
        self.heard: dict[int, list[int]] = {}
        self.accepted = self.refused = 0

    def _join(self) -> None:
        text = self._texts.pop()
        seq = self._driver.add(text.prompt, text.settings, **text.extra)
        self._live.append((seq, text))
        self.heard[seq.seq_id] = []

    def _item(self, seq: Sequence, text: Text) -> tuple[list[int], list[bool], bool, int, int]:
        """Inputs, which are pending, whether the item is final, its drafts, and how many inputs count."""
        left = seq.num_prompt - seq.computed
        if left > 0:
            taken = min(left, self._rng.choice((1, 3, 8, 40)))
            return seq.tokens[seq.computed : seq.computed + taken], [False] * taken, taken == left, 0, taken
        done = len(self.heard[seq.seq_id])
        if self._rng.random() < 0.3:
            return [-1], [True], True, 0, 1
        following = text.tokens[done : LENGTH - 1]
        drafts = guess(self._rng, following, self._most)
        right = next((i for i, token in enumerate(drafts) if token != following[i]), len(drafts))
        self.accepted += right
        self.refused += len(drafts) - right
        inputs = [text.tokens[done - 1], *drafts]
        return inputs, [False] * len(inputs), True, len(drafts), 1 + right

    def _step(self, most: int) -> UnifiedBatch | None:
        able = [one for one in self._live if one[0] not in self._resting]
        self._resting = []
        if not able:
            return None
        chosen = self._rng.sample(able, self._rng.randint(1, min(most, len(able))))
        items, pending, counts = [], [], []
        for seq, text in chosen:
            inputs, which, final, drafts, counting = self._item(seq, text)
            items.append((seq, inputs, final, drafts))
            pending += which
            counts.append(counting)
        batch = self._driver.batch(items, pending=np.array(pending, np.bool_) if any(pending) else None)
        for (seq, text), (_, inputs, final, drafts), counting in zip(chosen, items, counts, strict=True):
            seq.computed += counting
            if drafts:
                self._resting.append(seq)
            if final:
                heard = self.heard[seq.seq_id]
                heard += text.tokens[len(heard) : len(heard) + counting - (len(inputs) - 1 - drafts)]
        return batch

    def make(self, most: int = 8) -> list[Op]:
        """Steps of at most `most` items until all texts are told, with releases between them."""
        made: list[Op] = []
        while self._texts or self._live:
            while self._texts and len(self._live) < most and self._rng.random() < 0.6:
                self._join()
            if (batch := self._step(most)) is not None:
                made.append(batch)
            for one in list(self._live):
                seq = one[0]
                if len(self.heard[seq.seq_id]) >= LENGTH - 1 and seq not in self._resting:
                    self._live.remove(one)
                    made.append(seq.seq_id)
                    self._driver.free += seq.blocks
                    self._driver.slots.append(seq.slot)
        return made
