"""/metrics of an ingress: its own figures, and those of its replicas with the label `replica`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from server.remote.replicas.core import FleetCore
from server.remote.replicas.fleet import Fleet, Member
from server.telemetry.metrics import Metrics

FETCH_TIMEOUT = 1.0
"""Seconds that a scrape waits for the figures of replicas. One that does not answer is left out."""

ENGINES = frozenset(
    {
        "cohort_time_to_first_token_seconds",
        "cohort_inter_token_latency_seconds",
        "cohort_e2e_request_latency_seconds",
        "cohort_tokens",
        "cohort_requests",
        "cohort_requests_failed",
        "cohort_executor_restarts",
        "cohort_kv_blocks_adopted",
        "cohort_key_requests",
        "cohort_key_tokens",
    }
)
"""Families that the engine feeds: they are the replicas'."""
_PARTS = ("cohort_request_", "cohort_http_requests", "cohort_build")
"""Beginnings of families that the ingress feeds: calls are answered and recorded there."""


class IngressMetrics(Metrics):
    """Metrics of an ingress. `watch_fleet` comes before the first scrape."""

    def __init__(self, model: str, compat: str) -> None:
        super().__init__(model=model, compat=compat)
        self._texts: dict[str, str] = {}
        """What each replica said last, by name."""

    def watch_fleet(self, fleet: Fleet, core: Callable[[], FleetCore | None]) -> None:
        """Export replicas, and what the router did."""
        self._fleet = fleet
        self.registry.register(FleetCollector(fleet, core))

    async def sync(self, timeout: float) -> None:
        """Fetch the replicas' figures; see `server.state.server_state.WorkersLike`. It may take longer than `timeout`,
        for they may be on other machines."""

        async def fetch(member: Member) -> tuple[str, str | None]:
            try:
                body = await member.fetch("/metrics", max(timeout, FETCH_TIMEOUT))
            except (TimeoutError, LookupError):
                return member.name, None
            return member.name, body.decode()

        texts = await asyncio.gather(*(fetch(member) for member in self._fleet.present))
        self._texts = {name: text for name, text in texts if text is not None}

    def collect(self) -> Iterator[Metric]:
        """All families, each once: the ingress's samples, then those of the replicas."""
        families: dict[str, Metric] = {}
        for family in super().collect():
            if family.name not in ENGINES:
                families[family.name] = family
        for name, text in self._texts.items():
            for theirs in text_string_to_metric_families(text):
                if not theirs.name.startswith(_PARTS):
                    _add(families, theirs, name)
        yield from families.values()


def _add(families: dict[str, Metric], theirs: Metric, replica: str) -> None:
    samples = [sample._replace(labels={**sample.labels, "replica": replica}) for sample in theirs.samples]
    family = families.get(theirs.name)
    if family is None:
        theirs.samples = samples
        families[theirs.name] = theirs
    else:
        family.samples = [*family.samples, *samples]


class FleetCollector(Collector):
    """Replicas, and where requests went."""

    def __init__(self, fleet: Fleet, core: Callable[[], FleetCore | None]) -> None:
        self._fleet = fleet
        self._core = core

    def collect(self) -> Iterator[Metric]:
        """Gauges and counters."""
        yield GaugeMetricFamily(
            "cohort_replicas",
            "Replicas that have said what they serve, as this ingress sees them.",
            value=float(len(self._fleet.present)),
        )
        if (core := self._core()) is None:
            return
        placed = GaugeMetricFamily(
            "cohort_replica_sequences",
            "Unfinished sequences that this ingress has at a replica.",
            labels=["replica"],
        )
        for name in core.router.names:
            placed.add_metric([name], float(core.router.load(name)))
        yield placed
        yield GaugeMetricFamily(
            "cohort_replica_sequences_waiting",
            "Unfinished sequences for which there is no replica at the moment.",
            value=float(core.num_unplaced),
        )
        routed = CounterMetricFamily(
            "cohort_replica_routed",
            "Prompts given to a replica, by why to that one: prefix, hash, adapter, or load where the first choice had more "
            "than its share.",
            labels=["reason"],
        )
        for reason, count in core.router.decisions.items():
            routed.add_metric([reason], float(count))
        yield routed
        yield CounterMetricFamily(
            "cohort_replica_losses", "Replicas lost while they had sequences.", value=float(core.num_lost)
        )
        yield CounterMetricFamily(
            "cohort_replica_sequences_moved",
            "Sequences that went on at another replica, or at the same one in its next life.",
            value=float(core.moved),
        )
