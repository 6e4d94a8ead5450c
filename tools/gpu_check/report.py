"""What is said at the end, and the file that stays."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tools.gpu_check.plan import ROOT, Part
from tools.gpu_check.record import Outcome, Record, State, write_json
from tools.neutral_paths import neutral

_HEADLINES = {
    "copy_gb_per_s": "copies {:,.0f} GB/s",
    "bf16_tflops": "bf16 products {:,.0f} TFLOP/s",
    "passed": "{:,} passed",
    "identical": "{:,} sequences the same",
    "rows_compared": "{:,} rows compared",
    "largest_logprob_difference": "logprobs differ by {:.3f} at most",
    "steps_replayed": "{:,} steps in graphs",
    "decode_attention_share_of_copy": "decode attention at {:.0%} of copies",
    "output_tokens_per_s": "{:,.0f} output tokens/s",
    "tokens_per_s": "{:,.0f} tokens/s",
    "share_of_roofline": "{:.0%} of the roofline",
    "together_ms": "{:.1f} ms",
    "limit_ms": "limit {:.1f} ms",
    "factor_over_serial": "{:.1f} times serial",
    "factor_over_serial_eager": "{:.1f} times serial eager",
    "step_ms": "step {:.2f} ms",
    "engine_ms_per_step": "engine {:.2f} ms a step",
    "idle_share_between_steps": "device idle {:.1%} between steps",
    "idle_share_by_events": "idle {:.1%} between steps by events",
    "drafts_accepted": "{:,} drafts accepted",
    "active_share": "{:.0%} of the speed with adapters in use",
    "idle_share_of_speed": "{:.1%} with adapters idle",
    "one_active_share": "{:.0%} of the speed of one stream with its adapter",
}
COMMIT_VARIABLE = "GPU_CHECK_COMMIT"
_LIMITS = ("copy_gb_per_s", "bf16_tflops")
"""Every part measures them; they are told once."""


def exit_code(record: Record, parts: Sequence[Part]) -> int:
    """1: a part failed. 2: nothing failed, but not all was run that can be. 0: all passed, or cannot be run here."""
    outcomes = [record.outcomes.get(part.name) for part in parts]
    if any(outcome is not None and outcome.state is State.FAIL for outcome in outcomes):
        return 1
    unsettled = [one for one in outcomes if one is None or (one.state is State.NOT_RUN and not one.settled)]
    return 2 if unsettled else 0


def table(record: Record, parts: Sequence[Part]) -> str:
    """A line for each part."""
    lines = []
    for part in parts:
        outcome = record.outcomes.get(part.name, Outcome(State.NOT_RUN, detail="not begun"))
        lines.append(f"{part.name:14} {outcome.state:8} {outcome.seconds:6.1f} s  {headline(outcome)}")
    return "\n".join(lines)


def headline(outcome: Outcome) -> str:
    """The figures that matter, or why there are none."""
    figures = outcome.figures
    told = [
        form.format(figures[name])
        for name, form in _HEADLINES.items()
        if isinstance(figures.get(name), int | float) and not (name in _LIMITS and "about" not in figures)
    ]
    if "reached" in figures:
        told.append("target reached" if figures["reached"] else "TARGET MISSED")
    if figures.get("fell_back"):
        told.append(f"THE SLOW WAY: {figures['fell_back']}")
    if figures.get("not_run"):
        told.append(f"not run: {', '.join(figures['not_run'])}")
    detail = outcome.detail.splitlines()[0] if outcome.detail else ""
    return "; ".join([*([detail] if detail else []), *told])


def missed(record: Record) -> list[str]:
    """Parts whose target was not reached. They have passed all the same: what they gave is right, and measured."""
    return [name for name, outcome in record.outcomes.items() if outcome.figures.get("reached") is False]


def device_kind(record: Record) -> str:
    """A line on the machine that was asked for and the one that was there; empty where nobody said which was asked for."""
    if not record.device_kind:
        return ""
    device = str(record.identity.get("device", "no device"))
    models = re.findall(r"[a-z]+\d+[a-z]*", record.device_kind.lower())
    other = [
        model for model in models if model not in device.lower() and re.fullmatch(r"[a-z]\d{2,}\w*", model)
    ]
    return f"device kind {record.device_kind}: {device}" + (", WHICH IS ANOTHER" if other else "")


def peer_ratio(record: Record) -> float | None:
    """Output tokens a second against the peer's, where both were measured."""
    ours, theirs = (
        record.outcomes[name].figures.get("output_tokens_per_s") if name in record.outcomes else None
        for name in ("offline-0.6b", "peer")
    )
    return ours / theirs if ours and theirs else None


def commit() -> str | None:
    """As git describes it. Where there is no git or no history: as the environment says, which may know."""
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return os.environ.get(COMMIT_VARIABLE)
    return found.stdout.strip() or None


def write(record: Record, parts: Sequence[Part], folder: Path) -> Path:
    """The result as JSON, one file for a device and a state of the code; returns it."""
    identity = record.identity
    name = re.sub(r"[^a-z0-9]+", "-", str(identity.get("device", "no device")).lower()).strip("-")
    path = folder / f"{name}-{identity.get('sources', 'unknown')}.json"
    result: dict[str, Any] = {
        "commit": commit(),
        **identity,
        "device_kind": record.device_kind or None,
        "written": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": platform.machine(),
        "seconds": record.seconds,
        "output_tokens_per_s_over_transformers": peer_ratio(record),
        "targets_missed": missed(record),
        "parts": {
            part.name: _part(part, record.outcomes.get(part.name, Outcome(State.NOT_RUN, detail="not begun")))
            for part in parts
        },
    }
    write_json(path, neutral(result))
    return path


def _part(part: Part, outcome: Outcome) -> dict[str, Any]:
    return {
        "what": part.what,
        "state": outcome.state,
        "seconds": outcome.seconds,
        "detail": outcome.detail,
        "figures": outcome.figures,
    }
