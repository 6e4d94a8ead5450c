"""Prometheus metrics: names fixed by the design, fed by the engine as its `MetricsSink` and by gauges read when scraped.

Scraping never blocks: gauges come from `EngineStats` and from the executor's last snapshots, whose age is exported with
them, so that a hanging executor shows as old numbers and not as a hanging scrape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, disable_created_metrics, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    Metric,
)
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from engine.metrics_sink import MetricsSink
from engine.request import Stage
from engine.story import WaitReason
from server.telemetry import vllm_metrics
from server.telemetry.collectors import (
    Core,
    EngineCollector,
    LoraCollector,
    Loras,
    StageCollector,
    WorkerCollector,
    Workers,
)
from server.telemetry.plain_histogram import PlainHistogram
from server.telemetry.stories.record import CallStory

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

disable_created_metrics()  # type: ignore[no-untyped-call]  # a `_created` series beside every counter and histogram, which nothing reads

_TTFT_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160)
_ITL_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5, 5, 10)
_E2E_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640, 1280)
_PART_BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640)
_TOKEN_BUCKETS = (1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)

_RESTART_CAUSES = ("exit", "signal", "closed", "hang", "load", "memory", "device")
"""All values of `ExecutorDied.cause`."""


_SERVER_WIDE = frozenset({"cohort_stage", "cohort_build", "cohort_http_requests", "cohort_log_lines_dropped"})
"""Families without the label `model`: they exist before there is a model, or count what asks for none."""
_MOST_KEYS = 256
"""Names of API keys in labels; those of further keys are "other"."""


class Metrics(MetricsSink):
    """All metrics of one server, in a registry of their own, so that two servers in one test process do not collide."""

    def __init__(self, model: str = "", compat: str = "none") -> None:
        """`model`: value of the label `model`, without which no series has that label. `compat`: see `--metrics-compat`."""
        self._model = model
        self._compat = compat
        self.registry = CollectorRegistry(auto_describe=False)
        """Output tokens so far."""
        self._ttft = self._histogram(
            "time_to_first_token_seconds",
            "Seconds from when a request's body is there to its first token.",
            _TTFT_BUCKETS,
        )
        self._itl = self._histogram(
            "inter_token_latency_seconds", "Seconds between two tokens of a sequence.", _ITL_BUCKETS
        )
        self._e2e = self._histogram(
            "e2e_request_latency_seconds",
            "Seconds from when a request's body is there to its end.",
            _E2E_BUCKETS,
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
        self._adopted = Counter(
            "cohort_kv_blocks_adopted",
            "KV blocks sealed before a failure of the executor, by outcome: kept by its next life, or damaged and so dropped.",
            ["outcome"],
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
        self._of_key: dict[str, tuple[Counter, Counter, Counter]] = {}
        """Sequences, prompt and output tokens of each key: finding them by their labels takes longer than counting."""
        self._engine: EngineCollector | None = None
        self._loras: LoraCollector | None = None
        self.parts: dict[str, Metrics] = {}
        """Metrics of each of several models, by its name, in place of those families of this one that describe a model."""
        self._start_counters()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)

    def _make_part_histograms(self) -> None:
        """Histograms of what a call's story tells: its parts' seconds, its tokens."""
        self._queue_time = self._histogram(
            "request_queue_time_seconds",
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
            "request_prefill_time_seconds",
            "From when a request is admitted to its first token.",
            _PART_BUCKETS,
        )
        self._decode_time = self._histogram(
            "request_decode_time_seconds", "From the first token of a request to its end.", _PART_BUCKETS
        )
        self._prompt_length = self._histogram(
            "request_prompt_tokens", "Prompt tokens of a request that was admitted.", _TOKEN_BUCKETS
        )
        self._output_length = self._histogram(
            "request_output_tokens", "Output tokens of a request that was admitted.", _TOKEN_BUCKETS
        )

    def _start_counters(self) -> None:
        """Make all known labels: a rate over a counter that appears at its first event misses that event."""
        outcomes = ("stop", "length", "abort", "error")
        self._ended = {outcome: self._requests.labels(outcome) for outcome in outcomes}
        for code in ("overloaded", "deadline_exceeded"):
            self._refused.labels(code)
        for code in ("sequence_failed", "executor_died"):
            self._failed.labels(code)
        self._queue_seconds = {reason: self._queue_causes.labels(reason.value) for reason in WaitReason}
        for cause in _RESTART_CAUSES:
            self._restarts.labels(cause)
        for outcome in ("kept", "damaged"):
            self._adopted.labels(outcome)

    def _histogram(self, name: str, about: str, buckets: tuple[float, ...]) -> PlainHistogram:
        histogram = PlainHistogram(f"cohort_{name}", about, buckets)
        self.registry.register(histogram)
        return histogram

    def tell(self, story: CallStory) -> None:
        """A call is over."""
        if self.parts:
            if (part := self.parts.get(story.model)) is not None:
                part.tell(story)
            return
        now = story.ended or story.received
        if (queued := story.queue_seconds(now)) is None:
            return
        self._queue_time.observe(queued)
        for reason, seconds in story.waited.items():
            self._queue_seconds[reason].inc(seconds)
        if story.admitted is None:
            return
        self._prompt_length.observe(story.prompt_tokens)
        self._output_length.observe(story.output_tokens)
        if story.first_token is not None:
            self._prefill_time.observe(story.prefill_seconds(now) or 0.0)
            self._decode_time.observe(story.decode_seconds(now) or 0.0)

    def watch(self, core: Core) -> None:
        """Export the gauges of this engine and the snapshots of its executor."""
        self._engine = EngineCollector(core)
        self.registry.register(self._engine)

    def forget_engine(self) -> None:
        """The engine is unloaded: its gauges end, and counters and histograms stay."""
        if self._engine is not None:
            self.registry.unregister(self._engine)
            self._engine = None
        if self._loras is not None:
            self.registry.unregister(self._loras)
            self._loras = None

    def watch_adapters(self, adapters: Loras) -> None:
        """Export who uses which LoRA adapter."""
        self._loras = LoraCollector(adapters)
        self.registry.register(self._loras)

    def watch_workers(self, workers: Workers) -> None:
        """Export what API workers use."""
        self.registry.register(WorkerCollector(workers))

    def watch_stage(self, stage: Callable[[], Stage]) -> None:
        """Export the server's stage, from before the engine exists."""
        self.registry.register(StageCollector(stage))

    def know_keys(self, names: Iterable[str]) -> None:
        """Export series of these API keys before their first request."""
        for name in names:
            self._count_key(name, 0, 0, requests=0)

    def render(self) -> bytes:
        """The text that Prometheus scrapes."""
        return generate_latest(self)  # it calls nothing but `collect`

    def collect(self) -> Iterator[Metric]:
        """All families, with the label `model` where one is set, and again under the names of another server where asked for."""
        families = list(self._families())
        yield from families
        if self._compat == "vllm":
            yield from vllm_metrics.renamed(families)

    def _families(self) -> Iterator[Metric]:
        """This one's families, or those of the server and, joined by name, those of its models."""
        own = (self._labelled(family) for family in self.registry.collect())
        if not self.parts:
            yield from own
            return
        yield from (family for family in own if _is_server_wide(family))
        joined: dict[str, Metric] = {}
        for part in self.parts.values():
            for family in part._families():
                if _is_server_wide(family):
                    continue
                if (first := joined.setdefault(family.name, family)) is not family:
                    first.samples.extend(family.samples)
        yield from joined.values()

    def _labelled(self, family: Metric) -> Metric:
        """The family with the label `model`, unless it is the process's, the interpreter's or the whole server's."""
        if self._model and not _is_server_wide(family):
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

    def tokens(self, count: int, inter_token: float, sequences: int = 1) -> None:
        """See MetricsSink. Tokens that arrive together share the time since the last one."""
        self._tokens.output += count * sequences
        self._itl.observe(inter_token / count, count * sequences)

    def finished(self, outcome: str, prompt_tokens: int, output_tokens: int, e2e: float) -> None:
        """See MetricsSink."""
        self._ended[outcome].inc()
        self._tokens.prompt += prompt_tokens
        self._e2e.observe(e2e)

    def used(self, key_name: str, prompt_tokens: int, output_tokens: int) -> None:
        """See MetricsSink."""
        self._count_key(key_name, prompt_tokens, output_tokens)

    def _count_key(self, name: str, prompt_tokens: int, output_tokens: int, requests: int = 1) -> None:
        if name not in self._of_key:
            if len(self._of_key) >= _MOST_KEYS:
                name = "other"
            prompt, output = (self._key_tokens.labels(name, kind) for kind in ("prompt", "output"))
            self._of_key[name] = self._key_requests.labels(name), prompt, output
        for counter, count in zip(self._of_key[name], (requests, prompt_tokens, output_tokens), strict=True):
            counter.inc(count)

    def refused(self, code: str) -> None:
        """See MetricsSink."""
        self._refused.labels(code).inc()

    def failed(self, code: str) -> None:
        """See MetricsSink."""
        self._failed.labels(code).inc()

    def restarted(self, cause: str) -> None:
        """See MetricsSink."""
        self._restarts.labels(cause).inc()

    def adopted(self, num_kept: int, num_damaged: int) -> None:
        """See MetricsSink."""
        self._adopted.labels("kept").inc(num_kept)
        self._adopted.labels("damaged").inc(num_damaged)


def _is_server_wide(family: Metric) -> bool:
    """Whether it describes the process, the interpreter or the whole server, and no model."""
    return not family.name.startswith("cohort_") or family.name in _SERVER_WIDE


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
