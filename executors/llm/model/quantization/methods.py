"""The readers of `quantization_config` by `quant_method`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from executors.contract.errors import ConfigError
from executors.llm.model.quantization.auto_round import read_auto_round
from executors.llm.model.quantization.awq import read_awq
from executors.llm.model.quantization.compressed import read_compressed
from executors.llm.model.quantization.fp8 import read_fp8
from executors.llm.model.quantization.gptq import read_gptq
from executors.llm.model.quantization.modelopt import read_modelopt
from executors.llm.model.quantization.mxfp4 import read_mxfp4
from executors.llm.model.quantization.schemes import Quantization

Reader = Callable[[dict[str, Any], str], Quantization]
READERS: dict[str, Reader] = {
    "fp8": read_fp8, "gptq": read_gptq, "awq": read_awq, "compressed-tensors": read_compressed,
    "auto-round": read_auto_round, "modelopt": read_modelopt, "mxfp4": read_mxfp4,
}  # fmt: skip
SUPPORTED = ", ".join(READERS)
_ALIASES = {
    "intel/auto-round": "auto-round", "auto_round": "auto-round", "auto-gptq": "gptq", "fbgemm_fp8": "fp8",
    "compressed_tensors": "compressed-tensors", "sparseml": "compressed-tensors",
}  # fmt: skip
"""Other names of methods in published files."""
_AWQ_KEYS = {"w_bit", "q_group_size", "zero_point", "version"}
"""Keys that tell AWQ's settings from GPTQ's where neither names its method."""
_GPTQ_KEYS = {
    "desc_act",
    "sym",
    "checkpoint_format",
    "damp_percent",
    "true_sequential",
    "wbits",
    "is_marlin_format",
}
_AT_LOAD = ("bitsandbytes", "hqq", "eetq", "quanto", "torchao")
"""Methods that round wide weights as they are loaded, for training: their entry stays in the config.json of weights that were
merged and saved wide."""
_WIDE_CURE = (
    ": serve the wide checkpoint that it was made from, with --quantization int4 or int8 if memory is short"
)


def parse_quantization(
    value: Any, where: str, key: str = "quantization_config", unnamed: str | None = None
) -> Quantization | None:
    """Parse the object under `key` of the file `where`, or the whole file if `key` is ""; return None if it is absent. `unnamed`:
    the method of settings that name none and could be of any. Raises ConfigError."""
    if value is None or value == {}:
        return None
    where = f"{where}: {key}" if key else where
    method = _method(value, unnamed) if isinstance(value, dict) else value
    if isinstance(value, dict) and isinstance(method, str) and method in READERS:
        return READERS[method](value, where)
    refusal = f"{where} ({str(method)[:120]}) is not supported"
    if isinstance(method, str) and method.startswith(_AT_LOAD):
        cure = _WIDE_CURE if method.startswith("bitsandbytes") else ""
        return Quantization(method, where, refusal=f"{refusal}{cure}; supported: {SUPPORTED}")
    raise ConfigError(f"{refusal}; supported: {SUPPORTED}")


def _method(value: dict[str, Any], unnamed: str | None) -> Any:
    """Return the method that the settings name, or that their keys show."""
    method = value.get("quant_method") or value.get("method")
    if method is not None:
        method = method.lower() if isinstance(method, str) else method
        if isinstance(method, str) and method.startswith("modelopt_"):
            return "modelopt"
        return _ALIASES.get(method, method) if isinstance(method, str) else method
    if value.get("load_in_4bit") or value.get("load_in_8bit"):
        return "bitsandbytes"
    if "quant_algo" in value or isinstance(value.get("quantization"), dict):
        return "modelopt"
    if "config_groups" in value or "sparsity_config" in value:
        return "compressed-tensors"
    if _AWQ_KEYS & value.keys():
        return "awq"
    if "bits" in value or "wbits" in value:
        # MLX writes a group_size beside it, and nothing else.
        return "gptq" if _GPTQ_KEYS & value.keys() else unnamed or "no quant_method, as MLX writes it"
    return unnamed or "no quant_method"
