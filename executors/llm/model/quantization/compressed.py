"""`quant_method` "compressed-tensors": weights in FP8 or in whole numbers."""

from __future__ import annotations

from typing import Any

from executors.contract.errors import ConfigError
from executors.llm.model.quantization.fp8 import is_block
from executors.llm.model.quantization.refusals import refused
from executors.llm.model.quantization.schemes import Fp8Scheme, IntScheme, IntSchemes, Quantization

_FLOATS = ("float-quantized", "naive-quantized")
_FORMATS = (*_FLOATS, "pack-quantized", "int-quantized")
_STRATEGIES = ("tensor", "channel", "block")
_INT_STRATEGIES = ("tensor", "channel", "group")
_METHOD = "compressed-tensors"


def read_compressed(value: dict[str, Any], where: str) -> Quantization:
    """Read the schemes. Raises ConfigError."""
    if (form := value.get("format")) not in _FORMATS:
        raise refused(where, f"format {form!r}", ", ".join(_FORMATS))
    sparse = value.get("sparsity_config")
    if isinstance(sparse, dict) and (kind := sparse.get("format") or "dense") != "dense":
        raise refused(where, f"sparsity_config with format {kind!r}", "dense")
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
        scheme = IntScheme("pack-quantized" if packed else "int-quantized")
        return Quantization(_METHOD, where, integers=IntSchemes(scheme, by_tensors=True))
    schemes = {_group(one, where) for one in weights}
    if len(schemes) > 1:
        raise refused(where, "groups with and without blocks", "one of them")
    return Quantization(_METHOD, where, fp8=schemes.pop())


def _check_int(weights: dict[str, Any], form: str, bits: tuple[int, ...], where: str) -> None:
    for field, allowed in (("num_bits", bits), ("type", ("int",)), ("dynamic", (False,))):
        if weights.get(field, allowed[-1]) not in allowed:
            known = ", ".join(str(one).lower() for one in allowed)
            raise refused(where, f"{form} weights with {field} {weights[field]!r}", known)
    if (strategy := weights.get("strategy")) not in _INT_STRATEGIES:
        raise refused(where, f"{form} weights with strategy {strategy!r}", ", ".join(_INT_STRATEGIES))


def _group(weights: dict[str, Any], where: str) -> Fp8Scheme:
    for field, needed in (("num_bits", 8), ("type", "float"), ("symmetric", True), ("dynamic", False)):
        if weights.get(field, needed) != needed:
            raise refused(where, f"weights with {field} {weights[field]!r}", str(needed).lower())
    if (strategy := weights.get("strategy")) not in _STRATEGIES:
        raise refused(where, f"weights with strategy {strategy!r}", ", ".join(_STRATEGIES))
    structure = weights.get("block_structure")
    if strategy == "block" and structure is None:
        raise refused(where, "strategy 'block' without block_structure", "[128, 128]")
    return Fp8Scheme(strategy == "block" and is_block(structure, where, "block_structure"))
