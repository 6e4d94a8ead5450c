"""What systemd does when a service ends, by the rules of its unit: systemd.service(5) and systemd.unit(5)."""

from __future__ import annotations

import configparser
import signal
from collections.abc import Sequence
from pathlib import Path

_CLEAN_SIGNALS = frozenset({signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGPIPE})
_DEFAULT_LIMIT, _DEFAULT_BURST, _DEFAULT_PAUSE = 10.0, 5, 0.1


def read_unit(path: Path) -> configparser.ConfigParser:
    """A unit file. Of a key that comes several times the last one counts."""
    parser = configparser.ConfigParser(strict=False, interpolation=None, delimiters=("=",))
    parser.optionxform = str  # type: ignore[method-assign,assignment]
    parser.read_string(path.read_text("utf-8"))
    return parser


class Supervisor:
    """The decisions of systemd on a service. A status is an exit code, or the negative number of a signal as in `subprocess`."""

    def __init__(self, unit: configparser.ConfigParser) -> None:
        service, head = unit["Service"], unit["Unit"]
        self._restart = service.get("Restart", "no")
        self._success = {0, *_numbers(service.get("SuccessExitStatus", ""))}
        self._prevented = _numbers(service.get("RestartPreventExitStatus", ""))
        self._forced = _numbers(service.get("RestartForceExitStatus", ""))
        self.pause = float(service.get("RestartSec", _DEFAULT_PAUSE))
        self._interval = float(head.get("StartLimitIntervalSec", _DEFAULT_LIMIT))
        self._burst = int(head.get("StartLimitBurst", _DEFAULT_BURST))

    def restarts(self, status: int) -> bool:
        """Whether it starts a service again that ended so."""
        if status in self._forced:
            return True
        if status in self._prevented:
            return False
        clean = -status in _CLEAN_SIGNALS if status < 0 else status in self._success
        match self._restart:
            case "always":
                return True
            case "on-success":
                return clean
            case "on-failure":
                return not clean
            case "on-abnormal":
                return status < 0 and not clean
            case "on-abort":
                return status < 0 and not clean
        return False

    def starts(self, statuses: Sequence[int], seconds_each: float) -> int:
        """How many starts it makes of a service that ends with these statuses, one start after the other, each
        `seconds_each` seconds after its start."""
        times: list[float] = []
        now = 0.0
        for status in statuses:
            recent = [time for time in times if time > now - self._interval]
            if self._interval > 0 and len(recent) >= self._burst:
                break
            times.append(now)
            now += seconds_each + self.pause
            if not self.restarts(status):
                break
        return len(times)


def _numbers(text: str) -> set[int]:
    """Exit codes by number, and signals by name as their negative numbers."""
    return {int(word) if word.isdigit() else -signal.Signals[word].value for word in text.split()}
