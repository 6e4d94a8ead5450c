"""What README may say: which runs are a headline, why others are none, and the file that README's block is made from.

A headline is of the workloads, model and flags that HEADLINES names, from at least ROUNDS rounds that can be trusted, all on
one commit without changed files. A round can be trusted if the machine did nothing else meanwhile, and never read memory at
less than half of its best rate: figures of decoding follow the bandwidth, and a neighbour on the same host takes of it unseen.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.compare import COMPARED, START, Compared, Values
from benchmarks.peers.tree import Tree

SCHEMA = 1
ROUNDS = 5
MAX_OTHERS = 0.05
"""Share of the cores that other processes and the hypervisor may take while a workload runs or a server starts."""
LEAST_READING = 0.5
"""The slowest reading of a round that counts, as a share of the fastest of all rounds: below it a neighbour takes more than half.
Readings of a second differ by 1.8 on an idle virtual machine whose figures of decoding stay within 8%, so the probe alone is no
reason to refuse; README says its range."""
PREFIX = "headline-"


@dataclass(frozen=True, slots=True)
class Headline:
    """What is compared: `title` of the other side, workloads, and the model by its name."""

    title: str
    workloads: tuple[str, ...]
    subject: str
    repeat: int


HEADLINES = {
    "vllm": Headline("vLLM", ("single", "burst", "steady", "wide"), "qwen3-0.6b", 3),
    "llamacpp": Headline("llama.cpp", ("single", "burst", "wide"), "qwen3-0.6b-q4_k_m", 1),
    "openvino": Headline("OpenVINO GenAI", ("single", "prompt"), "qwen3-0.6b-q4_k_m", 1),
    "ik": Headline("ik_llama.cpp", ("single", "prompt"), "qwen3-0.6b-q4_k_m", 1),
}
"""By peer; `repeat` is what its run takes unless told otherwise."""


def unfit(
    peer: str, subject: str, workloads: Sequence[str], rounds: int, flags: str, tree: Tree
) -> list[str]:
    """Why a run that is about to start cannot become a headline, a sentence each."""
    of = HEADLINES.get(peer)
    if of is None:
        return [f"there is none for --peer {peer}"]
    reasons = []
    if rounds < ROUNDS:
        reasons.append(f"{rounds} rounds, and {ROUNDS} are needed")
    if missing := [name for name in of.workloads if name not in workloads]:
        reasons.append(f"without the workloads {', '.join(missing)}")
    if subject != of.subject:
        reasons.append(f"the model is {subject}, and it should be {of.subject}")
    if flags.strip():
        reasons.append("with --flags")
    return reasons + _of_tree(tree)


def _of_tree(tree: Tree) -> list[str]:
    if tree.commit is None:
        return ["this is no git checkout, so no commit can be named"]
    if tree.changed:
        more = f" and {len(tree.changed) - 1} more" if len(tree.changed) > 1 else ""
        return [f"{tree.changed[0]}{more} differ from the commit: commit first"]
    return []


def judge(conditions: Sequence[dict[str, Any]]) -> None:
    """Set `trusted` and `why` of each round.

    A round has `beside`, the records of beside.watched, and `read_gb_per_s`, measured before, between and after its sides.
    Of the rounds without load those count that have no reading below LEAST_READING of the best.
    """
    quiet = []
    for one in conditions:
        one["why"] = [
            f"{record['what']}: others took {record['others']:.0%} of the cores and the hypervisor {record['stolen']:.0%}, "
            f"more than {MAX_OTHERS:.0%}"
            for record in one["beside"]
            if record["others"] + record["stolen"] > MAX_OTHERS
        ]
        if not one["why"]:
            quiet.append(one)
    best = max((reading for one in conditions for reading in one["read_gb_per_s"]), default=0.0)
    for one in quiet:
        if min(one["read_gb_per_s"]) < LEAST_READING * best:
            one["why"].append(
                f"memory was read at {min(one['read_gb_per_s']):.1f} GB/s, less than {LEAST_READING:.0%} of {best:.1f}"
            )
    for one in conditions:
        one["trusted"] = not one["why"]


def refused(planned: Sequence[str], conditions: Sequence[Mapping[str, Any]], now: Tree) -> list[str]:
    """Why a finished run is no headline: what `unfit` said before, too few rounds to trust, another commit meanwhile."""
    reasons = list(planned)
    trusted = [one for one in conditions if one["trusted"]]
    if len(trusted) < ROUNDS and len(conditions) >= ROUNDS:
        left_out = next(one for one in conditions if one["why"])
        reasons.append(
            f"{len(trusted)} of {len(conditions)} rounds can be trusted, and {ROUNDS} are needed; "
            f"round {left_out['round'] + 1}: {left_out['why'][0]}"
        )
    commits = {one["commit"] for one in conditions} | {now.commit}
    if len(commits) > 1:
        reasons.append(f"the rounds are of {len(commits)} commits")
    changed = {name for one in conditions for name in one["changed"]} | set(now.changed)
    if changed and not any("differ from the commit" in reason for reason in reasons):
        reasons.append(f"{min(changed)} changed meanwhile")
    return reasons


def figures(values: Values, sides: Sequence[str], rounds: Sequence[int]) -> dict[str, Any]:
    """Of each figure that both sides have in all those rounds: median, least and greatest of the rounds, and of the rounds'
    ratios. A round's figure is the median of its runs; above a ratio of 1 the first side is better."""
    found: dict[str, Any] = {}
    for name, by_side in values.items():
        compared = COMPARED[name]
        each = {side: _of_rounds(by_side.get(side, []), rounds) for side in sides}
        if any(value is None for one in each.values() for value in one):
            continue
        ours, theirs = (each[side] for side in sides)
        found[name] = {
            "metric": compared.metric, "unit": compared.unit, "lower_is_better": compared.lower_is_better,
            "sides": {side: spread(one) for side, one in each.items()},
            "ratio": spread([_advantage(compared, a, b) for a, b in zip(ours, theirs, strict=True)]),
        }  # fmt: skip
    return found


def _of_rounds(by_round: Sequence[Sequence[float]], rounds: Sequence[int]) -> list[Any]:
    """None for a round that was not measured, or in which nothing passed."""
    chosen = [by_round[number] if number < len(by_round) else [] for number in rounds]
    return [statistics.median(runs) if runs and statistics.median(runs) > 0 else None for runs in chosen]


def _advantage(compared: Compared, ours: float, theirs: float) -> float:
    return theirs / ours if compared.lower_is_better else ours / theirs


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Rounded to four digits: a file that people read."""
    rounded = [float(f"{value:.4g}") for value in values]
    return {
        "median": float(f"{statistics.median(values):.4g}"), "min": min(rounded), "max": max(rounded),
        "rounds": rounded,
    }  # fmt: skip


def made(
    peer: str, version: str, report: Mapping[str, Any], values: Values, sides: Sequence[str]
) -> dict[str, Any]:
    """The headline of a report that was not refused. Raises ValueError where a figure that it needs was not measured."""
    trusted = [one["round"] for one in report["conditions"] if one["trusted"]]
    found = figures(values, sides, trusted)
    needed = (START, *HEADLINES[peer].workloads)
    if missing := [name for name in needed if name not in found]:
        raise ValueError(f"not measured in every round: {', '.join(missing)}")
    return {
        "schema": SCHEMA, "headline": True, "peer": peer, "title": HEADLINES[peer].title, "version": version,
        "date": report["when"][:10], "commit": report["conditions"][0]["commit"], "rounds": len(trusted),
        "machine": report["machine"], "sides": list(sides), "config": report["config"], "limits": report["limits"],
        "conditions": report["conditions"], "figures": found,
    }  # fmt: skip


def path(results: Path, peer: str, machine_name: str) -> Path:
    """Where a headline is: one per peer and kind of machine."""
    return results / f"{PREFIX}{peer}-{machine_name}.json"
