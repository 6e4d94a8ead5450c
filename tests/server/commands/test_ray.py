"""`cohort ray serve` where there is no Ray, which is how this project's own environment is; tests/ray has the rest."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

import cohort_server
from cohort_server import command_line
from executors.contract import ConfigError
from server.commands import ray as command
from server.commands.ray import MISSING
from server.http.listener import Listener
from server.ray_serve import ingress
from server.remote import replicas
from server.settings.table import Settings
from server.system import log_output
from tests.e2e.checkpoints import write_tokenizer


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int | str | None:
    monkeypatch.setattr(sys, "argv", ["cohort", "ray", "serve", *words])
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

    def started(settings: Settings, listener: Listener, *_: object) -> int:
        listener.close()
        found.append((settings, dict(os.environ)))
        return 0

    monkeypatch.setattr(command, "_run", started)
    assert run(monkeypatch, "some/model", "--port", "0") == 0
    [(settings, environ)] = found
    assert (settings.api_key, settings.admin_key, settings.metrics_key) == (("client",), "admin", "metrics")
    assert not set(secrets.values()) & set(environ.values())


class Cluster(ModuleType):
    """What the command uses of a Ray cluster that it joins, on which there may be an application already."""

    def __init__(self, *applications: str) -> None:
        super().__init__("server.ray_serve.ray_side")
        self.applications = list(applications)
        self.watch_deployment = lambda name: None
        self.cluster_gpus = lambda: 0.0
        self.connect = lambda address, cpus: False
        self.RayTransport = lambda handle: handle

    def check_free(self, name: str) -> None:
        if name in self.applications:
            raise ConfigError(f"there is {name}")

    def deploy(self, application: object, name: str) -> None:
        self.applications.append(name)

    def take_down(self, name: str | None, own: bool) -> None:
        assert not own
        if name is not None:
            self.applications.remove(name)


@pytest.mark.parametrize("name, code", [("cohort", 2), ("second", 0)])
def test_an_application_of_others_stays(
    name: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A second command on one cluster neither replaces nor ends the first one's replicas."""
    cluster, served = Cluster("cohort"), []

    async def serve(*_: object) -> None:
        served.append(list(cluster.applications))

    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setitem(sys.modules, "server.ray_serve.ray_side", cluster)
    monkeypatch.setattr(replicas, "ray_side", cluster, raising=False)
    application = ModuleType("cohort_server.ray_app")
    application.engines = lambda *_: None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cohort_server.ray_app", application)
    monkeypatch.setattr(cohort_server, "ray_app", application, raising=False)
    monkeypatch.setattr(ingress, "serve", serve)
    # The log would go on through a queue of the server, in the process of all tests.
    monkeypatch.setattr(log_output, "take_over", lambda form: None)
    model = write_tokenizer(tmp_path)
    words = [str(model), "--executor", "echo", "--ray-address", "auto", "--ray-app", name, "--port", "0"]
    assert run(monkeypatch, *words) == code
    assert cluster.applications == ["cohort"]
    assert served == ([["cohort", "second"]] if code == 0 else [])
    assert ("there is cohort" in capsys.readouterr().err) == (code == 2)


@pytest.mark.parametrize(
    "words, says",
    [
        (["--replicas", "0"], "--replicas: a whole number of at least 1 (not 0)"),
        (["--cpus-per-replica", "-1"], "--cpus-per-replica: at least 0 (not -1)"),
        (["--gpus-per-replica", "-1"], "--gpus-per-replica: at least 0 (not -1)"),
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
