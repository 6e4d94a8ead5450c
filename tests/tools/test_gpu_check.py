"""gpu-check without a GPU: which parts a call runs, and what it remembers of those before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tools.gpu_check import report
from tools.gpu_check.conduct import NO_TIME, Conductor
from tools.gpu_check.plan import DEVICE, Part
from tools.gpu_check.record import Outcome, Record, State

A, B, C = (Part(name, "none", 100.0, 10.0, f"part {name}") for name in "abc")


class Machine:
    """A clock, and parts that take `seconds` and end as they are told: by default they pass."""

    def __init__(self, path: Path, **ends: Any) -> None:
        self.path, self.ends, self.now, self.ran = path, ends, 0.0, []
        self.device = "H200"

    def launch(self, part: Part, allowed: float) -> Outcome:
        self.ran.append(part.name)
        if part is DEVICE:
            self.now += 1.0
            return Outcome(State.PASS, 1.0, figures={"identity": {"device": self.device}})
        end = self.ends.get(part.name, (State.PASS, 20.0))
        if isinstance(end, BaseException):
            raise end
        state, seconds = end
        self.now += min(seconds, allowed)
        if seconds > allowed:
            return Outcome(State.FAIL, allowed, "killed", {"half": 1})
        return Outcome(state, seconds, "" if state is State.PASS else "why", {"whole": 1})

    def check(
        self, budget: float = 1000.0, sources: str = "1", of_b: str = "", shared: bool = False, kind: str = "", **how: Any
    ) -> Record:  # fmt: skip
        self.ran = []
        conductor = Conductor(
            (DEVICE, A, B, C), self.launch, self.path, {"sources": sources}, budget=budget, clock=lambda: self.now,
            say=lambda line: None, sources={"b": of_b}, shared=shared, device_kind=kind,
        )  # fmt: skip
        return conductor.run(**how)


@pytest.fixture
def machine(tmp_path: Path) -> Callable[..., Machine]:
    return lambda **ends: Machine(tmp_path / "record.json", **ends)


def states(record: Record) -> dict[str, str]:
    return {name: str(outcome.state) for name, outcome in record.outcomes.items() if name != DEVICE.name}


def test_all_parts_run_in_order_and_a_second_call_runs_none_of_them(machine: Callable[..., Machine]) -> None:
    here = machine(b=(State.FAIL, 5.0), c=(State.NOT_RUN, 1.0))
    record = here.check()
    assert here.ran == ["device", "a", "b", "c"]
    assert states(record) == {"a": "pass", "b": "fail", "c": "not run"}
    assert record.seconds == 27.0
    again = here.check()
    assert here.ran == ["device"], "what failed or is absent is settled, too"
    assert states(again) == states(record)
    assert again.seconds == 28.0
    assert here.check(fresh=True) and here.ran == ["device", "a", "b", "c"]
    assert here.check(anew=["b"]) and here.ran == ["device", "b"]


def test_what_does_not_fit_is_left_for_the_next_call(machine: Callable[..., Machine]) -> None:
    here = machine(a=(State.PASS, 60.0), b=(State.PASS, 90.0))
    record = here.check(budget=100.0)
    # 100 less 5 for the end, 1 for the device and 60: 34 are left for b, which needs 90; then nothing for c.
    assert here.ran == ["device", "a", "b"]
    assert states(record) == {"a": "pass", "b": "not run", "c": "not run"}
    assert record.outcomes["b"].detail == record.outcomes["c"].detail == NO_TIME
    assert record.outcomes["b"].figures == {"half": 1}, "what was found until then is kept"
    assert report.exit_code(record, (DEVICE, A, B, C)) == 2
    record = here.check(budget=200.0)
    assert here.ran == ["device", "b", "c"]
    assert set(states(record).values()) == {"pass"}
    assert report.exit_code(record, (DEVICE, A, B, C)) == 0


def test_where_time_is_shared_every_part_gets_the_least_it_needs(machine: Callable[..., Machine]) -> None:
    """100 less 5 for the end and 1 for the device; 10 each are kept for those behind."""
    hangs = (State.PASS, 500.0)
    for shared, ran in ((True, ["device", "a", "b", "c"]), (False, ["device", "a"])):
        here = machine(a=hangs, b=(State.PASS, 9.0), c=(State.PASS, 9.0))
        record = here.check(budget=100.0, shared=shared, fresh=True)
        assert here.ran == ran
        assert record.outcomes["a"].state is State.NOT_RUN and not record.outcomes["a"].settled
        assert record.outcomes["a"].seconds == (74.0 if shared else 94.0)
        assert states(record)["c"] == ("pass" if shared else "not run")
    # What is settled needs nothing more.
    here.ends.update(a=(State.PASS, 80.0))
    here.check(budget=1000.0, shared=True)
    here.ends.update(c=hangs)
    assert here.check(budget=100.0, shared=True, anew=["a", "c"]).outcomes["a"].seconds == 80.0


def test_the_kind_of_device_is_kept(machine: Callable[..., Machine]) -> None:
    here = machine()
    assert here.check(kind="some-h200").device_kind == "some-h200"
    assert Record.load(here.path).device_kind == "some-h200"
    again = here.check()
    assert again.device_kind == "some-h200" and here.ran == ["device"], (
        "a call that names none takes nothing back"
    )
    assert report.device_kind(again) == "device kind some-h200: H200"
    here.device = "NVIDIA H100"
    assert (
        report.device_kind(here.check(kind="some-h200"))
        == "device kind some-h200: NVIDIA H100, WHICH IS ANOTHER"
    )
    assert report.device_kind(here.check(kind="nvidia-h100-x1")) == "device kind nvidia-h100-x1: NVIDIA H100"
    assert report.device_kind(Record()) == ""


def test_a_part_over_its_own_limit_has_failed(machine: Callable[..., Machine]) -> None:
    record = machine(a=(State.PASS, 101.0)).check()
    assert states(record) == {"a": "fail", "b": "pass", "c": "pass"}
    assert report.exit_code(record, (DEVICE, A, B, C)) == 1


def test_a_call_that_is_cut_off_keeps_what_was_settled(machine: Callable[..., Machine]) -> None:
    here = machine(b=KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        here.check()
    here.ends.clear()
    assert set(states(here.check()).values()) == {"pass"}
    assert here.ran == ["device", "b", "c"]


def test_results_of_other_sources_or_of_another_device_do_not_count(machine: Callable[..., Machine]) -> None:
    here = machine()
    here.check()
    here.check(sources="2")
    assert here.ran == ["device", "a", "b", "c"]
    here.device = "H100"
    assert here.check(sources="2").identity == {"sources": "2", "device": "H100"}
    assert here.ran == ["device", "a", "b", "c"]


def test_what_one_part_depends_on_settles_the_others_not_anew(machine: Callable[..., Machine]) -> None:
    here = machine()
    here.check(of_b="1")
    assert here.ran == ["device", "a", "b", "c"]
    here.check(of_b="2")
    assert here.ran == ["device", "b"]
    here.check(of_b="2")
    assert here.ran == ["device"]


def test_a_broken_record_is_no_record(machine: Callable[..., Machine]) -> None:
    here = machine()
    for content in ("", "[]", '{"identity": {}, "outcomes": {"a": 1}, "seconds": 0}'):
        here.path.write_text(content)
        here.check()
        assert here.ran == ["device", "a", "b", "c"]


def test_without_a_device_nothing_is_run_and_nothing_passes(machine: Callable[..., Machine]) -> None:
    here = machine()
    play = here.launch
    absent = Outcome(State.NOT_RUN, 1.0, "torch finds no CUDA device")
    here.launch = lambda part, allowed: absent if part is DEVICE else play(part, allowed)  # type: ignore[method-assign]
    record = here.check()
    assert set(states(record).values()) == {"not run"}
    assert "torch finds no CUDA device" in record.outcomes["a"].detail
    assert report.exit_code(record, (DEVICE, A, B, C)) == 2
    here.launch = play  # type: ignore[method-assign]
    assert set(states(here.check()).values()) == {"pass"}, "it was not settled"


def test_a_device_that_is_away_for_once_takes_nothing_back(machine: Callable[..., Machine]) -> None:
    here = machine()
    here.check()
    play = here.launch
    for state in (State.NOT_RUN, State.FAIL):
        away = Outcome(state, 1.0, "CUDA error: out of memory")
        here.launch = lambda part, allowed, away=away: away  # type: ignore[method-assign]
        assert set(states(here.check()).values()) == {"not run"}
    here.launch = play  # type: ignore[method-assign]
    assert set(states(here.check()).values()) == {"pass"}
    assert here.ran == ["device"]
