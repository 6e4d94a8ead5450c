"""The systemd unit: its times fit the server's, and systemd itself finds no fault in it."""

from __future__ import annotations

import configparser
import shutil
import subprocess
from pathlib import Path

import pytest

from server.settings.table import TABLE
from tests.ops.expressions import ROOT

UNIT = ROOT / "configs/systemd/cohort.service"


def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=False, interpolation=None, delimiters=("=",))
    parser.optionxform = str  # type: ignore[method-assign,assignment]
    parser.read_string(UNIT.read_text("utf-8"))
    return parser


def test_times_and_exit_codes_are_the_servers() -> None:
    service = unit()["Service"]
    drain = TABLE["drain_timeout"].default
    assert int(service["TimeoutStopSec"]) >= drain + 3 + 2, "drain, last bytes, executor"
    assert service["KillMode"] == "mixed", "SIGTERM for the executor would end it before the drain"
    assert service["RestartPreventExitStatus"] == "2" and service["Restart"] == "on-failure"
    assert service["OOMPolicy"] == "continue", "the server restarts its executor itself"
    assert not any(key.startswith("COHORT_") for key in service.get("Environment", "").split())


def test_systemd_accepts_it(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    text = UNIT.read_text("utf-8").replace("/opt/cohort/bin/cohort", "/bin/true")
    copy = tmp_path / "cohort.service"
    copy.write_text(text)
    run = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(copy)], capture_output=True, text=True, timeout=30
    )
    faults = [line for line in run.stderr.splitlines() if str(copy.name) in line]
    assert not faults and run.returncode == 0, run.stderr
