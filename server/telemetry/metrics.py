"""Prometheus metrics: names fixed by the design, fed by the engine as its `MetricsSink` and by gauges read when scraped.

Scraping never blocks: gauges come from `EngineStats` and from the executor's last snapshots, whose age is exported with
them, so that a hanging executor shows as old numbers and not as a hanging scrape.
"""

from __future__ import annotations

import bisect
import itertools
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from engine.core.lora import LoraUse
from engine.metrics_sink import MetricsSink
from engine.request import DraftStats, EngineStats, Stage
from engine.story import WaitReason
from executors.contract import ExecutorMemoryUsage, ModelExecutor, NotReady, SnapshotValue
from server import __version__
from server.system import log_output
from server.telemetry import vllm_metrics
from server.telemetry.stories.record import CallStory

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

disable_created_metrics()  # type: ignore[no-untyped-call]  # a `_created` series beside every counter and histogram, which nothing reads

_TTFT_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160)
_ITL_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5, 5, 10)
_E2E_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640, 1280)
_PART_BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640)
_TOKEN_BUCKETS = (1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)

_RESTART_CAUSES = ("exit", "signal", "closed", "hang", "load", "memory")
"""All values of `ExecutorDied.cause`."""
_RESERVED_SUFFIX = re.compile(r"(_total|_count|_sum|_bucket|_info)+$")
"""Suffixes reserved for counters, histograms and info metrics: the name of a gauge must not end in one."""


_SERVER_WIDE = frozenset({"cohort_stage", "cohort_build", "cohort_http_requests", "cohort_log_lines_dropped"})
"""Families without the label `model`: they exist before there is a model, or count what asks for none."""
_MOST_ADAPTERS = 64
"""Names of adapters in labels: a client may choose them, and each is a series."""
_MOST_KEYS = 256
"""Names of API keys in labels; those of further keys are "other"."""


class _Core(Protocol):
    @property
    def executor(self) -> ModelExecutor: ...

    def stats(self) -> EngineStats: ...


class _Loras(Protocol):
    max_loras: int

    def uses(self) -> list[tuple[str, LoraUse]]: ...

    @property
    def moves(self) -> tuple[int, int]: ...


class _WorkerUse(Protocol):
    @property
    def number(self) -> int: ...

    @property
    def cpu(self) -> float: ...

    @property
    def resident(self) -> int: ...


class _Workers(Protocol):
    @property
    def restarts(self) -> int: ...

    def uses(self) -> Sequence[_WorkerUse]: ...


class Metrics(MetricsSink):
    """All metrics of one server, in a registry of their own, so that two servers in one test process do not collide."""

    def __init__(self, model: str = "", compat: str = "none") -> None:
        """`model`: value of the label `model`, without which no series has that label. `compat`: see `--metrics-compat`."""
        self._model = model
        self._compat = compat
        self.registry = CollectorRegistry(auto_describe=False)
        """Output tokens so far."""
        self._ttft = Histogram(
            "cohort_time_to_first_token_seconds",
            "Seconds from when a request's body is there to its first token.",
            buckets=_TTFT_BUCKETS,
            registry=self.registry,
        )
        self._itl = _Intervals()
        self.registry.register(self._itl)
        self._e2e = Histogram(
            "cohort_e2e_request_latency_seconds",
            "Seconds from when a request's body is there to its end.",
            buckets=_E2E_BUCKETS,
            registry=self.registry,
        )
        self._tokens = _Tokens()
        self.registry.register(self._tokens)
        self._make_part_histograms()
        self._requests = Counter(
            "cohort_requests",
            "Sequences that ended: stop, length, abort (the client left, or its settings forbid every token) or error.",
            ["outcome"],
            registry=self.registry,
        )
        self._refused = Counter(
            "cohort_requests_refused",
            "Calls told to come back later (429), by the error's code: not let into the queue, or dropped from it at their "
            "deadline or after --max-queue-wait.",
            ["code"],
            registry=self.registry,
        )
        self._failed = Counter(
            "cohort_requests_failed",
            "Sequences that ended in an error that is not the client's, by the error's code; sequence_failed is the model's own: "
            "NaN logits for one.",
            ["code"],
            registry=self.registry,
        )
        self._restarts = Counter(
            "cohort_executor_restarts",
            "Restarts of the executor, by what ended it.",
            ["cause"],
            registry=self.registry,
        )
        self._key_requests = Counter(
            "cohort_key_requests",
            "Sequences that ended, by the name of their API key.",
            ["key"],
            registry=self.registry,
        )
        self._key_tokens = Counter(
            "cohort_key_tokens",
            "Tokens of sequences that ended, by the name of their API key and by kind: prompt, output.",
            ["key", "kind"],
            registry=self.registry,
        )
        self._keys: set[str] = set()
        self._start_counters()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)

    def _make_part_histograms(self) -> None:
        """Histograms of what a call's story tells: its parts' seconds, its tokens."""
        self._queue_time = self._histogram(
            "queue_time_seconds",
            "From when a request is queued to when it is admitted, or leaves.",
            _PART_BUCKETS,
        )
        self._queue_causes = Counter(
            "cohort_request_queue_seconds",
            "Seconds that requests waited until they were admitted or left, by what they waited for.",
            ["cause"],
            registry=self.registry,
        )
        self._prefill_time = self._histogram(
            "prefill_time_seconds", "From when a request is admitted to its first token.", _PART_BUCKETS
        )
        self._decode_time = self._histogram(
            "decode_time_seconds", "From the first token of a request to its end.", _PART_BUCKETS
        )
        self._prompt_length = self._histogram(
            "prompt_tokens", "Prompt tokens of a request that was admitted.", _TOKEN_BUCKETS
        )
        self._output_length = self._histogram(
            "output_tokens", "Output tokens of a request that was admitted.", _TOKEN_BUCKETS
        )

    def _start_counters(self) -> None:
        """Make all known labels: a rate over a counter that appears at its first event misses that event."""
        for outcome in ("stop", "length", "abort", "error"):
            self._requests.labels(outcome)
        for code in ("overloaded", "deadline_exceeded"):
            self._refused.labels(code)
        for code in ("sequence_failed", "executor_died"):
            self._failed.labels(code)
        for reason in WaitReason:
            self._queue_causes.labels(reason.value)
        for cause in _RESTART_CAUSES:
            self._restarts.labels(cause)

    def _histogram(self, name: str, about: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"cohort_request_{name}", about, buckets=buckets, registry=self.registry)

    def tell(self, story: CallStory) -> None:
        """A call is over."""
        now = story.ended or story.received
        if (queued := story.queue_seconds(now)) is None:
            return
        self._queue_time.observe(queued)
        for reason, seconds in story.waited.items():
            self._queue_causes.labels(reason.value).inc(seconds)
        if story.admitted is None:
            return
        self._prompt_length.observe(story.prompt_tokens)
        self._output_length.observe(story.output_tokens)
        if story.first_token is not None:
            self._prefill_time.observe(story.prefill_seconds(now) or 0.0)
            self._decode_time.observe(story.decode_seconds(now) or 0.0)

    def watch(self, core: _Core) -> None:
        """Export the gauges of this engine and the snapshots of its executor."""
        self.registry.register(_EngineCollector(core))

    def watch_adapters(self, adapters: _Loras) -> None:
        """Export who uses which LoRA adapter."""
        self.registry.register(_LoraCollector(adapters))

    def watch_workers(self, workers: _Workers) -> None:
        """Export what API workers use."""
        self.registry.register(_WorkerCollector(workers))

    def watch_stage(self, stage: Callable[[], Stage]) -> None:
        """Export the server's stage, from before the engine exists."""
        self.registry.register(_StageCollector(stage))

    def know_keys(self, names: Iterable[str]) -> None:
        """Export series of these API keys before their first request."""
        for name in names:
            self._count_key(name, 0, 0, requests=0)

    def render(self) -> bytes:
        """The text that Prometheus scrapes."""
        return generate_latest(self)  # it calls nothing but `collect`

    def collect(self) -> Iterator[Metric]:
        """All families, with the label `model` where one is set, and again under the names of another server where asked for."""
        families = [self._labelled(family) for family in self.registry.collect()]
        yield from families
        if self._compat == "vllm":
            yield from vllm_metrics.renamed(families)

    def _labelled(self, family: Metric) -> Metric:
        """The family with the label `model`, unless it is the process's, the interpreter's or the whole server's."""
        if self._model and family.name.startswith("cohort_") and family.name not in _SERVER_WIDE:
            family.samples = [
                sample._replace(labels={**sample.labels, "model": self._model}) for sample in family.samples
            ]
        return family

    # -- MetricsSink: called from the engine's loop task ------------------------------------------------------------------

    def first_token(self, ttft: float) -> None:
        """See MetricsSink."""
        self._ttft.observe(ttft)
        self._tokens.output += 1

    @property
    def num_output_tokens(self) -> int:
        """Output tokens so far."""
        return self._tokens.output

    def tokens(self, count: int, inter_token: float) -> None:
        """See MetricsSink. Tokens that arrive together share the time since the last one."""
        self._tokens.output += count
        self._itl.observe(inter_token / count, count)

    def finished(self, outcome: str, prompt_tokens: int, output_tokens: int, e2e: float) -> None:
        """See MetricsSink."""
        self._requests.labels(outcome).inc()
        self._tokens.prompt += prompt_tokens
        self._e2e.observe(e2e)

    def used(self, key_name: str, prompt_tokens: int, output_tokens: int) -> None:
        """See MetricsSink."""
        self._count_key(key_name, prompt_tokens, output_tokens)

    def _count_key(self, name: str, prompt_tokens: int, output_tokens: int, requests: int = 1) -> None:
        if name not in self._keys:
            if len(self._keys) < _MOST_KEYS:
                self._keys.add(name)
            else:
                name = "other"
        self._key_requests.labels(name).inc(requests)
        self._key_tokens.labels(name, "prompt").inc(prompt_tokens)
        self._key_tokens.labels(name, "output").inc(output_tokens)

    def refused(self, code: str) -> None:
        """See MetricsSink."""
        self._refused.labels(code).inc()

    def failed(self, code: str) -> None:
        """See MetricsSink."""
        self._failed.labels(code).inc()

    def restarted(self, cause: str) -> None:
        """See MetricsSink."""
        self._restarts.labels(cause).inc()


class _Tokens(Collector):
    """`cohort_tokens_total`, counted in plain integers: it is counted for every token. One writer: the event loop."""

    def __init__(self) -> None:
        self.prompt = 0
        self.output = 0

    def collect(self) -> Iterator[Metric]:
        """The counter, by kind."""
        family = CounterMetricFamily(
            "cohort_tokens",
            "Output tokens as they come, and prompt tokens of requests that ended after they were started, once for all choices.",
            labels=["kind"],
        )
        family.add_metric(["prompt"], float(self.prompt))
        family.add_metric(["output"], float(self.output))
        yield family


class _Intervals(Collector):
    """`cohort_inter_token_latency_seconds`. One writer: the event loop. prometheus_client's own histogram takes 1 us for each
    token, which is as long as the rest of its way through the engine's delivery."""

    def __init__(self) -> None:
        self._counts = [0] * (len(_ITL_BUCKETS) + 1)
        self._sum = 0.0

    def observe(self, seconds: float, count: int) -> None:
        """Count so many intervals of this length."""
        self._counts[bisect.bisect_left(_ITL_BUCKETS, seconds)] += count
        self._sum += seconds * count

    def collect(self) -> Iterator[Metric]:
        """The histogram."""
        family = HistogramMetricFamily(
            "cohort_inter_token_latency_seconds", "Seconds between two tokens of a sequence.", labels=[]
        )
        bounds = [*(str(float(bound)) for bound in _ITL_BUCKETS), "+Inf"]
        below = itertools.accumulate(self._counts)
        family.add_metric(
            [], [(bound, float(count)) for bound, count in zip(bounds, below, strict=True)], self._sum
        )
        yield family


class _StageCollector(Collector):
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


class _WorkerCollector(Collector):
    """API workers. The metrics `process_*` describe the process that schedules."""

    def __init__(self, workers: _Workers) -> None:
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


class _LoraCollector(Collector):
    """LoRA adapters, by the names that clients give them."""

    def __init__(self, adapters: _Loras, clock: Callable[[], float] = time.time) -> None:
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


class _EngineCollector(Collector):
    """Collector that reads the engine when scraped."""

    def __init__(self, core: _Core) -> None:
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
        yield _gauge("cohort_kv_cache_usage_ratio", "Share of KV blocks in use, 0 to 1.", stats.kv_usage)
        yield _gauge("cohort_kv_blocks_used", "KV blocks in use.", stats.kv_blocks_used)
        yield _gauge(
            "cohort_kv_blocks_cached",
            "Free KV blocks that may be found again by their prefix; the others hold nothing.",
            stats.kv_blocks_cached,
        )
        yield _gauge("cohort_kv_blocks", "KV blocks there are.", stats.kv_blocks_total)
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
    config.add_metric([str(layout.block_size), str(layout.num_blocks)], 1.0)
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
