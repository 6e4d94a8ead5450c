"""What is compared under which workload, and what comes of it: medians, ratios, and how far from the machine's limits."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.peers import roofline
from benchmarks.peers.roofline import Cost
from clients.bench.workloads import WORKLOADS

START = "start"
"""Not a workload: from starting the process to ready."""


@dataclass(frozen=True)
class Compared:
    """A figure that a ratio is about. `workload`: the one that it is of, where an entry has another name. `once`: one run
    takes so long that it is not repeated and has no warm-up of its own."""

    metric: str
    unit: str
    lower_is_better: bool = False
    small_model: bool = False
    workload: str | None = None
    once: bool = False


COMPARED: dict[str, Compared] = {
    "single": Compared("itl_p50_ms", "ms between tokens", lower_is_better=True),
    "burst": Compared("total_tokens_per_s", "tokens/s in all"),
    "steady": Compared("output_tokens_per_s", "output tokens/s"),
    "wide": Compared("output_tokens_per_s", "output tokens/s"),
    "prefix": Compared("output_tokens_per_s", "output tokens/s"),
    "tiny": Compared("output_tokens_per_s", "output tokens/s", small_model=True),
    "deep": Compared("itl_p50_ms", "ms between tokens", lower_is_better=True),
    "deep-ttft": Compared("ttft_p50_ms", "ms to the first", lower_is_better=True, workload="deep"),
    "prompt": Compared("itl_p50_ms", "ms between tokens", lower_is_better=True, once=True),
    "prompt-ttft": Compared("ttft_p50_ms", "ms to the first", lower_is_better=True, workload="prompt"),
    START: Compared("seconds", "seconds to ready", lower_is_better=True),
}

NAMES = tuple(name for name, of in COMPARED.items() if name != START and of.workload is None)
"""The workloads that are compared."""

Values = dict[str, dict[str, list[list[float]]]]
"""entry of COMPARED -> side -> round -> the figure of each run"""


def take(values: Values, side: str, report: dict[str, Any]) -> None:
    """Add a report of `cohort bench` as one more round of that side."""
    for entry in report["workloads"]:
        measured = entry["workload"]["name"]
        for name, compared in COMPARED.items():
            if (compared.workload or name) == measured:
                found = [run[compared.metric] for run in entry["runs"]]
                values.setdefault(name, {}).setdefault(side, []).append(
                    [one for one in found if one is not None]
                )


def take_start(values: Values, side: str, seconds: float) -> None:
    """Add one start of that side."""
    values.setdefault(START, {}).setdefault(side, []).append([seconds])


def results(
    values: Values, sides: Sequence[str], large: Cost, small: Cost, limits: dict[str, float]
) -> dict[str, dict[str, Any]]:
    """For each entry of COMPARED that was measured: both sides' median, least and greatest over all rounds, the first side's
    advantage over the second, of the medians and of each round, and what share of the machine's limit each side reaches.
    Above 1 the first side is better, whatever the figure. A measured 0 that would be divided by leaves the ratio of the
    medians and the share out, and makes its round's ratio None. `small` is what the model of the workloads with a small one
    takes, `large` that of all others."""
    found = {}
    for name, by_side in values.items():
        compared = COMPARED[name]
        entry: dict[str, Any] = {
            "metric": compared.metric, "unit": compared.unit, "lower_is_better": compared.lower_is_better,
            "sides": {side: _spread(rounds) for side, rounds in by_side.items()},
        }  # fmt: skip
        if all(by_side.get(side) for side in sides):
            ours, theirs = (by_side[side] for side in sides)
            ratio = _advantage(compared, _flat(ours), _flat(theirs))
            if ratio is not None:
                entry["ratio"] = ratio
            entry["ratio_of_each_round"] = [
                _advantage(compared, a, b) for a, b in zip(ours, theirs, strict=False)
            ]
        entry["limit"] = _limit(name, small if compared.small_model else large, limits)
        entry["share_of_limit"] = {
            side: _share(compared, of["median"], entry["limit"])
            for side, of in entry["sides"].items()
            if of["median"] > 0 or not compared.lower_is_better
        }
        found[name] = entry
    return found


def table(found: dict[str, dict[str, Any]], sides: Sequence[str]) -> str:
    """The results as text."""
    ours, theirs = sides
    lines = [f"{'workload':<10} {'figure':<19} {ours:>24} {theirs:>24} {'ratio':>7}   of each round"]
    for name, entry in found.items():
        cells = [_cell(entry["sides"].get(side)) for side in sides]
        ratio = f"{entry['ratio']:.2f}" if "ratio" in entry else ""
        each = ", ".join("-" if one is None else f"{one:.2f}" for one in entry.get("ratio_of_each_round", ()))
        line = f"{name:<10} {entry['unit']:<19} {cells[0]:>24} {cells[1]:>24} {ratio:>7}   {each}"
        reached = ", ".join(f"{100 * share:.0f}%" for share in entry["share_of_limit"].values())
        lines.append(f"{line}   (limit {_number(entry['limit'])}: {reached})")
    lines.append(
        "Median (least to greatest) over all rounds. Ratio: above 1, the first is better. Limit: what reading weights"
    )
    lines.append(
        "and KV or multiplying takes at least, at this machine's measured rates, and the share each side reaches."
    )
    return "\n".join(lines)


def _advantage(compared: Compared, ours: Sequence[float], theirs: Sequence[float]) -> float | None:
    """How many times better the first side's median is; None where it would be divided by a median of zero."""
    a, b = statistics.median(ours), statistics.median(theirs)
    better, worse = (b, a) if compared.lower_is_better else (a, b)
    return better / worse if worse else None


def _limit(name: str, cost: Cost, limits: dict[str, float]) -> float:
    """The best figure that the machine allows (`roofline`); for a start, that every weight is read and written once."""
    compared = COMPARED[name]
    if name == START:
        return 2 * cost.reading(cost.weight_bytes, limits)
    workload = WORKLOADS[compared.workload or name]
    if compared.metric == "itl_p50_ms":
        return roofline.least_step(workload, cost, limits) * 1e3
    if compared.metric == "ttft_p50_ms":
        return roofline.least_first_token(workload, cost, limits) * 1e3
    each = workload.output_tokens
    if compared.metric == "total_tokens_per_s":
        each += workload.shared_tokens + workload.prompt_tokens
    return workload.requests * each / roofline.least_seconds(workload, cost, limits)


def _share(compared: Compared, figure: float, limit: float) -> float:
    """How much of what the machine allows is reached: 1 at the limit, less before it."""
    return limit / figure if compared.lower_is_better else figure / limit


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
