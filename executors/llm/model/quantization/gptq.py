"""`quant_method` "gptq": weights of 4 or 8 bits, as AutoGPTQ and GPTQModel pack them."""

from __future__ import annotations

from typing import Any

from executors.llm.model.quantization.refusals import refused
from executors.llm.model.quantization.schemes import IntScheme, IntSchemes, Quantization


def read_gptq(value: dict[str, Any], where: str) -> Quantization:
    """Read the schemes. Raises ConfigError."""
    if (bits := value.get("bits")) not in (4, 8):
        raise refused(where, f"gptq with bits {bits!r}", "4, 8")
    form = "marlin" if value.get("is_marlin_format") else value.get("checkpoint_format") or "gptq"
    if form not in ("gptq", "gptq_v2"):
        raise refused(where, f"gptq with checkpoint_format {form!r}", "gptq, gptq_v2")
    if (packed := value.get("pack_dtype") or "int32") != "int32":
        raise refused(where, f"gptq with pack_dtype {packed!r}", "int32")
    # Kernels for symmetric weights read no zeros: files whose zeros are wrong have been published.
    symmetric = value.get("sym") is True
    scheme = IntScheme("gptq", bits, "half" if symmetric else "plus_one" if form == "gptq" else "stored")
    return Quantization("gptq", where, integers=IntSchemes(scheme))
