"""/metrics: it parses, its names are the promised ones, and it reads without waiting."""

from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from engine.request import Stage
from server.http.answer_counter import AnswerCounter
from server.http.endpoints import Endpoints
from server.state.server_state import ServerState
from server.telemetry.metrics import Metrics
from server.telemetry.vllm_metrics import COPIES
from tests.server.fakes import House

NAMES = (
    "cohort_requests_running cohort_requests_waiting cohort_kv_cache_usage_ratio cohort_time_to_first_token_seconds_bucket "
    "cohort_inter_token_latency_seconds_bucket cohort_e2e_request_latency_seconds_bucket cohort_requests_resumed_total "
    "cohort_tokens_total cohort_requests_total process_resident_memory_bytes python_info cohort_steps_total "
    "cohort_preemptions_total cohort_prefix_cache_queries_total cohort_prefix_cache_hits_total cohort_kv_blocks_cached"
).split()


async def samples(house: House) -> dict[tuple[str, str], float]:
    response = await house.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain; version=")
    families = text_string_to_metric_families(response.text)
    found = {}
    for family in families:
        assert family.documentation or family.name.startswith(("python", "process")), family.name
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            assert (sample.name, labels) not in found, f"{sample.name} twice"
            found[sample.name, labels] = sample.value
    return found


async def test_names_are_there_from_the_start(house: House) -> None:
    found = {name for name, _ in await samples(house)}
    assert not set(NAMES) - found


def test_the_stage_is_known_before_there_is_an_engine() -> None:
    """While a model is fetched, which may take an hour, an alert wants to know."""
    text = ServerState(("m",), Metrics()).metrics.render().decode()
    assert 'cohort_stage{stage="loading"} 1.0' in text and 'cohort_stage{stage="ready"} 0.0' in text
    assert "cohort_build_info{" in text


async def test_gauges_come_from_the_engine(house: House) -> None:
    found = await samples(house)
    assert found["cohort_requests_running", ""] == 3
    assert found["cohort_requests_waiting", ""] == 2
    assert found["cohort_kv_cache_usage_ratio", ""] == 0.25
    assert [found[f"cohort_kv_blocks{what}", ""] for what in ("", "_used", "_cached")] == [20, 5, 4]
    assert found["cohort_kv_given_bytes", ""] == 4096
    states = ("slots", "slots_used", "snapshots")
    assert [found[f"cohort_state_{what}", ""] for what in states] == [10, 3, 6]
    assert (found["cohort_steps_total", ""], found["cohort_preemptions_total", ""]) == (9, 1)
    assert (found["cohort_steps_cut_total", ""], found["cohort_step_tokens_limit", ""]) == (7, 64)
    assert found["cohort_prefix_cache_queries_total", ""] == 100
    assert found["cohort_prefix_cache_hits_total", ""] == 60
    assert found["cohort_stage", "stage=ready"] == 1
    assert found["cohort_stage", "stage=failed"] == 0


async def test_snapshots_of_the_executor_and_their_age(house: House) -> None:
    found = await samples(house)
    assert found["cohort_cache_blocks", ""] == 4
    assert found["cohort_cache_odd_name_", ""] == 1.5
    assert found["cohort_cache_info", "dtype=bf16"] == 1
    assert found["cohort_executor_snapshot_age_seconds", ""] == 1.25
    assert found["cohort_executor_memory_used_bytes", ""] == 100
    assert found["cohort_executor_memory_limit_bytes", ""] == 1000
    house.core.executor.cache = None
    assert ("cohort_cache_blocks", "") not in await samples(house)


async def test_snapshot_names_leave_the_reserved_suffixes_alone(house: House) -> None:
    house.core.executor.cache = {"blocks_total": 4, "blocks": 5, "steps_count": 1}
    found = await samples(house)
    assert found["cohort_cache_blocks", ""] == 4
    assert found["cohort_cache_steps", ""] == 1
    assert not any(
        name.startswith("cohort_cache") and name.endswith(("_total", "_count")) for name, _ in found
    )


async def test_restart_causes_are_there_from_the_start(house: House) -> None:
    found = await samples(house)
    causes = ("exit", "signal", "closed", "hang", "load", "memory", "device")
    assert [found["cohort_executor_restarts_total", f"cause={cause}"] for cause in causes] == [0] * 7


async def test_observer(house: House) -> None:
    metrics = house.state.metrics
    metrics.first_token(0.2)
    metrics.tokens(2, 0.1)
    metrics.finished("stop", 10, 3, 1.5)
    metrics.finished("abort", 5, 0, 0.1)
    metrics.refused("overloaded")
    metrics.restarted("signal")
    metrics.adopted(7, 2)
    found = await samples(house)
    assert found["cohort_time_to_first_token_seconds_sum", ""] == 0.2
    assert found["cohort_inter_token_latency_seconds_count", ""] == 2
    assert found["cohort_inter_token_latency_seconds_sum", ""] == 0.1
    assert found["cohort_tokens_total", "kind=prompt"] == 15
    assert found["cohort_tokens_total", "kind=output"] == 3
    assert found["cohort_requests_total", "outcome=stop"] == 1
    assert found["cohort_requests_total", "outcome=length"] == 0
    assert found["cohort_requests_refused_total", "code=overloaded"] == 1
    assert found["cohort_requests_refused_total", "code=deadline_exceeded"] == 0
    assert found["cohort_executor_restarts_total", "cause=signal"] == 1
    assert found["cohort_kv_blocks_adopted_total", "outcome=kept"] == 7
    assert found["cohort_kv_blocks_adopted_total", "outcome=damaged"] == 2
    assert found["cohort_e2e_request_latency_seconds_count", ""] == 2


# -- the label `model`, names of other servers, keys ------------------------------------------------------------------------


def of_model(**options: str) -> House:
    house = House()
    house.state.metrics = Metrics(**options)
    house.state.metrics.watch(house.core)
    house.state.metrics.watch_stage(lambda: Stage.READY)
    AnswerCounter(house.state.metrics, Endpoints(["/v1/models"]))("/v1/models", 404)
    return house


async def test_every_series_of_the_model_has_its_name() -> None:
    found = await samples(of_model(model='org/"odd"\nname'))
    without = {
        name for name, labels in found if name.startswith("cohort_") and 'model=org/"odd"\nname' not in labels
    }
    assert without == {
        "cohort_stage",
        "cohort_build_info",
        "cohort_http_requests_total",
        "cohort_log_lines_dropped_total",
    }
    assert not any("model=" in labels for name, labels in found if not name.startswith("cohort_"))
    assert found["cohort_tokens_total", 'kind=output,model=org/"odd"\nname'] == 0


async def test_names_of_vllm_have_the_values_of_ours() -> None:
    house = of_model(model="m", compat="vllm")
    metrics = house.state.metrics
    metrics.first_token(0.2)
    metrics.tokens(2, 0.1)
    metrics.finished("stop", 10, 3, 1.5)
    metrics.finished("length", 1, 1, 1.5)
    found = await samples(house)
    labels = "engine=0,model_name=m"
    for name, value in (
        ("num_requests_running", 3), ("num_requests_waiting", 2), ("kv_cache_usage_perc", 0.25), ("num_preemptions_total", 1),
        ("prompt_tokens_total", 11), ("generation_tokens_total", 3), ("prefix_cache_queries_total", 100),
        ("prefix_cache_hits_total", 60), ("time_to_first_token_seconds_sum", 0.2), ("inter_token_latency_seconds_count", 2),
        ("time_per_output_token_seconds_count", 2), ("e2e_request_latency_seconds_count", 2), ("gpu_cache_usage_perc", 0.25),
    ):  # fmt: skip
        assert found[f"vllm:{name}", labels] == value, name
    assert found["vllm:request_success_total", f"engine=0,finished_reason=stop,model_name={'m'}"] == 1
    assert found["vllm:cache_config_info", "block_size=16,engine=0,model_name=m,num_gpu_blocks=20"] == 1
    assert found["vllm:time_to_first_token_seconds_bucket", "engine=0,le=+Inf,model_name=m"] == 1
    assert found["http_requests_total", "handler=/v1/models,status=4xx"] == 1
    assert found["http_requests_total", "handler=/v1/models,status=5xx"] == 0, "500 and 503 together"
    assert not any(name.startswith(("vllm:", "http_")) for name, _ in await samples(of_model(model="m")))


def test_every_copy_is_of_a_metric_that_exists_or_is_announced() -> None:
    """A misspelt name would silently export nothing."""
    house = of_model(model="m")
    house.state.metrics.watch_adapters(NoLoras())
    known = {family.name for family in house.state.metrics.collect()}
    # Histograms of parts of a request come with its story.
    later = {f"cohort_request_{part}" for part in (
        "queue_time_seconds", "prefill_time_seconds", "decode_time_seconds", "prompt_tokens", "output_tokens",
    )}  # fmt: skip
    assert {copy.ours for copy in COPIES} - known <= later


class NoLoras:
    max_loras = 2
    moves = (0, 0)

    def uses(self) -> list[Any]:
        return []


async def test_tokens_by_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.telemetry.metrics._MOST_KEYS", 2)
    house = of_model()
    metrics = house.state.metrics
    metrics.know_keys(["alice"])
    assert (await samples(house))["cohort_key_tokens_total", "key=alice,kind=output"] == 0
    for name in ("alice", "bob", "alice", "carol", "dave"):
        metrics.used(name, 10, 3)
    found = await samples(house)
    assert [found["cohort_key_requests_total", f"key={key}"] for key in ("alice", "bob", "other")] == [
        2,
        1,
        2,
    ]
    assert found["cohort_key_tokens_total", "key=alice,kind=prompt"] == 20
    assert found["cohort_key_tokens_total", "key=other,kind=output"] == 6


async def test_the_oldest_that_waits(house: House) -> None:
    assert (await samples(house))["cohort_oldest_waiting_seconds", ""] == 2.5
