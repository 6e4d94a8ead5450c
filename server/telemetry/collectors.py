"""Gauges and totals that a scrape of `/metrics` reads: the stage, API workers, LoRA adapters, the engine and its executor."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from engine.core.lora import LoraUse
from engine.request import DraftStats, EngineStats, Stage
from executors.contract import ExecutorMemoryUsage, ModelExecutor, NotReady, SnapshotValue
from server import __version__
from server.system import log_output

_RESERVED_SUFFIX = re.compile(r"(_total|_count|_sum|_bucket|_info)+$")
"""Suffixes reserved for counters, histograms and info metrics: the name of a gauge must not end in one."""
_MOST_ADAPTERS = 64
"""Names of adapters in labels: a client may choose them, and each is a series."""


class Core(Protocol):
    @property
    def executor(self) -> ModelExecutor: ...

    def stats(self) -> EngineStats: ...


class Loras(Protocol):
    max_loras: int

    def uses(self) -> list[tuple[str, LoraUse]]: ...

    @property
    def moves(self) -> tuple[int, int]: ...


class WorkerUse(Protocol):
    @property
    def number(self) -> int: ...

    @property
    def cpu(self) -> float: ...

    @property
    def resident(self) -> int: ...


class Workers(Protocol):
    @property
    def restarts(self) -> int: ...

    def uses(self) -> Sequence[WorkerUse]: ...


class StageCollector(Collector):
    """Metrics that also exist while the server still downloads its model."""

    def __init__(self, stage: Callable[[], Stage]) -> None:
        self._stage = stage

    def collect(self) -> Iterator[Metric]:
        """The stage, and the version."""
        now = self._stage()
        stages = GaugeMetricFamily("cohort_stage", "1 for the stage that the server is in.", labels=["stage"])
        for stage in Stage:
            stages.add_metric([stage.value], float(stage is now))
        yield stages
        yield InfoMetricFamily(
            "cohort_build", "Always 1; the version of the server.", {"version": __version__}
        )
        yield _counter(
            "cohort_log_lines_dropped",
            "Log lines that were not written because stderr was not read in time, or took no more.",
            log_output.dropped(),
        )


class WorkerCollector(Collector):
    """API workers. The metrics `process_*` describe the process that schedules."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers

    def collect(self) -> Iterator[Metric]:
        """How many live, how many were replaced, and what each uses."""
        uses = self._workers.uses()
        yield _gauge("cohort_api_workers", "API workers that live, with --api-server-count.", len(uses))
        yield _counter(
            "cohort_api_worker_restarts", "API workers that took a dead one's place.", self._workers.restarts
        )
        cpu = CounterMetricFamily(
            "cohort_api_worker_cpu_seconds",
            "CPU time of an API worker's process; it begins anew with a new process.",
            labels=["worker"],
        )
        resident = GaugeMetricFamily(
            "cohort_api_worker_resident_memory_bytes",
            "Resident memory of an API worker's process.",
            labels=["worker"],
        )
        for use in uses:
            cpu.add_metric([str(use.number)], use.cpu)
            resident.add_metric([str(use.number)], float(use.resident))
        yield cpu
        yield resident


class LoraCollector(Collector):
    """LoRA adapters, by the names that clients give them."""

    def __init__(self, adapters: Loras, clock: Callable[[], float] = time.time) -> None:
        self._adapters = adapters
        self._clock = clock

    def collect(self) -> Iterator[Metric]:
        """Sequences by adapter, at most `_MOST_ADAPTERS` names and "other"; and the gauge that the Kubernetes inference gateway
        routes by."""
        uses = self._adapters.uses()
        loads, evictions = self._adapters.moves
        yield _gauge("cohort_lora_adapters_known", "Adapters that requests may name.", len(uses))
        yield _gauge(
            "cohort_lora_adapters_held",
            "Those of them in the executor's memory.",
            sum(u.is_loaded for _, u in uses),
        )
        yield _counter("cohort_lora_loads", "Adapters loaded into the executor.", loads)
        yield _counter("cohort_lora_evictions", "Adapters that gave way to another one.", evictions)
        running = GaugeMetricFamily(
            "cohort_lora_requests_running",
            'Sequences of an adapter in the running batch; at most 64 names, the others are "other".',
            labels=["adapter"],
        )
        waiting = GaugeMetricFamily(
            "cohort_lora_requests_waiting", "Sequences of an adapter that wait.", labels=["adapter"]
        )
        # Those in use first: a busy adapter is not to be lost among many idle ones.
        uses.sort(key=lambda use: -(use[1].running + use[1].waiting))
        counts: dict[str, tuple[int, int]] = {}
        for number, (name, use) in enumerate(uses):
            label = name if number < _MOST_ADAPTERS else "other"
            before = counts.get(label, (0, 0))
            counts[label] = before[0] + use.running, before[1] + use.waiting
        for label, (runs, waits) in counts.items():
            running.add_metric([label], float(runs))
            waiting.add_metric([label], float(waits))
        yield running
        yield waiting
        gateway = GaugeMetricFamily(
            "cohort_lora_requests_info",
            "When this was read, in Unix seconds; the labels name the adapters with running and with waiting sequences. The "
            "Kubernetes inference gateway routes by it.",
            labels=["max_lora", "running_lora_adapters", "waiting_lora_adapters"],
        )
        top_uses = uses[:_MOST_ADAPTERS]
        names = [
            ",".join(sorted(name for name, use in top_uses if use.running)),
            ",".join(sorted(name for name, use in top_uses if use.waiting)),
        ]
        gateway.add_metric([str(self._adapters.max_loras), *names], self._clock())
        yield gateway


class EngineCollector(Collector):
    """Collector that reads the engine when scraped."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def collect(self) -> Iterator[Metric]:
        """Gauges of the engine, then the executor's snapshots."""
        stats = self._core.stats()
        yield _gauge("cohort_requests_running", "Sequences in the running batch.", stats.running)
        yield _gauge("cohort_requests_waiting", "Sequences waiting for a place in the batch.", stats.waiting)
        yield _gauge(
            "cohort_oldest_waiting_seconds",
            "Time for which the oldest sequence has waited that was never started; 0 if none waits.",
            stats.oldest_wait,
        )
        yield from _kv_gauges(stats)
        yield from _cache_config(self._core.executor)
        yield _gauge("cohort_executor_epoch", "Lives of the executor so far.", stats.epoch)
        yield _counter("cohort_steps", "Steps run.", stats.steps)
        yield _counter(
            "cohort_steps_cut",
            "Steps for which the executor had no memory, tried again in parts; also while it finds out how small they must be.",
            stats.steps_cut,
        )
        yield _gauge(
            "cohort_step_tokens_limit",
            "Tokens that a step may have by now: --max-num-batched-tokens, fewer for a while after a step without memory.",
            stats.step_tokens,
        )
        yield from _drafts(stats.drafts)
        yield _counter("cohort_preemptions", "Sequences put back for want of KV blocks.", stats.preemptions)
        yield _counter(
            "cohort_prefix_cache_queries",
            "Prompt tokens looked up in the prefix cache.",
            stats.prefix_queries,
        )
        yield _counter(
            "cohort_prefix_cache_hits",
            "Those of them that need not be computed: from earlier requests, not what the choices of one call share.",
            stats.prefix_hits,
        )
        yield from _disk(self._core)
        yield _counter(
            "cohort_requests_resumed",
            "Sequences that went on after a failed step or a restart.",
            stats.resumed,
        )
        executor = self._core.executor
        age = getattr(executor, "snapshot_age", None)
        if callable(age):
            yield _gauge("cohort_executor_snapshot_age_seconds", "Age of the executor's numbers.", age())
        yield from _memory(executor.status().memory)
        yield from _snapshot("cohort_cache", executor.cache_metrics_snapshot())
        yield from _snapshot("cohort_lora", executor.lora_metrics_snapshot())


def _kv_gauges(stats: EngineStats) -> Iterator[Metric]:
    """KV blocks and slots of states."""
    yield _gauge(
        "cohort_kv_cache_usage_ratio",
        "Share of KV blocks in use, 0 to 1, in the group of layers where it is highest.",
        stats.kv_usage,
    )
    yield _gauge("cohort_kv_blocks_used", "KV blocks in use.", stats.kv_blocks_used)
    yield _gauge(
        "cohort_kv_blocks_cached",
        "Free KV blocks that may be found again by their prefix; the others hold nothing.",
        stats.kv_blocks_cached,
    )
    yield _gauge(
        "cohort_kv_blocks",
        "KV blocks there are, without those whose memory another model has.",
        stats.kv_blocks_total,
    )
    yield _gauge(
        "cohort_kv_given_bytes",
        "KV memory that the model does without while another one has it.",
        stats.kv_bytes_given,
    )
    yield _gauge(
        "cohort_state_slots_used",
        "Slots with the state of a running sequence, of models whose layers keep one.",
        stats.states.used,
    )
    yield _gauge(
        "cohort_state_snapshots",
        "Snapshots of states that a prompt can begin with.",
        stats.states.snapshots,
    )
    yield _gauge("cohort_state_slots", "Slots of states there are; 0 for models without.", stats.states.total)


def _cache_config(executor: ModelExecutor) -> Iterator[Metric]:
    """The KV cache's geometry, in labels that the Kubernetes inference gateway reads; nothing while the model loads."""
    try:
        layout = executor.kv_layout()
    except NotReady:
        return
    config = GaugeMetricFamily(
        "cohort_cache_config_info",
        "Always 1; tokens of a KV block and number of blocks, in labels that the Kubernetes inference gateway reads.",
        labels=["block_size", "num_gpu_blocks"],
    )
    # The product of both is what fits, also where windows keep only a part of it.
    config.add_metric([str(layout.block_size), str(layout.capacity_tokens // layout.block_size)], 1.0)
    yield config


def _drafts(drafts: DraftStats) -> Iterator[Metric]:
    """What became of drafts, under the names of vLLM's metrics."""
    prefix = "cohort_spec_decode_num"
    yield _counter(f"{prefix}_drafts", "Times that a step verified drafts of a sequence.", drafts.num_drafts)
    yield _counter(f"{prefix}_draft_tokens", "Draft tokens verified.", drafts.num_draft_tokens)
    yield _counter(
        f"{prefix}_accepted_tokens", "Those of them that were accepted.", drafts.num_accepted_tokens
    )
    by_place = CounterMetricFamily(
        f"{prefix}_accepted_tokens_per_pos",
        "Draft tokens accepted, by their place among the drafts of a step.",
        labels=["position"],
    )
    for place, count in enumerate(drafts.accepted_at):
        by_place.add_metric([str(place)], float(count))
    yield by_place


def _disk(core: Core) -> Iterator[Metric]:
    """Figures of the directory of prompts, if there is one."""
    read = getattr(core, "disk_stats", None)
    if not callable(read) or (stats := read()) is None:
        return
    disk, tier = stats
    yield _gauge("cohort_kv_disk_bytes", "Bytes of the server's own files in --kv-cache-dir.", disk.num_bytes)
    yield _gauge("cohort_kv_disk_limit_bytes", "Bytes that these files may take (--kv-disk).", disk.limit)
    yield _counter("cohort_kv_disk_read_bytes", "Bytes read from --kv-cache-dir.", disk.read_bytes)
    yield _counter("cohort_kv_disk_written_bytes", "Bytes written to --kv-cache-dir.", disk.written_bytes)
    yield _counter(
        "cohort_kv_disk_failed_writes",
        "Writes that failed; each one stops writing for a minute.",
        disk.failed_writes,
    )
    refused = CounterMetricFamily(
        "cohort_kv_disk_refused",
        "Files that were not used, by reason: foreign, cut, damaged, stale, other_tokens.",
        labels=["reason"],
    )
    for reason in ("foreign", "cut", "damaged", "stale", "other_tokens"):
        refused.add_metric([reason], float(disk.refused.get(reason, 0)))
    yield refused
    yield _counter("cohort_kv_disk_hit_tokens", "Prompt tokens whose KV came from disk.", tier.hit_tokens)
    prompts = CounterMetricFamily(
        "cohort_kv_disk_prompts",
        "Prompts that were found on disk: read, given_up (computed because the read failed or took too long), slower (computed "
        "because a read would have taken longer).",
        labels=["outcome"],
    )
    outcomes = {"read": tier.fetches - tier.given_up, "given_up": tier.given_up, "slower": tier.slower}
    for outcome, count in outcomes.items():
        prompts.add_metric([outcome], float(count))
    yield prompts
    yield _gauge("cohort_kv_disk_queued", "Ended sequences whose KV is not written yet.", tier.queued)


def _memory(memory: ExecutorMemoryUsage) -> Iterator[Metric]:
    """The executor's memory in bytes, as of its last snapshot. The metrics `process_*` describe the server's process instead."""
    prefix, where = "cohort_executor_memory", "on the executor's device"
    used = "on a CPU what counts towards the container's limit (not the page cache), without a limit resident memory"
    aside = (
        "on a CPU the weights and the whole KV pool, also the part of it that holds no memory at the moment"
    )
    limit = "the device's memory, on a CPU the container's limit or the host's; 0 if unknown"
    yield _gauge(f"{prefix}_used_bytes", f"Bytes in use {where}: {used}.", memory.used_bytes)
    yield _gauge(f"{prefix}_peak_bytes", f"Most bytes in use so far {where}.", memory.peak_bytes)
    yield _gauge(f"{prefix}_allocated_bytes", f"Bytes set aside {where}: {aside}.", memory.allocated_bytes)
    yield _gauge(f"{prefix}_limit_bytes", f"Bytes there are: {limit}.", memory.total_bytes)


def _gauge(name: str, help_: str, value: float) -> Metric:
    return GaugeMetricFamily(name, help_, value=float(value))


def _counter(name: str, help_: str, value: float) -> Metric:
    return CounterMetricFamily(name, help_, value=float(value))


def _snapshot(prefix: str, values: Mapping[str, SnapshotValue] | None) -> Iterator[Metric]:
    """Numbers become gauges, strings become labels of one info metric."""
    labels, names = {}, set[str]()
    for key, value in (values or {}).items():
        name = re.sub(r"\W", "_", key)
        if isinstance(value, str):
            labels[name] = value
            continue
        name = _RESERVED_SUFFIX.sub("", name)
        if name not in names:  # two keys that mean one name: a scrape with a name twice is refused whole
            names.add(name)
            yield _gauge(f"{prefix}_{name}", f"{key}, as the executor reports it.", value)
    if labels:
        yield InfoMetricFamily(prefix, "What the executor reports in words.", labels)
