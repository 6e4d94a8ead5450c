"""Copies a checkpoint directory into a decoder's memory: one safetensors file or several with an index, or dummy weights.

Everything is checked before the first byte is copied; each fault is a ConfigError of one line. Weights in FP8 have a scale
beside them (`model/quantization/` lists the formats); they are stored unchanged, or widened on the way.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TypeVar

import torch

from executors.contract.errors import ConfigError
from executors.kernels.cpu import CpuKernels
from executors.llm.checkpoint.absent_biases import absent_biases, note_on
from executors.llm.checkpoint.claims import quantized_instead, settle_quantization, unreadable_numbers
from executors.llm.checkpoint.cut_tensors import CutTensors, selected_rows
from executors.llm.checkpoint.device_blocks import device_rows
from executors.llm.checkpoint.device_copies import DeviceCopies
from executors.llm.checkpoint.files import Checkpoint
from executors.llm.checkpoint.fp8_scales import CheckpointScales
from executors.llm.checkpoint.fused_tensors import apart
from executors.llm.checkpoint.tensor_file import TensorFile, beyond_float16
from executors.llm.checkpoint.transform_tensors import load_transforms, transform_tensors
from executors.llm.device.table import device_of
from executors.llm.lean_torch import random_numbers
from executors.llm.model.config import DecoderConfig, read_config
from executors.llm.model.cuts import Cut
from executors.llm.model.decoder import Decoder
from executors.llm.model.family import Family
from executors.llm.model.fp8 import widened
from executors.llm.model.gguf_source import is_gguf
from executors.llm.model.linear import StoredFormat
from executors.llm.model.names import WrittenNames
from executors.llm.model.places import Place
from executors.llm.model.row_table import RowTable

_log = logging.getLogger(__name__)
Progress = Callable[[str, int, int], None]
T = TypeVar("T")


def checkpoint_dtype(directory: Path, family: Family) -> torch.dtype:
    """Return the dtype of the embedding, or else of the first weight, for a config.json that names none. Raises ConfigError."""
    checkpoint = Checkpoint(directory)
    try:
        present = checkpoint.names()
        embed = WrittenNames(family, present).written(f"{family.names.embed}.weight")
        names = sorted(present, key=lambda name: (name != embed, name))
        dtypes = [checkpoint.file_of(name).float_dtype(name) for name in names]
        # Masks and the like are no weights.
        for dtype in filter(None, dtypes):
            return torch.float32 if dtype == torch.float64 else dtype
        raise ConfigError(f"{directory}: the checkpoint has no tensors of a plain float dtype")
    finally:
        checkpoint.close()


def fp8_names(directory: Path, family: Family) -> frozenset[str]:
    """Return the usual names of the tensors in e4m3. Raises ConfigError."""
    checkpoint = Checkpoint(directory)
    try:
        present = checkpoint.names()
        names = WrittenNames(family, present)
        return frozenset(names.usual(name) for name in present if checkpoint.file_of(name).is_fp8(name))
    finally:
        checkpoint.close()


def stored_formats(directory: Path, family: Family) -> dict[str, StoredFormat]:
    """Return the formats of the matrices that the files hold quantized, by their usual names. Raises ConfigError."""
    checkpoint = Checkpoint(directory)
    try:
        present = checkpoint.names()
        names = WrittenNames(family, present)
        formats = {}
        for name in present:
            file = checkpoint.file_of(name)
            if (kind := file.stored_kind(name)) is not None:
                formats[names.usual(name)] = StoredFormat(kind, file.stored_order(name))
        return formats
    finally:
        checkpoint.close()


def embedding_stays(directory: Path, stored: Mapping[str, StoredFormat]) -> bool:
    """Return whether the embedding may stay in its file, where the kernels do not need it: if the file has it in plain numbers
    or in one of the formats of `stored`, by usual names. Raises ConfigError."""
    if not is_gguf(directory):
        return True
    checkpoint = Checkpoint(directory)
    try:
        name = f"{read_config(directory).family.names.embed}.weight"
        file = checkpoint.file_of(name)
        return (name in stored and file.maps_rows(name)) or file.can_map(name)
    finally:
        checkpoint.close()


def row_table_stays(directory: Path, kernels: bool) -> bool:
    """Return whether the table of the layers' inputs may stay in its file, on a CPU; `kernels`: whether there are kernels that
    widen rows of blocks. Raises ConfigError."""
    checkpoint = Checkpoint(directory)
    try:
        family = read_config(directory).family
        name = WrittenNames(family, checkpoint.names()).written(f"{family.names.layer_embed}.weight")
        if name not in checkpoint.names():
            return False
        file = checkpoint.file_of(name)
        return (kernels and file.maps_rows(name)) or file.can_map(name)
    finally:
        checkpoint.close()


def settle_config(config: DecoderConfig, directory: Path) -> DecoderConfig:
    """Return `config` with the head and the quantization that the files contain, and the names of q, k and v as they have them.
    Raises ConfigError.

    A head that differs from the embedding is not tied to it, whatever config.json says. transformers 5 does the same; the
    field is wrong in files that were saved again. A model that is not tied and has no head only makes embeddings.
    """
    checkpoint = Checkpoint(directory)
    try:
        listed = checkpoint.listed()
        config = settle_quantization(config if checkpoint.exact else apart(config, listed), checkpoint)
        if config.num_labels:
            return config
        family = config.family
        names = WrittenNames(family, listed)
        head, embed = (names.written(f"{name}.weight") for name in (family.names.lm_head, family.names.embed))
        if head not in listed:
            return config if config.tied else replace(config, tied=True, headless=True)
        if not config.tied or not checkpoint.names().issuperset((head, embed)):
            return config
        own = not checkpoint.file_of(head).equals(head, checkpoint.file_of(embed), embed)
        return replace(config, tied=False) if own else config
    finally:
        checkpoint.close()


def lacks(config: DecoderConfig, checkpoint: Checkpoint) -> str | None:
    """Return a sentence that names what the model needs and the checkpoint lacks; None if nothing is missing. Raises ConfigError
    for transforms that are not supported."""
    decoder = Decoder(config, torch.float32, torch.device("meta"))
    transform_tensors(decoder, checkpoint)
    return _missing(config, checkpoint, _targets(decoder, checkpoint))


def check_tensors(config: DecoderConfig, directory: Path) -> None:
    """Raise ConfigError unless the checkpoint has every tensor that the model needs, in a shape and format that can be loaded.
    Reads headers only."""
    checkpoint = Checkpoint(directory)
    try:
        decoder = Decoder(config, torch.float32, torch.device("meta"))
        _check(decoder, checkpoint, _targets(decoder, checkpoint))
    finally:
        checkpoint.close()


def load_weights(decoder: Decoder, directory: Path, progress: Progress) -> str | None:
    """Copy a checkpoint into `decoder`, cast it to the decoder's dtype, and finish the decoder. Return a sentence on tensors
    that were left out, or None. Raises ConfigError before anything is copied.

    The rows of packed linear layers go straight from the file to their packed form. An embedding stays in the file if no
    linear layer needs it or if it is also packed as the head.
    """
    checkpoint = Checkpoint(directory)
    try:
        plan = _plan(decoder, checkpoint)
        targets, scales, cuts = plan.targets, plan.scales, plan.cuts
        for place in plan.zeros:
            place.tensor.zero_()
        decoder.kv_scales = scales.of_kv()
        load_transforms(decoder.matrices, checkpoint)
        # In the order of the files, so that a disk reads ahead.
        total = sum(checkpoint.file_of(name).num_bytes(name) for name in targets)
        done = 0
        progress("weights", 0, total)
        with _copies(decoder.device) as copies:
            for file in checkpoint.files.values():
                part = CutTensors(file, cuts) if cuts else file
                for name in file.names():
                    if name in targets and checkpoint.file_of(name) is file:
                        if file.is_fp8(name):
                            _load_fp8(file, name, targets[name], scales.of(name))
                        else:
                            _load(decoder, part, name, targets[name], copies)
                        done += file.num_bytes(name)
                        progress("weights", done, total)
    finally:
        checkpoint.close()
    decoder.finish()
    return plan.left_out


@dataclass(frozen=True, slots=True)
class _Plan:
    """What of a checkpoint goes where: `targets` and `cuts` by the checkpoint's names, the `scales` of tensors in FP8, the places
    of biases that are `zeros`, and `left_out`, a sentence on these and on tensors that are not used, or None."""

    targets: dict[str, Place]
    zeros: list[Place]
    scales: CheckpointScales
    cuts: dict[str, Cut]
    left_out: str | None


def _plan(decoder: Decoder, checkpoint: Checkpoint) -> _Plan:
    """Check what can be checked before weights are read. Raises ConfigError."""
    targets = _targets(decoder, checkpoint)
    absent = _absent(decoder, checkpoint, targets)
    zeros = [targets.pop(name) for name in absent]
    scales = CheckpointScales(decoder, checkpoint, targets)
    # A rank has to find the whole model in the files, though it loads a part.
    whole = decoder if decoder.alone else Decoder(decoder.whole, torch.float32, torch.device("meta"))
    needed = targets if decoder.alone else _targets(whole, checkpoint)
    _check(whole, checkpoint, needed)
    beside = scales.names | transform_tensors(decoder, checkpoint)
    unused = None if decoder.mtp_used else _unused_head(whole, checkpoint, decoder.mtp_fault)
    notes = filter(None, (_left_out(whole, checkpoint, needed, beside), unused, note_on(absent)))
    return _Plan(targets, zeros, scales, _written_cuts(decoder, checkpoint), "; ".join(notes) or None)


def check_load(decoder: Decoder, directory: Path) -> str | None:
    """Raise the ConfigError that `load_weights` would raise before it reads weights; return its sentence on tensors that are left
    out. `decoder` may be on torch's meta device. Reads headers, and the scales of quantized weights."""
    checkpoint = Checkpoint(directory)
    try:
        return _plan(decoder, checkpoint).left_out
    finally:
        checkpoint.close()


def _copies(place: torch.device) -> contextlib.AbstractContextManager[DeviceCopies | None]:
    """Return what copies to a device beside its readers; nothing where tensors lie in the machine's memory, or none is pinned."""
    device = device_of(place)
    if device.pinned:
        try:
            return DeviceCopies(device)
        except RuntimeError as error:
            device.free_host_memory()  # the buffers that there were
            _log.warning("weights are copied one by one: there is no pinned memory: %s", error)
    return contextlib.nullcontext()


def _load(
    decoder: Decoder, file: TensorFile, name: str, place: Place, copies: DeviceCopies | None = None
) -> None:
    if place.packed:
        assert place.linear is not None
        if (weight := place.linear.on_device) is not None:
            kind = file.stored_kind(name)
            assert kind is not None
            for begin, rows in file.raw_rows(name):
                weight.take(device_rows(rows, kind), place.begin + begin)
        elif place.linear.stored:
            for begin, rows in file.raw_rows(name):
                place.linear.fill_blocks(rows, place.begin + begin)
        else:
            for begin, rows in file.rows(name, place.turned):
                _fill(place, file, name, begin, rows)
    if place.tensor is decoder.embed and decoder.maps_embedding:
        kind = file.stored_kind(name)
        raw = file.mapped_rows(name) if kind is not None and decoder.keeps_stored else None
        if raw is not None and kind is not None:
            decoder.keep_embedding(raw, kind)
            return
        if file.can_map(name):
            decoder.embed, decoder.embed_mapped = file.mapped(name), True
            return
    table = decoder.row_table
    of_table = table is not None and place.tensor is table.weight
    if of_table and table is not None and _stays(table, file, name, decoder.kernels, decoder.device):
        return
    if place.tensor.device.type == "meta":
        return
    pieces = None if copies is None else file.pieces(name, place.tensor)
    if copies is None or pieces is None:
        file.copy_into(name, place.tensor)
    else:
        copies.take(file, pieces)


def _fill(place: Place, file: TensorFile, name: str, begin: int, rows: torch.Tensor) -> None:
    linear = place.linear
    assert linear is not None
    if linear.halves and rows.dtype is not torch.float16 and not torch.isfinite(rows.half()).all():
        raise beyond_float16(file.path, file.own_name(name))
    linear.fill(rows, place.begin + begin)


def _stays(
    table: RowTable, file: TensorFile, name: str, kernels: CpuKernels | None, device: torch.device
) -> bool:
    """Let a table stay in its file where it can, and return whether it does."""
    kind = file.stored_kind(name)
    raw = file.mapped_rows(name) if kind is not None and kernels is not None else None
    if raw is not None and kind is not None and kernels is not None:
        table.keep(kernels, raw, kind)
        return True
    if device.type == "cpu" and file.can_map(name):
        table.map(file.mapped(name))
        return True
    return False


def _load_fp8(file: TensorFile, name: str, place: Place, scales: torch.Tensor) -> None:
    """Load a weight in e4m3 with `scales` [rows, 1 or groups], unchanged or widened."""
    weight = None if place.linear is None else place.linear.fp8
    if weight is not None:
        weight.take_scales(scales, place.begin)
    for begin, rows in file.rows(name, turned=False):
        if weight is not None:
            weight.take(rows, place.begin + begin)
            continue
        wide = widened(rows, scales[begin : begin + len(rows)])
        if place.packed:
            _fill(place, file, name, begin, wide)
        if place.tensor.device.type != "meta":
            place.tensor[begin : begin + len(rows)].copy_(wide)


def _targets(decoder: Decoder, checkpoint: Checkpoint) -> dict[str, Place]:
    """Return the decoder's parameters by the names that this checkpoint uses."""
    return _written(decoder, checkpoint, decoder.places())


def _written_cuts(decoder: Decoder, checkpoint: Checkpoint) -> dict[str, Cut]:
    """Return the decoder's cuts by the names that this checkpoint uses."""
    return _written(decoder, checkpoint, decoder.cuts)


def _written(decoder: Decoder, checkpoint: Checkpoint, by_name: Mapping[str, T]) -> dict[str, T]:
    names, listed = WrittenNames(decoder.config.family, checkpoint.listed()), checkpoint.listed()
    renamed = {names.written(name): one for name, one in by_name.items()}
    of = decoder.config.family.names
    embed, head = names.written(f"{of.embed}.weight"), names.written(f"{of.lm_head}.weight")
    if decoder.config.tied and embed in renamed and embed not in listed and head in listed:
        renamed[head] = renamed.pop(embed)  # of two names for one tensor some savers keep the head's
    return renamed


def _absent(decoder: Decoder, checkpoint: Checkpoint, targets: Mapping[str, Place]) -> frozenset[str]:
    """Return the names of biases that the checkpoint lacks and that are zeros."""
    return absent_biases(decoder.config.family, targets, checkpoint.listed(), checkpoint.exact)


def _missing(config: DecoderConfig, checkpoint: Checkpoint, targets: dict[str, Place]) -> str | None:
    absent = absent_biases(config.family, targets, checkpoint.listed(), checkpoint.exact)
    missing = sorted(set(targets) - checkpoint.names() - absent)
    if not missing:
        return None
    reason = next((checkpoint.absent[name] for name in missing if name in checkpoint.absent), None)
    sentences = (quantized_instead(config, checkpoint, name) for name in missing)
    if reason is None and (instead := next(filter(None, sentences), None)) is not None:
        return instead
    if reason is None and not checkpoint.files:
        reason = next(iter(checkpoint.absent.values()), None)
    names = _some([checkpoint.own_name(name) for name in missing])
    needs = f"{names} missing; {config.architecture} needs {len(targets)} tensors"
    return reason or f"{checkpoint.source if checkpoint.exact else checkpoint.directory}: {needs}"


def _check(decoder: Decoder, checkpoint: Checkpoint, targets: dict[str, Place]) -> None:
    """Raise ConfigError for a tensor that is missing, has a wrong shape or has a dtype that cannot be cast.

    Where all tensors have to be used, also for one that the model does not have.
    """
    if (why := _missing(decoder.config, checkpoint, targets)) is not None:
        raise ConfigError(why)
    names = WrittenNames(decoder.config.family, checkpoint.names())
    head_norms = {names.written(name) for name in decoder.head_norms()}
    present = checkpoint.names()
    for name, place in targets.items():
        if name not in present:
            continue  # a bias of zeros
        file = checkpoint.file_of(name)
        if (error := unreadable_numbers(decoder.config, checkpoint, name)) is not None:
            raise error
        expected = tuple(place.tensor.shape[1:] if name in head_norms else place.tensor.shape)
        if file.shape(name) != expected:
            shape = list(file.shape(name))
            raise ConfigError(
                f"{file.path}: tensor {checkpoint.own_name(name)} has shape {shape}; "
                f"{checkpoint.source.name} makes it {list(expected)}"
            )
        file.dtype(name)
    target_names = set(targets)
    if decoder.config.num_labels:  # a head that is not computed
        target_names.add(f"{decoder.config.family.names.lm_head}.weight")
    surplus = _surplus(decoder.config, checkpoint, target_names) if checkpoint.exact else []
    surplus = [name for name in surplus if decoder.owns(name)]
    if surplus:
        architecture = decoder.config.architecture
        surplus_names = _some([checkpoint.own_name(name) for name in surplus])
        raise ConfigError(
            f"{checkpoint.source}: {surplus_names} not supported: {architecture} as it is "
            "built here has no such tensor"
        )


def _left_out(
    decoder: Decoder, checkpoint: Checkpoint, targets: dict[str, Place], scales: frozenset[str]
) -> str | None:
    """Return a note on tensors that the configuration does not require; transformers drops them, too. `scales`: names beside the
    targets that are used. Other parts of a nested checkpoint have a note of their own."""
    config = decoder.config
    names = WrittenNames(config.family, checkpoint.names())
    target_names = set(targets) | scales
    if config.tied and not config.headless:  # a copy of the embedding that some savers write
        target_names.add(names.written(f"{config.family.names.lm_head}.weight"))
    surplus = [name for name in _surplus(config, checkpoint, target_names) if decoder.owns(name)]
    if not surplus:
        return None
    return f"{_some(surplus)} not used: {config.architecture} as {checkpoint.source.name} describes it has no such tensor"


def _unused_head(decoder: Decoder, checkpoint: Checkpoint, fault: str | None) -> str | None:
    """Return a note on the MTP head of a checkpoint, None if it has none. `fault`: why it cannot be used, where this is known."""
    names = [name for name in checkpoint.names() if not decoder.owns(name)]
    if not names:
        return None
    if fault is not None:
        return f"the MTP head is not used: {fault}"
    # Experts have one tensor of all in a GGUF file.
    count, begin = len({checkpoint.own_name(name) for name in names}), decoder.config.family.mtp
    return (
        f"the MTP head ({count} tensors, {'nextn_predict_layers' if checkpoint.exact else f'{begin}*'}) is not used; "
        """--speculative-config '{"method": "mtp"}' takes drafts from it"""
    )


def _surplus(config: DecoderConfig, checkpoint: Checkpoint, target_names: set[str]) -> list[str]:
    """Return the tensors that are neither known nor without effect nor parts of a nested checkpoint's other models."""
    return sorted(
        name
        for name in checkpoint.listed() - target_names
        if not checkpoint.has_no_effect(name)
        and not any(fnmatchcase(name, pattern) for pattern in config.family.names.other_parts)
    )


def _some(names: list[str]) -> str:
    """Return `tensor a is`, or `3 tensors (a, b, ...) are`, for a message."""
    names = [name if name.isprintable() else ascii(name) for name in names]
    if len(names) == 1:
        return f"tensor {names[0]} is"
    return f"{len(names)} tensors ({', '.join(names[:2])}{', ...' if len(names) > 2 else ''}) are"


_DUMMY_ROWS = 4096


def fill_dummy(decoder: Decoder, seed: int, progress: Progress) -> None:
    """Fill in random weights, the same for the same seed: norms 1, biases 0, all others normal with standard deviation 0.02. A
    rank has its part of them."""
    generator = random_numbers(seed, decoder.device)
    places = decoder.places()
    whole = decoder if decoder.alone else Decoder(decoder.whole, torch.float32, torch.device("meta"))
    head_norms = whole.head_norms()
    total = sum(place.tensor.numel() * place.tensor.element_size() for place in places.values())
    done = 0
    progress("dummy weights", 0, total)
    for name, of_whole in whole.places().items():
        vector = of_whole.tensor.dim() == 1 or name in head_norms
        if (place := places.get(name)) is None:
            if not vector:
                _draw(of_whole, decoder.dtype, generator, lambda begin, rows: None)
            continue
        target = place.tensor
        if vector:
            target.fill_(0.0 if name.endswith(".bias") else 1.0)
        else:
            _fill_rows(place, of_whole, decoder.cuts.get(name), decoder.dtype, generator)
        done += target.numel() * target.element_size()
        progress("dummy weights", done, total)
    for stored in decoder.matrices:
        stored.fill(torch.eye(stored.size), None)
    decoder.finish()


def _fill_rows(
    place: Place, whole: Place, cut: Cut | None, dtype: torch.dtype, generator: torch.Generator
) -> None:  # fmt: skip
    def take(begin: int, rows: torch.Tensor) -> None:
        if cut is not None and cut.columns is not None:
            rows = rows[:, slice(*cut.columns)]
        for first, own in selected_rows([(begin, rows)], None if cut is None else cut.rows):
            if place.packed:
                assert place.linear is not None
                place.linear.fill(own, place.begin + first)
            if place.tensor.device.type != "meta":
                target = place.tensor.T if place.turned else place.tensor
                target[first : first + len(own)] = own

    _draw(whole, dtype, generator, take)


def _draw(
    place: Place, dtype: torch.dtype, generator: torch.Generator, take: Callable[[int, torch.Tensor], None]
) -> None:
    rows, *columns = place.tensor.T.shape if place.turned else place.tensor.shape
    for begin in range(0, rows, _DUMMY_ROWS):
        count = min(_DUMMY_ROWS, rows - begin)
        part = torch.empty(count, *columns, dtype=dtype, device=generator.device)
        take(begin, part.normal_(0.0, 0.02, generator=generator))
