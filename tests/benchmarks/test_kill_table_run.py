"""Two rows of the kill table, filled from a real server."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.kill_table.__main__ import Table
from benchmarks.kill_table.faults import FAULTS
from benchmarks.kill_table.judge import Sight
from benchmarks.kill_table.subjects import ROOT, Subject
from executors.tiny import weights_dir

pytestmark = [pytest.mark.long(extended=True), pytest.mark.timeout(120)]


def tiny() -> Subject:
    """The embedded model: the same process tree as any other."""
    command = [
        sys.executable, "-m", "server.cli", "serve", "--model", str(weights_dir()), "--host", "127.0.0.1", "--port", "{port}",
        "--served-model-name", "bench", "--max-model-len", "512", "--deterministic", "--dtype", "float32",
    ]  # fmt: skip
    return Subject(
        "cohort", "Cohort", "of this checkout", "tiny", command, "/ready",
        lambda line: line.startswith("cohort: executor"), "", "",
        env={"PYTHONPATH": str(ROOT)}, threads=1,
    )  # fmt: skip


def test_killed_and_drained_are_filled(tmp_path: Path) -> None:
    table = Table(tiny(), tmp_path, 60)
    for fault in FAULTS:
        if fault.name in ("killed", "drain"):
            table.fill([fault], 1)
    assert table.failures == []
    [killed], [drained] = table.observations["killed"], table.observations["drain"]
    for observed in (killed, drained):
        assert {verdict.sight for verdict in observed.verdicts.values()} <= {Sight.SAME, Sight.MISSED}
        assert sum(verdict.sight is Sight.SAME for verdict in observed.verdicts.values()) >= 5
    assert max(verdict.pause_s for verdict in killed.verdicts.values()) > 0.1
    assert killed.serves_again_s is not None and killed.ended == ""
    assert drained.newcomer is not None and drained.newcomer.sight in (Sight.ERROR, Sight.CUT)
    assert drained.ended == "the server's process ended with 0"
