"""The line that tells of a load's end names its stages and their seconds."""

from __future__ import annotations

from server.startup.load_stages import LoadStages


def test_stages_are_timed_from_one_report_to_the_next() -> None:
    now, heard = 0.0, []
    stages = LoadStages(lambda *report: heard.append(report), lambda: now)
    for at, stage in (
        (0.0, "importing"),
        (1.2, "weights"),
        (1.3, "weights"),
        (1.5, "importing"),
        (1.75, "warmup"),
    ):
        now = at
        stages.report(stage, 1, 2)
    now = 2.1
    assert stages.text() == "2.1 s (importing 1.45, weights 0.30, warmup 0.35)"
    assert heard[2] == ("weights", 1, 2) and len(heard) == 5


def test_a_load_without_reports_has_a_time() -> None:
    assert LoadStages(lambda *report: None, lambda: 1.0).text() == "0.0 s"
