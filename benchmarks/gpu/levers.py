"""The part `kernels`: what decides which lever is next, and nothing that a record has already. `kernels-all` has the rest.

    extend    chunks behind long histories, their keys shared or not, and other loops
    chain     190 small kernels in a graph, with and without programmatic dependent launch
    library   torch's dense attention by cuDNN, the yardstick for attention of prompts
    layers    the products of layers of few rows, by a library or by Cohort, early or one after the other
    weights   e4m3, stored formats and experts at 1 to 64 rows
    narrow    decode attention over KV of 8 bits: tiles of 64 and 128 keys, values as they are or widened

Each row is written at once. A section that fails leaves the others theirs, and the part has failed.
"""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import torch

from benchmarks.gpu import chain, extend, layer_chain, narrow_kv, weights
from benchmarks.gpu.kernels import Bench, prepared
from benchmarks.gpu.part import LIMIT, Failed, Found, Options

MOST_SHARE = 1.15
"""Of a measured limit: above it a time is wrong, or the limit is. Reading alone is up to a tenth faster than copying."""
_LAST_START = 6.0
"""Seconds before the part's end in which no section is begun."""

SECTIONS: dict[str, Callable[[Bench], None]] = {
    "extend": extend.measure,
    "chain": chain.measure,
    "layers": layer_chain.measure,
    "weights": weights.measure,
    "narrow": narrow_kv.measure,
    # Last: after a capture that failed, and a library's may, torch captures nothing more.
    "library": extend.measure_library,
}


def run(options: Options, found: Found) -> None:
    """See the module. Failed names every section that failed, and every rate that no device has."""
    began = time.monotonic()
    limit = float(os.environ.get(LIMIT, "0")) or float("inf")
    bench = prepared(options, found)
    device = bench.device
    seconds: dict[str, float] = {}
    wrong: list[str] = []
    with torch.inference_mode():
        for name, section in SECTIONS.items():
            if time.monotonic() - began > limit - _LAST_START:
                wrong.append(f"{name}: no time left")
                continue
            start = time.monotonic()
            try:
                section(bench)
            except Exception as error:  # of whatever kind: the other sections' figures are worth having
                traceback.print_exc()
                wrong.append(f"{name}: {(str(error) or type(error).__name__).splitlines()[0][:300]}")
            seconds[name] = time.monotonic() - start
            found({"section_seconds": seconds})
    found(extend_gains(bench.rows))
    if device.type == "cuda":  # on a CPU, limits are those of tiny operands
        wrong += impossible(bench.rows) + launched(bench.rows)
    if wrong:
        raise Failed("; ".join(wrong))


def extend_gains(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Figures: how many times faster the fastest way with shared keys is than one program for a tile, and which it is, and how
    many times faster that is without masks on whole tiles, by problem."""
    found: dict[str, Any] = {}
    for name, row in rows.items():
        title, _, way = name.rpartition(", today")
        if way or not title.startswith("extend ") or "us" not in row:
            continue
        others = {
            other.removeprefix(f"{title}, shared, "): one["us"]
            for other, one in rows.items()
            if other.startswith(f"{title}, shared, ") and "us" in one
        }
        if others:
            best = min(others, key=lambda one: others[one])
            found[title] = {"times_faster": row["us"] / others[best], "way": best}
            if "us" in (masked := rows.get(f"{title}, masks", {})):
                found[title]["loop_times_faster"] = masked["us"] / row["us"]
    return {"extend_gains": found} if found else {}


def impossible(rows: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Rows whose rate is above what the device was measured to have."""
    shares = ("share_of_copy", "share_of_product")
    return [
        f"{name}: {100 * row[share]:.0f}% in {share}"
        for name, row in rows.items()
        for share in shares
        if row.get(share, 0.0) > MOST_SHARE
    ]


def launched(rows: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What says that times of ours contain launches, because a capture failed; a library's capture may."""
    names = [name for name, row in rows.items() if "us" in row and row.get("captured") is False]
    ours = [name for name in names if "cuDNN" not in name]
    return [f"{len(ours)} rows were not captured, from {ours[0]} on"] if ours else []
