"""`config.json` of a Hugging Face checkpoint, read into a `DecoderConfig`. No torch here.

Every fault is a ConfigError of one line that names the file, the field and what is supported.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from executors.errors import ConfigError
from executors.llm.models.families import Family, Switch, family_of, supported_architectures

DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary embedding: `kind` and its numbers, see `rope.py` for what they do.

    `original_length` is the context length before scaling.
    """

    kind: str
    theta: float
    original_length: int
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 1.0
    attention_factor: float | None = None
    mscale: float = 0.0
    mscale_all_dim: float = 0.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """Everything the generic decoder needs to know. Sizes in elements, lengths in tokens.

    `context_length` is served where nobody says how much; `max_context_length` is the most that may be asked for. They
    differ for dynamic rope only, see `_context_lengths`.
    """

    family: Family
    architecture: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    norm_eps: float
    rope: RopeConfig
    context_length: int
    max_context_length: int
    tied: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    dtype: str | None
    """As the checkpoint says; None where it does not."""

    @property
    def q_size(self) -> int:
        """Columns of all query heads together."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Columns of all key (or value) heads together."""
        return self.num_kv_heads * self.head_dim


class _Fields:
    """Typed look-ups in a JSON object; errors name `where` and the field."""

    def __init__(self, where: str, values: dict[str, Any]) -> None:
        self.where = where
        self.values = values

    def get(self, name: str, default: Any = None) -> Any:
        value = self.values.get(name)
        return default if value is None else value

    def int(self, name: str, default: int | None = None) -> int:
        value = self.get(name, default)
        if value is None:
            raise ConfigError(f"{self.where}: field {name} is missing; a positive integer is needed")
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError(f"{self.where}: {name} is {value!r}; a positive integer is needed")
        return value

    def float(self, name: str, default: float | None = None) -> float:
        value = self.get(name, default)
        if value is None:
            raise ConfigError(f"{self.where}: field {name} is missing; a number is needed")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigError(f"{self.where}: {name} is {value!r}; a number is needed")
        # JSON as Python reads it knows NaN and Infinity, and integers of any length.
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise ConfigError(f"{self.where}: {name} is {number}; a finite number is needed")
        return number

    def switch(self, switch: Switch, default: bool = False) -> bool:
        if isinstance(switch, bool):
            return switch
        value = self.get(switch, default)
        if not isinstance(value, bool):
            raise ConfigError(f"{self.where}: {switch} is {value!r}; true or false is needed")
        return value


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises ConfigError when it is missing, unreadable or not an object."""
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; a Hugging Face checkpoint directory is needed") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: not readable as JSON ({str(error).splitlines()[0]})") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: a JSON object is needed")
    return value


def read_config(directory: Path) -> DecoderConfig:
    """The checkpoint's configuration. Raises ConfigError."""
    path = directory / "config.json"
    return parse_config(read_json(path), str(path))


def check_length(wanted: int | None, config: DecoderConfig, directory: Path) -> None:
    """Raises ConfigError where max_model_len is longer than the checkpoint in `directory` can serve."""
    if wanted is not None and wanted > config.max_context_length:
        raise ConfigError(
            f"max_model_len {wanted} is longer than the model's {config.max_context_length} "
            f"(max_position_embeddings in {directory / 'config.json'})"
        )


def parse_config(values: dict[str, Any], where: str = "config.json") -> DecoderConfig:
    """As `read_config`, from the parsed JSON; `where` is the name that messages use."""
    architecture, family = _family(values, where)
    fields = _Fields(where, {**family.defaults, **{k: v for k, v in values.items() if v is not None}})
    _refuse_unimplemented(fields, family)
    num_heads, hidden_size = fields.int("num_attention_heads"), fields.int("hidden_size")
    num_kv_heads = fields.int("num_key_value_heads", num_heads)
    head_dim = fields.int("head_dim", hidden_size // num_heads or None)
    if num_heads % num_kv_heads:
        raise ConfigError(
            f"{where}: num_attention_heads {num_heads} is no multiple of num_key_value_heads {num_kv_heads}"
        )
    if head_dim % 2:
        raise ConfigError(f"{where}: head_dim {head_dim} is odd; rotary embeddings need an even one")
    max_positions = fields.int("max_position_embeddings")
    rope = _rope(fields, family, max_positions, head_dim)
    context_length, max_context_length = _context_lengths(rope, max_positions)
    return DecoderConfig(
        family=family,
        architecture=architecture,
        vocab_size=fields.int("vocab_size"),
        hidden_size=hidden_size,
        num_layers=fields.int("num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        intermediate_size=fields.int("intermediate_size"),
        norm_eps=fields.float(family.norm_eps),
        rope=rope,
        context_length=context_length,
        max_context_length=max_context_length,
        tied=fields.switch("tie_word_embeddings"),
        qkv_bias=fields.switch(family.qkv_bias),
        o_bias=fields.switch(family.o_bias),
        mlp_bias=fields.switch(family.mlp_bias),
        dtype=_dtype(fields),
    )


def _family(values: dict[str, Any], where: str) -> tuple[str, Family]:
    named = values.get("architectures")
    if not isinstance(named, list) or not named:
        raise ConfigError(f"{where}: field architectures is missing; supported: {supported_architectures()}")
    for architecture in named:
        family = family_of(architecture) if isinstance(architecture, str) else None
        if family is not None:
            return architecture, family
    raise ConfigError(
        f"{where}: architecture {named[0]!r} is not supported; supported: {supported_architectures()}"
    )


def _refuse_unimplemented(fields: _Fields, family: Family) -> None:
    quantization = fields.get("quantization_config")
    if quantization is not None:
        method = quantization.get("quant_method", "?") if isinstance(quantization, dict) else quantization
        raise ConfigError(f"{fields.where}: quantization_config ({method}) is not supported; supported: none")
    activation = fields.get("hidden_act", family.activations[0])
    if activation not in family.activations:
        known = ", ".join(family.activations)
        raise ConfigError(f"{fields.where}: hidden_act {activation!r} is not supported; supported: {known}")
    for name, allowed in family.only.items():
        value = fields.get(name)
        if value is not None and value not in allowed:
            known = ", ".join(str(one).lower() for one in allowed)
            raise ConfigError(f"{fields.where}: {name} {value!r} is not supported; supported: {known}")


def _dtype(fields: _Fields) -> str | None:
    # transformers 5 writes `dtype`, older versions `torch_dtype`.
    name = fields.get("dtype", fields.get("torch_dtype"))
    if name is not None and name not in DTYPES:
        raise ConfigError(f"{fields.where}: dtype {name!r} is not supported; supported: {', '.join(DTYPES)}")
    return name


def _rope(fields: _Fields, family: Family, max_positions: int, head_dim: int) -> RopeConfig:
    # transformers 5 writes everything into `rope_parameters`; before, `rope_theta` stood beside `rope_scaling`.
    source = "rope_parameters" if fields.get("rope_parameters") is not None else "rope_scaling"
    scaling = fields.get(source, {})
    if not isinstance(scaling, dict):
        raise ConfigError(f"{fields.where}: {source} is {scaling!r}; an object is needed")
    numbers = _Fields(f"{fields.where}: {source}", scaling)
    kind = numbers.get("rope_type", numbers.get("type", "default"))
    if kind not in family.rope_kinds:
        known = ", ".join(family.rope_kinds)
        raise ConfigError(f"{fields.where}: {source} of type {kind!r} is not supported; supported: {known}")
    theta = numbers.float("rope_theta", fields.float("rope_theta", 10000.0))
    original = numbers.int("original_max_position_embeddings", max_positions)
    if theta <= 1.0:
        raise ConfigError(f"{fields.where}: rope_theta is {theta}; more than 1 is needed")
    if kind == "default":
        return RopeConfig(kind, theta, original)
    given = numbers.get("attention_factor")
    rope = RopeConfig(
        kind,
        theta,
        # transformers scales `dynamic` from max_position_embeddings on, whatever the other field says.
        max_positions if kind == "dynamic" else original,
        factor=numbers.float("factor"),
        low_freq_factor=numbers.float("low_freq_factor", None if kind == "llama3" else 1.0),
        high_freq_factor=numbers.float("high_freq_factor", None if kind == "llama3" else 1.0),
        attention_factor=None if given is None else numbers.float("attention_factor"),
        mscale=numbers.float("mscale", 0.0),
        mscale_all_dim=numbers.float("mscale_all_dim", 0.0),
        beta_fast=numbers.float("beta_fast", 32.0),
        beta_slow=numbers.float("beta_slow", 1.0),
        truncate=numbers.switch("truncate", True),
    )
    _check_rope(rope, numbers.where, head_dim)
    return rope


def _check_rope(rope: RopeConfig, where: str, head_dim: int) -> None:
    """Numbers that the formulas in `rope.py` cannot take."""
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
    if rope.kind == "dynamic" and head_dim < 4:
        raise ConfigError(f"{where}: dynamic needs a head_dim of at least 4, not {head_dim}")


def _context_lengths(rope: RopeConfig, max_positions: int) -> tuple[int, int]:
    """In tokens: the context that is served where nobody says how much, and the longest that can be asked for.

    - Linear and yarn stretch the length they were configured beside, at no price for short prompts.
    - Dynamic changes every frequency with the longest sequence that is served (`rope.py` says why), which moves the
      answers to short prompts away from what the model was trained for: its context is stretched only as far as an
      explicit max_model_len says.
    - The `max_position_embeddings` of llama3 is the stretched length already.
    """
    stretched = max(max_positions, int(rope.original_length * rope.factor))
    match rope.kind:
        case "linear" | "yarn":
            return stretched, stretched
        case "dynamic":
            return max_positions, stretched
        case _:
            return max_positions, max_positions
