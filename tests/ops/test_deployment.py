"""What can be said of container, compose file, dashboard and alerts without starting any of them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from server import healthcheck
from server.settings.table import TABLE
from tests.ops.compose import ComposeFile
from tests.ops.expressions import ROOT, alerts, dashboard, dashboard_expressions, operands
from tools.ops.dockerfile import DockerfileError, Image, expand, image_of, parse

COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))
SERVICES = ComposeFile(ROOT / "docker-compose.yml", {}).services


def read_dockerfile() -> dict[str, Image]:
    """The image of each target."""
    _, stages = parse((ROOT / "Dockerfile").read_text("utf-8"))
    return {target: image_of(stages, target) for target in ("cpu", "cuda")}


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_image_runs_as_a_numbered_user_by_exec_form(target: str) -> None:
    image = read_dockerfile()[target]
    uid, _, gid = image.user.partition(":")
    assert uid.isdecimal() and gid.isdecimal() and int(uid) > 0
    assert image.entrypoint == ["cohort"] and image.cmd == ["serve"]
    assert image.stop_signal == "SIGTERM"
    assert image.env["HOME"] == image.workdir and image.volumes == [image.workdir]
    assert image.env["HF_HOME"].startswith(image.workdir)


def test_compose_asks_the_health_check_of_the_image() -> None:
    assert SERVICES["server"]["healthcheck"]["test"] == ["CMD", *read_dockerfile()["cpu"].healthcheck]


def test_image_takes_the_pinned_torch() -> None:
    _, stages = parse((ROOT / "Dockerfile").read_text("utf-8"))
    [version] = [i.text for i in stages["dependencies"].instructions if i.text.startswith("TORCH_VERSION=")]
    pinned = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    assert f"torch=={version.removeprefix('TORCH_VERSION=')}" in pinned


def test_the_cpu_image_refuses_a_torch_with_cuda(tmp_path: Path) -> None:
    """The check that the image's environment goes through, run on a stand-in for torch of each kind."""
    _, stages = parse((ROOT / "Dockerfile").read_text("utf-8"))
    [origin] = [i.text for i in stages["cpu"].instructions if i.word == "COPY"]
    assert origin.startswith("--from=cpu-environment ")
    [check] = [i.text for i in stages["cpu-environment"].instructions]
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
    _, stages = parse((ROOT / "Dockerfile").read_text("utf-8"))
    texts = [i.text for stage in stages.values() for i in stage.instructions if i.word == "COPY"]
    copied = {name for text in texts if "--from" not in text for name in text.split()[:-1]}
    lines = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    assert {name.split("/")[0] for name in copied} == {line[1:] for line in lines if line.startswith("!")}
    assert all((ROOT / name).exists() for name in copied)


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_service_is_confined(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True and service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    limits = service["deploy"]["resources"]["limits"]
    assert limits["cpus"] and limits["memory"]
    assert service["healthcheck"]["test"][0] == "CMD"
    image, _, tag = service["image"].partition(":")
    assert image and tag and tag != "latest"
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    for volume in service["volumes"]:
        source, *_ = volume.split(":")
        assert (ROOT / source).is_dir() if source.startswith(".") else source in COMPOSE["volumes"], volume


def test_compose_waits_for_the_drain() -> None:
    drain = TABLE["drain_timeout"].default
    assert int(SERVICES["server"]["stop_grace_period"].removesuffix("s")) >= drain + 10


def test_prometheus_scrapes_the_service_and_grafana_asks_prometheus() -> None:
    scrape = yaml.safe_load((ROOT / "configs/prometheus/prometheus.yml").read_text("utf-8"))
    [job] = scrape["scrape_configs"]
    assert job["static_configs"] == [{"targets": ["server:8000"]}] and "server" in SERVICES
    folder = ROOT / "configs/grafana/provisioning"
    [source] = yaml.safe_load((folder / "datasources/prometheus.yml").read_text("utf-8"))["datasources"]
    assert source["url"] == "http://prometheus:9090" and "prometheus" in SERVICES
    assert source["jsonData"]["timeInterval"] == scrape["global"]["scrape_interval"]
    [provider] = yaml.safe_load((folder / "dashboards/cohort.yml").read_text("utf-8"))["providers"]
    mounts = dict(volume.split(":")[:2][::-1] for volume in SERVICES["grafana"]["volumes"])
    assert mounts[provider["options"]["path"]] == "./configs/grafana/dashboards"
    assert {used["uid"] for used in _sources(dashboard())} == {source["uid"]}


def _sources(node: Any) -> list[dict[str, str]]:
    """Every `datasource` below a piece of JSON."""
    if isinstance(node, list):
        return [found for item in node for found in _sources(item)]
    if not isinstance(node, dict):
        return []
    own = [node["datasource"]] if "datasource" in node else []
    return own + [found for key, item in node.items() if key != "datasource" for found in _sources(item)]


def test_panels_do_not_overlap_and_show_what_was_promised() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert [panel["title"] for panel in panels if panel["type"] == "row"] == [
        "Overview", "Traffic and latency", "Queue and refusals", "Cache", "Speculation", "LoRA adapters", "Executor's lives",
        "Server process",
    ]  # fmt: skip
    for one, other in combinations([panel["gridPos"] for panel in panels], 2):
        apart_x = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        apart_y = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert apart_x or apart_y, (one, other)
    text = " ".join(expression for _, expression in dashboard_expressions("1m"))
    for name in (
        "requests_running requests_waiting tokens_total time_to_first_token_seconds inter_token_latency_seconds "
        "e2e_request_latency_seconds kv_cache_usage_ratio requests_total executor_restarts_total "
        "requests_resumed_total executor_memory_used_bytes prefix_cache_hits_total kv_blocks_cached http_requests_total "
        "lora_requests_running lora_requests_waiting lora_loads_total lora_evictions_total lora_bytes oldest_waiting_seconds "
        "requests_refused_total requests_failed_total spec_decode_num_draft_tokens_total spec_decode_num_accepted_tokens_total "
        "spec_decode_num_accepted_tokens_per_pos_total executor_epoch steps_cut_total key_tokens_total"
    ).split():
        assert f"cohort_{name}" in text, name


def test_every_alert_waits_is_graded_and_is_tested() -> None:
    tests = yaml.safe_load((ROOT / "tests/ops/alerts_test.yml").read_text("utf-8"))["tests"]
    cases = [case for test in tests for case in test["alert_rule_test"]]
    firing = {case["alertname"] for case in cases if case.get("exp_alerts")}
    silent = {case["alertname"] for case in cases if not case.get("exp_alerts")}
    for rule in alerts():
        assert rule["for"] and rule["labels"]["severity"] in ("warning", "critical"), rule["alert"]
        assert rule["annotations"]["summary"], rule["alert"]
        assert rule["alert"] in firing & silent, f"{rule['alert']} has no test of firing, or none of silence"


def test_operands_are_split_outside_of_brackets_and_strings() -> None:
    assert operands("up == 0") == ["up", "0"]
    assert operands('a{x="b > c"} > 1 and on (job, i) rate(b[5m]) > 0.1') == [
        'a{x="b > c"}', "1", "rate(b[5m])", "0.1",
    ]  # fmt: skip
    assert operands("a / (b > 0) > 0.9") == ["a / (b > 0)", "0.9"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("$A/${B}", "1/"), ("${B:-x}", "x"), ("${A:-x}", "1"), ("${A:+y}", "y"), ("${B:+y}", "")],
)
def test_dockerfile_variables(text: str, expected: str) -> None:
    assert expand(text, {"A": "1"}) == expected


@pytest.mark.parametrize(
    "text",
    [
        "FROM debian",
        "RUN true",
        "FROM a AS b\nADD x y",
        "FROM a AS b\nENTRYPOINT cohort serve",
        "FROM a AS b\nENV A",
    ],
)
def test_dockerfile_faults_are_refused(text: str) -> None:
    with pytest.raises(DockerfileError):
        image_of(parse(text)[1], "b")


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
