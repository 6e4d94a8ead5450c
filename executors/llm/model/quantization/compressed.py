"""`quant_method` "compressed-tensors": weights in FP8 or in whole numbers, in groups of modules with a format each.

The tensors of a weight show how it is stored; the groups say what their numbers mean, and what is not supported.
"""

from __future__ import annotations

import re
from typing import Any

from executors.contract.errors import ConfigError
from executors.llm.model.fp4 import COMPRESSED_FP4, fp4_form, unsupported_fp4
from executors.llm.model.quantization.fp8 import is_block
from executors.llm.model.quantization.keys import (
    CALIBRATION,
    KERNELS,
    OF_TENSORS,
    ORIGIN,
    check_keys,
    keys,
    short,
)
from executors.llm.model.quantization.refusals import kv_note, refused
from executors.llm.model.quantization.schemes import Fp8Scheme, IntScheme, IntSchemes, Quantization, Rule
from executors.llm.model.quantization.settings import checked_pattern
from executors.llm.model.transforms import parse_transforms

KEYS = keys(
    (
        "quant_method",
        "format",
        "config_groups",
        "sparsity_config",
        "kv_cache_scheme",
        "transform_config",
        "attention_input_activations",
    ),
    OF_TENSORS,
    ORIGIN,
    KERNELS,
)
GROUP = keys(
    ("weights", "input_activations", "output_activations", "format", "targets"),
)
WEIGHTS = keys(
    ("num_bits", "type", "symmetric", "strategy", "block_structure", "dynamic"), OF_TENSORS, CALIBRATION
)
"""Keys of the settings of weights, activations, and keys and values."""
SPARSITY = keys(
    ("format",),
    {"of a format that is not supported": ("targets", "ignore", "global_sparsity", "sparsity_structure",
                                           "registry_requires_subclass")},
)  # fmt: skip
_WIDE = ("dense", "fakequant")
_FLOATS = ("float-quantized", "naive-quantized")
_FORMATS = (*_FLOATS, "pack-quantized", "int-quantized", *COMPRESSED_FP4)
_MIXED = "mixed-precision"
_STRATEGIES = ("tensor", "channel", "block")
_INT_STRATEGIES = ("tensor", "channel", "group")
_METHOD = "compressed-tensors"
_WHOLE_BITS = tuple(range(2, 9))
"""Bits of numbers that are stored as int8, each in a byte of its own, whatever they need."""
_CLASSES = ("Linear", "LinearBase")
Scheme = Fp8Scheme | IntScheme


def read_compressed(value: dict[str, Any], where: str) -> Quantization:
    """Read the schemes. Raises ConfigError."""
    check_keys(value, KEYS, where)
    _check_sparsity(value.get("sparsity_config"), where)
    notes = [kv_note("kv_cache_scheme")] if value.get("kv_cache_scheme") else []
    if value.get("attention_input_activations"):
        notes.append(
            "attention_input_activations is not applied: queries keep more bits, which is more exact"
        )
    transforms = parse_transforms(value, where)
    form, groups = value.get("format"), value.get("config_groups")
    if not groups and (notes or form in _WIDE or "sparsity_config" in value or transforms is not None):
        groups, form = {}, "dense"
    if not isinstance(groups, dict):
        raise ConfigError(f"{where}: config_groups is missing or not a map of groups")
    if groups and form not in (*_FORMATS, *_WIDE, _MIXED):
        raise refused(where, f"format {form!r}", ", ".join((*_FORMATS, _MIXED)))
    if not groups and form in _FORMATS and not notes:
        raise ConfigError(f"{where}: config_groups is missing or not a map of groups")
    schemes: list[tuple[dict[str, Any], Scheme]] = []
    for name, group in groups.items():
        at = f"{where}: config_groups {short(name)}"
        if not isinstance(group, dict):
            raise ConfigError(f"{at}: {short(group)} is not a map of settings")
        check_keys(group, GROUP, at)
        notes += _activation_notes(group, at)
        scheme = None if form in _WIDE else _scheme(group, form, where, at)
        if scheme is not None:
            schemes.append((group, scheme))
    wide = {scheme for _, scheme in schemes if isinstance(scheme, Fp8Scheme)}
    if len(wide) > 1:
        raise refused(where, "groups with and without blocks", "one of them")
    whole = [(group, scheme) for group, scheme in schemes if isinstance(scheme, IntScheme)]
    return Quantization(
        _METHOD,
        where,
        fp8=wide.pop() if wide else None,
        integers=_of_targets(whole, where) if whole else None,
        transforms=transforms,
        notes=tuple(dict.fromkeys(notes)),
    )


def _check_sparsity(sparse: object, where: str) -> None:
    if not isinstance(sparse, dict):
        return
    check_keys(sparse, SPARSITY, f"{where}: sparsity_config")
    if (kind := sparse.get("format") or "dense") != "dense":
        raise refused(where, f"sparsity_config with format {kind!r}", "dense")


def _activation_notes(group: dict[str, Any], at: str) -> list[str]:
    """Return notes on activations that are not quantized as the group says: here they have more bits."""
    notes = []
    for name in ("input_activations", "output_activations"):
        settings = group.get(name)
        if not settings:
            continue
        if not isinstance(settings, dict):
            raise ConfigError(f"{at}: {name} {short(settings)} is not a map of settings")
        check_keys(settings, WEIGHTS, f"{at}: {name}")
        bits = settings.get("num_bits", 8)
        if name == "output_activations" or bits != 8:
            notes.append(f"{name} of {bits} bits are not applied: values keep more bits, which is more exact")
    return notes


def _scheme(group: dict[str, Any], form: str | None, where: str, at: str) -> Scheme | None:
    """Return the scheme of the weights of the group `at`; None if they are wide."""
    weights = group.get("weights")
    if weights is None and (group.get("input_activations") or group.get("output_activations")):
        return None
    if not isinstance(weights, dict):
        raise ConfigError(f"{where}: a group has no weights")
    check_keys(weights, WEIGHTS, f"{at}: weights")
    whole = weights.get("type", "int") == "int"
    own = group.get("format") or (form if form != _MIXED else None) or _inferred(group, whole)
    if own not in _FORMATS:
        raise refused(where, f"format {own!r}", ", ".join((*_FORMATS, _MIXED)))
    if (fp4 := fp4_form(own)) is not None:
        for what, supported in unsupported_fp4(weights, fp4):
            raise refused(where, what, supported)
        return IntScheme(fp4)
    if own not in _FLOATS or (own == "naive-quantized" and weights.get("type") == "int"):
        packed = own == "pack-quantized"
        _check_int(weights, own, (4, 8) if packed else _WHOLE_BITS, where)
        return IntScheme("pack-quantized" if packed else "int-quantized")
    return _fp8(weights, where)


def _inferred(group: dict[str, Any], whole: bool) -> str:
    """Return the format that the library gives to a group that names none."""
    if not whole:
        return "float-quantized"
    whole_bytes = group["weights"].get("num_bits", 8) == 8 and group.get("input_activations")
    return "int-quantized" if whole_bytes else "pack-quantized"


def _of_targets(groups: list[tuple[dict[str, Any], IntScheme]], where: str) -> IntSchemes:
    """Return the schemes by the groups' targets: names before expressions ("re:...") before classes of modules."""
    exact, patterns, rest = [], [], None
    for group, scheme in groups:
        targets = group.get("targets") or []
        if not isinstance(targets, list) or not all(isinstance(one, str) for one in targets):
            raise ConfigError(f"{where}: targets {short(targets)} is not a list of names")
        for target in targets:
            if target.startswith("re:"):
                pattern = checked_pattern(target[3:], f"{where}: targets {short(target)}")
                patterns.append(Rule(pattern, scheme))
            elif target in _CLASSES:
                rest = rest or scheme
            else:
                exact.append(Rule(re.escape(target) + r"\Z", scheme))
    if rest is None and not exact and not patterns:
        rest = groups[0][1]
    return IntSchemes(rest, (*exact, *patterns), by_tensors=True)


def _check_int(weights: dict[str, Any], form: str, bits: tuple[int, ...], where: str) -> None:
    for field, allowed in (("num_bits", bits), ("type", ("int",)), ("dynamic", (False,))):
        if weights.get(field) is not None and weights[field] not in allowed:
            supported = ", ".join(str(one).lower() for one in allowed)
            raise refused(where, f"{form} weights with {field} {weights[field]!r}", supported)
    if (strategy := _strategy(weights)) not in _INT_STRATEGIES:
        raise refused(where, f"{form} weights with strategy {strategy!r}", ", ".join(_INT_STRATEGIES))


def _strategy(weights: dict[str, Any]) -> Any:
    """Return what scales belong to; where it is not said, the size of groups says it, as in the library."""
    if (strategy := weights.get("strategy")) is not None:
        return strategy
    size = weights.get("group_size")
    return "tensor" if size is None else "channel" if size == -1 else "group"


def _fp8(weights: dict[str, Any], where: str) -> Fp8Scheme:
    for field, needed in (("num_bits", 8), ("type", "float"), ("symmetric", True), ("dynamic", False)):
        if weights.get(field) is not None and weights[field] != needed:
            raise refused(where, f"weights with {field} {weights[field]!r}", str(needed).lower())
    if (strategy := _strategy(weights)) not in _STRATEGIES:
        raise refused(where, f"weights with strategy {strategy!r}", ", ".join(_STRATEGIES))
    structure = weights.get("block_structure")
    if strategy == "block" and structure is None:
        raise refused(where, "strategy 'block' without block_structure", "[128, 128]")
    return Fp8Scheme(strategy == "block" and is_block(structure, where, "block_structure"))
