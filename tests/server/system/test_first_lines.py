"""The lines before there is a log: their form, and who asked for none."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from server.system import first_lines


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    yield
    first_lines.stop()
    first_lines.settle(None, None)


def told(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], words: list[str]) -> str:
    """What stands on stderr once a line has been due."""
    over = first_lines.threading.Event()
    waits: list[float] = []

    class Over:
        def wait(self, seconds: float) -> bool:
            waits.append(seconds)
            return len(waits) > 1

    monkeypatch.setattr(
        first_lines.threading, "Thread", lambda **_: type("T", (), {"start": lambda _: None})()
    )
    first_lines.start(words, {})
    first_lines._run(Over())  # type: ignore[arg-type]
    assert 1 <= max(waits) < 2 and not over.is_set()
    return str(capfd.readouterr().err)


def test_as_a_log_for_people(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    line = told(monkeypatch, capfd, [])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+Z \[info     \] starting, 0 s so far\n", line)


@pytest.mark.parametrize("words", [["--log-format", "json"], ["--log-format=json"]])
def test_as_objects(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    line = json.loads(told(monkeypatch, capfd, words))
    assert (line["event"], line["level"]) == ("starting, 0 s so far", "info")


def test_not_where_the_log_has_none_of_its_level(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert told(monkeypatch, capfd, ["--log-level", "error"]) == ""
