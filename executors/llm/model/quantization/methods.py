"""The readers of `quantization_config` by `quant_method`."""

from __future__ import annotations

from typing import Any

from executors.contract.errors import ConfigError
from executors.llm.model.quantization.awq import read_awq
from executors.llm.model.quantization.compressed import read_compressed
from executors.llm.model.quantization.fp8 import read_fp8
from executors.llm.model.quantization.gptq import read_gptq
from executors.llm.model.quantization.schemes import Quantization

_READERS = {"fp8": read_fp8, "gptq": read_gptq, "awq": read_awq, "compressed-tensors": read_compressed}
SUPPORTED = ", ".join(_READERS)


def parse_quantization(value: Any, where: str) -> Quantization | None:
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
