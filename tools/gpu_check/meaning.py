"""What figures must be like to mean what their names say, for a run on a GPU and for one of the smallest shapes alike.

A part whose figures break a rule has failed, even if it ended well: a rate that no memory allows was not measured, and texts of
another length were not the workload. Rules go by a figure's name, wherever it stands; `SAYS` and `RULES` are of one part.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.gpu.part import Figures, Options

MOST_SHARE, MOST_OF_COPY = 1.05, 1.10
"""Of a measured limit: two measurements of one are off by 2%. Reading alone may be faster than copying."""
MOST_SPEED = 1.15
"""Of a speed beside the same without what slows it down, which a clock that rises in between may bring above 1."""
_FP8 = 2.0
"""Products of FP8 in those of bf16, at most: the device computes twice as many."""
_LIMITS = ("copy", "product", "products", "roofline")
"""What a share may be of: a limit that was measured. Any other share is of a whole."""

SAYS: dict[str, frozenset[str]] = {
    name: frozenset(figures.split())
    for name, figures in {
        "device": "copy_gb_per_s copied_by bf16_tflops identity about versions python",
        "tests": "tests passed failed",
        "agreement": "sequences identical executor_notes",
        "churn": "identical finished preemptions prefix_hit_tokens steps_overlapped aborted_while executor_notes",
        "agreement-bf16": "rows_compared largest_logprob_difference graphs_replayed executor_notes",
        "kernels": "kernels copy_gb_per_s extend_gains section_seconds",
        "kernels-all": "kernels copy_gb_per_s",
        "offline-0.6b": "output_tokens_per_s roofline_tokens_per_s share_of_roofline executor_notes seconds",
        "single-0.6b": "tokens_per_s share_of_roofline ttft_ms",
        "cohort": "together_ms limit_ms reached factor_over_serial factor_over_serial_eager",
        "steps": "step_ms engine_ms_per_step one_sequence",
        "served-0.6b": "single_tokens_per_s offline_tokens_per_s offline_share_of_roofline http drafts_factor "
        "grammar_alone_tokens_per_s device_ms_by_rows executor_notes",
        "served-0.6b-e4m3kv": "kv_cache_dtype offline_tokens_per_s offline_share_of_roofline executor_notes",
        "served-8b": "start_seconds start_seconds_by_stage tokens_per_s_of_one ttft_ms_of_prompt device_step_by_rows "
        "pause_seconds recovery_seconds_by_stage same_as_undisturbed drawn_the_same output_tokens_per_s share_of_roofline",
        "served-8b-e4m3": "start_seconds tokens_per_s_of_one ttft_ms_of_prompt output_tokens_per_s",
        "adapters": "active_share idle_share_of_speed one_active_share reached executor_notes",
        "adapters-agreement": "identical adapter_notes",
        "sticky": "pause_seconds causes drawn_the_same seconds_after_an_idle_fault",
        "started": "ready_seconds processes",
        "early": "early",
        "long-steps": "long_steps executor_notes",
        "drafts": "identical drafts_verified drafts_accepted model_drafts_verified model_drafts_accepted draft_forward_us",
        "offline-8b": "output_tokens_per_s",
        "single-8b": "tokens_per_s",
        "peer": "output_tokens_per_s transformers",
        "sanitizer": "launches",
        "ncu": "needed_bytes",
        "turnaround": "turnaround_us step_ms",
    }.items()
}
"""Figures without which a part has not done what it is for. A part that is not here is held to the rules alone."""

Rule = tuple[str, Callable[[Figures], bool]]
"""What must be, in words, and whether it is; a figure that is missing makes it false."""


def _one_pause(found: Figures) -> bool:
    """A stream's pause begins with its last token, up to some steps before the kill from which a recovery counts."""
    recovery = max(sum(stages.values()) for stages in found["recovery_seconds_by_stage"])
    return bool(0.8 * recovery <= found["pause_seconds"] <= recovery + 3.0)


def _add_up(stages: Mapping[str, float], whole: float) -> bool:
    """Whether the seconds of all stages are those of the whole."""
    return bool(stages) and math.isclose(sum(stages.values()), whole, rel_tol=0.02, abs_tol=0.05)


def _answered(wave: Mapping[str, Any]) -> bool:
    """Whether some of a wave's requests were served, and all others refused."""
    return bool(0 < wave["served"] == wave["requests"] - wave["refused"])


def _adds_up(wave: Mapping[str, Any]) -> bool:
    """Whether a wave's rates are those of what was served in its seconds, in which each first token came."""
    seconds = wave["seconds"]
    return bool(
        math.isclose(wave["requests_per_s"] * seconds, wave["served"], rel_tol=0.01)
        and math.isclose(wave["tokens_per_s"] * seconds, wave["output_tokens"], rel_tol=0.01)
        and wave["ttft_ms_p99"] <= 1e3 * seconds
    )


def _as_asked(waves: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether no wave of so many requests a second, which its name says, was served sooner than they came. Those of 16 a second
    come 14% faster by chance."""
    asked = {name: float(name.removesuffix("/s")) for name in waves if name.endswith("/s")}
    return all(waves[name]["requests_per_s"] <= 1.2 * rate for name, rate in asked.items())


def _behind_the_device(found: Figures) -> bool:
    """Whether one stream, and a wave of 256, are given no token sooner than the device computes steps of so many rows, replayed
    alone with fewer keys."""
    most = {rows: int(rows) * 1e3 / ms for rows, ms in found["device_ms_by_rows"].items()}
    waves = [wave["tokens_per_s"] for wave in found["http"].values()]
    return bool(
        found["single_tokens_per_s"] <= MOST_SPEED * most["1"] and max(waves) <= MOST_SPEED * most["256"]
    )


_STAGES = frozenset(("death noticed", "starting", "importing", "loading", "KV cache", "first token"))
"""Of each recovery: the seconds of one that is not told would count to another."""
_DRAFTS: tuple[Rule, ...] = (
    ("drafts were verified", lambda found: found["drafts_verified"] > 0),
    (
        "no more drafts were accepted than verified",
        lambda found: 0 <= found["drafts_accepted"] <= found["drafts_verified"],
    ),
)
_KILLS: tuple[Rule, ...] = (
    ("each kill has its stages", lambda found: len(found["recovery_seconds_by_stage"]) == found["kills"] > 0),
    ("the longest pause is that of the longest recovery", lambda found: _one_pause(found)),
    (
        "no recovery lacks a stage",
        lambda found: all(one.keys() >= _STAGES for one in found["recovery_seconds_by_stage"]),
    ),
    (
        "tokens were drawn again, and they were the same",
        lambda found: 0 < found["drawn_the_same"] <= found["drawn_again"],
    ),
)
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
    "churn": (
        ("each finished text equals itself alone", lambda found: 0 < found["identical"] == found["finished"]),
        ("sequences were preempted", lambda found: found["preemptions"] > 0),
        ("prefixes were found in the cache", lambda found: found["prefix_hit_tokens"] > 0),
        ("steps overlapped", lambda found: 0 < found["steps_overlapped"] <= found["steps"]),
    ),
    "served-0.6b": (
        (
            "each wave was served or refused",
            lambda found: bool(found["http"]) and all(map(_answered, found["http"].values())),
        ),
        (
            "each wave's rates are those of its counts",
            lambda found: all(map(_adds_up, found["http"].values())),
        ),
    ),
    "served-8b": (
        (
            "the stages of the start add up",
            lambda found: _add_up(found["start_seconds_by_stage"], found["start_seconds"]),
        ),
        *_KILLS,
    ),
    "sticky": (*_KILLS, ("each fault has a cause", lambda found: len(found["causes"]) == found["kills"])),
    "kernels": (
        (
            "each row has a time or a reason",
            lambda found: all("us" in row or "not run" in row for row in found["kernels"].values()),
        ),
    ),
    "drafts": _DRAFTS,
}
"""Of one part, beside those that go by names."""
WHOLE_RULES: dict[str, tuple[Rule, ...]] = {
    "served-0.6b": (
        *_DRAFTS,
        ("no wave was served sooner than it came", lambda found: _as_asked(found["http"])),
        ("requests came all at once, too", lambda found: "at once" in found["http"]),
        ("no stream is faster than the device alone", _behind_the_device),
    )
}
"""More of them, but not for the smallest shapes: a dozen tokens may bring no draft."""
_COUNTS = frozenset(
    ("sequences", "identical", "output_tokens", "requests", "steps", "streams", "rows_compared", "texts", "kv_blocks", "launches")
)  # fmt: skip
"""Of what was done: none of it was measured where there is none."""
_LOSSES = ("lost", "doubled", "wrong", "leaked", "failed")
"""A figure with such a word in its name counts, lists or says what must not be."""
_SPEEDS = frozenset(("active_share", "idle_share_of_speed", "one_active_share"))
_TIMES = frozenset(("ms", "us", "seconds"))
_RATE = "tokens_per_s"
_ROOFLINE = f"roofline_{_RATE}"


def faults(part: str, found: Figures, options: Options) -> list[str]:
    """What is wrong with the figures of a part that has passed, in words; nothing where they mean what they say."""
    wrong = [f"{name} is missing" for name in sorted(SAYS.get(part, frozenset()) - found.keys())]
    rules = RULES.get(part, ()) + (() if options.tiny else WHOLE_RULES.get(part, ()))
    for words, holds in rules:
        try:
            good = holds(found)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            good = False
        if not good:
            wrong.append(f"not so: {words}")
    known = _Known(found.get("copy_gb_per_s"), found.get("bf16_tflops"), options.tiny)
    for path, group in _groups(found):
        wrong += [f"{path}{fault}" for fault in _of_group(group, f"{part}.{path}", known)]
        if options.device != "cpu" and group.get("fell_back"):
            wrong.append(f"{path}fell_back: {group['fell_back']}")
    return wrong


@dataclass(frozen=True, slots=True)
class _Known:
    """What a part's figures are held against: its limits, if it says them, and whether shapes are the smallest, whose limits and
    speeds are those of a few bytes and steps."""

    copy: float | None
    products: float | None
    tiny: bool


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


def _of_group(group: Mapping[str, Any], path: str, known: _Known) -> Iterator[str]:
    for name, value in group.items():
        if value and not _words(name).isdisjoint(_LOSSES):
            yield f"{name}: {value}"
        for number in value if isinstance(value, list) else [value]:
            if isinstance(number, int | float) and not isinstance(number, bool):
                yield from _of_number(name, number, path, known)
    yield from _of_several(group, known)


def _words(name: str) -> frozenset[str]:
    return frozenset(re.split(r"[ _]", name))


def _of_number(name: str, value: float, path: str, known: _Known) -> Iterator[str]:
    if not math.isfinite(value):
        yield f"{name} is {value}"
        return
    said, words = f"{name} is {value:,.4g}", _words(name)
    if "share" in words:
        most = _most_share(name, path, known)
        if not 0.0 <= value <= most:
            yield f"{said}, a share of at most {most:g}"
    elif ("_per_s" in name or name == "tflops") and value <= 0:
        yield f"{said}: nothing was done"
    elif not words.isdisjoint(_TIMES) and value < 0:
        yield f"{said}: it ends before it begins"
    elif name in _COUNTS and value <= 0:
        yield f"{said}: nothing was done"
    if known.tiny:
        return
    if name == "gb_per_s" and known.copy and value > MOST_OF_COPY * known.copy:
        yield f"{said}, a copy reaches {known.copy:,.4g}"
    if name == "tflops" and known.products and value > _most_of_products(path) * known.products:
        yield f"{said}, a product reaches {known.products:,.4g}"


def _most_share(name: str, path: str, known: _Known) -> float:
    words = _words(name)
    if name in _SPEEDS:
        return math.inf if known.tiny else MOST_SPEED
    if known.tiny and not words.isdisjoint(_LIMITS):
        return math.inf
    if "copy" in words:
        return MOST_OF_COPY
    return _most_of_products(path) if words & {"product", "products"} else MOST_SHARE


def _most_of_products(path: str) -> float:
    return MOST_SHARE * (_FP8 if any(word in path.lower() for word in ("e4m3", "fp8")) else 1.0)


def _of_several(group: Mapping[str, Any], known: _Known) -> Iterator[str]:
    """Figures that stand beside each other."""
    for name, limit in group.items():
        before, of_limit, _ = name.partition(_ROOFLINE)
        for rate in (f"{before}{_RATE}", f"{before}output_{_RATE}") if of_limit and not known.tiny else ():
            if group.get(rate, 0.0) > MOST_SHARE * limit:
                yield f"{rate} is {group[rate]:,.4g}, beyond the roofline of {limit:,.4g}"
    if "sequences" in group and "identical" in group and group["identical"] != group["sequences"]:
        yield f"{group['identical']} of {group['sequences']} sequences are identical"
    for name, value in group.items():
        most = group.get(name.replace("p50", "p99", 1)) if "p50" in name else None
        if most is not None and most < value:
            yield f"{name} is {value:,.4g}, above {name.replace('p50', 'p99', 1)}, {most:,.4g}"
