"""`cohort ray serve` where there is no Ray, which is how this project's own environment is; tests/ray has the rest."""

from __future__ import annotations

import importlib.util
import sys

import pytest

from server.commands import command_line
from server.commands.ray import MISSING


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int | str | None:
    monkeypatch.setattr(sys, "argv", ["cohort", "ray", "serve", *words])
    monkeypatch.setattr(command_line.app, "registered_commands", list(command_line.app.registered_commands))
    with pytest.raises(SystemExit) as ended:
        command_line.main()
    return ended.value.code


def test_without_ray(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert run(monkeypatch, "some/model", "--port", "0") == 2
    assert capsys.readouterr().err == f"cohort: error: {MISSING}\n"


@pytest.mark.parametrize(
    "words, says",
    [
        (["--replicas", "0"], "--replicas: a whole number of at least 1 (not 0)"),
        (["--cpus-per-replica", "-1"], "--cpus-per-replica: at least 0 (not -1)"),
        (["one", "--model", "two"], "two models are named: one and --model two"),
        (["--max-model-length", "3"], "did you mean --max-model-len?"),
        (["--replica", "3"], "did you mean --replicas?"),
    ],
)
def test_wrong_words(
    words: list[str], says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, *words) == 2
    assert says in capsys.readouterr().err
