"""The rotary part of `config.json`. No torch here; `executors/llm/model/rope.py` defines what the numbers mean."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from executors.contract.errors import ConfigError
from executors.llm.model.family import Family
from executors.llm.model.fields import Fields


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary embedding: `kind` and its numbers, see `rope.py` for their meaning.

    `dim` is the number of rotated elements of a head; `original_length` is the context length before scaling. `neighbours`:
    elements 2 j and 2 j + 1 are rotated together, not j and j + dim / 2. `query_beta`: queries at position p are multiplied
    by 1 + query_beta log(1 + floor(p / original_length)), as in Ministral 3; 0: they are not. `turning`: of the kind
    "proportional", how many of the dim / 2 frequencies are not 0.
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
    neighbours: bool = False
    query_beta: float = 0.0
    turning: int = 0


_STATIC_ALPHA = "dynamic with alpha"
_PROPORTIONAL = "proportional"
_READ = frozenset({"rope_type", "type", "rope_theta", "partial_rotary_factor"})
_READ_BY = {
    "linear": {"factor"},
    "proportional": {"factor"},
    "dynamic": {"factor"},
    "llama3": {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"},
    "yarn": {
        "factor", "original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim",
        "truncate",
    },
    # The others are published beside alpha, and nothing reads them.
    _STATIC_ALPHA: {"alpha", "factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"},
    "longrope": {"factor", "original_max_position_embeddings", "attention_factor", "short_factor", "long_factor"},
}  # fmt: skip
"""Keys of a rope object that transformers reads, by kind: beside those, `_READ`."""
_OF_IMAGES = frozenset({"mrope_section", "mrope_interleaved"})
"""Keys that split the rotation among the axes of images; for text all axes are the same."""
_FULL, _LOCAL = "full_attention", "sliding_attention"
_BESIDE_GROWTH = ("original_max_position_embeddings", "max_position_embeddings")
"""Keys of Ministral 3's rope object: the length from which queries grow, and one that repeats the field beside the object."""
_BESIDE = "truncate"
"""Key of yarn that is read beside the objects of the layers, not inside them."""


@dataclass(frozen=True, slots=True)
class Ropes:
    """`full` rotates the layers; `local` rotates the sliding layers of a family with a separate rope for them. `notes`: keys
    that would change the output and that transformers ignores as well."""

    full: RopeConfig
    local: RopeConfig | None
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Source:
    """One rope object: its location, its contents, and the theta to use if it names none."""

    name: str
    values: dict[str, Any]
    theta: float
    original: int | None
    """`original_max_position_embeddings` beside the object, which takes precedence over the one inside."""


def parse_ropes(fields: Fields, family: Family, max_positions: int, head_dims: tuple[int, int]) -> Ropes:
    """Parse the ropes of a model as transformers 5.23 does. `head_dims`: of the layers that `Ropes.full` rotates, and `local`.

    transformers 5 writes everything into `rope_parameters`; older versions wrote `rope_theta` beside `rope_scaling`. If both
    objects exist, a non-empty `rope_scaling` replaces the other, with its `rope_theta`.
    """
    parameters, scaling = _object(fields, "rope_parameters"), _object(fields, "rope_scaling")
    notes: list[str] = []
    if family.attention.local_theta:
        sources = _by_layer(fields, family, parameters, scaling, notes)
    else:
        name, values = ("rope_scaling", scaling) if scaling else ("rope_parameters", parameters)
        if scaling and parameters and parameters != family.defaults.get("rope_parameters"):
            notes.append(
                "rope_scaling replaces rope_parameters, as in transformers"
                + _lost_theta(parameters, scaling, fields)
            )
        sources = [
            _Source(
                name, values, fields.real("rope_theta", family.attention.theta), _original(fields, family)
            )
        ]
    ropes = [
        _parse(fields, source, family, max_positions, head_dim, notes)
        for source, head_dim in zip(sources, head_dims, strict=False)
    ]
    return Ropes(ropes[0], ropes[1] if len(ropes) > 1 else None, tuple(notes))


def _object(fields: Fields, name: str) -> dict[str, Any]:
    value = fields.get(name, {})
    if not isinstance(value, dict):
        raise ConfigError(f"{fields.where}: {name} is {value!r}; an object is needed")
    return value


def _lost_theta(parameters: dict[str, Any], scaling: dict[str, Any], fields: Fields) -> str:
    theta = parameters.get("rope_theta")
    if theta is None or scaling.get("rope_theta") is not None or fields.get("rope_theta") == theta:
        return ""
    return f"; the rope_theta {theta} of rope_parameters is not used"


def _original(fields: Fields, family: Family) -> int | None:
    name = "original_max_position_embeddings"
    if fields.get(name) is None and family.attention.original_positions is None:
        return None
    return fields.natural(name, family.attention.original_positions)


def _by_layer(
    fields: Fields, family: Family, parameters: dict[str, Any], scaling: dict[str, Any], notes: list[str]
) -> list[_Source]:
    """Return one object for each kind of layer; `rope_scaling` applies to layers without a window."""
    nested = {name: parameters.get(name) or {} for name in (_FULL, _LOCAL)}
    for name, value in nested.items():
        if not isinstance(value, dict):
            raise ConfigError(f"{fields.where}: rope_parameters: {name} is {value!r}; an object is needed")
    flat = sorted(set(parameters) - {*nested, _BESIDE})
    if flat and scaling and not set(parameters) & set(nested):
        raise ConfigError(
            f"{fields.where}: rope_parameters has no {_FULL}, which rope_scaling is to change; leave one of the two out"
        )
    if flat:
        notes.append(f"rope_parameters: {', '.join(flat)} not used: only {_FULL} and {_LOCAL} are read")
    full = {"rope_type": "default", **nested[_FULL], **scaling}
    if scaling.get("type", "default") != "default" and full["rope_type"] == "default":
        notes.append("rope_scaling: type is not used: only rope_type is read, as in transformers")
    name = "rope_scaling" if scaling else "rope_parameters"
    if not scaling and nested[_FULL].get("rope_type") is None and "type" in nested[_FULL]:
        full["rope_type"] = nested[_FULL]["type"]
    full, local = (_with_truncate(one, parameters, notes) for one in (full, nested[_LOCAL]))
    theta = family.attention.local_theta
    local_theta = fields.real(theta) if isinstance(theta, str) else theta
    return [
        _Source(name, full, fields.real("rope_theta", family.attention.theta), None),
        _Source(f"rope_parameters of {_LOCAL}", local, local_theta, None),
    ]


def _with_truncate(values: dict[str, Any], parameters: dict[str, Any], notes: list[str]) -> dict[str, Any]:
    """Add the `truncate` that stands beside the objects to one kind of layer, because transformers reads it there."""
    if values.get(_BESIDE) not in (None, True) and parameters.get(_BESIDE) is None:
        notes.append(
            f"{_BESIDE} {str(values[_BESIDE]).lower()} is not used: it is read beside {_FULL} only, as in transformers"
        )
    plain = {name: value for name, value in values.items() if name != _BESIDE}
    return plain | (
        {_BESIDE: parameters[_BESIDE]} if _BESIDE in parameters and plain.get("rope_type") == "yarn" else {}
    )


def _parse(
    fields: Fields, source: _Source, family: Family, max_positions: int, head_dim: int, notes: list[str]
) -> RopeConfig:
    numbers = Fields(f"{fields.where}: {source.name}", source.values)
    kind = numbers.get("rope_type", numbers.get("type", "default"))
    kind = family.attention.rope_aliases.get(kind, kind) if isinstance(kind, str) else kind
    if kind not in family.attention.rope_kinds:
        supported = ", ".join(family.attention.rope_kinds)
        raise ConfigError(
            f"{fields.where}: {source.name} of type {kind!r} is not supported; supported: {supported}"
        )
    theta = _checked_theta(numbers.real("rope_theta", source.theta), fields.where)
    if family.attention.static_alpha and kind == "dynamic" and numbers.get("alpha"):
        kind, theta = _STATIC_ALPHA, _stretched_theta(numbers, theta, head_dim)
    growth = family.attention.query_growth
    read = _READ | _OF_IMAGES | _READ_BY.get(kind, set()) | ({growth, *_BESIDE_GROWTH} if growth else set())
    unread = sorted(name for name, value in source.values.items() if name not in read and value is not None)
    if unread:
        notes.append(f"{source.name}: {', '.join(unread)} not used: rope of type {kind} has no such key")
    original = source.original or numbers.natural("original_max_position_embeddings", max_positions)
    dim = _rotary_dim(fields, numbers, family, kind, head_dim, notes)
    beta = numbers.real(growth) if growth else 0.0
    rope = RopeConfig(kind, theta, original, dim, neighbours=family.attention.neighbours, query_beta=beta)
    if kind == "default":
        return rope
    if kind == _PROPORTIONAL:
        rope = replace(rope, factor=numbers.real("factor", 1.0), turning=_turning(numbers, head_dim))
        _check(rope, numbers.where)
        return rope
    if kind == _STATIC_ALPHA:
        return replace(rope, kind="default")
    attention = numbers.get("attention_factor")
    factor = None if attention is None else numbers.real("attention_factor")
    if kind == "longrope":
        return _longrope(numbers, replace(rope, attention_factor=factor), max_positions)
    implied = None
    if kind == "yarn" and "factor" in source.values:  # null: how far the context is stretched already
        implied = max_positions / original
    rope = replace(
        rope,
        # transformers scales `dynamic` from max_position_embeddings on, whatever the other field says.
        original_length=max_positions if kind == "dynamic" else original,
        factor=numbers.real("factor", implied),
        low_freq_factor=numbers.real("low_freq_factor", None if kind == "llama3" else 1.0),
        high_freq_factor=numbers.real("high_freq_factor", None if kind == "llama3" else 1.0),
        attention_factor=factor if kind == "yarn" else None,
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


def _stretched_theta(numbers: Fields, theta: float, dim: int) -> float:
    """Return theta alpha^(dim / (dim - 2)), in Hunyuan's form of NTK-aware scaling."""
    alpha = numbers.real("alpha")
    if alpha <= 0.0 or dim < 4:
        raise ConfigError(
            f"{numbers.where}: alpha is {alpha} for heads of {dim}; more than 0 for 4 or more is needed"
        )
    return _checked_theta(theta * alpha ** (dim / (dim - 2)), numbers.where)


def _rotary_dim(
    fields: Fields, numbers: Fields, family: Family, kind: str, head_dim: int, notes: list[str]
) -> int:
    """Return how many of a head's elements are rotated. Only some families rotate a part of them. The classes of other
    families in transformers rotate all elements regardless of the field, and fail if another kind of rope reads it."""
    if kind == _PROPORTIONAL:
        return head_dim
    share = numbers.real("partial_rotary_factor", fields.real("partial_rotary_factor", 1.0))
    if not family.attention.partial_rotary and share != 1.0:
        if kind != "default":
            raise ConfigError(
                f"{numbers.where}: partial_rotary_factor {share} is not supported for {family.name} with rope of type "
                f"{kind}; supported: 1.0"
            )
        notes.append(
            f"partial_rotary_factor {share} is not used: all of a head is rotated, as transformers does for {family.name}"
        )
        share = 1.0
    dim = int(head_dim * share)
    if not 0.0 < share <= 1.0 or dim < 2 or dim % 2:
        raise ConfigError(
            f"{numbers.where}: partial_rotary_factor {share} rotates {dim} of {head_dim} elements; an even number is needed"
        )
    return dim


def _turning(numbers: Fields, head_dim: int) -> int:
    """Return how many frequencies of a head a proportional rope has; the others are 0, which turns nothing."""
    share = numbers.real("partial_rotary_factor", 1.0)
    count = int(share * head_dim // 2)
    if not 0.0 < share <= 1.0 or count < 1:
        raise ConfigError(
            f"{numbers.where}: partial_rotary_factor {share} rotates {max(0, count)} of {head_dim // 2} pairs; at least 1 is "
            "needed"
        )
    return count


def _longrope(numbers: Fields, rope: RopeConfig, max_positions: int) -> RopeConfig:
    original = rope.original_length  # which the factor is counted from
    factor = numbers.real("factor", max_positions / original)
    if original < 2:
        raise ConfigError(
            f"{numbers.where}: original_max_position_embeddings is {original}; at least 2 is needed"
        )
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
    factors = tuple(numbers.number(name, value) for value in values)
    if min(factors) <= 0.0:
        raise ConfigError(f"{numbers.where}: {name} has {min(factors)}; numbers above 0 are needed")
    return factors


def _check(rope: RopeConfig, where: str) -> None:
    """Raise ConfigError for numbers that the formulas in `rope.py` do not support."""
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
    """Return the default context and the longest context that can be requested, in tokens.

    - Linear and yarn scale the configured length without a cost for short prompts.
    - Dynamic and longrope change every frequency with the longest sequence that is served (`rope.py` says why), which
      moves the output for short prompts away from what the model was trained for: their context is scaled only as
      far as an explicit max_model_len requires.
    - The `max_position_embeddings` of llama3, and of families that declare it so, is the scaled length already.
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
