"""From times to figures: percentiles of one run, medians over several."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from clients.bench.load import Run
from clients.bench.workloads import Workload

RATES = ("output_tokens_per_s", "total_tokens_per_s", "requests_per_s")
TIMES = (
    "ttft_p50_ms", "ttft_p90_ms", "ttft_p99_ms", "itl_p50_ms", "itl_p90_ms", "itl_p99_ms", "tpot_p50_ms", "e2e_p50_ms",
    "e2e_p99_ms",
)  # fmt: skip
SUMMARISED = (*RATES, *TIMES)


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The percentile of values in rising order, interpolated between the two nearest ones as by NumPy's default.

    Raises ValueError where there are no values.
    """
    if not ordered:
        raise ValueError("no values")
    place = (len(ordered) - 1) * percent / 100
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def figures(workload: Workload, run: Run) -> dict[str, Any]:
    """One run as plain data. What there is nothing to tell of is None.

    Tokens are the server's own count, and events where it does not count. TTFT: from sending a request to its first event.
    ITL: between two events of a stream; events may hold several tokens (`tokens_per_event`). TPOT: per request, from the
    first event to the last, by the tokens after the first, which merged events do not change. E2E: to the last event.
    """
    served, wall = run.served, run.ended - run.began
    output = sum(one.output_tokens for one in served)
    planned = workload.shared_tokens + workload.prompt_tokens
    prompt = sum(planned if one.prompt_tokens is None else one.prompt_tokens for one in served)
    events = sum(len(one.arrivals) for one in served)
    gaps = [b - a for one in served for a, b in zip(one.arrivals, one.arrivals[1:], strict=False)]
    per_token = [
        (one.arrivals[-1] - one.arrivals[0]) / (one.output_tokens - 1)
        for one in served
        if one.output_tokens > 1 and len(one.arrivals) > 1
    ]
    return {
        "wall_s": wall,
        "requests": len(run.outcomes),
        "failed": len(run.failures),
        "first_error": run.failures[0] if run.failures else None,
        "cut_short": sum(1 for one in served if one.output_tokens < workload.output_tokens),
        "counted_by_server": all(one.counted for one in served),
        "prompt_tokens": prompt,
        "output_tokens": output,
        "tokens_per_event": output / events if events else None,
        "output_tokens_per_s": output / wall if served else None,
        "total_tokens_per_s": (output + prompt) / wall if served else None,
        "requests_per_s": len(served) / wall if served else None,
        **_percentiles("ttft", [one.arrivals[0] - one.sent_at for one in served], (50, 90, 99)),
        **_percentiles("itl", gaps, (50, 90, 99)),
        **_percentiles("tpot", per_token, (50,)),
        **_percentiles("e2e", [one.arrivals[-1] - one.sent_at for one in served], (50, 99)),
        "client_cpu_s": run.cpu,
        "client_us_per_event": run.cpu / events * 1e6 if events else None,
    }


def _percentiles(name: str, seconds: list[float], percents: Sequence[int]) -> dict[str, float | None]:
    """Milliseconds."""
    seconds.sort()
    return {f"{name}_p{p}_ms": percentile(seconds, p) * 1e3 if seconds else None for p in percents}


def summary(runs: Sequence[dict[str, Any]]) -> dict[str, dict[str, float] | None]:
    """For every figure that counts: median, least and greatest over the runs that have it."""
    summaries: dict[str, dict[str, float] | None] = {}
    for name in SUMMARISED:
        values = [run[name] for run in runs if run[name] is not None]
        summaries[name] = (
            {"median": statistics.median(values), "min": min(values), "max": max(values)} if values else None
        )
    return summaries
