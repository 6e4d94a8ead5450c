"""What `recovery` says of streams whose executor was killed, and what it must not let pass."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.gpu import recovery as check
from benchmarks.gpu import shapes
from benchmarks.gpu.engine import random_prompts
from benchmarks.gpu.part import Failed, Options
from benchmarks.gpu.recovery import AFTER, Load
from benchmarks.gpu.serving import Setup, engine
from benchmarks.gpu.stages import (
    NEEDED,
    NEEDED_AT_FIRST,
    NEEDED_ON_DEVICE,
    Recovery,
    StageLog,
    check_stages,
    recovery_seconds,
    start_seconds,
)
from engine.interruptions import Outage
from engine.mailbox import Mailbox
from engine.request import TokenDelta
from engine.sequence import Sequence
from tests.benchmarks import mortal

OUTAGE = Outage(1, 10.0, *check.CAUSES, 15.0)
LOAD = Load(random_prompts(3, 9, 0, shapes.TINY), 150, (5, 40))


@pytest.fixture(autouse=True)
def unmeasured_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("executors.llm.runtime.measure_pace", lambda *_: None)
    monkeypatch.setattr(mortal.Mortal, "dying", False)


# -- seconds by stage ------------------------------------------------------------------------------------------------------


def test_stages_add_up_to_the_whole() -> None:
    now = 0.0
    log = StageLog(lambda: now)
    for at, stage in (
        (2.0, "starting"), (2.5, "importing"), (5.0, "weights"), (5.5, "weights"), (7.0, "kernels"),
        (7.5, "CUDA graph for 1 sequences"), (8.0, "CUDA graph for 2 sequences"), (8.25, "kernels"),
    ):  # fmt: skip
        now = at
        log.report(stage, 0, 0)
    seconds = start_seconds(log.entries, 1.0, 9.0)
    assert seconds == {
        "before the process": 1.0, "starting": 0.5, "importing": 2.5, "weights": 2.0, "kernels": 0.5 + 0.75, "graphs": 0.75,
    }  # fmt: skip
    assert sum(seconds.values()) == 8.0
    assert log.between(2.1, 7.0) == [(2.5, "importing"), (5.0, "weights"), (7.0, "kernels")]


def test_a_recovery_is_told_from_the_kill_to_the_last_stream() -> None:
    entries = [(11.0, "starting"), (14.0, "warmup")]
    seconds = recovery_seconds(entries, Recovery(9.5, 10.0, 15.0, 15.5, 17.0))
    assert seconds == {
        "death noticed": 0.5, "before the process": 1.0, "starting": 3.0, "warmup": 1.0, "first token": 0.5, "all streams": 1.5,
    }  # fmt: skip
    for wrong in (
        Recovery(10.5, 10.0, 15.0, 15.5, 17.0), Recovery(9.5, 12.0, 15.0, 15.5, 17.0), Recovery(9.5, 10.0, 13.0, 15.5, 17.0),
        Recovery(9.5, 10.0, 15.0, 14.5, 17.0), Recovery(9.5, 10.0, 15.0, 15.5, 15.0),
    ):  # fmt: skip
        with pytest.raises(Failed, match="out of order"):
            recovery_seconds(entries, wrong)


@pytest.mark.parametrize("missing", [*NEEDED, *NEEDED_AT_FIRST, *NEEDED_ON_DEVICE])
def test_a_stage_that_is_missing_is_named(missing: str) -> None:
    stages = {*NEEDED, *NEEDED_AT_FIRST, *NEEDED_ON_DEVICE}
    check_stages(stages, on_device=True)
    with pytest.raises(Failed, match=f"did not report {missing}$"):
        check_stages(stages - {missing}, on_device=True)
    if missing in NEEDED_ON_DEVICE:
        check_stages(stages - {missing}, on_device=False)
    if missing in NEEDED_AT_FIRST:
        check_stages(stages - {missing}, on_device=False, first=False)


def test_each_start_on_a_device_is_tried_out_and_the_first_one_measured() -> None:
    stages = {*NEEDED, *NEEDED_AT_FIRST, *NEEDED_ON_DEVICE}
    check_stages(stages - {"measuring the pace"}, on_device=True, first=False)
    with pytest.raises(Failed, match=r"did not report warmup$"):
        check_stages(stages - {"warmup"}, on_device=True, first=False)


# -- pauses ----------------------------------------------------------------------------------------------------------------


def test_a_pause_lies_between_the_tokens_around_an_outage() -> None:
    """Not from the kill, nor to the next life's readiness. Longer gaps elsewhere are no pauses."""
    times = [[1.0, 8.0, 9.5, 15.5, 16.0], [9.0, 15.25, 30.0]]
    assert check.pauses_of(times, OUTAGE) == [6.0, 6.25]
    assert check.moments_of(times, 9.75, OUTAGE) == Recovery(9.75, 10.0, 15.0, 15.25, 15.5)
    # Delivered before the death, and read a little later.
    assert check.pauses_of([[9.0, 10.2, 15.5]], OUTAGE) == [pytest.approx(5.3)]


@pytest.mark.parametrize(
    ("times", "words"),
    [
        ([[9.0, 12.0, 15.5]], "stream 0 was given a token while no executor lived"),
        ([[9.0, 16.0], [9.0, 9.5]], "stream 1 has no token after an outage"),
        ([[16.0, 17.0]], "stream 0 has no token before an outage"),
    ],
)
def test_a_stream_that_cannot_have_paused_is_no_measurement(times: list[list[float]], words: str) -> None:
    with pytest.raises(Failed, match=words):
        check.pauses_of(times, OUTAGE)


@pytest.mark.parametrize(
    "outages",
    [
        [OUTAGE], [OUTAGE, OUTAGE, OUTAGE], [OUTAGE, Outage(2, 20.0, *check.CAUSES)],
        [OUTAGE, Outage(2, 20.0, "out_of_memory", 21.0)],
    ],
    ids=["one", "three", "one that has not ended", "another cause"],
)  # fmt: skip
def test_each_kill_is_one_outage(outages: list[Outage]) -> None:
    assert check.outages_of([OUTAGE, OUTAGE], 2, check.CAUSES) == [OUTAGE, OUTAGE]
    with pytest.raises(Failed, match="2 kills, and the engine knows of"):
        check.outages_of(outages, 2, check.CAUSES)


# -- tokens ----------------------------------------------------------------------------------------------------------------


def test_draws_are_looked_at_after_each_kill_and_before_the_next() -> None:
    times = [0.0, 1.0, 2.0, 10.0, 11.0, 12.0, 20.0, 21.0]
    assert check.places_after(times, [5.0, 15.0]) == [[3, 4, 5], [6, 7]]
    assert check.places_after(list(map(float, range(100))), [9.5]) == [[10 + more for more in AFTER]]


@pytest.mark.parametrize(
    ("draws", "exact", "good"),
    [
        ([True] * 8, True, True), ([True] * 7 + [False], True, False), ([True] + [False] * 3 + [True] * 4, False, True),
        ([True, False] * 4, False, True), ([True] + [False] * 7, False, False), ([True] * 4 + [False] * 4, False, False),
        ([False] * 4 + [True] * 4, False, False), ([False] * 2, False, False), ([], False, False),
    ],
)  # fmt: skip
def test_draws_after_each_kill_must_not_disagree_in_a_row(draws: list[bool], exact: bool, good: bool) -> None:
    """A lost token changes all draws behind it, after its own kill; rounding changes one here and there."""
    agree = {(0, 0): [True] * 8, (0, 1): draws}
    if good:
        check.check_draws(agree, exact)
    else:
        with pytest.raises(Failed, match=r"stream 0 .* kill 1"):
            check.check_draws(agree, exact)


def test_streams_are_compared_to_the_last_token() -> None:
    check.check_same([[1, 2], [3, 4]], [[1, 2], [3, 4]])
    with pytest.raises(Failed, match="stream 1 differs from the undisturbed run from token 1 on"):
        check.check_same([[1, 2], [3, 4]], [[1, 2], [3, 5]])
    with pytest.raises(Failed, match="1 streams have not 2 tokens: number 1 has 3"):
        check.check_complete([[1, 2], [3, 4, 4]], 2)


# -- the whole, on executors that die in this process ------------------------------------------------------------------------


async def recovered(
    monkeypatch: pytest.MonkeyPatch, exact: bool, factory: type[Any] = mortal.MortalFactory
) -> dict[str, Any]:
    """An executor on a thread is revived, not started: it reports no stages."""
    monkeypatch.setattr(check, "check_stages", lambda seconds, on_device, first: None)
    setup = Setup(
        shapes.TINY, max_num_seqs=8, max_model_len=192, prefix_caching=False, executor=mortal.name(factory), deaths=2
    )  # fmt: skip
    found: dict[str, Any] = {}
    async with engine(Options("cpu", tiny=True, mode="inline"), setup) as core:
        await check.recovery(
            core,
            found.update,
            StageLog(),
            LOAD,
            exact,
            on_device=False,
            kill=mortal.Mortal.kill,
            causes=(mortal.CAUSE,),
        )
    return found


async def test_streams_go_on_after_two_deaths(monkeypatch: pytest.MonkeyPatch) -> None:
    found = await recovered(monkeypatch, exact=True)
    assert (found["streams"], found["kills"], found["same_as_undisturbed"]) == (3, 2, 3)
    assert found["drawn_again"] == found["drawn_the_same"] >= 3 * len(AFTER)
    assert 0 < min(found["pause_seconds_by_kill"]) <= found["pause_seconds"] < 30
    for seconds, pause in zip(
        found["recovery_seconds_by_stage"], found["pause_seconds_by_kill"], strict=True
    ):
        assert math.isclose(sum(seconds.values()), pause, abs_tol=1.0)


@pytest.mark.parametrize("exact", [True, False])
async def test_other_weights_in_the_next_life_are_seen(exact: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    words = "differs from the undisturbed run" if exact else "is not the text that its seed draws"
    with pytest.raises(Failed, match=words):
        await recovered(monkeypatch, exact, mortal.OtherWeightsFactory)


Put = Callable[[Mailbox, int, TokenDelta], None]


def _doubles(put: Put, seen: dict[str, Any]) -> Put:
    """Stream 1's first token after each death comes twice, and its last one never: as many come as were asked for."""

    def changed(self: Mailbox, key: int, delta: TokenDelta) -> None:
        if key == 1 and seen["lost"] and delta.tokens and not seen["doubled"]:
            delta.tokens.insert(0, delta.tokens[0])
            seen["doubled"] = True
        elif key == 1 and seen["doubled"] and delta.finish_reason is not None:
            delta.tokens.pop()
            seen["lost"] = seen["doubled"] = False
        put(self, key, delta)

    return changed


def _loses(put: Put, seen: dict[str, Any]) -> Put:
    """Stream 1's first token after a death never comes, and its last one twice."""

    def changed(self: Mailbox, key: int, delta: TokenDelta) -> None:
        if (
            key == 1
            and seen["lost"]
            and len(delta.tokens) == 1
            and not seen["doubled"]
            and delta.finish_reason is None
        ):
            seen["doubled"] = True
            return
        if key == 1 and seen["doubled"] and delta.finish_reason is not None:
            delta.tokens.append(delta.tokens[-1])
            seen["lost"] = seen["doubled"] = False
        put(self, key, delta)

    return changed


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("mutant", [_doubles, _loses])
async def test_a_token_that_is_lost_or_doubled_is_seen(
    mutant: Callable[[Put, dict[str, Any]], Put], exact: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {"lost": False, "doubled": False}
    monkeypatch.setattr(Mailbox, "put", mutant(Mailbox.put, seen))
    kill = mortal.Mortal.kill

    def killed() -> None:
        seen["lost"] = True
        kill()

    monkeypatch.setattr(mortal.Mortal, "kill", killed)
    words = (
        "stream 1 differs from the undisturbed" if exact else "stream 1 is not the text that its seed draws"
    )
    with pytest.raises(Failed, match=words):
        await recovered(monkeypatch, exact)


@pytest.mark.parametrize("exact", [True, False])
async def test_a_committed_token_that_recovery_forgets_is_seen(
    exact: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is computed and sent once more."""
    drop = Sequence.drop_in_flight

    def forgets(self: Sequence) -> None:
        drop(self)
        if len(self.output_token_ids) > 2:
            self.output_token_ids.pop()
            self.num_known_tokens -= 1

    monkeypatch.setattr(Sequence, "drop_in_flight", forgets)
    with pytest.raises(Failed, match="streams have not 150 tokens"):
        await recovered(monkeypatch, exact)


async def test_a_stream_that_ends_before_the_kill_is_no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.LOAD", Load(LOAD.prompts, 4, (4,)))
    with pytest.raises(Failed, match="a stream ended before the executor was killed"):
        await recovered(monkeypatch, exact=True)
