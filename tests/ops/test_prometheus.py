"""A real Prometheus scrapes a real server under load, and every expression that ships is asked of it.

Marked external, for it needs Debian's package `prometheus`: `make test-external ONLY=ops` installs that and runs this file.
"""

from __future__ import annotations

import contextlib
import math
import re
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.e2e.server_process import ServerProcess
from tests.e2e.tiny_loras import write
from tests.ops.expressions import PROMETHEUS, ROOT, alerts, dashboard_expressions, operands

pytestmark = [pytest.mark.external, pytest.mark.timeout(60)]

_SCRAPES = 8
"""Enough for a rate within every window used below."""
_SCRAPE_INTERVAL = "500ms"
_RATE_INTERVAL = "10s"


_KEY = "of-the-load"
_REPETITIVE = " ".join(["one two three"] * 12)
"""A prompt in which a drafter finds something to propose."""


class Load:
    """Four clients that ask until told to stop; one of them hangs up in the middle of every answer, and one asks for what can be
    guessed."""

    def __init__(self, url: str) -> None:
        self._url, self._stop = url, threading.Event()
        self.failures: list[str] = []
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(4)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self, number: int) -> None:
        headers = {"Authorization": f"Bearer {_KEY}"}
        with httpx.Client(base_url=self._url, timeout=20, headers=headers) as client:
            while not self._stop.is_set():
                try:
                    self._ask(client, hangs_up=number == 0)
                    if number == 1:
                        self._ask_for_the_likely(client)
                except Exception as error:
                    self.failures.append(repr(error))
                    return

    def _ask(self, client: httpx.Client, hangs_up: bool) -> None:
        message = {"role": "user", "content": "Tell me a story about a fox."}
        body = {"messages": [message], "stream": True, "max_tokens": 40}
        with client.stream("POST", "/v1/chat/completions", json=body) as response:
            assert response.status_code == 200, response.read()
            for number, _ in enumerate(response.iter_lines()):
                if hangs_up and number > 4:
                    return

    def _ask_for_the_likely(self, client: httpx.Client) -> None:
        body = {"prompt": _REPETITIVE, "max_tokens": 30, "temperature": 0, "ignore_eos": True}
        response = client.post("/v1/completions", json=body)
        assert response.status_code == 200, response.text


class Prometheus:
    """A running Prometheus, by its HTTP API."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._client = httpx.Client(base_url=url, timeout=10)

    def __enter__(self) -> Prometheus:
        deadline = time.monotonic() + 30
        while self._client.get("/-/ready").status_code != 200:  # it listens before it answers
            assert time.monotonic() < deadline
            time.sleep(0.1)
        return self

    def __exit__(self, *exc: object) -> None:
        self._client.close()

    def get(self, path: str, **parameters: str) -> Any:
        """`data` of an answer; asserts that it is a success without warnings."""
        response = self._client.get(f"/api/v1/{path}", params=parameters)
        body = response.json()
        assert body["status"] == "success" and not body.get("warnings"), f"{parameters}: {body}"
        return body["data"]

    def values(self, expression: str) -> list[float]:
        """The values that an instant query returns, NaN left out: a quantile of nothing is not data."""
        data = self.get("query", query=expression)
        samples = [data["result"]] if data["resultType"] == "scalar" else [s["value"] for s in data["result"]]
        found = [float(value) for _, value in samples]
        return [value for value in found if not math.isnan(value)]

    def wait_for(self, expression: str, within: float = 20) -> None:
        """Until the expression has a value."""
        deadline = time.monotonic() + within
        while not self.values(expression):
            assert time.monotonic() < deadline, f"no data in {within} s: {expression}"
            time.sleep(0.1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """The embedded model with an adapter, drafts, named keys, prompts on disk and vLLM's names: all metrics are there."""
    adapter = write(tmp_path_factory.mktemp("adapters") / "a", seed=1)
    keys = adapter.parent / "keys"
    keys.write_text(f"load {_KEY}\n")
    args = [
        "cohort-tiny", "--lora-modules", f"a={adapter}", "--num-speculative-tokens", "4", "--api-key-file", str(keys),
        "--metrics-compat", "vllm", "--kv-cache-dir", str(tmp_path_factory.mktemp("prompts")),
    ]  # fmt: skip
    with ServerProcess(args, tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture(scope="module")
def prometheus(server: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Prometheus on the configuration that ships, with another target and shorter intervals, after some load."""
    folder = tmp_path_factory.mktemp("prometheus")
    config = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text("utf-8"))
    config["global"] = {"scrape_interval": _SCRAPE_INTERVAL, "evaluation_interval": _SCRAPE_INTERVAL}
    config["rule_files"] = [str(PROMETHEUS / name) for name in config["rule_files"]]
    [job] = config["scrape_configs"]
    job |= {
        "scrape_timeout": _SCRAPE_INTERVAL,
        "static_configs": [{"targets": [server.url.removeprefix("http://")]}],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    with _running(folder) as url, Load(server.url) as load, Prometheus(url) as found:
        found.wait_for(f"count_over_time(cohort_stage{{stage='ready'}}[1m]) > {_SCRAPES}")
        for outcome in ("abort", "length"):
            found.wait_for(f'rate(cohort_requests_total{{outcome="{outcome}"}}[{_RATE_INTERVAL}]) > 0')
        found.wait_for(f"rate(cohort_spec_decode_num_draft_tokens_total[{_RATE_INTERVAL}]) > 0")
        found.wait_for(f'rate(cohort_key_tokens_total{{key="load"}}[{_RATE_INTERVAL}]) > 0')
        yield found
    assert not load.failures


@contextlib.contextmanager
def _running(folder: Path) -> Iterator[str]:
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                "--web.listen-address=127.0.0.1:0",
            ],
            stdout=output,
            stderr=output,
        )
    try:
        deadline = time.monotonic() + 20
        while (match := re.search(r'"?Listening on"? address=(\S+)', log.read_text())) is None:
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        yield f"http://{match[1]}"
    finally:
        process.terminate()
        process.wait(10)


def test_every_dashboard_expression_returns_data(prometheus: Prometheus) -> None:
    empty = [f"{p}: {e}" for p, e in dashboard_expressions(_RATE_INTERVAL) if not prometheus.values(e)]
    assert not empty


def test_every_alert_expression_is_evaluated_and_its_operands_return_data(prometheus: Prometheus) -> None:
    empty = []
    for rule in alerts():
        prometheus.get("query", query=rule["expr"])
        parts = operands(rule["expr"])
        assert len(parts) > 1, f"{rule['alert']} compares nothing"
        empty += [f"{rule['alert']}: {part}" for part in parts if not prometheus.values(part)]
    assert not empty


def test_rules_are_loaded_healthy_and_silent(prometheus: Prometheus) -> None:
    def rules() -> list[dict[str, Any]]:
        return [rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]]

    deadline = time.monotonic() + 10
    while any(rule["health"] == "unknown" for rule in rules()):
        assert time.monotonic() < deadline, rules()
        time.sleep(0.1)
    assert {rule["name"] for rule in rules()} == {rule["alert"] for rule in alerts()}
    assert [(rule["name"], rule.get("lastError")) for rule in rules() if rule["health"] != "ok"] == []
    assert [rule["name"] for rule in rules() if rule["state"] == "firing"] == []


def test_a_name_that_does_not_exist_returns_no_data(prometheus: Prometheus) -> None:
    """What the tests above rely on: a misspelt metric would be seen."""
    [expression] = [
        e for panel, e in dashboard_expressions(_RATE_INTERVAL) if panel.startswith("KV cache usage")
    ]
    assert prometheus.values(expression)
    assert not prometheus.values(expression.replace("usage_ratio", "usage"))


_OF_VLLM = ("vllm:", "# HELP vllm:", "# TYPE vllm:")


def test_promtool_finds_nothing_in_the_metrics(server: ServerProcess) -> None:
    """But for the names that vLLM chose, whose colons promtool keeps for recording rules."""
    lines = server.get("/metrics").text.splitlines(keepends=True)
    _promtool("check", "metrics", stdin="".join(line for line in lines if not line.startswith(_OF_VLLM)))


_SELECTOR = 'job="cohort", model_name="cohort-tiny"'
_FOR_VLLM = (
    *(f"sum(vllm:{gauge}{{{_SELECTOR}}})" for gauge in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")),
    *(
        f"sum(rate(vllm:{counter}_total{{{_SELECTOR}}}[{_RATE_INTERVAL}]))"
        for counter in (
            "prompt_tokens", "generation_tokens", "prefix_cache_hits", "prefix_cache_queries", "num_preemptions",
            "spec_decode_num_drafts", "spec_decode_num_accepted_tokens",
        )
    ),
    f"sum by (finished_reason) (rate(vllm:request_success_total{{{_SELECTOR}}}[{_RATE_INTERVAL}]))",
    *(
        f"histogram_quantile(0.95, sum by (le) (rate(vllm:{name}_seconds_bucket{{{_SELECTOR}}}[{_RATE_INTERVAL}])))"
        for name in ("time_to_first_token", "inter_token_latency", "time_per_output_token", "e2e_request_latency")
    ),
    f"vllm:cache_config_info{{{_SELECTOR}}}",
    f"vllm:lora_requests_info{{{_SELECTOR}}}",
    f'sum(rate(http_requests_total{{job="cohort", status="2xx"}}[{_RATE_INTERVAL}]))',
)  # fmt: skip
"""What dashboards, autoscalers and gateways made for vLLM ask, in its names."""


def test_expressions_for_vllm_return_data(prometheus: Prometheus) -> None:
    assert not [expression for expression in _FOR_VLLM if not prometheus.values(expression)]
    both = "cohort_requests_running == on (job, instance) vllm:num_requests_running"
    assert prometheus.values(both), "one scrape, one value"


def test_promtool_accepts_configuration_and_rules() -> None:
    _promtool("check", "config", str(PROMETHEUS / "prometheus.yml"))
    _promtool("check", "rules", str(PROMETHEUS / "alerts.yml"))


def test_alerts_fire_when_they_should() -> None:
    _promtool("test", "rules", str(ROOT / "tests/ops/alerts_test.yml"))


def test_health_check_of_the_compose_file(prometheus: Prometheus) -> None:
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))
    kind, *command = compose["services"]["prometheus"]["healthcheck"]["test"]
    assert kind == "CMD"
    run = subprocess.run(
        [part.replace("http://127.0.0.1:9090", prometheus.url) for part in command], timeout=10
    )
    assert run.returncode == 0


def test_every_metric_is_documented(prometheus: Prometheus, server: ServerProcess) -> None:
    """docs/metrics.md names each metric that the server exports, and besides only those of API workers."""
    exported = set(re.findall(r"^# TYPE (cohort_\w+)", server.get("/metrics").text, re.M))
    page = (ROOT / "docs/metrics.md").read_text("utf-8")
    documented = set(re.findall(r"^\| `(cohort_\w+)", page, re.M))
    assert exported == {
        name for name in documented if not name.startswith(("cohort_api_worker", "cohort_replica"))
    }


def _promtool(*arguments: str, stdin: str = "") -> None:
    run = subprocess.run(["promtool", *arguments], input=stdin, capture_output=True, text=True, timeout=20)
    assert run.returncode == 0 and "should" not in run.stderr, run.stdout + run.stderr
