"""Prompts that cannot be cut: each is computed in one step, whatever the step's budget and whatever fails."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from engine.errors import InvalidRequest
from engine.mailbox import Mailbox
from engine.request import Request, RequestContext, TokenDelta
from engine.text.embedding import Embedder, EmbeddingRequest
from executors.contract import (
    ExecutorAttentionConfig,
    ExecutorCapabilities,
    ExecutorConfig,
    ModelInfo,
    UnifiedBatch,
)
from executors.testing.fakes.echo import EchoExecutor
from tests.engine.harness import GREEDY, engine

BUDGET = 32


class WholeTexts(EchoExecutor):
    """The echo fake as an encoder. Notes the lengths in each step; a part of a text fails the test."""

    def __init__(self, config: ExecutorConfig) -> None:
        super().__init__(config)
        self.steps_of: list[list[int]] = []

    def capabilities(self) -> ExecutorCapabilities:
        return replace(
            super().capabilities(), whole_prompts_only=True, max_batched_tokens=256, speculative=False
        )

    def info(self) -> ModelInfo:
        return replace(super().info(), generates=False, poolings=("cls", "last"))

    def _check(self, batch: UnifiedBatch) -> None:
        super()._check(batch)
        assert not batch.pos_offsets.any() and batch.is_final_chunk.all(), "a text was cut"
        self.steps_of.append(batch.num_q_tokens.tolist())


def made(seqs: int = 8, kind: type[WholeTexts] = WholeTexts, **options: str | float) -> WholeTexts:
    return kind(
        ExecutorConfig(
            "echo",
            max_num_seqs=seqs,
            max_model_len=256,
            attention=ExecutorAttentionConfig(block_size=4),
            options=options,
        )
    )


def text(length: int, pooling: str = "last") -> Request:
    ids = np.arange(1, length + 1, dtype=np.int32)
    return Request(RequestContext("test", 0.0), ids, GREEDY, max_tokens=1, pooling=pooling)


async def vectors(core, lengths: list[int]) -> list[TokenDelta]:
    boxes = [Mailbox() for _ in lengths]
    for length, box in zip(lengths, boxes, strict=True):
        core.submit(text(length), box)
    found = await asyncio.gather(*(box.take() for box in boxes))
    return [delta for deltas in found for delta in deltas.values()]


async def alone(length: int) -> np.ndarray:
    async with engine(made(), max_num_batched_tokens=256) as core:
        [delta] = await vectors(core, [length])
    assert delta.pooled is not None
    return delta.pooled


@pytest.mark.parametrize(
    ("lengths", "steps"),
    [
        (
            [40, 40, 40, 2],
            [[40, 2], [40], [40]],
        ),  # looks past those that are too long for the rest of the step
        ([30, 34, 2], [[30, 2], [34]]),  # 30 and 34 would fill the step: its end is for short ones
        (
            [50, 20, 12, 30],
            [[50], [20, 12], [30]],
        ),  # 12 would reach into the end of the first step, and 30 into that of the next
    ],
)
async def test_short_texts_do_not_wait_behind_long_ones(lengths: list[int], steps: list[list[int]]) -> None:
    executor = made()
    async with engine(executor, max_num_batched_tokens=64) as core:
        found = await vectors(core, lengths)
    assert [one.pooled is not None for one in found] == [True] * len(lengths)
    assert executor.steps_of == steps


async def test_steps_are_filled_with_whole_texts() -> None:
    executor = made()
    lengths = [5, 30, 2, 32, 31, 1, 16, 16, 100, 3]
    async with engine(executor, max_num_batched_tokens=BUDGET) as core:
        found = await vectors(core, lengths)
    for length, delta in zip(lengths, found, strict=True):
        np.testing.assert_array_equal(delta.pooled, await alone(length))
    assert sorted(one for step in executor.steps_of for one in step) == sorted(lengths)
    for step in executor.steps_of:
        # A text that is longer than the budget has a step to itself: it could never be computed otherwise.
        assert sum(step) <= BUDGET or len(step) == 1
    assert any(len(step) > 1 for step in executor.steps_of)


@pytest.mark.parametrize("failure", ["step_failed@step=2*2", "out_of_memory@above=8*3", "die@step=2"])
async def test_texts_are_whole_again_after_a_failure(failure: str) -> None:
    executor = made(fail=failure)
    lengths = [20, 100, 12, 31, 90]
    async with engine(executor, max_num_batched_tokens=BUDGET) as core:
        found = await vectors(core, lengths)
    for length, delta in zip(lengths, found, strict=True):
        assert delta.error is None
        np.testing.assert_array_equal(delta.pooled, await alone(length))


async def test_a_pooling_that_the_model_lacks_is_refused() -> None:
    async with engine(made()) as core:
        with pytest.raises(InvalidRequest, match="no pooling 'mean'"):
            core.submit(text(3, "mean"), Mailbox())


# -- pairs of texts ------------------------------------------------------------------------------------------------------

PAIRS = ((20, 3), (20, None), (20, 12), (31, 30), (5, 1))
"""Length of a prompt, and where its second text begins."""


class Types(WholeTexts):
    """The fake with two types of tokens: where a second text begins changes the vector."""

    def __init__(self, config: ExecutorConfig) -> None:
        super().__init__(replace(config, options=config.options | {"token_types": 2}))


def request(length: int, segment: int | None) -> Request:
    return replace(text(length), second_segment=segment)


async def pair_vectors(executor: WholeTexts, pairs: tuple[tuple[int, int | None], ...]) -> list[np.ndarray]:
    async with engine(executor, max_num_batched_tokens=BUDGET) as core:
        calls = tuple(tuple(range(1, length + 1)) for length, _ in pairs)
        context = RequestContext("test", 0.0)
        segments = tuple(segment for _, segment in pairs)
        return await Embedder(core, EmbeddingRequest(context, calls, "last", second_segments=segments)).run()


@pytest.mark.parametrize("failure", ["", "step_failed@step=2*2", "die@step=1", "die@step=2"])
async def test_a_second_text_begins_where_it_did_after_a_failure(failure: str) -> None:
    """Also where the executor has died: its next life is told again."""
    found = await pair_vectors(made(kind=Types, fail=failure), PAIRS)
    for pair, vector in zip(PAIRS, found, strict=True):
        [alone_] = await pair_vectors(made(kind=Types), (pair,))
        np.testing.assert_array_equal(vector, alone_)
    assert len({vector.tobytes() for vector in found}) == len(PAIRS), "each pair has a vector of its own"


async def test_a_second_text_is_refused_where_it_would_be_ignored() -> None:
    async with engine(made()) as core:
        with pytest.raises(InvalidRequest, match="does not tell the second text"):
            core.submit(request(5, 2), Mailbox())
    async with engine(made(kind=Types)) as core:
        for segment in (0, 5, -1):
            with pytest.raises(InvalidRequest, match="a second text begins at"):
                core.submit(request(5, segment), Mailbox())
