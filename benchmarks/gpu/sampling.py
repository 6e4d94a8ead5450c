"""What choosing tokens costs for 256 rows of 151,936 logits: on the device, and with all the host does where it takes part."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.timing import Limits, noise, seconds_of, seconds_with_host
from executors.contract import SamplingParams
from executors.kernels import shaping_layout as layout
from executors.llm.sampling.columns import SamplingColumns
from executors.llm.sampling.device_logprobs import described
from executors.llm.sampling.device_shaping import RowShaping
from executors.llm.sampling.sampler import SamplingTable, sample
from executors.llm.sampling.triton_sampler import TritonSampler

ROWS, WIDTH = 256, 151_936
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "temperature": {"temperature": 0.6},
    "top-k and top-p": {"temperature": 0.6, "top_k": 20, "top_p": 0.95},
    "min-p": {"temperature": 1.2, "min_p": 0.05},
}
Put = Callable[[str, dict[str, Any]], None]


def measure(device: torch.device, dtype: torch.dtype, tiny: bool, limits: Limits, put: Put) -> None:
    """A row of results for every kind of settings and each sampler."""
    rows, width = (2, 100) if tiny else (ROWS, WIDTH)
    # Two of them: one alone would lie in the cache for the most part.
    drawn = noise(device)
    both = [language_logits(rows, width, drawn).to(dtype) for _ in range(1 if tiny else 2)]
    sampler = TritonSampler(rows, width, device)
    tokens = torch.empty(rows, dtype=torch.int32, device=device)
    bad = torch.empty(rows, dtype=torch.int8, device=device)
    for kind, settings in KINDS.items():
        columns = device_settings(rows, settings, noise(device))
        calls: list[Callable[[], object]] = [
            functools.partial(sampler.sample, logits, columns, tokens, bad) for logits in both
        ]
        seconds = seconds_of(calls, device)
        moved = rows * width * dtype.itemsize
        shares = {"gb_per_s": moved / seconds / 1e9, "share_of_copy": moved / seconds / limits.copy}
        put(f"sampling on the device, {kind}, {rows} rows", {"us": 1e6 * seconds, **shares})
    shaping = penalties(rows, width, device)
    columns = device_settings(rows, KINDS["top-k and top-p"], noise(device))
    calls = [functools.partial(sampler.sample, logits, columns, tokens, bad, shaping) for logits in both]
    put(f"sampling on the device, penalties, {rows} rows", {"us": 1e6 * seconds_of(calls, device)})
    places = torch.arange(rows, device=device)
    calls = [functools.partial(described, logits, tokens, places, 5) for logits in both]
    put(f"logprobs of {rows} rows", {"us": 1e6 * seconds_of(calls, device)})
    for kind, settings in KINDS.items():
        params = [SamplingParams(seed=row, **settings) for row in range(rows)]
        table = SamplingTable.of(params).rows(np.arange(rows), np.full(rows, 7))
        seconds = seconds_with_host(functools.partial(sample, both[0], table), device, 1 if tiny else 15)
        put(f"sampling with the host, {kind}, {rows} rows", {"us": 1e6 * seconds})


def device_settings(
    rows: int, settings: dict[str, Any], drawn: torch.Generator
) -> SamplingColumns[torch.Tensor]:
    """The settings, the same for all rows, each with noise of its own; where `drawn` is."""
    device = drawn.device

    def column(name: str, default: float, dtype: torch.dtype) -> torch.Tensor:
        return torch.full((rows,), settings.get(name, default), dtype=dtype, device=device)

    return SamplingColumns(
        temperature=column("temperature", 1.0, torch.float32),
        top_k=column("top_k", 0, torch.int32),
        top_p=column("top_p", 1.0, torch.float32),
        min_p=column("min_p", 0.0, torch.float32),
        u=torch.rand(rows, dtype=torch.float64, device=device, generator=drawn),
    )


def penalties(rows: int, width: int, device: torch.device) -> RowShaping:
    """As a sequence has them: of a vocabulary's thousandth, and its last input."""
    table = torch.zeros(rows + 1, layout.row_words(width), dtype=torch.int32, device=device)
    table[:, layout.REPETITION] = torch.tensor(1.1).view(torch.int32).to(device)
    table[:, layout.HEADER : layout.HEADER + width : 1000] = layout.IN_PROMPT + 1
    names = torch.arange(rows, dtype=torch.int32, device=device)
    results = torch.zeros(1, layout.result_words(width), device=device)
    lengths, inputs = torch.full_like(names, 500), torch.full_like(names, 7 % width)
    return RowShaping(table, names, lengths, inputs, torch.zeros_like(names), results)


def language_logits(rows: int, width: int, drawn: torch.Generator) -> torch.Tensor:
    """[rows, width] as a language model gives them: a broad bulk, and a head that falls off like a power law."""
    device = drawn.device
    bulk = torch.randn(rows, width, device=device, generator=drawn) * 2.2
    head = min(300, width // 2)
    falling = 22.0 - 1.6 * torch.arange(1, head + 1, device=device).log()
    places = torch.rand(rows, width, device=device, generator=drawn).topk(head, 1).indices
    return bulk.scatter_(1, places, falling.expand(rows, head))
