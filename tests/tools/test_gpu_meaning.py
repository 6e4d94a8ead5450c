"""Figures that cannot be what their names say are found: each rule by a figure that breaks it, in an otherwise good part."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest

from benchmarks.gpu.part import Options
from tools.gpu_check import log, meaning

H200, TINY = Options(), Options("cpu", tiny=True)
ROWS = [row for row in log.read(log.PATH) if row["state"] == "pass" and not row["detail"]]
RECORD = {row["part"]: row["figures"] for row in reversed(ROWS)}
"""The first figures of an H200, by part: lines are only added."""


def changed(part: str, path: str, value: Any) -> dict[str, Any]:
    """The record's figures of a part with one that is different; `...` takes it away."""
    figures = copy.deepcopy(RECORD[part])
    *groups, name = path.split("/")
    place: Any = figures
    for group in groups:
        place = place[int(group) if isinstance(place, list) else group]
    if value is ...:
        del place[name]
    else:
        place[name] = value
    return figures


def test_what_was_measured_keeps_the_rules() -> None:
    for row in ROWS:
        found = meaning.faults(row["part"], row["figures"], Options(**row["options"]))
        # An old line has not what its part came to say since.
        assert [one for one in found if "is missing" not in one] == [], row["part"]


@pytest.mark.parametrize(
    ("part", "path", "value", "fault"),
    [
        # A rate beyond what was measured to be the limit.
        ("offline-0.6b", "output_tokens_per_s", 38_000.0, "beyond the roofline of 3.605e+04"),
        ("single-8b", "tokens_per_s", 292.0, "beyond the roofline"),
        ("kernels-all", "kernels/product qkv, 256 rows/gb_per_s", 4_900.0, "a copy reaches 4,246"),
        ("kernels-all", "kernels/product qkv, 256 rows/tflops", 900.0, "a product reaches 795.8"),
        # A share of more than all.
        ("single-0.6b", "share_of_roofline", 1.06, "share_of_roofline is 1.06, a share of at most 1.05"),
        ("kernels-all", "kernels/attention decode 32 x 4096, triton, pages of 16/share_of_copy", 1.2, "a share of at most"),
        ("steps", "one_sequence/idle_share", -0.1, "one_sequence.idle_share is -0.1"),
        ("steps", "kernels_of_a_step/0/share", 1.3, "kernels_of_a_step[0].share is 1.3"),
        # Nothing was done.
        ("offline-0.6b", "output_tokens_per_s", 0.0, "nothing was done"),
        ("single-0.6b", "tokens_per_s_by_round", [1000.0, 0.0], "tokens_per_s_by_round is 0: nothing was done"),
        ("offline-0.6b", "steps", 0, "steps is 0: nothing was done"),
        ("agreement-bf16", "rows_compared", 0, "nothing was done"),
        ("tests", "passed", 0, "not so: tests passed"),
        # Another way than the one that is to be measured.
        ("single-0.6b", "fell_back", "graphs: none", "fell_back: graphs: none"),
        ("steps", "one_sequence/fell_back", "attention: torch", "one_sequence.fell_back: attention: torch"),
        # Counts that do not fit.
        ("agreement", "identical", 63, "63 of 64 sequences are identical"),
        ("tests", "passed", 950, "not so: each test passed, was skipped or was not run"),
        ("tests", "failed", ["test_x"], "failed: ['test_x']"),
        ("agreement-bf16", "rows_off", 2, "not so: no row is off"),
        # A figure is missing, or is none.
        ("offline-0.6b", "share_of_roofline", ..., "share_of_roofline is missing"),
        ("agreement-bf16", "wrong", ..., "not so: no row is off"),
        ("single-0.6b", "ttft_ms", math.nan, "ttft_ms is nan"),
        ("device", "copy_gb_per_s", math.inf, "copy_gb_per_s is inf"),
        ("single-0.6b", "ttft_ms", -0.5, "it ends before it begins"),
        ("device", "identity", {"device": None}, "not so: the device has a name"),
    ],
)  # fmt: skip
def test_a_figure_that_cannot_be_is_found(part: str, path: str, value: Any, fault: str) -> None:
    found = meaning.faults(part, changed(part, path, value), H200)
    assert [fault in one for one in found].count(True) == 1, found


@pytest.mark.parametrize(
    ("figures", "fault"),
    [
        (
            {"offline_roofline_tokens_per_s": 100.0, "offline_tokens_per_s": 106.0},
            "offline_tokens_per_s is 106, beyond",
        ),
        ({"first_tokens_ms 1 x 128": -1.0}, "it ends before it begins"),
        ({"wrong": {"http": "not over after 45 s"}}, "wrong: {'http'"),
        ({"load": {"p50_ms": 3.0, "p99_ms": 2.0}}, "load.p50_ms is 3, above p99_ms, 2"),
        ({"streams_lost": 1}, "streams_lost: 1"),
        ({"kills": [{"tokens_doubled": 3}]}, "kills[0].tokens_doubled: 3"),
        ({"active_share": 1.2}, "active_share is 1.2"),
    ],
)
def test_rules_hold_for_parts_that_are_not_known(figures: dict[str, Any], fault: str) -> None:
    assert [fault in one for one in meaning.faults("some-part", figures, H200)] == [True]
    assert (
        meaning.faults("some-part", {"load": {"p50_ms": 2.0, "p99_ms": 2.0}, "streams_lost": 0}, H200) == []
    )


def test_products_of_eight_bits_may_be_twice_as_fast() -> None:
    rows = {
        "product e4m3, 256 rows": {"us": 1.0, "tflops": 1500.0, "share_of_product": 1.9, "share_of_copy": 0.4}
    }
    assert meaning.faults("x", {"bf16_tflops": 800.0, "kernels": rows}, H200) == []
    rows["product e4m3, 256 rows"]["share_of_copy"] = 1.2
    assert len(meaning.faults("x", {"bf16_tflops": 800.0, "kernels": rows}, H200)) == 1
    rows = {"product bf16, 256 rows": rows["product e4m3, 256 rows"] | {"share_of_copy": 0.4}}
    assert len(meaning.faults("x", {"bf16_tflops": 800.0, "kernels": rows}, H200)) == 2


def test_a_dozen_tokens_may_bring_no_draft() -> None:
    none = SERVED | {"drafts_verified": 0, "drafts_accepted": 0}
    assert meaning.faults("served-0.6b", none, TINY) == [] and meaning.faults("served-0.6b", none, H200)


def test_a_cpu_may_fall_back_and_its_speeds_of_a_few_steps_tell_nothing() -> None:
    assert meaning.faults("x", {"fell_back": "graphs: none", "active_share": 3.0}, TINY) == []
    assert meaning.faults("x", {"share_of_copy": 3.0}, TINY) == [], "the limit was that of a few bytes"
    assert meaning.faults("x", {"idle_share": 1.2}, TINY) and meaning.faults(
        "x", {"share_of_copy": -0.1}, TINY
    )


STAGES = {
    "death noticed": 0.5,
    "starting": 0.2,
    "importing": 3.0,
    "loading": 3.5,
    "KV cache": 0.1,
    "warmup": 1.0,
    "first token": 0.2,
}
WITHOUT_ONE = {name: seconds for name, seconds in STAGES.items() if name != "importing"}
KILLED: dict[str, Any] = {
    **dict.fromkeys(meaning.SAYS["served-8b"], 1),
    "start_seconds": 20.0, "start_seconds_by_stage": {"importing": 8.0, "loading": 12.0}, "kills": 2, "pause_seconds": 9.0,
    "recovery_seconds_by_stage": [STAGES, STAGES | {"loading": 2.0}],
    "drawn_again": 900, "drawn_the_same": 890, "share_of_roofline": 0.8,
}  # fmt: skip
LOST = {
    name: KILLED[name]
    for name in ("kills", "pause_seconds", "recovery_seconds_by_stage", "drawn_again", "drawn_the_same")
}
LOST |= {"causes": ["executor_died:exit"] * 2, "seconds_after_an_idle_fault": 2.0}
ROWS_OF_KERNELS: dict[str, Any] = {
    **dict.fromkeys(meaning.SAYS["kernels"], 1), "kernels": {"a": {"us": 3.0}, "b": {"not run": "absent"}},
}  # fmt: skip
WAVE = {
    "requests": 64, "served": 60, "refused": 4, "lost": 0, "seconds": 0.5, "requests_per_s": 120.0, "output_tokens": 7680,
    "tokens_per_s": 15_360.0, "ttft_ms_p50": 90.0, "ttft_ms_p99": 200.0,
}  # fmt: skip
SERVED: dict[str, Any] = {
    **dict.fromkeys(meaning.SAYS["served-0.6b"], 1), "offline_share_of_roofline": 0.8, "http": {"at once": WAVE},
    "device_ms_by_rows": {"1": 0.8, "256": 5.0}, "single_tokens_per_s": 1100.0,
    "drafts_verified": 90, "drafts_accepted": 70,
}  # fmt: skip
CROWD: dict[str, Any] = {
    **dict.fromkeys(meaning.SAYS["churn"], 1), "finished": 210, "identical": 210, "steps": 900, "steps_overlapped": 700,
}  # fmt: skip


@pytest.mark.parametrize(
    ("part", "good", "change", "fault"),
    [
        (
            "served-8b",
            KILLED,
            {"start_seconds_by_stage": {"loading": 12.0}},
            "the stages of the start add up",
        ),
        ("served-8b", KILLED, {"start_seconds_by_stage": {}}, "the stages of the start add up"),
        ("served-8b", KILLED, {"recovery_seconds_by_stage": [STAGES]}, "each kill has its stages"),
        (
            "served-8b",
            KILLED,
            {"recovery_seconds_by_stage": [STAGES, WITHOUT_ONE]},
            "no recovery lacks a stage",
        ),
        ("served-8b", KILLED, {"recovery_seconds_by_stage": []}, "each kill has its stages"),
        ("served-8b", KILLED, {"start_seconds_by_stage": "not reported"}, "the stages of the start add up"),
        ("served-8b", KILLED, {"pause_seconds": 0.9}, "the longest pause is that of the longest recovery"),
        ("served-8b", KILLED, {"pause_seconds": 90.0}, "the longest pause is that of the longest recovery"),
        ("served-8b", KILLED, {"drawn_the_same": 901}, "tokens were drawn again"),
        ("served-8b", KILLED, {"tokens_lost": 2}, "tokens_lost: 2"),
        ("served-0.6b", SERVED, {"http": {}}, "each wave was served or refused"),
        (
            "served-0.6b",
            SERVED,
            {"http": {"at once": WAVE | {"served": 59}}},
            "each wave was served or refused",
        ),
        (
            "served-0.6b",
            SERVED,
            {"http": {"at once": WAVE | {"served": 0, "refused": 64}}},
            "each wave was served",
        ),
        ("served-0.6b", SERVED, {"http": {"at once": WAVE | {"lost": 1}}}, "http.at once.lost: 1"),
        (
            "served-0.6b",
            SERVED,
            {"http": {"at once": WAVE | {"requests_per_s": 240.0}}},
            "rates are those of its counts",
        ),
        (
            "served-0.6b",
            SERVED,
            {"http": {"at once": WAVE | {"tokens_per_s": 16_000.0}}},
            "rates are those of its counts",
        ),
        (
            "served-0.6b",
            SERVED,
            {"http": {"at once": WAVE | {"ttft_ms_p99": 600.0}}},
            "rates are those of its counts",
        ),
        (
            "served-0.6b",
            SERVED,
            {"http": {"at once": WAVE, "64/s": WAVE}},
            "no wave was served sooner than it came",
        ),
        ("served-0.6b", SERVED, {"http": {"160/s": WAVE}}, "requests came all at once, too"),
        (
            "served-0.6b",
            SERVED,
            {"http": {"at once": WAVE | {"seconds": 0.1, "requests_per_s": 600.0, "tokens_per_s": 76_800.0}}},
            "no stream is faster than the device alone",
        ),
        ("served-0.6b", SERVED, {"single_tokens_per_s": 1500.0}, "no stream is faster than the device alone"),
        ("served-0.6b", SERVED, {"drafts_verified": 0, "drafts_accepted": 0}, "drafts were verified"),
        ("served-0.6b", SERVED, {"drafts_accepted": 91}, "no more drafts were accepted"),
        ("sticky", LOST, {"causes": ["executor_died:exit"]}, "each fault has a cause"),
        ("sticky", LOST, {"kills": 3}, "each kill has its stages"),
        (
            "kernels",
            ROWS_OF_KERNELS,
            {"kernels": {"a": {"us": 3.0}, "b": {}}},
            "each row has a time or a reason",
        ),
        ("churn", CROWD, {"identical": 209}, "each finished text equals itself alone"),
        ("churn", CROWD, {"finished": 0, "identical": 0}, "each finished text equals itself alone"),
        ("churn", CROWD, {"preemptions": 0}, "sequences were preempted"),
        ("churn", CROWD, {"prefix_hit_tokens": 0}, "prefixes were found"),
        ("churn", CROWD, {"steps_overlapped": 0}, "steps overlapped"),
    ],
)
def test_a_crowd_or_a_kill_that_showed_nothing_is_found(
    part: str, good: dict[str, Any], change: dict[str, Any], fault: str
) -> None:
    assert meaning.faults(part, good, H200) == []
    assert any(fault in one for one in meaning.faults(part, good | change, H200))
