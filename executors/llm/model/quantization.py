"""`quantization_config` of a checkpoint: the common formats of FP8 weights and of weights in whole numbers. No torch here.

    quant_method "fp8"                  weight_block_size [128, 128]: `X.weight_scale_inv` [rows / 128, columns / 128];
                                        without: `X.weight_scale`, one number (or one per row)
    quant_method "compressed-tensors"   format "float-quantized" or "naive-quantized", weights of 8 bits, type float:
                                        `X.weight_scale` by strategy: tensor [1], channel [rows, 1], block
                                        format "pack-quantized", 4 or 8 bits, or "int-quantized", 8 bits, type int
    quant_method "gptq"                 4 or 8 bits
    quant_method "awq"                  4 bits, version "gemm"

A weight in FP8 is its e4m3 number times the scale, whatever the name of the scale; `checkpoint/quantized_tensors.py` says what
the others are. The modules that were not quantized are not read from here, because the tensors in the files show them.
Activations are always quantized dynamically, per token and group: the static scale `X.input_scale` is not needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from executors.contract.errors import ConfigError

SUPPORTED = "fp8, gptq, awq, compressed-tensors"
_BLOCK = [128, 128]
_FLOATS = ("float-quantized", "naive-quantized")
_FORMATS = (*_FLOATS, "pack-quantized", "int-quantized")
_STRATEGIES = ("tensor", "channel", "block")
_INT_STRATEGIES = ("tensor", "channel", "group")


@dataclass(frozen=True, slots=True)
class Fp8Scheme:
    """Weights in e4m3. `blocks`: one scale per 128 x 128 weights; otherwise one per row, or one for all."""

    blocks: bool


@dataclass(frozen=True, slots=True)
class IntScheme:
    """Weights in whole numbers of 4 or 8 bits with scales, and zeros, of groups of columns.

    `bits`: None where the shapes of the tensors say it. `zero_offset`: what is added to a stored zero.
    """

    form: Literal["gptq", "awq", "pack-quantized", "int-quantized"]
    bits: int | None = None
    zero_offset: int = 0

    @property
    def label(self) -> str:
        """What to call the weights in a note: `gptq int4`."""
        return self.form if self.bits is None else f"{self.form} int{self.bits}"


def parse_quantization(value: Any, where: str) -> Fp8Scheme | IntScheme | None:
    """Parse the field `quantization_config` of the file `where`; return None if it is absent. Raises ConfigError."""
    if value is None:
        return None
    method = value.get("quant_method", "?") if isinstance(value, dict) else value
    if isinstance(value, dict) and isinstance(method, str) and method in _READERS:
        return _READERS[method](value, where)
    cure = ""
    if isinstance(method, str) and (method == "bitsandbytes" or method.startswith("bitsandbytes_")):
        cure = ": serve the wide checkpoint that it was made from, with --quantization int4 or int8 if memory is short"
    raise ConfigError(
        f"{where}: quantization_config ({str(method)[:120]}) is not supported{cure}; supported: {SUPPORTED}"
    )


def _gptq(value: dict[str, Any], where: str) -> IntScheme:
    if (bits := value.get("bits")) not in (4, 8):
        raise _refused(where, f"gptq with bits {bits!r}", "4, 8")
    form = "marlin" if value.get("is_marlin_format") else value.get("checkpoint_format") or "gptq"
    if form not in ("gptq", "gptq_v2"):
        raise _refused(where, f"gptq with checkpoint_format {form!r}", "gptq, gptq_v2")
    if (packed := value.get("pack_dtype") or "int32") != "int32":
        raise _refused(where, f"gptq with pack_dtype {packed!r}", "int32")
    return IntScheme("gptq", bits, 1 if form == "gptq" else 0)


def _awq(value: dict[str, Any], where: str) -> IntScheme:
    bits = value.get("bits", value.get("w_bit"))
    for field, found, needed in (
        ("bits", bits, 4),
        ("version", str(value.get("version", "gemm")).lower(), "gemm"),
        ("zero_point", value.get("zero_point", True), True),
    ):
        if found != needed:
            raise _refused(where, f"awq with {field} {found!r}", str(needed).lower())
    return IntScheme("awq", 4)


def _plain(value: dict[str, Any], where: str) -> Fp8Scheme:
    for field in ("fmt", "weight_format"):
        if value.get(field, "e4m3") not in ("e4m3", "float8_e4m3fn"):
            raise _refused(where, f"{field} {value[field]!r}", "e4m3")
    return Fp8Scheme(_is_block(value.get("weight_block_size"), where, "weight_block_size"))


def _compressed(value: dict[str, Any], where: str) -> Fp8Scheme | IntScheme:
    if (form := value.get("format")) not in _FORMATS:
        raise _refused(where, f"format {form!r}", ", ".join(_FORMATS))
    sparse = value.get("sparsity_config")
    if isinstance(sparse, dict) and (kind := sparse.get("format") or "dense") != "dense":
        raise _refused(where, f"sparsity_config with format {kind!r}", "dense")
    groups = value.get("config_groups")
    if (
        not isinstance(groups, dict)
        or not groups
        or not all(isinstance(one, dict) for one in groups.values())
    ):
        raise ConfigError(f"{where}: quantization_config: config_groups is missing or not a map of groups")
    weights = [one.get("weights") for one in groups.values()]
    if not all(isinstance(one, dict) for one in weights):
        raise ConfigError(f"{where}: quantization_config: a group has no weights")
    whole = [one.get("type") == "int" for one in weights]
    if form not in _FLOATS or (form == "naive-quantized" and all(whole)):
        packed = form == "pack-quantized"
        for one in weights:
            _check_int(one, form, (4, 8) if packed else (8,), where)
        return IntScheme("pack-quantized" if packed else "int-quantized")
    schemes = {_group(one, where) for one in weights}
    if len(schemes) > 1:
        raise _refused(where, "groups with and without blocks", "one of them")
    return schemes.pop()


def _check_int(weights: dict[str, Any], form: str, bits: tuple[int, ...], where: str) -> None:
    for field, allowed in (("num_bits", bits), ("type", ("int",)), ("dynamic", (False,))):
        if weights.get(field, allowed[-1]) not in allowed:
            known = ", ".join(str(one).lower() for one in allowed)
            raise _refused(where, f"{form} weights with {field} {weights[field]!r}", known)
    if (strategy := weights.get("strategy")) not in _INT_STRATEGIES:
        raise _refused(where, f"{form} weights with strategy {strategy!r}", ", ".join(_INT_STRATEGIES))


def _group(weights: dict[str, Any], where: str) -> Fp8Scheme:
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


_READERS = {"fp8": _plain, "compressed-tensors": _compressed, "gptq": _gptq, "awq": _awq}
