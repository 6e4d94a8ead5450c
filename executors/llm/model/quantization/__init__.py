"""`quantization_config` of a checkpoint: the common formats of FP8 weights and of weights in whole numbers. No torch here.

    quant_method "fp8"                  weight_block_size [128, 128]: `X.weight_scale_inv` [rows / 128, columns / 128];
                                        without: `X.weight_scale`, one number (or one per row)
    quant_method "compressed-tensors"   format "float-quantized" or "naive-quantized", weights of 8 bits, type float:
                                        `X.weight_scale` by strategy: tensor [1], channel [rows, 1], block
                                        format "pack-quantized", 4 or 8 bits, or "int-quantized", up to 8 bits, type int
                                        format "nvfp4-pack-quantized" or "mxfp4-pack-quantized", see fp4.py
                                        format "mixed-precision": groups with a format each
    quant_method "gptq"                 4 or 8 bits, `dynamic` for layers of others
    quant_method "awq"                  4 bits, version "gemm"
    quant_method "auto-round"           packed as gptq or awq, or FP8
    quant_method "modelopt"             FP8 and NVFP4
    quant_method "mxfp4"                experts of gpt-oss in MXFP4

A file beside config.json may say the same (`sources.py`). A key that no table knows is refused (`keys.py`). What is said counts
only if the tensors are quantized (`checkpoint/claims.py`).

A weight in FP8 is its e4m3 number times the scale, whatever the name of the scale; `checkpoint/quantized_tensors.py` says what
the others are. Activations are always quantized dynamically, per token and group: the static scale `X.input_scale` is not needed.
"""

from __future__ import annotations

from executors.llm.model.quantization.methods import SUPPORTED, parse_quantization
from executors.llm.model.quantization.schemes import Fp8Scheme, IntScheme, IntSchemes, Quantization, Rule
from executors.llm.model.quantization.sources import FILES, quantization_of

__all__ = [
    "FILES", "SUPPORTED", "Fp8Scheme", "IntScheme", "IntSchemes", "Quantization", "Rule", "parse_quantization", "quantization_of",
]  # fmt: skip
