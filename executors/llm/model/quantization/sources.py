"""Where a checkpoint directory says how its weights are quantized: a key of config.json, or a file beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from executors.contract.errors import ConfigError
from executors.llm.model.fields import read_json
from executors.llm.model.quantization.methods import parse_quantization
from executors.llm.model.quantization.schemes import Quantization

KEYS = ("quantization_config", "compression_config")
"""Keys of config.json, the second from older versions of compressed-tensors."""
FILES = {
    "quantize_config.json": "gptq", "quant_config.json": "awq", "quantization_config.json": None,
    "hf_quant_config.json": "modelopt",
}  # fmt: skip
"""Files beside config.json, in the order in which they are looked for, with the method of those that name none: AutoGPTQ's,
AutoAWQ's, AutoRound's and Model Optimizer's."""


def quantization_of(directory: Path | None, values: dict[str, Any], where: str) -> Quantization | None:
    """Return what a checkpoint says, None if nothing does. `values`: those of config.json, which is called `where` in messages;
    `directory`: the folder with the other files, None if there is none. Raises ConfigError."""
    inner = values.get("text_config")
    objects = [values, inner] if isinstance(inner, dict) else [values]
    for one in objects:
        for key in KEYS:
            if one.get(key):
                return parse_quantization(_unwrapped(one[key]), where, key)
    if directory is None:
        return None
    for name, method in FILES.items():
        path = directory / name
        if path.is_file() and (claim := _of_file(path, method)) is not None:
            return claim
    return None


def _of_file(path: Path, method: str | None) -> Quantization | None:
    """Return what a file beside config.json says. Other programs have files of these names, too: what is not supported matters
    only if the weights are quantized."""
    try:
        return parse_quantization(_unwrapped(read_json(path)), str(path), "", method)
    except ConfigError as error:
        return Quantization("what is not supported", str(path), refusal=str(error))


def _unwrapped(value: Any) -> Any:
    """Return the settings that older files hold one level deeper, with those beside them."""
    inner = value.get(KEYS[0]) if isinstance(value, dict) else None
    if not isinstance(inner, dict):
        return value
    return {**{key: one for key, one in value.items() if key != KEYS[0]}, **inner}
