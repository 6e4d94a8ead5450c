"""The device that `benchmarks.turnaround` measures with, and what is made of its record."""

from __future__ import annotations

import math
import time

import pytest

from benchmarks.turnaround import TimedDevice, idle_share, turnarounds


def test_steps_follow_each_other_and_are_seen_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 10.0
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    device = TimedDevice(2.0)
    first, second = device.event(), device.event()
    assert first.query() and second.query() and not device.saw, "nothing was launched"
    first.record()
    now = 11.0
    second.record()
    assert not first.query() and not second.query()
    now = 12.5
    assert first.query() and not second.query(), "the second begins when the first is done"
    now = 13.0
    assert first.query() and not second.query()
    now = 14.0
    assert second.query()
    assert device.launched == [10.0, 11.0] and device.saw == [12.5, 14.0]


def test_a_turnaround_ends_with_the_launch_of_the_second_next_step() -> None:
    record = {"launched": [0.0, 1e-3, 5e-3, 9e-3, 12e-3], "saw": [4e-3, 7e-3, math.nan, 13e-3, math.nan]}
    assert turnarounds(record) == pytest.approx([1000.0, 2000.0])


def test_a_turnaround_with_three_out_ends_with_the_launch_of_the_third_next_step() -> None:
    record = {"launched": [0.0, 1e-3, 2e-3, 9e-3, 12e-3], "saw": [4e-3, 7e-3, math.nan, 13e-3, math.nan]}
    assert turnarounds(record, 3) == pytest.approx([5000.0, 5000.0])


def test_the_device_is_idle_from_the_end_of_its_last_step_to_the_next_launch() -> None:
    record = {"launched": [1.0, 1.5, 6.0, 11.0]}
    assert idle_share(record, 2.0) == pytest.approx((1.0 + 3.0) / 10.0)
    assert idle_share({"launched": [1.0, 2.0, 4.0]}, 2.0) == 0.0
