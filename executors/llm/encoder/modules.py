"""Reads what sentence-transformers keeps beside a transformer: layers behind the pooling, and the longest text. No torch here.

modules.json lists a model's steps in their order. Those behind the pooling that change a vector are `Dense`, a linear layer with
an activation; a list that puts anything but `Dense` between the pooling and the last `Dense`, or a `Dense` before the pooling, is
not computed here.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from executors.contract.errors import ConfigError
from executors.llm.model.fields import Fields, read_json

_LIST = "modules.json"
_LENGTHS = "sentence_bert_config.json"
_ACTIVATIONS = {"Identity": "identity", "Tanh": "tanh", "ReLU": "relu", "GELU": "gelu", "Sigmoid": "sigmoid"}
"""Last parts of the names of classes of torch, and names here."""
_DEFAULT_ACTIVATION = "torch.nn.modules.activation.Tanh"
_READ = {"in_features", "out_features", "bias", "activation_function"}
_NAMES = {"module_input_name": "sentence_embedding", "module_output_name": "sentence_embedding"}
"""What a later version writes: the layer reads and writes the text's vector."""
_WITHOUT_EFFECT = ("Normalize", "Dropout")
"""Steps behind the last `Dense` that the server computes, or that have no effect."""


@dataclass(frozen=True, slots=True)
class DenseConfig:
    """A linear layer of vectors: `weights` is its file, or the name of its module in the model's own GGUF file; `activation` a
    name of `heads.ACTIVATIONS`."""

    weights: Path | str
    inputs: int
    outputs: int
    bias: bool
    activation: str


def read_dense(directory: Path, width: int) -> tuple[DenseConfig, ...]:
    """Return the layers behind the pooling, whose vectors have `width` elements; () where there are none, or in an order that is
    not computed. Raises ConfigError."""
    steps = _steps(directory)
    names = [name for name, _ in steps]
    if "Pooling" not in names or "Dense" in names[: names.index("Pooling")]:
        return ()
    behind = steps[names.index("Pooling") + 1 :]
    while behind and behind[-1][0] in _WITHOUT_EFFECT:
        behind.pop()
    if {name for name, _ in behind} != {"Dense"}:
        return ()
    layers = []
    for _, folder in behind:
        layer = _dense(directory / folder)
        if layer.inputs != width:
            raise ConfigError(
                f"{directory / folder / 'config.json'}: in_features is {layer.inputs}; vectors of {width} come in"
            )
        layers.append(layer)
        width = layer.outputs
    return tuple(layers)


def max_seq_length(directory: Path) -> int | None:
    """Return the most tokens of a text that sentence-transformers reads; None if it is not said. Raises ConfigError."""
    folder = next((path for name, path in _steps(directory) if name == "Transformer"), None)
    if folder is None or not (path := directory / folder / _LENGTHS).is_file():
        return None
    fields = Fields(str(path), read_json(path))
    return fields.natural("max_seq_length") if fields.get("max_seq_length") is not None else None


def _dense(folder: Path) -> DenseConfig:
    path = folder / "config.json"
    fields = Fields(str(path), read_json(path))
    unknown = sorted(set(fields.values) - _READ - set(_NAMES))
    if unknown:
        raise ConfigError(f"{path}: {unknown[0]} is not known; known: {', '.join(sorted(_READ))}")
    for name, only in _NAMES.items():
        if fields.get(name, only) != only:
            raise ConfigError(f"{path}: {name} {fields.get(name)!r} is not supported; supported: {only}")
    full_name = fields.get("activation_function", _DEFAULT_ACTIVATION)
    activation = str(full_name).rpartition(".")[2]
    if activation not in _ACTIVATIONS:
        raise ConfigError(
            f"{path}: activation_function {full_name!r} is not supported; supported: {', '.join(_ACTIVATIONS)}"
        )
    bias = fields.get("bias", True)
    if not isinstance(bias, bool):
        raise ConfigError(f"{path}: bias is {bias!r}; true or false is needed")
    return DenseConfig(
        folder / "model.safetensors",
        fields.natural("in_features"),
        fields.natural("out_features"),
        bias,
        _ACTIVATIONS[activation],
    )


def _steps(directory: Path) -> list[tuple[str, str]]:
    """Last part of the type, and folder, of each step."""
    path = directory / _LIST
    if not path.is_file():
        return []
    try:
        listed: Any = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not readable as JSON: {' '.join(str(error).split())[:300]}") from error
    if not isinstance(listed, list):
        raise ConfigError(f"{path}: not a JSON list")
    steps = []
    for one in listed:
        if not isinstance(one, dict):
            continue
        name, folder = str(one.get("type")).rpartition(".")[2], str(one.get("path") or "")
        if folder.startswith("/") or ".." in PurePosixPath(folder).parts:
            raise ConfigError(f"{path}: module {name!r} has path {folder!r}; a folder of the model is needed")
        steps.append((name, folder))
    return steps
