"""What can be said of compose file, dashboard and alerts without starting any of them."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
import yaml

from server.settings.table import TABLE
from tests.ops.compose import ComposeFile
from tests.ops.expressions import ROOT, alerts, dashboard, dashboard_expressions, operands

COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))
SERVICES = ComposeFile(ROOT / "docker-compose.yml", {}).services


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
    # The dashboard asks whichever source of this type is chosen, and the only one is the default.
    assert source["type"] == "prometheus" and source["isDefault"]


def test_the_dashboard_asks_the_data_source_that_is_chosen() -> None:
    first, *others = dashboard()["templating"]["list"]
    assert (first["name"], first["type"], first["query"]) == ("datasource", "datasource", "prometheus")
    assert not first["multi"] and not first["includeAll"] and first["current"] == {}, (
        "no source of one installation"
    )
    assert all(variable["datasource"]["uid"] == "${datasource}" for variable in others)
    panels = [panel for panel in dashboard()["panels"] if panel["type"] != "row"]
    assert len(panels) > 20
    for panel in panels:
        asked = [panel["datasource"], *(target["datasource"] for target in panel["targets"])]
        assert all(one == {"type": "prometheus", "uid": "${datasource}"} for one in asked), panel["title"]
    assert {used["uid"] for used in _sources(dashboard())} == {"${datasource}"}
    assert not {"__inputs", "__requires", "id"} & set(dashboard())


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
        "Server process", "Prompts on disk",
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


def test_compose_gives_up_on_nothing_that_may_pass() -> None:
    """A number behind `on-failure` is the end after so many starts, which Docker makes within seconds."""
    assert SERVICES["server"]["restart"] in ("on-failure", "always", "unless-stopped")
