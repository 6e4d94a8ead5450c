"""`quantization_config` of a checkpoint: the common formats of FP8 weights. No torch here.

    quant_method "fp8"                  weight_block_size [128, 128]: `X.weight_scale_inv` [rows / 128, columns / 128];
                                        without: `X.weight_scale`, one number (or one per row)
    quant_method "compressed-tensors"   format "float-quantized" or "naive-quantized", weights of 8 bits, type float:
                                        `X.weight_scale` by strategy: tensor [1], channel [rows, 1], block

A weight is its e4m3 number times the scale, whatever the name of the scale. The modules that were not quantized are not read
from here, because the dtypes in the files show them. Activations are always quantized dynamically, per token (and per group
of 128): the static scale `X.input_scale` is not needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from executors.contract.errors import ConfigError

SUPPORTED = "fp8, compressed-tensors with FP8 weights"
_BLOCK = [128, 128]
_FORMATS = ("float-quantized", "naive-quantized")
_STRATEGIES = ("tensor", "channel", "block")


@dataclass(frozen=True, slots=True)
class Fp8Scheme:
    """Weights in e4m3. `blocks`: one scale per 128 x 128 weights; otherwise one per row, or one for all."""

    blocks: bool


def parse_quantization(value: Any, where: str) -> Fp8Scheme | None:
    """Parse the field `quantization_config` of the file `where`; return None if it is absent. Raises ConfigError."""
    if value is None:
        return None
    method = value.get("quant_method", "?") if isinstance(value, dict) else value
    if isinstance(value, dict) and method == "fp8":
        return _plain(value, where)
    if isinstance(value, dict) and method == "compressed-tensors":
        return _compressed(value, where)
    if method == "bitsandbytes":
        # Its weights are quantized from a checkpoint that is published beside it.
        raise ConfigError(
            f"{where}: quantization_config (bitsandbytes) is not supported: serve the wide checkpoint that it was made "
            "from, with --quantization int8 if memory is short"
        )
    raise ConfigError(f"{where}: quantization_config ({method}) is not supported; supported: {SUPPORTED}")


def _plain(value: dict[str, Any], where: str) -> Fp8Scheme:
    for field in ("fmt", "weight_format"):
        if value.get(field, "e4m3") not in ("e4m3", "float8_e4m3fn"):
            raise _refused(where, f"{field} {value[field]!r}", "e4m3")
    return Fp8Scheme(_is_block(value.get("weight_block_size"), where, "weight_block_size"))


def _compressed(value: dict[str, Any], where: str) -> Fp8Scheme:
    if (form := value.get("format")) not in _FORMATS:
        raise _refused(where, f"format {form!r}", ", ".join(_FORMATS))
    groups = value.get("config_groups")
    if (
        not isinstance(groups, dict)
        or not groups
        or not all(isinstance(one, dict) for one in groups.values())
    ):
        raise ConfigError(f"{where}: quantization_config: config_groups is missing or not a map of groups")
    schemes = {_group(one, where) for one in groups.values()}
    if len(schemes) > 1:
        raise _refused(where, "groups with and without blocks", "one of them")
    return schemes.pop()


def _group(group: dict[str, Any], where: str) -> Fp8Scheme:
    weights = group.get("weights")
    if not isinstance(weights, dict):
        raise ConfigError(f"{where}: quantization_config: a group has no weights")
    for field, needed in (("num_bits", 8), ("type", "float"), ("symmetric", True), ("dynamic", False)):
        if weights.get(field, needed) != needed:
            raise _refused(where, f"weights with {field} {weights[field]!r}", str(needed).lower())
    if (strategy := weights.get("strategy")) not in _STRATEGIES:
        raise _refused(where, f"weights with strategy {strategy!r}", ", ".join(_STRATEGIES))
    structure = weights.get("block_structure")
    if strategy == "block" and structure is None:
        raise _refused(where, "strategy 'block' without block_structure", str(_BLOCK))
    return Fp8Scheme(strategy == "block" and _is_block(structure, where, "block_structure"))


def _is_block(value: Any, where: str, field: str) -> bool:
    if value is None:
        return False
    if value != _BLOCK and value != "x".join(map(str, _BLOCK)):
        raise _refused(where, f"{field} {value!r}", str(_BLOCK))
    return True


def _refused(where: str, what: str, known: str) -> ConfigError:
    return ConfigError(f"{where}: quantization_config: {what[:120]} is not supported; supported: {known}")
