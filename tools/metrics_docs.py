"""The tables of docs/metrics.md, from the server's own registry: `python -m tools.metrics_docs write|check`.

A metric's meaning is its help text, which Prometheus and Grafana show too. What the executor reports itself (`cohort_cache_*` and
some of `cohort_lora_*`) has no help text of ours: SNAPSHOTS describes it for LlmExecutor, and tests/ops compares the page with
what a running server exports.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from prometheus_client.core import Metric

from engine.core.lora import LoraUse
from engine.kv.disk.disk import DiskStats, TierStats
from engine.request import DraftStats, EngineStats, Stage
from executors.contract import ExecutorMemoryUsage, KvLayout
from server.http.answer_counter import AnswerCounter
from server.http.endpoints import Endpoints
from server.remote.replicas.figures import FleetCollector
from server.remote.replicas.router import Router
from server.remote.workers.pool import WorkerUse
from server.telemetry.metrics import Metrics
from server.telemetry.vllm_metrics import COPIES
from tools.generated_page import run, with_parts
from tools.settings_docs import escaped

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "metrics.md"
HEAD = "| metric | type | labels | meaning |\n|---|---|---|---|"

GROUPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "Requests and tokens",
        ("cohort_request", "cohort_oldest", "cohort_tokens", "cohort_key", "cohort_http", "cohort_time", "cohort_inter",
         "cohort_e2e"),
    ),
    ("KV cache and prefixes", ("cohort_kv", "cohort_prefix", "cohort_preemptions", "cohort_cache_config")),
    ("Steps and drafts", ("cohort_step", "cohort_spec")),
    ("Stage and executor", ("cohort_stage", "cohort_build", "cohort_executor", "cohort_log")),
    ("LoRA adapters", ("cohort_lora",)),
    ("API workers", ("cohort_api",)),
    ("Replicas, at their ingress", ("cohort_replica",)),
    ("What the executor reports itself", ("cohort_cache",)),
)  # fmt: skip
"""Headings, and beginnings of the names below each. The longest beginning counts."""
OTHERS = "Others"

SNAPSHOTS = (
    ("cohort_cache_blocks", "KV blocks that the executor holds."),
    ("cohort_cache_blocks_in_tables", "Entries of all its block tables; a shared block counts for each."),
    ("cohort_cache_block_size", "Tokens of a KV block."),
    ("cohort_cache_bytes_per_block", "Bytes of a KV block."),
    ("cohort_cache_bytes", "Bytes of all KV blocks."),
    ("cohort_cache_capacity_tokens", "Tokens that fit."),
    ("cohort_cache_sequences", "Sequences that the executor knows."),
    ("cohort_lora_loaded", "Adapters loaded, as the executor says."),
    ("cohort_lora_bytes", "Memory of the loaded adapters."),
    ("cohort_lora_highest_rank", "Highest rank of the loaded adapters."),
)


def main(argv: Sequence[str]) -> int:
    """Write the tables into the page, or say that they are stale (exit code 1)."""
    return run("metrics_docs", argv, PAGE, with_tables)


def with_tables(page: str) -> str:
    """The page with its generated parts rewritten. Raises ValueError if the markers of a part are missing."""
    return with_parts(page, {"metrics": metric_tables(), "vllm": vllm_table()})


def metric_tables() -> str:
    """A heading and a table for each group."""
    rows: dict[str, list[str]] = {title: [] for title, _ in (*GROUPS, (OTHERS, ()))}
    for name, kind, labels, meaning in described():
        shown = ", ".join(f"`{label}`" for label in labels)
        rows[group_of(name)].append(f"| `{name}` | {kind} | {shown} | {escaped(meaning)} |")
    parts = (f"### {title}\n\n{HEAD}\n" + "\n".join(found) for title, found in rows.items() if found)
    return "\n\n".join(parts)


def group_of(name: str) -> str:
    """The heading of a metric."""
    fitting = [(len(begin), title) for title, begins in GROUPS for begin in begins if name.startswith(begin)]
    return max(fitting)[1] if fitting else OTHERS


def described() -> Iterator[tuple[str, str, list[str], str]]:
    """Name, type, labels and meaning of every metric, `model` left out, which all have but three."""
    for family in exported().registry.collect():
        if family.name.startswith("cohort_"):
            yield _name(family), _type(family), _labels(family), family.documentation
    for name, meaning in SNAPSHOTS:
        yield name, "gauge", [], meaning


def vllm_table() -> str:
    """Names of --metrics-compat vllm that this server has, and ours."""
    types = {family.name: _type(family) for family in exported().registry.collect()}
    rows = [
        f"| `{_suffixed(copy.theirs, types[copy.ours])}` | `{_suffixed(copy.ours, types[copy.ours])}"
        + "".join(f'{{{label}="{value}"}}' for label, value in copy.only.items())
        + "` |"
        for copy in COPIES
        if copy.ours in types
    ]
    rows.append(
        "| `http_requests_total` | `cohort_http_requests_total`, `route` as `handler`, `status` as `2xx` |"
    )
    return "| name | Cohort |\n|---|---|\n" + "\n".join(rows)


def exported() -> Metrics:
    """The metrics of a server that has everything that there can be."""
    metrics = Metrics()
    metrics.watch(cast(Any, _Core()))
    metrics.watch_adapters(cast(Any, _Loras()))
    metrics.watch_stage(lambda: Stage.READY)
    metrics.watch_workers(_Workers())
    metrics.registry.register(FleetCollector(cast(Any, _Fleet()), lambda: cast(Any, _FleetCore())))
    metrics.know_keys(["name"])
    AnswerCounter(metrics, Endpoints(["/v1/models"]))
    return metrics


class _Core:
    executor = SimpleNamespace(
        kv_layout=lambda: KvLayout.of(16, 1, 1),
        snapshot_age=lambda: 0.0,
        status=lambda: SimpleNamespace(memory=ExecutorMemoryUsage(0, 0, 0, 0)),
        cache_metrics_snapshot=lambda: None,
        lora_metrics_snapshot=lambda: None,
    )

    def stats(self) -> EngineStats:
        return EngineStats(Stage.READY, 0, 0, 0, 0, 0, 0, 0, drafts=DraftStats(accepted_at=[0]))

    def disk_stats(self) -> tuple[DiskStats, TierStats]:
        return DiskStats(), TierStats()


class _Loras:
    max_loras = 1
    moves = (0, 0)

    def uses(self) -> list[tuple[str, LoraUse]]:
        return [("name", LoraUse("digest", is_loaded=True, running=0, waiting=0))]


class _Workers:
    restarts = 0

    def uses(self) -> list[WorkerUse]:
        return [WorkerUse(0, 0.0, 0)]


class _Fleet:
    present = ()


class _FleetCore:
    num_unplaced = num_lost = moved = 0
    router = Router()
    router.join("name")


def _name(family: Metric) -> str:
    return _suffixed(family.name, _type(family)) + ("_info" if family.type == "info" else "")


def _suffixed(name: str, kind: str) -> str:
    return f"{name}_total" if kind == "counter" else name


def _type(family: Metric) -> str:
    return "gauge" if family.type == "info" else family.type


def _labels(family: Metric) -> list[str]:
    names: Iterable[str] = (label for sample in family.samples for label in sample.labels)
    return [name for name in dict.fromkeys(names) if name != "le"]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
