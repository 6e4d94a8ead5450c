"""The figures of `benchmarks.quality`: how far logits are from a reference, and what that does to tokens."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.quality_models import WAYS, Forced, Transformers, Way, configuration, our_logits, started

RATIO = 1.1
"""Promised: our bf16 logits' RMS error is at most so many times that of transformers in bf16."""
GAP = 4.0
"""Promised: where the two best fp32 logits are further apart than so many of our RMS errors, the best token is the same."""

_PIECE = 8
"""Rows that are compared at a time. In float64 49,152 logits each are 3 MB, which caches hold: twice as fast as 64 rows."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Logits beside reference logits, by row; all arrays are [rows].

    `squared`: mean squared difference over the vocabulary. `best` and `expected`: the argmax of each side, `top` the
    reference's best logit and `gap` by how much it leads the second. `nll` and `expected_nll`: nats that the logits and the
    reference give the token that follows. `kl`: nats of KL(reference || logits).
    """

    squared: np.ndarray
    best: np.ndarray
    expected: np.ndarray
    top: np.ndarray
    gap: np.ndarray
    nll: np.ndarray
    expected_nll: np.ndarray
    kl: np.ndarray

    @property
    def rms(self) -> float:
        """Root of the mean squared difference over all rows and the vocabulary."""
        return float(np.sqrt(self.squared.mean()))

    @property
    def agreement(self) -> float:
        """Share of rows with the same argmax."""
        return float((self.best == self.expected).mean())

    @property
    def flipped_gap(self) -> float:
        """The largest gap of a row with another argmax, in logits; 0 where there is none."""
        return float(self.gap[self.best != self.expected].max(initial=0.0))

    @property
    def perplexity(self) -> float:
        """exp of the mean nats of the tokens that follow."""
        return float(np.exp(self.nll.mean()))

    @property
    def expected_perplexity(self) -> float:
        """The reference's perplexity."""
        return float(np.exp(self.expected_nll.mean()))

    def decided(self, rounded: bool = False) -> np.ndarray:
        """bool [rows]: those whose reference tokens are so far apart that the argmax must be the same, see `GAP`.

        `rounded`: leave room for logits that come in bf16. Both of a row's best are rounded by up to half a spacing, and
        at their size that is about as much as the RMS error, which is mostly of small logits. Near ties are what random
        weights have many of: there up to 1 row in 1,000 lost a lead of 4 to 5 errors.
        """
        return self.gap > GAP * self.rms + (bf16_spacing(self.top) if rounded else 0.0)

    def wrong(self, rounded: bool = False) -> np.ndarray:
        """bool [rows]: decided rows with another argmax."""
        return self.decided(rounded) & (self.best != self.expected)

    @property
    def widest_wrong(self) -> float:
        """`flipped_gap` in RMS errors."""
        return self.flipped_gap / self.rms if self.rms else 0.0


def bf16_spacing(values: np.ndarray) -> np.ndarray:
    """The distance of neighbouring bf16 numbers, which have 8 significant bits, at the size of `values`."""
    return np.exp2(np.frexp(values)[1] - 8.0)


def compare(
    logits: Sequence[np.ndarray], reference: Sequence[np.ndarray], targets: Sequence[np.ndarray]
) -> Comparison:
    """Compare float32 [rows, V] of each sequence; `targets` int64 [rows] are the tokens that follow.

    Raises ValueError for other shapes than the reference's and for logits that are not finite.
    """
    return joined([_compare(*one) for one in zip(logits, reference, targets, strict=True)])


def joined(parts: Sequence[Comparison]) -> Comparison:
    """The rows of all of them, in order."""
    columns = [[getattr(part, field.name) for part in parts] for field in fields(Comparison)]
    return Comparison(*map(np.concatenate, columns))


def _compare(logits: np.ndarray, reference: np.ndarray, targets: np.ndarray) -> Comparison:
    if logits.shape != reference.shape:
        raise ValueError(f"logits of shape {logits.shape} beside {reference.shape}")
    pieces = [
        _compare_piece(
            *(torch.from_numpy(one[begin : begin + _PIECE]) for one in (logits, reference, targets))
        )
        for begin in range(0, len(logits), _PIECE)
    ]
    return Comparison(*(torch.cat(column).numpy() for column in zip(*pieces, strict=True)))


def _compare_piece(
    logits: torch.Tensor, reference: torch.Tensor, targets: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """The columns of a `Comparison`, in float64 but for indices."""
    logits, reference = logits.double(), reference.double()
    squared = (logits - reference).square().mean(-1)
    if not squared.isfinite().all():
        raise ValueError("logits are not finite")  # in a comparison NaN would count as equal
    top = reference.topk(2, dim=-1).values
    log_p, log_q = reference.log_softmax(-1), logits.log_softmax(-1)
    kl = (log_p.exp() * (log_p - log_q)).sum(-1)
    nll, expected_nll = (-one.gather(-1, targets[:, None])[:, 0] for one in (log_q, log_p))
    best, expected = logits.argmax(-1), reference.argmax(-1)  # of equal logits the first
    return squared, best, expected, top[:, 0], top[:, 0] - top[:, 1], nll, expected_nll, kl


# -- bf16 against transformers -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pair:
    """Our bf16 and that of transformers on the same sequences in the same way, both beside fp32."""

    ours: Comparison
    theirs: Comparison

    @property
    def ratio(self) -> float:
        """Our RMS error over that of transformers."""
        return self.ours.rms / self.theirs.rms

    def report(self) -> dict[str, Any]:
        """For the JSON."""
        return {
            "rows": len(self.ours.gap), "ratio": self.ratio, "our_rms": self.ours.rms, "transformers_rms": self.theirs.rms,
            "ours": _argmax_report(self.ours), "transformers": _argmax_report(self.theirs),
        }  # fmt: skip


def _argmax_report(found: Comparison) -> dict[str, Any]:
    return {
        "agreement": found.agreement, "decided": int(found.decided().sum()), "wrong": int(found.wrong().sum()),
        "wrong_beyond_rounding": int(found.wrong(rounded=True).sum()), "widest_wrong": found.widest_wrong,
    }  # fmt: skip


def references(
    directory: Path, prompts: Sequence[list[int]], tokens: int
) -> tuple[list[Forced], list[np.ndarray]]:
    """The greedy continuations in fp32 and their fp32 logits, computed in one forward each."""
    exact = Transformers(directory, torch.float32)
    sequences = [exact.continued(prompt, tokens) for prompt in prompts]
    return sequences, [exact.logits(one) for one in sequences]


async def bf16_pairs(
    directory: Path, prompts: Sequence[list[int]], tokens: int, *, threads: int | None = None,
    attention: str = "sdpa", served: Path | None = None,
) -> dict[Way, Pair]:  # fmt: skip
    """By way. `attention` is that of transformers in bf16; `served` is what our executor loads in place of `directory`."""
    sequences, reference = references(directory, prompts, tokens)
    targets = [one.targets for one in sequences]
    rounded = Transformers(directory, torch.bfloat16, attention)
    theirs: dict[Way, Comparison] = {}
    for way in ("prefill", "decode"):
        theirs[way] = compare([rounded.logits(one, way) for one in sequences], reference, targets)
    theirs["alone"] = theirs["decode"]  # transformers decode one sequence at a time anyway
    del rounded
    async with started(configuration(served or directory, sequences, threads)) as executor:
        return {
            way: Pair(compare(await our_logits(executor, sequences, way), reference, targets), theirs[way])
            for way in WAYS
        }


def summary(pairs: Sequence[Pair]) -> dict[str, Any]:
    """Medians over pairs, sums of rows, and whether the promises are kept."""
    ratios = [pair.ratio for pair in pairs]
    reports = [pair.report() for pair in pairs]
    sides: dict[str, dict[str, Any]] = {}
    for side in ("ours", "transformers"):
        sides[side] = {
            name: sum(one[side][name] for one in reports)
            for name in ("decided", "wrong", "wrong_beyond_rounding")
        }
        sides[side]["agreement"] = statistics.median(one[side]["agreement"] for one in reports)
        sides[side]["widest_wrong"] = max(one[side]["widest_wrong"] for one in reports)
    return {
        "ratio": statistics.median(ratios), "lowest_ratio": min(ratios), "highest_ratio": max(ratios),
        "our_rms": statistics.median(pair.ours.rms for pair in pairs),
        "transformers_rms": statistics.median(pair.theirs.rms for pair in pairs),
        "rows": sum(one["rows"] for one in reports), **sides,
        "ratio_reached": statistics.median(ratios) <= RATIO,
        "argmax_reached": sides["ours"]["wrong"] == 0,
        "pairs": reports,
    }  # fmt: skip
