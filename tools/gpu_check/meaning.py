"""What figures must be like to mean what their names say, for a run on a GPU and for one of the smallest shapes alike.

A part whose figures break a rule has failed, even if it ended well: a rate that no memory allows was not measured, and texts of
another length were not the workload. Rules go by a figure's name, wherever it stands; `SAYS` and `RULES` are of one part.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from benchmarks.gpu.part import Figures, Options

MOST_SHARE = 1.05
"""Of a measured limit: two measurements of one limit are off by 2%."""
MOST_SPEED = 1.15
"""Of a speed beside the same without what slows it down, which a clock that rises in between may bring above 1."""
_FP8 = 2.0
"""Products of FP8 in those of bf16, at most: the device computes twice as many."""

SAYS: dict[str, frozenset[str]] = {
    name: frozenset(figures.split())
    for name, figures in {
        "device": "copy_gb_per_s copied_by bf16_tflops identity about versions python",
        "tests": "tests passed failed",
        "agreement": "sequences identical executor_notes",
        "agreement-bf16": "rows_compared largest_logprob_difference graphs_replayed executor_notes",
        "kernels": "kernels copy_gb_per_s",
        "offline-0.6b": "output_tokens_per_s roofline_tokens_per_s share_of_roofline executor_notes seconds",
        "single-0.6b": "tokens_per_s share_of_roofline ttft_ms",
        "cohort": "together_ms limit_ms reached factor_over_serial factor_over_serial_eager",
        "steps": "step_ms engine_ms_per_step one_sequence",
        "adapters": "active_share idle_share_of_speed one_active_share reached executor_notes",
        "drafts": "identical drafts_verified drafts_accepted",
        "offline-8b": "output_tokens_per_s",
        "single-8b": "tokens_per_s",
        "peer": "output_tokens_per_s transformers",
    }.items()
}
"""Figures without which a part has not done what it is for. A part that is not here is held to the rules alone."""

Rule = tuple[str, Callable[[Figures], bool]]
"""What must be, in words, and whether it is; a figure that is missing makes it false."""
RULES: dict[str, tuple[Rule, ...]] = {
    "device": (("the device has a name", lambda found: bool(found["identity"]["device"])),),
    "tests": (
        ("tests passed", lambda found: found["passed"] > 0),
        (
            "each test passed, was skipped or was not run",
            lambda found: found["passed"] + found["skipped"] + len(found["not_run"]) == found["tests"],
        ),
    ),
    "agreement-bf16": (
        ("no row is off", lambda found: found["rows_off"] == 0 and not found["wrong"]),
        ("logprobs differ", lambda found: 0.0 <= found["largest_logprob_difference"] < 1.0),
    ),
    "drafts": (
        (
            "no more drafts were accepted than verified",
            lambda found: 0 <= found["drafts_accepted"] <= found["drafts_verified"],
        ),
        ("drafts were verified", lambda found: found["drafts_verified"] > 0),
    ),
}
"""Of one part, beside those that go by names."""
_COUNTS = frozenset(
    ("sequences", "identical", "output_tokens", "requests", "steps", "streams", "rows_compared", "texts", "kv_blocks", "launches")
)  # fmt: skip
"""Of what was done: none of it was measured where there is none."""
_LOSSES = ("lost", "doubled", "wrong", "leaked", "failed")
"""A figure with such a word in its name counts, lists or says what must not be."""
_SPEEDS = frozenset(("active_share", "idle_share_of_speed", "one_active_share"))
_RATES = ("tokens_per_s", "output_tokens_per_s")


def faults(part: str, found: Figures, options: Options) -> list[str]:
    """What is wrong with the figures of a part that has passed, in words; nothing where they mean what they say."""
    wrong = [f"{name} is missing" for name in sorted(SAYS.get(part, frozenset()) - found.keys())]
    for words, holds in RULES.get(part, ()):
        try:
            good = holds(found)
        except (KeyError, TypeError):
            good = False
        if not good:
            wrong.append(f"not so: {words}")
    on_device = options.device != "cpu"
    limits = found.get("copy_gb_per_s"), found.get("bf16_tflops")
    for path, group in _groups(found):
        wrong += [f"{path}{fault}" for fault in _of_group(group, path, limits, options.tiny)]
        if on_device and group.get("fell_back"):
            wrong.append(f"{path}fell_back: {group['fell_back']}")
    return wrong


def _groups(found: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Each mapping of the figures, with where it stands: names with dots, the last one included."""
    yield path, found
    for name, value in found.items():
        if isinstance(value, Mapping):
            yield from _groups(value, f"{path}{name}.")
        elif isinstance(value, list):
            for number, one in enumerate(value):
                if isinstance(one, Mapping):
                    yield from _groups(one, f"{path}{name}[{number}].")


def _of_group(group: Mapping[str, Any], path: str, limits: tuple[Any, Any], tiny: bool) -> Iterator[str]:
    for name, value in group.items():
        if any(word in name.split("_") for word in _LOSSES) and value:
            yield f"{name}: {value}"
        numbers = value if isinstance(value, list) else [value]
        for number in numbers:
            if isinstance(number, int | float) and not isinstance(number, bool):
                yield from _of_number(name, number, path, limits, tiny)
    yield from _of_several(group)


def _of_number(name: str, value: float, path: str, limits: tuple[Any, Any], tiny: bool) -> Iterator[str]:
    if not math.isfinite(value):
        yield f"{name} is {value}"
        return
    said = f"{name} is {value:,.4g}"
    if "share" in name.split("_"):
        speed = name in _SPEEDS
        # Rounds of a few steps tell nothing of a speed.
        most = (math.inf if tiny else MOST_SPEED) if speed else _most_share(name, path)
        if not 0.0 <= value <= most:
            yield f"{said}, a share of at most {most:g}"
    elif _is_rate(name) and value <= 0:
        yield f"{said}: nothing was done"
    elif _is_time(name) and value < 0:
        yield f"{said}: it ends before it begins"
    elif name in _COUNTS and value <= 0:
        yield f"{said}: nothing was done"
    copy, products = limits
    if name == "gb_per_s" and copy and value > MOST_SHARE * copy:
        yield f"{said}, a copy reaches {copy:,.4g}"
    if name == "tflops" and products and value > _most_share(name, path) * products:
        yield f"{said}, a product reaches {products:,.4g}"


def _most_share(name: str, path: str) -> float:
    fp8 = any(word in f"{path}{name}".lower() for word in ("e4m3", "fp8"))
    return MOST_SHARE * (_FP8 if fp8 and ("product" in name or name == "tflops") else 1.0)


def _is_rate(name: str) -> bool:
    return "_per_s" in name or name == "tflops"


def _is_time(name: str) -> bool:
    return name == "us" or name.endswith(("_ms", "_us", "seconds"))


def _of_several(group: Mapping[str, Any]) -> Iterator[str]:
    """Figures that stand beside each other."""
    limit = group.get("roofline_tokens_per_s")
    for name in _RATES:
        rate = group.get(name)
        if limit and rate is not None and rate > MOST_SHARE * limit:
            yield f"{name} is {rate:,.4g}, beyond the roofline of {limit:,.4g}"
    if "sequences" in group and "identical" in group and group["identical"] != group["sequences"]:
        yield f"{group['identical']} of {group['sequences']} sequences are identical"
    for name, value in group.items():
        if name.startswith("p50") and isinstance(value, int | float):
            most = group.get(name.replace("p50", "p99", 1))
            if most is not None and most < value:
                yield f"{name} is {value:,.4g}, above {name.replace('p50', 'p99', 1)}, {most:,.4g}"
