"""The workloads that `cohort bench` knows by name. Their numbers never change: figures of two days must compare."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class Workload:
    """So many requests, of which `concurrency` are out at any time (a closed loop: the next is sent when one ends).

    Each prompt is `shared_tokens` that all requests of a run begin with, and `prompt_tokens` of its own, drawn at random.
    Each answer is exactly `output_tokens` long.
    """

    name: str
    requests: int
    concurrency: int
    prompt_tokens: int
    shared_tokens: int
    output_tokens: int
    about: str = ""

    @property
    def context(self) -> int:
        """Tokens of one sequence at its end."""
        return self.shared_tokens + self.prompt_tokens + self.output_tokens


WORKLOADS: dict[str, Workload] = {
    one.name: one
    for one in (
        Workload("single", 4, 1, 128, 0, 64, "one stream"),
        Workload("burst", 32, 32, 128, 0, 1, "prompts that arrive together"),
        Workload("serial", 8, 1, 128, 0, 1, "prompts one by one"),
        Workload("steady", 32, 16, 128, 0, 64, "16 streams"),
        Workload("wide", 64, 32, 64, 0, 64, "32 streams"),
        Workload("prefix", 32, 8, 32, 512, 16, "a shared prefix"),
        Workload("long", 4, 4, 2048, 0, 32, "long prompts"),
        Workload("deep", 2, 1, 4096, 0, 64, "one stream behind a prompt of 4,096 tokens"),
        Workload("prompt", 1, 1, 4096, 0, 32, "one prompt of 4,096 tokens, and 32 tokens behind it"),
        Workload("tiny", 512, 64, 32, 0, 64, "64 streams, small model"),
        Workload("tiny256", 1024, 256, 32, 0, 64, "256 streams, small model"),
        Workload("random-c1", 8, 1, 256, 0, 128, "1 stream"),
        Workload("random-c4", 16, 4, 256, 0, 128, "4 streams"),
        Workload("random-c16", 48, 16, 256, 0, 128, "16 streams"),
        Workload("random-c32", 64, 32, 256, 0, 128, "32 streams"),
    )
}
DEFAULT = "steady"

LEAST = {"requests": 1, "concurrency": 1, "prompt_tokens": 1, "output_tokens": 1}


def choose(names: Iterable[str], changes: Mapping[str, int | None]) -> list[Workload]:
    """The workloads of these names (each may hold several, with commas), every one with the changes that are not None.

    Raises ValueError with one sentence for a name that is none and for a number that is too small.
    """
    requested = [name.strip() for listed in names for name in listed.split(",") if name.strip()]
    # Typed Any, for `name` and `about` are text, which none of these is.
    numbers: dict[str, Any] = {name: value for name, value in changes.items() if value is not None}
    for name, value in numbers.items():
        if value < LEAST[name]:
            raise ValueError(f"--{name.replace('_', '-')} {value}: it should be at least {LEAST[name]}")
    workloads = []
    for name in dict.fromkeys(requested or [DEFAULT]):
        if name not in WORKLOADS:
            raise ValueError(f"there is no workload {name[:100]!r}; there are {', '.join(WORKLOADS)}")
        workloads.append(replace(WORKLOADS[name], **numbers))
    return workloads
