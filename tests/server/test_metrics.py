"""/metrics: it parses, its names are the promised ones, and it reads without waiting."""

from prometheus_client.parser import text_string_to_metric_families

from server.metrics import Metrics
from server.state import ServerState
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
    causes = ("exit", "signal", "closed", "hang", "load")
    assert [found["cohort_executor_restarts_total", f"cause={cause}"] for cause in causes] == [0] * 5


async def test_observer(house: House) -> None:
    metrics = house.state.metrics
    metrics.first_token(0.2)
    metrics.tokens(2, 0.1)
    metrics.finished("stop", 10, 3, 1.5)
    metrics.finished("abort", 5, 0, 0.1)
    metrics.refused("overloaded")
    metrics.restarted("signal")
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
    assert found["cohort_e2e_request_latency_seconds_count", ""] == 2
