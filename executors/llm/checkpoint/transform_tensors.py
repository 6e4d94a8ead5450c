"""The matrices of online transforms that a checkpoint has beside its weights. Those that are computed have to be what they are
called; others are loaded."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch

from executors.contract.errors import ConfigError
from executors.llm.checkpoint.safetensors_file import SafetensorsFile
from executors.llm.model.decoder import Decoder
from executors.llm.model.stored_transform import StoredMatrix

if TYPE_CHECKING:
    from executors.llm.checkpoint.files import Checkpoint


def transform_tensors(decoder: Decoder, checkpoint: Checkpoint) -> set[str]:
    """Return the names of the matrices, `MODULE.NAME_input.weight` [n, n], and of their orders, which nothing else uses. Reads
    some rows. Raises ConfigError for one that is missing, and for one that is not Sylvester's though it should be."""
    transforms = decoder.config.transforms
    if transforms is None:
        return set()
    ends = tuple({f".{one.name}_{one.location}.weight" for one in transforms.online if not one.stored})
    matrices = {name for name in checkpoint.names() if ends and name.endswith(ends)}
    for name in matrices:
        file = checkpoint.file_of(name)
        if isinstance(file, SafetensorsFile) and not _is_sylvester(file, name):
            raise ConfigError(
                f"{file.path}: tensor {name} is not Sylvester's Hadamard matrix, which transform_config names; another matrix is "
                "of type random-hadamard"
            )
    for stored in decoder.matrices:
        matrices |= {*_matrices(stored, checkpoint), *_orders(stored, checkpoint)}
    return matrices


def load_transforms(matrices: Iterable[StoredMatrix], checkpoint: Checkpoint) -> None:
    """Fill the matrices. Raises ConfigError, see `transform_tensors`."""
    for stored in matrices:
        wide = torch.empty(stored.size, stored.size)
        checkpoint.file_of(name := _one(_matrices(stored, checkpoint), checkpoint)).copy_into(name, wide)
        order = None
        if stored.permuted:
            name = _one(_orders(stored, checkpoint), checkpoint)
            file = checkpoint.file_of(name)
            assert isinstance(file, SafetensorsFile)
            order = file.view(name).long()
            if not torch.equal(order.sort().values, torch.arange(stored.size)):
                raise ConfigError(f"{file.path}: tensor {name} is no order of {stored.size} columns")
        stored.fill(wide, order)


def _matrices(stored: StoredMatrix, checkpoint: Checkpoint) -> list[str]:
    names = _named(stored, checkpoint, "weight", (stored.size, stored.size))
    for name in names:
        checkpoint.file_of(name).dtype(name)
    return names


def _orders(stored: StoredMatrix, checkpoint: Checkpoint) -> list[str]:
    return _named(stored, checkpoint, "perm", (stored.size,)) if stored.permuted else []


def _named(stored: StoredMatrix, checkpoint: Checkpoint, suffix: str, shape: tuple[int, ...]) -> list[str]:
    """Return the tensors of that shape, which are copies of one. Raises ConfigError if there is none."""
    ends = [f"{stored.name}_{location}.{suffix}" for location in sorted(stored.locations)]
    names = sorted(
        name
        for name in checkpoint.names()
        if name.endswith(tuple(f".{end}" for end in ends)) and checkpoint.file_of(name).shape(name) == shape
    )
    if not names:
        raise ConfigError(
            f"{checkpoint.directory}: there is no tensor MODULE.{ends[0]} of shape {list(shape)}, which transform_config needs"
        )
    return names


def _one(names: list[str], checkpoint: Checkpoint) -> str:
    """Return the first after comparing the others with it. Raises ConfigError if they differ."""
    first, *others = names
    for name in others:
        if not checkpoint.file_of(first).equals(first, checkpoint.file_of(name), name):
            raise ConfigError(
                f"{checkpoint.file_of(name).path}: tensor {name} differs from {first}; one matrix for a transform and a size is "
                "supported"
            )
    return first


def _is_sylvester(file: SafetensorsFile, name: str) -> bool:
    """Compare the rows 0, 1, 2, 4, ... and the last one, of which the others are products. It may have its factor already."""
    shape = file.shape(name)
    if len(shape) != 2 or shape[0] != shape[1] or shape[0] < 1 or shape[0] & (shape[0] - 1):
        return False
    file.dtype(name)
    size, matrix = shape[0], file.view(name)
    columns = torch.arange(size)
    for row in {0, size - 1, *(1 << bit for bit in range(size.bit_length() - 1))}:
        # The number of common bits of row and column says the sign.
        common, odd = columns & row, torch.zeros(size, dtype=torch.long)
        for bit in range(size.bit_length()):
            odd ^= common >> bit & 1
        sign = 1.0 - 2.0 * odd.float()
        if not any(
            torch.allclose(matrix[row].float(), sign * factor, rtol=1e-2) for factor in (1.0, size**-0.5)
        ):
            return False
    file.release(name)
    return True
