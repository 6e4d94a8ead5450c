"""Cohort's metrics under the names of vLLM, for dashboards, gateways and autoscalers that read those.

Each family is a copy of one of ours, value for value: `model` becomes `model_name`, and `engine` is always "0". What this server
does not measure has no copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client.core import Metric
from prometheus_client.samples import Sample


@dataclass(frozen=True, slots=True)
class Copy:
    """`ours` and `theirs` are names of families: without `_total`, `_bucket` and the like."""

    ours: str
    theirs: str
    only: Mapping[str, str] = field(default_factory=dict)
    """Labels that a series must have; the copy is without them."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Other names of labels."""


COPIES = (
    Copy("cohort_requests_running", "vllm:num_requests_running"),
    Copy("cohort_requests_waiting", "vllm:num_requests_waiting"),
    Copy("cohort_kv_cache_usage_ratio", "vllm:kv_cache_usage_perc"),
    Copy("cohort_kv_cache_usage_ratio", "vllm:gpu_cache_usage_perc"),
    Copy("cohort_cache_config_info", "vllm:cache_config_info"),
    Copy("cohort_prefix_cache_queries", "vllm:prefix_cache_queries"),
    Copy("cohort_prefix_cache_hits", "vllm:prefix_cache_hits"),
    Copy("cohort_preemptions", "vllm:num_preemptions"),
    Copy("cohort_tokens", "vllm:prompt_tokens", only={"kind": "prompt"}),
    Copy("cohort_tokens", "vllm:generation_tokens", only={"kind": "output"}),
    Copy("cohort_requests", "vllm:request_success", labels={"outcome": "finished_reason"}),
    Copy("cohort_time_to_first_token_seconds", "vllm:time_to_first_token_seconds"),
    Copy("cohort_inter_token_latency_seconds", "vllm:inter_token_latency_seconds"),
    Copy("cohort_inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
    Copy("cohort_e2e_request_latency_seconds", "vllm:e2e_request_latency_seconds"),
    Copy("cohort_request_queue_time_seconds", "vllm:request_queue_time_seconds"),
    Copy("cohort_request_prefill_time_seconds", "vllm:request_prefill_time_seconds"),
    Copy("cohort_request_decode_time_seconds", "vllm:request_decode_time_seconds"),
    Copy("cohort_request_prompt_tokens", "vllm:request_prompt_tokens"),
    Copy("cohort_request_output_tokens", "vllm:request_generation_tokens"),
    Copy("cohort_spec_decode_num_drafts", "vllm:spec_decode_num_drafts"),
    Copy("cohort_spec_decode_num_draft_tokens", "vllm:spec_decode_num_draft_tokens"),
    Copy("cohort_spec_decode_num_accepted_tokens", "vllm:spec_decode_num_accepted_tokens"),
    Copy("cohort_spec_decode_num_accepted_tokens_per_pos", "vllm:spec_decode_num_accepted_tokens_per_pos"),
    Copy("cohort_lora_requests_info", "vllm:lora_requests_info"),
)


def renamed(families: Iterable[Metric]) -> Iterator[Metric]:
    """The copies of those families that exist."""
    by_name = {family.name: family for family in families}
    for copy in COPIES:
        family = by_name.get(copy.ours)
        if family is None:
            continue
        metric = Metric(copy.theirs, family.documentation, family.type)
        metric.samples = [
            _renamed(sample, copy)
            for sample in family.samples
            if all(sample.labels.get(name) == value for name, value in copy.only.items())
        ]
        yield metric
    if (answered := by_name.get("cohort_http_requests")) is not None:
        yield _by_class(answered)


def _renamed(sample: Sample, copy: Copy) -> Sample:
    names = {"model": "model_name", **copy.labels}
    labels = {names.get(name, name): one for name, one in sample.labels.items() if name not in copy.only}
    return sample._replace(
        name=copy.theirs + sample.name.removeprefix(copy.ours), labels={"engine": "0", **labels}
    )


def _by_class(answered: Metric) -> Metric:
    """HTTP answers by class of status (2xx), as the instrumentation of vLLM's web server counts them."""
    sums: dict[tuple[str, str], float] = {}
    for sample in answered.samples:
        group = (sample.labels["route"], f"{sample.labels['status'][:1]}xx")
        sums[group] = sums.get(group, 0.0) + sample.value
    metric = Metric("http_requests", "HTTP requests answered, by endpoint and class of status.", "counter")
    for (route, status), value in sums.items():
        metric.add_sample("http_requests_total", {"handler": route, "status": status}, value)
    return metric
