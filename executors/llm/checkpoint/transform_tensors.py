"""The matrices of online transforms that a checkpoint has beside its weights: they have to be those that are computed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from executors.contract.errors import ConfigError
from executors.llm.checkpoint.safetensors_file import SafetensorsFile
from executors.llm.model.transforms import Transforms

if TYPE_CHECKING:
    from executors.llm.checkpoint.files import Checkpoint


def transform_tensors(transforms: Transforms | None, checkpoint: Checkpoint) -> set[str]:
    """Return the names of the matrices, `MODULE.NAME_input.weight` [n, n], which nothing else uses. Raises ConfigError for one
    that is not Sylvester's, such as a trained one."""
    if transforms is None:
        return set()
    ends = tuple({f".{one.name}_{one.location}.weight" for one in transforms.online})
    found = {name for name in checkpoint.names() if name.endswith(ends)}
    for name in found:
        file = checkpoint.file_of(name)
        if isinstance(file, SafetensorsFile) and not _is_sylvester(file, name):
            raise ConfigError(
                f"{file.path}: tensor {name} is not Sylvester's Hadamard matrix, which transform_config names; trained and "
                "random matrices are not supported"
            )
    return found


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
