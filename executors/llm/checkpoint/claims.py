"""What a checkpoint says of its quantization against what its tensors show: the tensors decide."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from executors.contract.errors import ConfigError
from executors.llm.checkpoint.files import Checkpoint
from executors.llm.checkpoint.quantized_tensors import QuantizedTensors
from executors.llm.checkpoint.safetensors_file import SafetensorsFile
from executors.llm.checkpoint.tensor_file import TensorFile
from executors.llm.model.config import DecoderConfig
from executors.llm.model.quantization import FILES, SUPPORTED, Quantization

_PARTS = (
    "qweight", "qzeros", "weight_packed", "weight_scale", "weight_scale_inv", "weight_zero_point", "weight_absmax",
)  # fmt: skip
"""Tensors that a quantized weight is made of, in the formats that are common."""
_BITSANDBYTES = (".absmax", ".quant_map", ".SCB")
"""Ends of names of tensors beside a weight of bitsandbytes, which may lie in words of a float dtype."""
_WORDS = ("I8", "U8", "I16", "U16", "I32", "U32")
"""Dtypes of numbers, or of words of them."""
_MASKS = (".bias", ".masked_bias")
"""Ends of names of causal masks, which old files hold in bytes."""


def settle_quantization(config: DecoderConfig, checkpoint: Checkpoint) -> DecoderConfig:
    """Return `config` with the quantization that the files have: none, and a note, if their weights are wide whatever is said.
    Raises ConfigError if they are quantized in a way that is not supported."""
    claim = config.quantization
    if claim is None or not checkpoint.names():
        return config
    if claim.refusal is not None:
        if not _all_wide(checkpoint):
            raise ConfigError(claim.refusal)
    elif (claim.fp8 is None and claim.integers is None) or _has_quantized(checkpoint):
        return config
    place = Path(claim.where.rpartition(": ")[2]).name
    note = f"{place} says {claim.method}, but all weights are wide: they are computed as they are"
    return replace(
        config,
        quantization=replace(claim, fp8=None, integers=None, refusal=None),
        notes=(*config.notes, note),
    )


def refuse_claim(claim: Quantization | None) -> None:
    """Raise ConfigError for a quantization that is supported only if the weights prove to be wide, where they are not read."""
    if claim is not None and claim.refusal is not None:
        raise ConfigError(claim.refusal)


def _has_quantized(checkpoint: Checkpoint) -> bool:
    return any(
        isinstance(file, QuantizedTensors) or any(map(file.is_fp8, file.names()))
        for file in checkpoint.files.values()
    )


def _all_wide(checkpoint: Checkpoint) -> bool:
    names = checkpoint.names()
    if any(name.endswith(_BITSANDBYTES) or ".quant_state." in name for name in names):
        return False
    return not any(_is_narrow(checkpoint.file_of(name), name) for name in names if not name.endswith(_MASKS))


def _is_narrow(file: TensorFile, name: str) -> bool:
    """Return whether a tensor may be numbers of a quantized weight: indices are integers of 64 bits."""
    return file.is_fp8(name) or (isinstance(file, SafetensorsFile) and file.type_name(name) in _WORDS)


def quantized_instead(config: DecoderConfig, checkpoint: Checkpoint, name: str) -> str | None:
    """Return a sentence if the files have the missing tensor `name` quantized, in a way that they do not say; or None."""
    stem = name.removesuffix(".weight")
    parts = [f"{stem}.{part}" for part in _PARTS if f"{stem}.{part}" in checkpoint.names()]
    if not parts:
        return None
    return (
        f"{checkpoint.directory}: tensor {name} is missing; instead there {'is' if len(parts) == 1 else 'are'} "
        f"{' and '.join(parts[:2])}, so it is quantized, {_unsaid(config.quantization)}"
    )


def unreadable_numbers(config: DecoderConfig, checkpoint: Checkpoint, name: str) -> ConfigError | None:
    """Return the error for a matrix of whole numbers; None for others."""
    file = checkpoint.file_of(name)
    if (
        not isinstance(file, SafetensorsFile)
        or file.type_name(name) not in _WORDS
        or len(file.shape(name)) != 2
    ):
        return None
    return ConfigError(
        f"{file.path}: tensor {name} has dtype {file.type_name(name)}, so it is quantized, "
        f"{_unsaid(config.quantization)}"
    )


def _unsaid(claim: Quantization | None) -> str:
    if claim is not None:
        return f"and {claim.where} ({claim.method}) does not say how"
    return (
        f"and nothing says how: config.json needs a quantization_config, or the folder one of {', '.join(FILES)}; "
        f"supported: {SUPPORTED}"
    )
