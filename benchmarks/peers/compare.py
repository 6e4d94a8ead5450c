"""What is compared under which workload, and what comes of it: medians, ratios, and how far from the machine's limits."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.peers.models import weight_bytes
from benchmarks.shapes import matrix_flops
from server.verbs.bench_workloads import WORKLOADS

START = "start"
"""Not a workload: from starting the process to ready."""


@dataclass(frozen=True)
class Compared:
    """The one figure of a workload that the ratio is about."""

    metric: str
    unit: str
    lower_is_better: bool = False
    small_model: bool = False


COMPARED: dict[str, Compared] = {
    "single": Compared("itl_p50_ms", "ms between tokens", lower_is_better=True),
    "burst": Compared("total_tokens_per_s", "tokens/s in all"),
    "steady": Compared("output_tokens_per_s", "output tokens/s"),
    "wide": Compared("output_tokens_per_s", "output tokens/s"),
    "prefix": Compared("output_tokens_per_s", "output tokens/s"),
    "tiny": Compared("output_tokens_per_s", "output tokens/s", small_model=True),
    START: Compared("seconds", "seconds to ready", lower_is_better=True),
}

Values = dict[str, dict[str, list[list[float]]]]
"""workload -> side -> round -> the figure of each run"""


def take(values: Values, side: str, report: dict[str, Any]) -> None:
    """Add a report of `cohort bench` as one more round of that side."""
    for entry in report["workloads"]:
        name = entry["workload"]["name"]
        found = [run[COMPARED[name].metric] for run in entry["runs"]]
        values.setdefault(name, {}).setdefault(side, []).append([one for one in found if one is not None])


def take_start(values: Values, side: str, seconds: float) -> None:
    """Add one start of that side."""
    values.setdefault(START, {}).setdefault(side, []).append([seconds])


def results(
    values: Values, sides: Sequence[str], shape: str, limits: dict[str, float]
) -> dict[str, dict[str, Any]]:
    """For each workload: both sides' median, least and greatest over all rounds, and the first side's advantage over the
    second, of the medians and of each round. Above 1 the first side is better, whatever the figure."""
    found = {}
    for name, by_side in values.items():
        compared = COMPARED[name]
        entry: dict[str, Any] = {
            "metric": compared.metric, "unit": compared.unit, "lower_is_better": compared.lower_is_better,
            "sides": {side: _spread(rounds) for side, rounds in by_side.items()},
        }  # fmt: skip
        if all(by_side.get(side) for side in sides):
            ours, theirs = (by_side[side] for side in sides)
            entry["ratio"] = _advantage(compared, _flat(ours), _flat(theirs))
            entry["ratio_of_each_round"] = [
                _advantage(compared, a, b) for a, b in zip(ours, theirs, strict=False)
            ]
        if (limit := _limit(name, shape, limits)) is not None:
            entry["limit"] = limit
        found[name] = entry
    return found


def table(found: dict[str, dict[str, Any]], sides: Sequence[str]) -> str:
    """The results as text."""
    ours, theirs = sides
    lines = [f"{'workload':<10} {'figure':<19} {ours:>24} {theirs:>24} {'ratio':>7}   of each round"]
    for name, entry in found.items():
        cells = [_cell(entry["sides"].get(side)) for side in sides]
        ratio = f"{entry['ratio']:.2f}" if "ratio" in entry else ""
        each = ", ".join(f"{one:.2f}" for one in entry.get("ratio_of_each_round", ()))
        line = f"{name:<10} {entry['unit']:<19} {cells[0]:>24} {cells[1]:>24} {ratio:>7}   {each}"
        if "limit" in entry:
            line += f"   (limit {_number(entry['limit'])})"
        lines.append(line)
    lines.append("Median (least to greatest) over all rounds. Ratio: above 1, the first is better.")
    return "\n".join(lines)


def _advantage(compared: Compared, ours: Sequence[float], theirs: Sequence[float]) -> float:
    a, b = statistics.median(ours), statistics.median(theirs)
    return b / a if compared.lower_is_better else a / b


def _limit(name: str, shape: str, limits: dict[str, float]) -> float | None:
    """What the machine allows where one resource decides: reading the weights for a single stream, products for prompts."""
    if name == "single":
        return weight_bytes(shape) / (limits["read_gb_per_s"] * 1e9) * 1e3
    if name == "burst":
        workload = WORKLOADS[name]
        tokens = workload.prompt_tokens + workload.output_tokens
        seconds = matrix_flops(shape, workload.prompt_tokens) / (limits["bf16_gflop_per_s"] * 1e9)
        return tokens / seconds
    return None


def _spread(rounds: list[list[float]]) -> dict[str, Any]:
    values = _flat(rounds)
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "rounds": rounds}


def _flat(rounds: list[list[float]]) -> list[float]:
    return [value for one in rounds for value in one]


def _cell(side: dict[str, Any] | None) -> str:
    if side is None:
        return ""
    middle, least, most = (_number(side[name]) for name in ("median", "min", "max"))
    return f"{middle} ({least}-{most})"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"
