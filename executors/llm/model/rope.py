"""Rotary position embeddings: the table of cosines and sines for every position, and its application.

Frequencies follow "RoFormer" (Su et al., 2021) for the default; linear interpolation is Chen et al. 2023
(arXiv:2306.15595); dynamic NTK as proposed by "emozilla" and used by Hugging Face; yarn is Peng et al. 2023
(arXiv:2309.00071); llama3 the scaling that Meta's Llama 3.1 release describes; longrope is Ding et al. 2024
(arXiv:2402.13753); proportional is that of Gemma 4.
"""

from __future__ import annotations

import math

import torch

from executors.llm.model.rope_config import RopeConfig

_CHUNK = 4096
"""Number of positions computed at a time: in float64 a table of a million positions would take gigabytes."""


def rotary_table(rope: RopeConfig, length: int, device: torch.device) -> torch.Tensor:
    """Return float32 [length, 2, rope.dim / 2]: row p holds cos and sin of position p's angles.

    The table never has the model's dtype: rounding it to bf16 would rotate every query and key by slightly wrong angles. It
    would not be smaller either, because the two halves have the same angles and are stored once.
    """
    frequencies, scale = inverse_frequencies(rope, rope.dim, length)
    table = torch.empty(length, 2, rope.dim // 2, dtype=torch.float32, device=device)
    for begin in range(0, length, _CHUNK):
        # float64 until the end: at position 100,000 a float32 product is off by 0.01 radians.
        positions = torch.arange(begin, min(begin + _CHUNK, length), dtype=torch.float64)
        angles = positions[:, None] * frequencies
        rows = torch.stack((angles.cos(), angles.sin()), 1) * scale
        table[begin : begin + len(rows)] = rows.float()
    return table


def query_factors(rope: RopeConfig, length: int, device: torch.device) -> torch.Tensor | None:
    """Return the factor of the queries at each position, float32 [length], see `RopeConfig.query_beta`; None if it is 1."""
    if not rope.query_beta:
        return None
    passed = torch.arange(length, dtype=torch.float64) // rope.original_length
    return (1.0 + rope.query_beta * torch.log1p(passed)).to(device, torch.float32)


def rotate(x: torch.Tensor, table_rows: torch.Tensor, neighbours: bool = False) -> torch.Tensor:
    """Rotate `x` [tokens, heads, head_dim] by each token's row [tokens, 2, dim / 2] of the table, in float32; the result has
    x's dtype. `neighbours`: see `RopeConfig`.

    If dim is less than head_dim, the elements after dim are unchanged.
    """
    half = table_rows.shape[-1]
    cos, sin = table_rows[:, 0:1], table_rows[:, 1:2]
    if neighbours:
        pairs, rest = x.float().split((2 * half, x.shape[-1] - 2 * half), -1)
        one, two = pairs.unflatten(-1, (half, 2)).unbind(-1)
        turned = torch.stack((one * cos - two * sin, two * cos + one * sin), -1).flatten(-2)
        return torch.cat((turned, rest), -1).to(x.dtype)
    one, two, rest = x.float().split((half, half, x.shape[-1] - 2 * half), -1)
    return torch.cat((one * cos - two * sin, two * cos + one * sin, rest), -1).to(x.dtype)


def inverse_frequencies(rope: RopeConfig, head_dim: int, length: int) -> tuple[torch.Tensor, float]:
    """Return the frequencies, float64 [head_dim / 2], and the factor of cos and sin."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim
    plain = rope.theta**-exponents
    match rope.kind:
        case "linear":
            return plain / rope.factor, 1.0
        case "proportional":
            # The frequencies of a whole head, of which all but the highest are 0.
            return torch.where(torch.arange(len(plain)) < rope.turning, plain / rope.factor, 0.0), 1.0
        case "dynamic":
            return _dynamic(rope, exponents, head_dim, length), 1.0
        case "llama3":
            return _llama3(rope, plain), 1.0
        case "longrope":
            # Which of the two lists counts must not change within a sequence either: see `_dynamic`.
            stretched = length > rope.original_length
            factors = rope.long_factors if stretched else rope.short_factors
            return plain / torch.tensor(factors, dtype=torch.float64), rope.attention_factor or 1.0
        case "yarn":
            return _yarn(rope, plain, head_dim), _yarn_scale(rope)
        case _:
            return plain, 1.0


def _dynamic(rope: RopeConfig, exponents: torch.Tensor, head_dim: int, length: int) -> torch.Tensor:
    # The published form changes the base with the length of each sequence, which a KV cache cannot follow: keys are
    # rotated once. The base is fixed for the longest sequence that is served. Up to the original length, which is the
    # default context, it is unscaled; where max_model_len asks for more, also short prompts see the stretched base.
    stretch = rope.factor * max(length, rope.original_length) / rope.original_length - (rope.factor - 1)
    base = rope.theta * stretch ** (head_dim / (head_dim - 2))
    return torch.tensor(base, dtype=torch.float64) ** -exponents


def _llama3(rope: RopeConfig, plain: torch.Tensor) -> torch.Tensor:
    wavelength = 2 * math.pi / plain
    smooth = (rope.original_length / wavelength - rope.low_freq_factor) / (
        rope.high_freq_factor - rope.low_freq_factor
    )
    # Outside 0..1 the clamp gives the unscaled short waves and the fully scaled long ones.
    smooth = smooth.clamp(0, 1)
    return (1 - smooth) * plain / rope.factor + smooth * plain


def _yarn(rope: RopeConfig, plain: torch.Tensor, head_dim: int) -> torch.Tensor:
    def dimension_of(rotations: float) -> float:
        return (
            head_dim * math.log(rope.original_length / (rotations * 2 * math.pi)) / (2 * math.log(rope.theta))
        )

    low, high = dimension_of(rope.beta_fast), dimension_of(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    # Where the bounds have crossed, the span is negative and nothing is interpolated.
    ramp = (torch.arange(head_dim // 2, dtype=torch.float64) - low) / (high - low or 0.001)
    interpolated = ramp.clamp(0, 1)
    return plain / rope.factor * interpolated + plain * (1 - interpolated)


def _yarn_scale(rope: RopeConfig) -> float:
    def magnitude(weight: float) -> float:
        return 0.1 * weight * math.log(rope.factor) + 1.0 if rope.factor > 1 else 1.0

    if rope.attention_factor is not None:
        return float(rope.attention_factor)
    if rope.mscale and rope.mscale_all_dim:
        return magnitude(rope.mscale) / magnitude(rope.mscale_all_dim)
    return magnitude(1.0)
