"""`cohort ray serve` where there is no Ray, which is how this project's own environment is; tests/ray has the rest."""

from __future__ import annotations

import importlib.util
import os
import socket
import sys

import pytest

from server.commands import command_line
from server.commands import ray as command
from server.commands.ray import MISSING
from server.settings.table import Settings


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


def test_keys_are_not_in_the_environment_of_what_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = {"COHORT_API_KEY": "client", "COHORT_ADMIN_KEY": "admin", "COHORT_METRICS_KEY": "metrics"}
    monkeypatch.setattr(os, "environ", {**os.environ, **secrets})
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    found = []

    def started(settings: Settings, listener: socket.socket, *_: object) -> int:
        listener.close()
        found.append((settings, dict(os.environ)))
        return 0

    monkeypatch.setattr(command, "_run", started)
    assert run(monkeypatch, "some/model", "--port", "0") == 0
    [(settings, environ)] = found
    assert (settings.api_key, settings.admin_key, settings.metrics_key) == (("client",), "admin", "metrics")
    assert not set(secrets.values()) & set(environ.values())


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
