"""What can be said of the image without building it. `make test-external ONLY=image` builds it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import yaml

from server.commands import healthcheck
from tests.ops import dockerfile
from tests.ops.compose import ComposeFile
from tests.ops.expressions import ROOT

OPTIONS = {"COPY": {"--from"}, "HEALTHCHECK": {"--interval", "--timeout", "--start-period", "--retries"}}
"""Options that buildah 1.28 (Debian 12), podman 4 and Docker 20 know, by instruction; others take none here."""
WORDS = {
    "ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "LABEL", "RUN", "STOPSIGNAL", "USER", "VOLUME",
    "WORKDIR",
}  # fmt: skip


def unknown_to_old_builders(text: str) -> Iterator[str]:
    """What a Dockerfile asks of newer builders only."""
    if re.match(r"\s*#\s*(syntax|check)\s*=", text):
        yield "directive"
    for one in dockerfile.instructions(text):
        names = {option.partition("=")[0] for option in one.options}
        yield from names - OPTIONS.get(one.word, set())
        if one.word not in WORDS:
            yield one.word
        if re.search(r"<<-?\w", one.text):
            yield "heredoc"


def test_old_builders_read_it() -> None:
    assert list(unknown_to_old_builders(dockerfile.TEXT)) == []


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("HEALTHCHECK --interval=5s --start-interval=2s CMD true", "--start-interval"),
        ("COPY --link --from=a b c", "--link"),
        ("COPY --chmod=755 a b", "--chmod"),
        ("RUN --mount=type=cache,target=/x \\\n  true", "--mount"),
        ("FROM --platform=linux/amd64 a AS b", "--platform"),
        ("ADD a b", "ADD"),
        ("RUN <<EOF\ntrue\nEOF", "heredoc"),
        ("# syntax=docker/dockerfile:1\nFROM a AS b", "directive"),
    ],
)
def test_what_they_do_not_read_is_found(line: str, what: str) -> None:
    assert what in list(unknown_to_old_builders(line))


def test_it_runs_as_a_numbered_user_by_exec_form() -> None:
    uid, _, gid = dockerfile.of_image("USER").partition(":")
    assert uid.isdecimal() and gid.isdecimal() and int(uid) > 0
    assert dockerfile.of_image("ENTRYPOINT") == '["cohort"]' and dockerfile.of_image("CMD") == '["serve"]'
    home = dockerfile.of_image("WORKDIR")
    assert dockerfile.env()["HOME"] == home and dockerfile.of_image("VOLUME") == f'["{home}"]'
    assert dockerfile.env()["HF_HOME"].startswith(home)
    for target in ("cpu", "cuda"):
        stage = dockerfile.stages()[target]
        assert stage.parent == "runtime" and stage.texts("USER")[-1:] in ([], [f"{uid}:{gid}"])


def seconds(text: str) -> int:
    return int(text[:-1]) * {"s": 1, "m": 60, "h": 3600}[text[-1]]


def test_the_health_check_is_quick_and_kills_no_load() -> None:
    """Without an interval of its own for the start, the interval is what `docker compose up --wait` waits after a quick start."""
    options, command = dockerfile.health_check()
    assert options.keys() == {"interval", "timeout", "start-period", "retries"}
    assert seconds(options["interval"]) <= 5
    assert seconds(options["start-period"]) >= 140e9 / 100e6, "fetching 140 GB at 100 MB/s"
    assert seconds(options["interval"]) * int(options["retries"]) >= 30, "not for a machine's short stall"
    assert seconds(options["timeout"]) > healthcheck._TIMEOUT, "so that the reason is printed"
    server = dict(ComposeFile(ROOT / "docker-compose.yml", {}).services["server"]["healthcheck"])
    assert server.pop("test") == ["CMD", *command]
    assert {name.replace("_", "-"): str(value) for name, value in server.items()} == options


def test_compose_asks_for_no_new_engine() -> None:
    """`start_interval` needs Docker 25: Compose refuses it with an older one."""
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))["services"]
    assert not any("start_interval" in service["healthcheck"] for service in services.values())


def test_it_takes_the_pinned_torch() -> None:
    texts = dockerfile.stages()["dependencies"].texts("ARG")
    [version] = [text.removeprefix("TORCH_VERSION=") for text in texts if text.startswith("TORCH_VERSION=")]
    assert f"torch=={version}" in (ROOT / "constraints.txt").read_text("utf-8").splitlines()


def test_target_cpu_refuses_a_torch_with_cuda(tmp_path: Path) -> None:
    """The check that the image's environment goes through, run on a stand-in for torch of each kind."""
    [copy] = [one for one in dockerfile.stages()["cpu"].instructions if one.word == "COPY"]
    assert copy.options == ("--from=cpu-environment",)
    [check] = dockerfile.stages()["cpu-environment"].texts("RUN")
    command = check.replace("/opt/cohort/bin/python", sys.executable)
    for version, code in (("None", 0), ("'12.8'", 1)):
        (tmp_path / "torch.py").write_text(f"class version:\n    cuda = {version}\n")
        environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
        run = subprocess.run(
            ["sh", "-c", command], env=environment, capture_output=True, text=True, cwd=tmp_path
        )
        assert run.returncode == code, run.stderr
    assert "TORCH_INDEX_URL" in run.stderr and "--target cuda" in run.stderr


def test_copied_files_reach_the_builder() -> None:
    """.dockerignore lets through exactly what COPY takes from the context."""
    copies = [one for one in dockerfile.instructions() if one.word == "COPY" and not one.options]
    copied = {name for one in copies for name in one.text.split()[:-1]}
    lines = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    assert {name.split("/")[0] for name in copied} == {line[1:] for line in lines if line.startswith("!")}
    assert all((ROOT / name).exists() for name in copied)


class _Ready(BaseHTTPRequestHandler):
    """Answers /ready with the status that the server was given, anything else with 404."""

    def do_GET(self) -> None:
        self.send_response(self.server.status if self.path == "/ready" else 404)  # type: ignore[attr-defined]
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Keep quiet."""


@pytest.mark.parametrize(("status", "code"), [(200, 0), (503, 1)])
def test_health_check_follows_ready(status: int, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    with HTTPServer(("127.0.0.1", 0), _Ready) as http:
        http.status = status  # type: ignore[attr-defined]
        threading.Thread(target=http.handle_request).start()
        assert healthcheck.main({"COHORT_PORT": str(http.server_port)}) == code
    assert bool(capsys.readouterr().err) == bool(code)


def test_health_check_fails_where_nothing_listens(capsys: pytest.CaptureFixture[str]) -> None:
    with HTTPServer(("127.0.0.1", 0), _Ready) as http:
        port = http.server_port
    assert healthcheck.main({"COHORT_PORT": str(port)}) == 1
    assert "refused" in capsys.readouterr().err
