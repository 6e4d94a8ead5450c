"""`quant_method` "auto-round": weights in whole numbers, packed as GPTQ or AWQ packs them; `packing_format` says how.

    auto_round:auto_gptq, auto_round:gptq                    GPTQ, a zero is the stored one plus 1
    auto_round, auto_round:gptqmodel, auto_round:exllamav2, auto_round:tritonv2      GPTQ, a zero is the stored one
    auto_round:auto_awq, auto_round:awq                      AWQ, for its kernel "gemm"
    auto_round:fp8_static, data_type "fp"                    FP8, a scale for each row, for all, or (group_size [128, 128]) blocks
    auto_round:llm_compressor, data_type "mx_fp", "nv_fp"    FP4, see fp4.py: as compressed-tensors writes it

Zeros of symmetric weights are half of the range, as for GPTQ. `extra_config` has settings of single modules, by their name or by
a regular expression that is found in it; 16 bits: the module is wide. Source: auto-round's exporters and backends for inference.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

from executors.contract.errors import ConfigError
from executors.llm.model.fp4 import Fp4Form
from executors.llm.model.quantization.awq import awq_scheme
from executors.llm.model.quantization.fp8 import FLOATS, is_block
from executors.llm.model.quantization.keys import (
    CALIBRATION,
    KERNELS,
    OF_TENSORS,
    ORIGIN,
    check_keys,
    keys,
    short,
)
from executors.llm.model.quantization.refusals import kv_note, refuse_set, refused, whole_bits
from executors.llm.model.quantization.schemes import (
    Fp8Scheme,
    IntScheme,
    IntSchemes,
    Quantization,
    Rule,
    ZeroRule,
)
from executors.llm.model.quantization.settings import checked_pattern, gptq_scheme

_ACTIVATIONS = {
    "how activations of fewer than 16 bits are quantized": ("act_group_size", "act_sym", "act_data_type", "act_dynamic"),
}  # fmt: skip
KEYS = keys(
    (
        "quant_method", "packing_format", "backend", "bits", "sym", "data_type", "act_bits", "super_bits", "rotation_config",
        "rotation_configs", "extra_config", "dynamic", "regex_config", "static_kv_dtype", "static_attention_dtype",
        "fmt", "weight_block_size",
    ),
    OF_TENSORS,
    ORIGIN,
    KERNELS,
    CALIBRATION,
    _ACTIVATIONS,
    {"of keys that are not applied": ("static_kv_granularity", "static_attention_granularity")},
)  # fmt: skip
MODULE = keys(
    ("bits", "sym", "data_type", "act_bits", "super_bits", "rotation_config"),
    OF_TENSORS,
    CALIBRATION,
    _ACTIVATIONS,
)
"""Keys of the settings of one module in `extra_config`."""
CHANGING = {
    "rotation_config": "inputs would have to be rotated", "rotation_configs": "inputs would have to be rotated",
    "super_bits": "scales would have to be dequantized", "dynamic": "extra_config is what auto-round writes",
    "regex_config": "extra_config is what auto-round writes",
    "static_attention_dtype": "attention would have to be computed in it",
}  # fmt: skip
"""Keys that change the computation, and how."""
_PLUS_ONE = ("auto_round:auto_gptq", "auto_round:gptq", "auto")
_STORED = ("auto_round", "auto_round:gptqmodel", "auto_round:exllamav2", "auto_round:tritonv2")
_AWQ = ("auto_round:auto_awq", "auto_round:awq")
_FP8 = "auto_round:fp8_static"
_FP4 = "auto_round:llm_compressor"
_FP4_FORMS: dict[str, Fp4Form] = {"mx_fp": "mxfp4-pack-quantized", "nv_fp": "nvfp4-pack-quantized"}
"""Formats in FP4 by the beginning of data_type."""
PACKINGS = (*_PLUS_ONE[:2], *_STORED, *_AWQ, _FP8, _FP4)


def read_auto_round(value: dict[str, Any], where: str) -> Quantization:
    """Read the schemes. Raises ConfigError."""
    check_keys(value, KEYS, where)
    refuse_set(value, CHANGING, where)
    packing = value.get("packing_format") or _older_packing(value.get("backend")) or _PLUS_ONE[0]
    if packing not in (*PACKINGS, *_PLUS_ONE):
        raise refused(where, f"auto-round with packing_format {packing!r}", ", ".join(PACKINGS))
    notes = (kv_note("static_kv_dtype"),) if value.get("static_kv_dtype") else ()
    if packing == _FP8:
        for field, allowed in (("data_type", FLOATS), ("fmt", ("e4m3",))):
            if value.get(field) and value[field] not in allowed:
                raise refused(where, f"{packing} with {field} {value[field]!r}", ", ".join(allowed))
        if whole_bits(value.get("bits")) != 8:
            raise refused(where, f"{packing} with bits {value.get('bits')!r}", "8")
        size = value.get("weight_block_size") or value.get("group_size")
        blocks = isinstance(size, list) and is_block(size, where, "weight_block_size")
        return Quantization("auto-round", where, fp8=Fp8Scheme(blocks), notes=notes)
    if (size := value.get("weight_block_size")) is not None:
        raise refused(where, f"{packing} with weight_block_size {size!r}", "null")
    zeros: ZeroRule | None = None if packing in _AWQ else "plus_one" if packing in _PLUS_ONE else "stored"
    make = _fp4_scheme if packing == _FP4 else partial(_scheme, zeros)
    if packing == _FP4 and (whole_bits(bits := value.get("act_bits")) or 16) < 16:
        notes = (*notes, f"act_bits {bits} is not applied: values keep more bits, which is more exact")
    schemes = IntSchemes(make(value, where), tuple(_modules(value, make, where)))
    return Quantization("auto-round", where, integers=schemes, notes=notes)


def _older_packing(backend: object) -> str | None:
    """Return the packing that older files name as their backend."""
    name = str(backend).replace("autoround", "auto_round") if isinstance(backend, str) else ""
    if not name.startswith("auto_round"):
        return None
    return _PLUS_ONE[0] if name.startswith(("auto_round:gptq:", "auto_round:auto_gptq:")) else name


def _fp4_scheme(settings: dict[str, Any], where: str) -> IntScheme:
    kind = str(settings.get("data_type"))
    form = next((form for begin, form in _FP4_FORMS.items() if kind.startswith(begin)), None)
    if form is None:
        raise refused(where, f"{_FP4} with data_type {kind!r}", ", ".join(_FP4_FORMS))
    for key, supported in (("bits", (4, "4")), ("sym", (True,))):
        if settings.get(key) is not None and settings[key] not in supported:
            raise refused(where, f"{_FP4} with {key} {settings[key]!r}", str(supported[0]).lower())
    return IntScheme(form)


def _scheme(zeros: ZeroRule | None, settings: dict[str, Any], where: str) -> IntScheme:
    """`zeros`: None for AWQ."""
    if zeros is not None:
        return gptq_scheme({"bits": 4, **settings}, zeros, "auto-round", where)
    return awq_scheme({"bits": 4, **settings}, "auto-round packed as awq", where)


def _modules(
    value: dict[str, Any], make: Callable[[dict[str, Any], str], IntScheme], where: str
) -> list[Rule]:
    extra = value.get("extra_config") or {}
    if not isinstance(extra, dict) or not all(isinstance(one, dict) for one in extra.values()):
        raise ConfigError(f"{where}: extra_config {short(extra)} is not a map from modules to settings")
    exact, patterns = [], []
    for name, settings in extra.items():
        at = f"{where}: extra_config {short(name)}"
        check_keys(settings, MODULE, at)
        refuse_set(settings, CHANGING, at)
        wide = (whole_bits(settings.get("bits", value.get("bits", 4))) or 0) > 8
        scheme = None if wide else make({**value, **settings}, at)
        exact.append(Rule(re.escape(name) + r"\Z", scheme))
        if not re.fullmatch(r"[\w.]+", name):
            patterns.append(Rule(f"(?s:.*?)(?:{checked_pattern(name, at)})", scheme))
    # A module's own name counts before any expression.
    return [*exact, *patterns]
