"""Finds the weights of a checkpoint that are held in whole numbers, and how each of them is read."""

from __future__ import annotations

from executors.contract.errors import ConfigError
from executors.llm.checkpoint.quantized_tensors import FORMS, QuantizedTensors
from executors.llm.checkpoint.quantized_weight import FileOf, QuantizedWeight
from executors.llm.checkpoint.safetensors_file import SafetensorsFile
from executors.llm.model.quantization import IntScheme, IntSchemes

_SUFFIXES = frozenset(suffix for suffix, _ in FORMS.values())


def quantized_tensors(
    schemes: IntSchemes, files: dict[str, SafetensorsFile], file_of: FileOf
) -> tuple[list[QuantizedTensors], set[str]]:
    """Find the weights of a checkpoint that are quantized: by file, with the names of the tensors that they are made of. Raises
    ConfigError."""
    narrow, parts = [], set[str]()
    for file in files.values():
        weights = {}
        for name in file.names():
            stem, _, suffix = name.rpartition(".")
            if suffix not in _SUFFIXES or file_of(name) is not file:
                continue
            if (kind := _kind_of(schemes, file, name)) is None:
                continue
            scheme, read = kind
            weight = weights[f"{stem}.weight"] = read(stem, file_of, scheme)
            parts |= weight.parts
        if weights:
            narrow.append(QuantizedTensors(file.path, weights))
    return narrow, parts


def _kind_of(
    schemes: IntSchemes, file: SafetensorsFile, name: str
) -> tuple[IntScheme, type[QuantizedWeight]] | None:
    """Return how to read the weight whose numbers the tensor is; None if it is another tensor. Raises ConfigError."""
    stem, _, suffix = name.rpartition(".")
    if suffix == "weight" and file.type_name(name) not in ("I8", "U8"):
        return None
    scheme = schemes.of(stem)
    if scheme is None or FORMS[scheme.form][0] != suffix:
        others = [one for one in schemes.all() if FORMS[one.form][0] == suffix]
        if not others:
            return None
        if not schemes.by_tensors:
            raise ConfigError(
                f"{file.path}: tensor {name} is quantized; quantization_config leaves {stem} wide"
            )
        scheme = others[0]
    return scheme, FORMS[scheme.form][1]
