"""Pearson's chi-squared test of counts against what was expected."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray


def chi_square_p(observed: Sequence[float] | NDArray, expected: Sequence[float] | NDArray) -> float:
    """The probability of counts at least as far from `expected` (same length, same sum) by chance.

    The upper tail of chi-squared with k - 1 degrees of freedom: the regularized gamma function Q((k - 1) / 2, x / 2).
    """
    observed, expected = np.asarray(observed, np.float64), np.asarray(expected, np.float64)
    if observed.shape != expected.shape or not np.isclose(observed.sum(), expected.sum()):
        raise ValueError(
            f"{observed.sum()} counts of {observed.shape} against {expected.sum()} of {expected.shape}"
        )
    statistic = ((observed - expected) ** 2 / expected).sum()
    freedom = torch.tensor((observed.size - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom, torch.tensor(statistic / 2, dtype=torch.float64)))
