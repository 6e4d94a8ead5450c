"""The systemd unit: its times fit the server's, it starts the server again when that helps, and systemd finds no fault in it."""

from __future__ import annotations

import configparser
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from server.settings.table import TABLE
from server.system import exit_codes
from tests.ops.expressions import ROOT
from tests.ops.supervisor import Supervisor, read_unit

UNIT = ROOT / "configs/systemd/cohort.service"
_ROW = re.compile(r"^\| (\d+) \| (.+) \| (yes|no)\b.*\|$", re.MULTILINE)


def unit() -> configparser.ConfigParser:
    return read_unit(UNIT)


def documented() -> dict[int, bool]:
    """The table of docs/operate.md: exit code, and whether to start the server again."""
    text = (ROOT / "docs/operate.md").read_text("utf-8")
    return {int(row[1]): row[3] == "yes" for row in _ROW.finditer(text)}


def test_times_and_exit_codes_are_the_servers() -> None:
    service = unit()["Service"]
    drain = TABLE["drain_timeout"].default
    assert int(service["TimeoutStopSec"]) >= drain + 3 + 2, "drain, last bytes, executor"
    assert service["KillMode"] == "mixed", "SIGTERM for the executor would end it before the drain"
    assert service["RestartPreventExitStatus"] == str(exit_codes.MISTAKE)
    assert service["OOMPolicy"] == "continue", "the server restarts its executor itself"
    assert not any(key.startswith("COHORT_") for key in service.get("Environment", "").split())


def test_every_exit_code_is_in_the_table_and_the_unit_follows_it() -> None:
    codes = {value for name, value in vars(exit_codes).items() if name.isupper() and isinstance(value, int)}
    assert set(documented()) == codes
    systemd = Supervisor(unit())
    assert {code: systemd.restarts(code) for code in codes} == documented()
    assert documented()[exit_codes.NOT_YET] and not documented()[exit_codes.MISTAKE]


@pytest.mark.parametrize(
    ("number", "again"),
    [
        (signal.SIGKILL, True),
        (signal.SIGSEGV, True),
        (signal.SIGABRT, True),
        (signal.SIGTERM, False),
        (signal.SIGHUP, False),
    ],
)
def test_signals(number: signal.Signals, again: bool) -> None:
    assert Supervisor(unit()).restarts(-number) is again


@pytest.mark.parametrize("code", [exit_codes.NOT_YET, exit_codes.FAILED, exit_codes.GAVE_UP])
@pytest.mark.parametrize("seconds", [0.3, 20.0])
def test_it_never_stops_trying_what_may_pass(code: int, seconds: float) -> None:
    """A network that comes after a day: no start is the last one."""
    systemd = Supervisor(unit())
    attempts = int(86400 / (seconds + systemd.pause))
    assert systemd.starts([code] * attempts, seconds) == attempts
    assert systemd.starts([exit_codes.MISTAKE] * 5, seconds) == 1
    assert systemd.starts([code, code, exit_codes.MISTAKE, code], seconds) == 3
    assert systemd.pause >= 5, (
        "a server that fails at once takes little of the machine, and asks the hub seldom"
    )


def test_the_rules_of_the_simulation() -> None:
    """What the unit once said: three failures, of whatever kind, were the end."""
    text = (
        "[Unit]\nStartLimitIntervalSec=600\nStartLimitBurst=3\n[Service]\nRestart=on-failure\nRestartSec=5\n"
    )
    parser = configparser.ConfigParser()
    parser.optionxform = str  # type: ignore[method-assign,assignment]
    parser.read_string(text)
    once = Supervisor(parser)
    assert once.starts([75] * 50, 0.3) == 3
    assert once.starts([75] * 50, 400) == 50
    assert once.restarts(2) and not once.restarts(0)


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
