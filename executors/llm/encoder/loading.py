"""Loads an encoder from safetensors. Every fault is a ConfigError of one line, raised before the first weight is copied."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from executors.contract.config import ExecutorConfig
from executors.contract.errors import ConfigError
from executors.contract.interface import ProgressCallback
from executors.contract.status import ModelInfo
from executors.kernels.cpu import CpuKernels, use_kernels
from executors.llm.checkpoint.files import chosen_weights
from executors.llm.checkpoint.loader import choose_kernels
from executors.llm.checkpoint.safetensors_file import SafetensorsFile
from executors.llm.encoder.config import EncoderConfig, read_encoder
from executors.llm.encoder.model import Encoder, Norm
from executors.llm.model.linear import Linear

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_OLD_NAMES = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
"""Endings of names, and what the first checkpoints of BERT have in their place."""


POOLINGS = ("cls", "mean", "last")
"""What vectors of a text can be made of. Of models that declare nothing it is the first token, as in vLLM."""


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a tensor goes: `fill` takes it, in its file's dtype."""

    name: str
    shape: tuple[int, ...]
    fill: Callable[[torch.Tensor], None]


@dataclass(frozen=True, slots=True)
class LoadedEncoder:
    """An encoder with its facts. `max_model_len`: most tokens of a text."""

    model: Encoder
    info: ModelInfo
    num_bytes: int
    notes: tuple[str, ...]


def load_encoder(config: ExecutorConfig, progress: ProgressCallback) -> LoadedEncoder:
    """Load the checkpoint that `config.model` names. Raises ConfigError."""
    directory = Path(config.model)
    shape = read_encoder(directory)
    dtype = _DTYPES[config.dtype] if config.dtype in _DTYPES else _own_dtype(shape, directory)
    kernels, missing = choose_kernels(config, torch.device("cpu"))
    quantization = config.optimization.quantization
    if kernels is None and quantization:
        raise ConfigError(
            f"quantization {quantization}: needs Cohort's own kernels, which are unavailable: {missing}"
        )
    model = Encoder(shape, dtype)
    if kernels is not None:
        use_kernels(kernels)
        model.pack(kernels, quantization)
    if config.load_format == "dummy":
        _fill_dummy(model, config.seed)
    else:
        _fill(model, directory, progress)
    for linear in model.linears():
        linear.finish()
    length = min(config.max_model_len or shape.context_length, shape.context_length)
    info = ModelInfo(
        directory.name, shape.family.model_type, shape.num_layers, shape.num_heads, shape.num_heads, shape.head_dim,
        shape.hidden_size, shape.vocab_size, shape.vocab_size, length, str(dtype).removeprefix("torch."), quantization,
        model.num_parameters(), "cpu", generates=False, poolings=POOLINGS,
    )  # fmt: skip
    return LoadedEncoder(
        model, info, model.num_bytes(), _notes(shape, kernels, missing, quantization or info.dtype)
    )


def _notes(shape: EncoderConfig, kernels: CpuKernels | None, missing: str, kind: str) -> tuple[str, ...]:
    how = (
        f"CPU kernels {kernels.isa}, {kind}"
        if kernels is not None
        else f"torch, for want of kernels: {missing}"
    )
    return (*shape.notes, f"{how}; an encoder: it makes embeddings and generates nothing")


def _own_dtype(shape: EncoderConfig, directory: Path) -> torch.dtype:
    if shape.dtype is not None:
        return _DTYPES[shape.dtype]
    files = _files(directory)
    found = next((one for name, file in files.items() if (one := file.float_dtype(name)) is not None), None)
    return found if found in _DTYPES.values() else torch.float32


def _files(directory: Path) -> dict[str, SafetensorsFile]:
    """The file of each tensor."""
    found: dict[str, SafetensorsFile] = {}
    for name in chosen_weights(directory).files:
        if not (directory / name).is_file():
            raise ConfigError(f"{directory / name}: no such file, though the index names it")
        file = SafetensorsFile(directory / name)
        found.update(dict.fromkeys(file.names(), file))
    return found


def _fill(model: Encoder, directory: Path, progress: ProgressCallback) -> None:
    files = _files(directory)
    found = []
    for slot in slots_of(model):
        name = _stored(slot.name, model.config.family.prefix, files)
        if name is None:
            raise ConfigError(f"{directory}: tensor {slot.name} is missing")
        file = files[name]
        if file.shape(name) != slot.shape:
            raise ConfigError(
                f"{file.path}: tensor {name} has shape {list(file.shape(name))}; config.json asks for {list(slot.shape)}"
            )
        if file.float_dtype(name) is None:
            raise ConfigError(
                f"{file.path}: tensor {name} is of {file.type_name(name)}; a float dtype is needed"
            )
        found.append((slot, name, file))
    for done, (slot, name, file) in enumerate(found):
        progress("weights", done, len(found))
        slot.fill(file.view(name))
        file.release(name)
    progress("weights", len(found), len(found))
    for file in set(files.values()):
        file.close()


def _stored(name: str, prefix: str, files: dict[str, SafetensorsFile]) -> str | None:
    """A tensor's name as the files have it; None if they lack it."""
    old = next((name.replace(new, old) for new, old in _OLD_NAMES.items() if name.endswith(new)), name)
    return next((one for one in (prefix + name, name, prefix + old, old) if one in files), None)


def slots_of(model: Encoder) -> Iterator[Slot]:
    """All tensors that the model needs, by their names without the prefix of a model with a head."""
    embeddings = {
        "word_embeddings": model.words,
        "position_embeddings": model.positions,
        "token_type_embeddings": model.types,
    }
    for name, table in embeddings.items():
        yield Slot(f"embeddings.{name}.weight", tuple(table.shape), table.copy_)
    yield from _norm_slots("embeddings.LayerNorm", model.norm)
    for number, layer in enumerate(model.layers):
        begin = f"encoder.layer.{number}"
        hidden = model.config.hidden_size
        for name, (linear, first) in layer.linears.items():
            rows = hidden if linear is layer.qkv else linear.outputs
            yield from _linear_slots(f"{begin}.{name}", linear, first, rows)
        for name, norm in layer.norms.items():
            yield from _norm_slots(f"{begin}.{name}", norm)


def _norm_slots(name: str, norm: Norm) -> Iterator[Slot]:
    yield Slot(f"{name}.weight", tuple(norm.weight.shape), norm.weight.copy_)
    yield Slot(f"{name}.bias", tuple(norm.bias.shape), norm.bias.copy_)


def _linear_slots(name: str, linear: Linear, first: int, rows: int) -> Iterator[Slot]:
    weight, bias = linear.weight, linear.bias
    assert weight is not None and bias is not None

    def fill(values: torch.Tensor) -> None:
        if linear.given_up:
            linear.fill(values, first)
        else:
            weight[first : first + rows].copy_(values)

    yield Slot(f"{name}.weight", (rows, weight.shape[1]), fill)
    yield Slot(f"{name}.bias", (rows,), bias[first : first + rows].copy_)


def _fill_dummy(model: Encoder, seed: int) -> None:
    """Random weights: norms of one and zero, everything else with a deviation of 0.02, as transformers initialises."""
    generator = torch.Generator().manual_seed(seed)
    for slot in slots_of(model):
        if "LayerNorm" in slot.name:
            slot.fill(torch.full(slot.shape, float(slot.name.endswith("weight"))))
        else:
            slot.fill(torch.randn(slot.shape, generator=generator) * 0.02)
