"""The rotary part of `config.json`. No torch here; what the numbers do stands in `executors/llm/rope.py`."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from executors.errors import ConfigError
from executors.llm.models.families import Family
from executors.llm.models.fields import Fields


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary embedding: `kind` and its numbers, see `rope.py` for what they do.

    `dim` is how many of a head's elements turn; `original_length` the context length before scaling.
    """

    kind: str
    theta: float
    original_length: int
    dim: int
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 1.0
    attention_factor: float | None = None
    mscale: float = 0.0
    mscale_all_dim: float = 0.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    short_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()


def parse_ropes(
    fields: Fields, family: Family, max_positions: int, head_dim: int
) -> tuple[RopeConfig, RopeConfig | None]:
    """The rope of the layers, and that of sliding layers where the family has another one for them (else None).

    transformers 5 writes everything into `rope_parameters`; before, `rope_theta` stood beside `rope_scaling`.
    """
    source = "rope_parameters" if fields.get("rope_parameters") is not None else "rope_scaling"
    scaling = fields.get(source, {})
    if not isinstance(scaling, dict):
        raise ConfigError(f"{fields.where}: {source} is {scaling!r}; an object is needed")
    local: dict[str, Any] = {}
    if family.local_theta:
        if isinstance(scaling.get("full_attention"), dict):
            local = scaling.get("sliding_attention") or {}
            scaling = scaling["full_attention"]
        numbers = Fields(f"{fields.where}: {source}", local)
        theta = numbers.real("rope_theta", fields.real(family.local_theta))
        if local.get("rope_type", "default") != "default":
            raise ConfigError(
                f"{numbers.where} of sliding_attention: rope_type {local['rope_type']!r} is not supported; supported: default"
            )
        return _parse(fields, source, scaling, family, max_positions, head_dim), RopeConfig(
            "default", _checked_theta(theta, fields.where), max_positions, head_dim
        )
    return _parse(fields, source, scaling, family, max_positions, head_dim), None


def _parse(
    fields: Fields, source: str, scaling: dict[str, Any], family: Family, max_positions: int, head_dim: int
) -> RopeConfig:
    numbers = Fields(f"{fields.where}: {source}", scaling)
    kind = numbers.get("rope_type", numbers.get("type", "default"))
    kind = family.rope_aliases.get(kind, kind) if isinstance(kind, str) else kind
    if kind not in family.rope_kinds:
        known = ", ".join(family.rope_kinds)
        raise ConfigError(f"{fields.where}: {source} of type {kind!r} is not supported; supported: {known}")
    theta = _checked_theta(numbers.real("rope_theta", fields.real("rope_theta", 10000.0)), fields.where)
    original = numbers.natural("original_max_position_embeddings", max_positions)
    dim = _rotary_dim(fields, numbers, head_dim)
    rope = RopeConfig(kind, theta, original, dim)
    if kind == "default":
        return rope
    given = numbers.get("attention_factor")
    factor = None if given is None else numbers.real("attention_factor")
    if kind == "longrope":
        return _longrope(fields, numbers, replace(rope, attention_factor=factor), max_positions)
    rope = replace(
        rope,
        # transformers scales `dynamic` from max_position_embeddings on, whatever the other field says.
        original_length=max_positions if kind == "dynamic" else original,
        factor=numbers.real("factor"),
        low_freq_factor=numbers.real("low_freq_factor", None if kind == "llama3" else 1.0),
        high_freq_factor=numbers.real("high_freq_factor", None if kind == "llama3" else 1.0),
        attention_factor=factor,
        mscale=numbers.real("mscale", 0.0),
        mscale_all_dim=numbers.real("mscale_all_dim", 0.0),
        beta_fast=numbers.real("beta_fast", 32.0),
        beta_slow=numbers.real("beta_slow", 1.0),
        truncate=numbers.switch("truncate", True),
    )
    _check(rope, numbers.where)
    return rope


def _checked_theta(theta: float, where: str) -> float:
    if theta <= 1.0:
        raise ConfigError(f"{where}: rope_theta is {theta}; more than 1 is needed")
    return theta


def _rotary_dim(fields: Fields, numbers: Fields, head_dim: int) -> int:
    """How many of a head's elements are rotated."""
    share = numbers.real("partial_rotary_factor", fields.real("partial_rotary_factor", 1.0))
    dim = int(head_dim * share)
    if not 0.0 < share <= 1.0 or dim < 2 or dim % 2:
        raise ConfigError(
            f"{numbers.where}: partial_rotary_factor {share} rotates {dim} of {head_dim} elements; an even number is needed"
        )
    return dim


def _longrope(fields: Fields, numbers: Fields, rope: RopeConfig, max_positions: int) -> RopeConfig:
    # The length before scaling stands beside the object or in it, and is what the factor is counted from.
    original = numbers.natural(
        "original_max_position_embeddings", fields.natural("original_max_position_embeddings", max_positions)
    )
    factor = numbers.real("factor", max_positions / original)
    short, long = (_factors(numbers, name, rope.dim // 2) for name in ("short_factor", "long_factor"))
    attention = rope.attention_factor
    if attention is None:
        attention = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1.0 else 1.0
    if attention <= 0.0:
        raise ConfigError(f"{numbers.where}: attention_factor is {attention}; more than 0 is needed")
    return replace(
        rope,
        original_length=original,
        factor=factor,
        attention_factor=attention,
        short_factors=short,
        long_factors=long,
    )


def _factors(numbers: Fields, name: str, count: int) -> tuple[float, ...]:
    values = numbers.get(name)
    if not isinstance(values, list) or len(values) != count:
        raise ConfigError(
            f"{numbers.where}: {name} is {str(values)[:60]}; a list of {count} numbers is needed"
        )
    found = tuple(numbers.number(name, value) for value in values)
    if min(found) <= 0.0:
        raise ConfigError(f"{numbers.where}: {name} has {min(found)}; numbers above 0 are needed")
    return found


def _check(rope: RopeConfig, where: str) -> None:
    """Numbers that the formulas in `rope.py` cannot take."""
    if rope.factor > 1e6:
        raise ConfigError(f"{where}: factor is {rope.factor:g}; at most 1e6 is supported")
    if rope.factor < 1.0 or (rope.kind == "llama3" and rope.high_freq_factor <= rope.low_freq_factor):
        raise ConfigError(f"{where}: factor must be at least 1, high_freq_factor above low_freq_factor")
    if rope.kind == "yarn":
        for name in ("beta_fast", "beta_slow"):
            if getattr(rope, name) <= 0.0:
                raise ConfigError(f"{where}: {name} is {getattr(rope, name)}; more than 0 is needed")
        for name in ("mscale", "mscale_all_dim"):
            if getattr(rope, name) < 0.0:
                raise ConfigError(f"{where}: {name} is {getattr(rope, name)}; at least 0 is needed")
        if rope.attention_factor is not None and rope.attention_factor <= 0.0:
            raise ConfigError(f"{where}: attention_factor is {rope.attention_factor}; more than 0 is needed")
    if rope.kind == "dynamic" and rope.dim < 4:
        raise ConfigError(f"{where}: dynamic needs a head_dim of at least 4, not {rope.dim}")


def context_lengths(rope: RopeConfig, max_positions: int, stretched_already: bool = False) -> tuple[int, int]:
    """In tokens: the context that is served where nobody says how much, and the longest that can be asked for.

    - Linear and yarn stretch the length they were configured beside, at no price for short prompts.
    - Dynamic and longrope change every frequency with the longest sequence that is served (`rope.py` says why), which
      moves the answers to short prompts away from what the model was trained for: their context is stretched only as
      far as an explicit max_model_len says.
    - The `max_position_embeddings` of llama3, and of families that say so, is the stretched length already.
    """
    if stretched_already:
        return max_positions, max_positions
    stretched = max(max_positions, int(rope.original_length * rope.factor))
    match rope.kind:
        case "linear" | "yarn":
            return stretched, stretched
        case "dynamic":
            return max_positions, stretched
        case "longrope":
            return min(rope.original_length, max_positions), max_positions
        case _:
            return max_positions, max_positions
