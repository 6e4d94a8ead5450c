"""Loads an encoder from safetensors or a GGUF file.

Every fault is a ConfigError of one line, raised before the first weight is copied.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from executors.contract.config import ExecutorConfig
from executors.contract.errors import ConfigError
from executors.contract.interface import ProgressCallback
from executors.contract.status import ModelInfo
from executors.kernels.cpu import CpuKernels, packed_bytes, use_kernels
from executors.llm.checkpoint.files import chosen_weights
from executors.llm.checkpoint.gguf_tensors import SUPPORTED, GgufTensors
from executors.llm.checkpoint.loader import choose_kernels
from executors.llm.checkpoint.safetensors_file import SafetensorsFile
from executors.llm.checkpoint.tensor_file import TensorFile
from executors.llm.device.base import Device
from executors.llm.device.table import find_device
from executors.llm.encoder.config import EncoderConfig
from executors.llm.encoder.cpu_encoder import CpuEncoder
from executors.llm.encoder.gguf_tensor_names import file_name, stored_tensors
from executors.llm.encoder.heads import Dense
from executors.llm.encoder.layouts import layout_of
from executors.llm.encoder.model import Encoder, Norm
from executors.llm.encoder.reading import read_encoder
from executors.llm.encoder.rotary_config import RotaryConfig
from executors.llm.encoder.rotary_model import RotaryEncoder
from executors.llm.encoder.slots import Slot, linear_slots
from executors.llm.lean_torch import random_numbers
from executors.llm.model.gguf_source import config_path, is_gguf, model_path, read_source
from executors.llm.model.linear import KIND_NAMES

POOLINGS = ("cls", "mean", "last")
"""What vectors of a text can be made of. Of models that declare nothing it is the first token, as in vLLM."""
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_OLD_NAMES = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
"""Endings of names, and what the first checkpoints of BERT have in their place."""


@dataclass(frozen=True, slots=True)
class LoadedEncoder:
    """An encoder with its facts; `num_bytes` of its weights. `fused`: its forward by the CPU kernels, None where torch computes
    it."""

    model: Encoder
    fused: CpuEncoder | None
    info: ModelInfo
    num_bytes: int
    notes: tuple[str, ...]
    device: Device


@dataclass(frozen=True, slots=True)
class SketchedEncoder:
    """What loading would give. `tensors`: those of the files, each with its file. `plain_bytes`: of all weights, not packed.
    `problem`: why the files cannot be loaded, None if they can."""

    info: ModelInfo
    num_bytes: int
    plain_bytes: int
    tensors: tuple[tuple[TensorFile, str], ...]
    problem: str | None


def load_encoder(config: ExecutorConfig, progress: ProgressCallback) -> LoadedEncoder:
    """Load the checkpoint that `config.model` names. Raises ConfigError, and Unavailable for a device that may appear later."""
    directory = Path(config.model)
    shape = read_encoder(directory)
    dtype = _dtype(config, shape, directory)
    device = device_for(config)
    device.use()
    kernels, missing = _kernels(config, device)
    quantization = config.optimization.quantization
    model = _model(shape, dtype, device.place, device.launches)
    if kernels is not None:
        use_kernels(kernels)
        model.pack(kernels, quantization)
    if config.load_format == "dummy":
        _fill_dummy(model, config.seed)
    else:
        _fill(model, directory, progress)
    for linear in model.linears():
        linear.finish()
    info = _info(config, model)
    kind = quantization or info.dtype
    if kernels is not None:
        how = f"CPU kernels {kernels.isa}, {kind}"
    else:
        how = f"torch, {kind}" if device.launches else f"torch, for want of kernels: {missing}"
    labels = len(shape.labels)
    serves = (
        f"a classification head of {labels} label{'s' * (labels != 1)}" if labels else "it makes embeddings"
    )
    notes = (*shape.notes, f"{how}; an encoder: {serves}, and generates nothing")
    fused = None if kernels is None else CpuEncoder(kernels, model)
    return LoadedEncoder(model, fused, info, model.num_bytes(), notes, device)


def sketch_encoder(config: ExecutorConfig) -> SketchedEncoder:
    """Return what `load_encoder` would load, from the headers of files alone. Raises ConfigError for settings and config.json."""
    directory = Path(config.model)
    shape = read_encoder(directory)
    kernels, _ = _kernels(config, device_for(config))
    tensors: tuple[tuple[TensorFile, str], ...] = ()
    problem, dtype = None, torch.float32
    try:
        dtype = _dtype(config, shape, directory)
        if config.load_format != "dummy":
            places = _find(_model(shape, dtype, torch.device("meta")), directory)
            tensors = tuple((file, name) for _, name, file in places)
    except ConfigError as error:
        problem = str(error)
    model = _model(shape, dtype, torch.device("meta"))
    plain = num_bytes = model.num_bytes()
    if kernels is not None:
        kind = config.optimization.quantization or KIND_NAMES[dtype]
        gated = set(map(id, model.gated_linears()))
        for linear in model.linears():
            assert linear.weight is not None
            rows, columns = linear.weight.shape
            num_bytes += packed_bytes(kernels, rows, columns, kind, id(linear) in gated) - linear.num_bytes
    return SketchedEncoder(_info(config, model), num_bytes, plain, tensors, problem)


def _kernels(config: ExecutorConfig, device: Device) -> tuple[CpuKernels | None, str]:
    kernels, missing = choose_kernels(config, device.place)
    if kernels is None and (quantization := config.optimization.quantization):
        raise ConfigError(
            f"quantization {quantization}: needs Cohort's own kernels, which are unavailable: {missing}"
        )
    return kernels, missing


def device_for(config: ExecutorConfig) -> Device:
    """Return the device that an encoder is computed on. Raises as `find_device`."""
    return find_device(device_setting(config))


def device_setting(config: ExecutorConfig) -> str:
    """Return the setting of an encoder's device. What only Cohort's CPU kernels compute stays on the CPU unless another device is
    asked for, which is refused then."""
    if config.device == "auto" and config.optimization.quantization is not None:
        return "cpu"
    return config.device


def _info(config: ExecutorConfig, model: Encoder) -> ModelInfo:
    shape = model.config
    length = min(config.max_model_len or shape.context_length, shape.longest)
    return ModelInfo(
        Path(config.model).name, shape.family.model_type, shape.num_layers, shape.num_heads, shape.kv_heads, shape.head_dim,
        shape.hidden_size, shape.vocab_size, shape.vocab_size, length, str(model.dtype).removeprefix("torch."),
        config.optimization.quantization, model.num_parameters(), str(device_for(config).place), generates=False,
        num_labels=len(shape.labels), poolings=POOLINGS, token_types=max(1, shape.num_types),
        vector_layers=tuple(one.outputs for one in shape.dense),
    )  # fmt: skip


def _dtype(config: ExecutorConfig, shape: EncoderConfig, directory: Path) -> torch.dtype:
    """The dtype of the weights: what is asked for, else what config.json names, else that of the first tensor of floats."""
    name = config.dtype if config.dtype in _DTYPES else shape.dtype
    if name is not None:
        return _DTYPES[name]
    if config.load_format == "dummy":
        return torch.float32
    dtypes = (file.float_dtype(tensor) for tensor, file in _files(directory, shape).items())
    return next((dtype for dtype in dtypes if dtype in _DTYPES.values()), torch.float32)


def _files(directory: Path, shape: EncoderConfig) -> dict[str, TensorFile]:
    """The file of each tensor, by the name that it has in a checkpoint of safetensors."""
    files: dict[str, TensorFile] = {}
    if is_gguf(directory):
        gguf = read_source(directory)
        stored = stored_tensors(gguf, shape)
        for path in gguf.parts:
            here = {name: one for name, one in stored.items() if one.tensor.path == path}
            files.update(dict.fromkeys(here, GgufTensors(path, here)))
        return files
    for name in chosen_weights(directory).files:
        if not (directory / name).is_file():
            raise ConfigError(f"{directory / name}: no such file, though the index names it")
        file = SafetensorsFile(directory / name)
        files.update(dict.fromkeys(file.names(), file))
    return files


def _find(model: Encoder, directory: Path) -> list[tuple[Slot, str, TensorFile]]:
    """Where each tensor of the model is. Raises ConfigError for one that is missing, or of another shape or kind."""
    files = _files(directory, model.config)
    own_name = partial(file_name, config=model.config) if is_gguf(directory) else str
    places = []
    inside = [
        slot
        for layer, shape in zip(model.dense, model.config.dense, strict=True)
        if isinstance(shape.weights, str)
        for slot in _dense_slots(f"{shape.weights}.", layer)
    ]
    for slot in (*slots_of(model, files), *inside):
        name = _stored(slot.name, model.config.family.prefix, files)
        if name is None:
            raise ConfigError(f"{model_path(directory)}: tensor {own_name(slot.name)} is missing")
        file = files[name]
        places.append((slot, _checked(slot, name, file, own_name(name), config_path(directory).name), file))
    for layer, shape in zip(model.dense, model.config.dense, strict=True):
        if isinstance(shape.weights, Path):
            places += _find_dense(layer, shape.weights)
    return places


def _find_dense(layer: Dense, path: Path) -> list[tuple[Slot, str, TensorFile]]:
    """Where the tensors of a layer of vectors are. Raises ConfigError."""
    if not path.is_file():
        raise ConfigError(
            f"{path}: no such file; weights of a module 'Dense' are read from safetensors alone"
        )
    file = SafetensorsFile(path)
    slots = _dense_slots("", layer)
    if other := sorted(set(file.names()) - {slot.name for slot in slots}):
        raise ConfigError(f"{path}: tensor {other[0]} is not used; config.json asks for {len(slots)} tensors")
    return [(slot, _checked(slot, slot.name, file, slot.name, "config.json"), file) for slot in slots]


def _checked(slot: Slot, name: str, file: TensorFile, own_name: str, source: str) -> str:
    """The name of a file's tensor that fits a slot; `own_name` is what messages call it, `source` what its shape
    comes from. Raises ConfigError."""
    if name not in file:
        raise ConfigError(f"{file.path}: tensor {own_name} is missing")
    where = f"{file.path}: tensor {own_name}"
    if file.shape(name) != slot.shape:
        has, needs = list(file.shape(name)), list(slot.shape)
        raise ConfigError(f"{where} has shape {has}; {source} asks for {needs}")
    if file.float_dtype(name) is None:
        raise ConfigError(f"{where} is of {_needs_float(file, name)}")
    return name


def _needs_float(file: TensorFile, name: str) -> str:
    """The end of a sentence that refuses a tensor's type."""
    if isinstance(file, SafetensorsFile):
        return f"{file.type_name(name)}; a float dtype is needed"
    return f"{file.stored_as(name)}; supported: {', '.join(SUPPORTED)}"


def _fill(model: Encoder, directory: Path, progress: ProgressCallback) -> None:
    places = _find(model, directory)
    for done, (slot, name, file) in enumerate(places):
        progress("weights", done, len(places))
        if isinstance(file, SafetensorsFile):
            slot.fill(file.view(name))
            file.release(name)
        elif slot.table is not None:
            file.copy_into(name, slot.table)
        else:
            values = torch.empty(slot.shape, dtype=file.dtype(name))
            file.copy_into(name, values)
            slot.fill(values)
    progress("weights", len(places), len(places))
    for file in {file for _, _, file in places}:
        file.close()


def _stored(name: str, prefix: str, files: Collection[str]) -> str | None:
    """A tensor's name as the files have it; None if they lack it."""
    old = next((name.replace(new, old) for new, old in _OLD_NAMES.items() if name.endswith(new)), name)
    return next((one for one in (prefix + name, name, prefix + old, old) if one in files), None)


def _model(shape: EncoderConfig, dtype: torch.dtype, place: torch.device, launched: bool = False) -> Encoder:
    if isinstance(shape, RotaryConfig):
        return RotaryEncoder(shape, dtype, place, launched)
    return Encoder(shape, dtype, place, launched)


def slots_of(model: Encoder, names: Collection[str] = ()) -> Iterator[Slot]:
    """All tensors that the model needs of its own files; layers of vectors lie beside them. `names`: those that the files
    have, of which a family may have several sets."""
    if isinstance(model, RotaryEncoder):
        yield from model.slots(layout_of(model.config.family.model_type, names))
        yield from _head_slots(model)
        return
    embeddings = {
        "word_embeddings": model.words,
        "position_embeddings": model.positions,
        "token_type_embeddings": model.types,
    }
    for name, table in embeddings.items():
        yield Slot(f"embeddings.{name}.weight", tuple(table.shape), table.copy_, table=table)
    yield from _norm_slots("embeddings.LayerNorm", model.norm)
    hidden = model.config.hidden_size
    for number, layer in enumerate(model.layers):
        for name, (linear, first) in layer.linears.items():
            rows = hidden if linear is layer.qkv else linear.outputs
            yield from linear_slots(linear, f"encoder.layer.{number}.", name, first, rows)
        for name, norm in layer.norms.items():
            yield from _norm_slots(f"encoder.layer.{number}.{name}", norm)
    yield from _head_slots(model)


def _head_slots(model: Encoder) -> Iterator[Slot]:
    if model.head is None:
        return
    for name, tensor in model.head.tensors():
        dummy = 1.0 if tensor is model.head.norm else 0.0 if tensor is model.head.norm_bias else None
        yield Slot(name, tuple(tensor.shape), tensor.copy_, dummy)


def _dense_slots(prefix: str, layer: Dense) -> list[Slot]:
    return [
        Slot(f"{prefix}linear.{name}", tuple(tensor.shape), tensor.copy_) for name, tensor in layer.tensors()
    ]


def _norm_slots(name: str, norm: Norm) -> Iterator[Slot]:
    yield Slot(f"{name}.weight", tuple(norm.weight.shape), norm.weight.copy_, 1.0)
    yield Slot(f"{name}.bias", tuple(norm.bias.shape), norm.bias.copy_, 0.0)


def _fill_dummy(model: Encoder, seed: int) -> None:
    """Random weights: norms of one and zero, everything else with a deviation of 0.02, as transformers initialises."""
    generator = random_numbers(seed)
    dense = (
        slot for number, layer in enumerate(model.dense) for slot in _dense_slots(f"dense.{number}.", layer)
    )
    for slot in (*slots_of(model), *dense):
        if slot.dummy is not None:
            slot.fill(torch.full(slot.shape, slot.dummy))
        else:
            slot.fill(torch.randn(slot.shape, generator=generator) * 0.02)
