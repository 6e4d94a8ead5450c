"""`quant_method` "modelopt", and `hf_quant_config.json`: what NVIDIA's Model Optimizer writes.

    FP8                         `X.weight_scale`, one number
    FP8_PER_CHANNEL_PER_TOKEN   `X.weight_scale` [rows]
    FP8_PB_WO                   `X.weight_scale` [rows / 128, 1, columns / 128, 1]
    NVFP4, W4A16_NVFP4          see fp4.py

The file has `quantization: {quant_algo, kv_cache_quant_algo, exclude_modules}`; config.json has the same in one object, with
`kv_cache_scheme` and `ignore`. Without a `quant_algo` only keys and values are quantized.
"""

from __future__ import annotations

from typing import Any

from executors.contract.errors import ConfigError
from executors.llm.model.fp4 import MODELOPT_FP4
from executors.llm.model.quantization.keys import OF_TENSORS, ORIGIN, check_keys, keys, short
from executors.llm.model.quantization.refusals import kv_note, refuse_set, refused
from executors.llm.model.quantization.schemes import Fp8Scheme, IntScheme, IntSchemes, Quantization

KEYS = keys(
    (
        "quant_method", "quantization", "quant_algo", "kv_cache_quant_algo", "kv_cache_scheme", "quantized_layers",
        "pre_quant_scale", "has_zero_point",
    ),
    OF_TENSORS,
    ORIGIN,
    {"quant_algo says the same": ("config_groups",)},
)  # fmt: skip
ALGORITHMS = {"FP8": False, "FP8_PER_CHANNEL_PER_TOKEN": False, "FP8_PB_WO": True}
"""Algorithms of FP8 by name: whether blocks have scales."""
_SUPPORTED = ", ".join((*ALGORITHMS, *MODELOPT_FP4))
_MIXED = "MIXED_PRECISION"
_CHANGING = {
    "pre_quant_scale": "inputs would have to be multiplied by it", "has_zero_point": "zeros would have to be subtracted",
}  # fmt: skip
"""Keys that change the computation, and how."""
_WIDE = ("", "UNQUANTIZED", "NONE", "NO_QUANT")


def read_modelopt(value: dict[str, Any], where: str) -> Quantization:
    """Read the scheme. Raises ConfigError."""
    check_keys(value, KEYS, where)
    inner = value.get("quantization")
    if inner is not None and not isinstance(inner, dict):
        raise ConfigError(f"{where}: quantization {short(inner)} is not a map")
    if inner:
        check_keys(inner, KEYS, f"{where}: quantization")
        value = inner
    kv = [key for key in ("kv_cache_quant_algo", "kv_cache_scheme") if value.get(key)]
    notes = tuple(kv_note(key) for key in kv)
    algorithm = str(value.get("quant_algo") or "").upper()
    if algorithm in _WIDE:
        return Quantization("modelopt", where, notes=notes)
    names = _layers(value, where) if algorithm == _MIXED else [algorithm]
    for name in names:
        if name not in (*ALGORITHMS, *MODELOPT_FP4):
            raise refused(where, f"modelopt with quant_algo {name!r}", _SUPPORTED)
    refuse_set(value, _CHANGING, where)
    blocks = {ALGORITHMS[name] for name in names if name in ALGORITHMS}
    fp4 = any(name in MODELOPT_FP4 for name in names)
    if len(blocks) > 1:
        raise refused(where, "layers with and without blocks", "one of them")
    return Quantization(
        "modelopt",
        where,
        fp8=Fp8Scheme(blocks.pop()) if blocks else None,
        integers=IntSchemes(IntScheme("modelopt-nvfp4"), by_tensors=True) if fp4 else None,
        notes=notes,
    )


def _layers(value: dict[str, Any], where: str) -> list[str]:
    layers = value.get("quantized_layers")
    if not isinstance(layers, dict) or not all(isinstance(one, dict) for one in layers.values()):
        raise ConfigError(f"{where}: quantized_layers {short(layers)} is not a map from modules to settings")
    names = {str(one.get("quant_algo")).upper() for one in layers.values()}
    return sorted(names - set(_WIDE))
