"""States that outlive the executor: what a hybrid computes again after a death, and what is dropped with a damaged snapshot."""

from __future__ import annotations

import logging
from collections.abc import Iterable

import pytest

from engine.kv import cache_points
from executors.contract import ExecutorDied, Int32Array, SealedBlocks
from executors.testing.fakes.failures import Failure
from executors.testing.fakes.state import StateFakeExecutor
from tests.engine.harness import engine, fake, request, run
from tests.engine.test_adoption import DEATH_STEP, Record, streams

PROMPT = [7 * i % 50 for i in range(41)]
OTHER = [3 * i % 47 for i in range(38)]
INTERVAL = 8


def outliving(**options: str | int | float | bool) -> StateFakeExecutor:
    """A fake whose blocks of 4 tokens and slots of states outlive its process."""
    made = fake("state_fake", **{"fingerprint": "a", "state_interval": INTERVAL, **options})
    assert isinstance(made, StateFakeExecutor)
    return made


def scribble(made: StateFakeExecutor, which: Iterable[int]) -> None:
    """From now on the next life finds a flipped bit in these of the snapshots that it is offered, by their order."""
    begin = made.begin_epoch

    async def begin_epoch(epoch: int, adopt: SealedBlocks | None = None) -> Int32Array:
        if adopt is not None:
            slots = adopt.blocks[adopt.groups == 1]
            made.scribble(1, [int(slots[i]) for i in which])
        return await begin(epoch, adopt)

    made.begin_epoch = begin_epoch  # type: ignore[method-assign]


@pytest.mark.parametrize("prefix_caching", [True, False])
async def test_a_stream_goes_on_behind_its_last_snapshot(prefix_caching: bool) -> None:
    made = outliving()
    made.failures.append(Failure("die", step=DEATH_STEP))
    seen = Record(made)
    async with engine(made, prefix_caching=prefix_caching) as core:
        await streams(core, [PROMPT, OTHER])
        assert core.stats().epoch == 2
        states = core._scheduler.kv.states  # type: ignore[union-attr]
        assert states is not None and states.num_used == 0
        assert bool(states.num_snapshots) is prefix_caching
    offered = seen.offered[1]
    assert offered is not None and (offered.groups == 1).sum() == 2
    # The snapshots lie at 40 of 41 tokens and 32 of 38; four or five of output were committed.
    assert 0 < seen.tokens[2] <= (1 + 5) + (6 + 5)


async def test_a_long_output_goes_on_behind_a_rolling_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_points, "ROLLING", 8)
    made = outliving()
    made.failures.append(Failure("die", step=60))
    seen = Record(made)
    async with engine(made) as core:
        await streams(core, [PROMPT], 90)
    # 59 steps have given as many tokens.
    assert seen.tokens[2] <= 8 + 2
    offered = seen.offered[1]
    assert offered is not None and (offered.groups == 1).sum() == 3  # the prompt's, and two rolling ones


@pytest.mark.parametrize(("damaged", "most"), [((2,), 2 * 8 + 2), ((1, 2), 8 * 8), ((0, 1, 2), 41 + 60)])
async def test_a_damaged_snapshot_costs_no_more_than_the_way_from_the_one_before(
    damaged: tuple[int, ...], most: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cache_points, "ROLLING", 8)
    made = outliving()
    made.failures.append(Failure("die", step=60))
    seen = Record(made)
    async with engine(made) as core:
        by_depth: list[int] = []
        begin = made.begin_epoch

        async def begin_epoch(epoch: int, adopt: SealedBlocks | None = None) -> Int32Array:
            states = core._scheduler.kv.states  # type: ignore[union-attr]
            if adopt is not None:
                assert states is not None
                by_depth.extend(states._slot_of.values())  # in the order in which they were taken
                made.scribble(1, [by_depth[i] for i in damaged])
            return await begin(epoch, adopt)

        made.begin_epoch = begin_epoch  # type: ignore[method-assign]
        caplog.set_level(logging.WARNING, "cohort.engine")
        await streams(core, [PROMPT], 90)
    before = 0 if not damaged or 1 not in damaged else 8
    assert before < seen.tokens[2] <= most
    assert f"{3 - len(damaged)} of 3 snapshots of states kept, {len(damaged)} damaged" in caplog.text


async def test_a_prefix_of_a_request_that_has_ended_is_kept() -> None:
    made = outliving()
    async with engine(made) as core:
        await streams(core, [PROMPT])
        core._inbox.report_death(ExecutorDied("of itself", "exit"))
        await streams(core, [PROMPT])
        assert core.stats().epoch == 2 and core.stats().prefix_hits == 40


async def test_the_story_says_that_the_snapshot_was_missing() -> None:
    """Blocks of a request that has ended outlive it, the snapshot was damaged: the next call tells what it lacked."""
    made = outliving()
    scribble(made, (0,))
    async with engine(made) as core:
        await streams(core, [PROMPT])
        core._inbox.report_death(ExecutorDied("of itself", "exit"))
        call = request(PROMPT, 4)
        await run(core, call)
        prefix = call.context.story.prefix
    assert prefix is not None
    assert (prefix.matched_tokens, prefix.missed, prefix.evicted_tokens, prefix.evicted_by) == (
        0, "evicted", 40, "state",
    )  # fmt: skip


async def test_another_fingerprint_adopts_no_snapshot(caplog: pytest.LogCaptureFixture) -> None:
    made = outliving()
    made.failures.append(Failure("die", step=DEATH_STEP))
    seen, begin, lives = Record(made), made.begin_epoch, iter("ab")

    async def begin_epoch(epoch: int, adopt: SealedBlocks | None = None) -> Int32Array:
        made.fingerprint = next(lives)
        return await begin(epoch, adopt)

    made.begin_epoch = begin_epoch  # type: ignore[method-assign]
    caplog.set_level(logging.WARNING, "cohort.engine")
    async with engine(made) as core:
        await streams(core, [PROMPT])
    assert seen.adopted == [[], []] and seen.tokens[2] >= len(PROMPT)
    assert "0 of 1 snapshots of states kept, 0 damaged" in caplog.text


@pytest.mark.parametrize(
    ("damaged", "expected"), [((), {"tokens": 40}), ((0,), {"tokens": 0, "stateless_tokens": 44})]
)
async def test_the_story_of_a_stream_says_how_much_lacked_a_snapshot(
    damaged: tuple[int, ...], expected: dict[str, int]
) -> None:
    made = outliving()
    made.failures.append(Failure("die", step=DEATH_STEP))
    scribble(made, damaged)
    async with engine(made) as core:
        call = request(PROMPT, 12)
        await run(core, call)
    [adopted] = [dict(event.details) for event in call.context.story.events if event.name == "kv_adopted"]
    assert adopted == expected
