"""`QuantizedWeight`: one weight that a safetensors checkpoint holds as several tensors, and `IntWeight`, in whole numbers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from executors.contract.errors import ConfigError
from executors.kernels.cpu import BLOCK
from executors.llm.checkpoint.safetensors_file import SafetensorsFile
from executors.llm.model.quantization import IntScheme

FileOf = Callable[[str], SafetensorsFile | None]
"""Returns the file that holds a tensor, None if there is none."""
OF_INPUT = ("input_scale", "input_zero_point", "input_global_scale")
"""Static scales of activations. They are not used, because activations are quantized dynamically."""


@dataclass(frozen=True, slots=True)
class StoredForm:
    """How the kernels take a weight: `kind` of STORED_KINDS, in groups of `size` columns; `order`: the columns that have been
    put side by side, int64 [columns], or None."""

    kind: str
    size: int
    wide: bool
    zeros: bool
    order: torch.Tensor | None


class QuantizedWeight(ABC):
    """One weight: shape, numbers and scales. The constructors check names, dtypes and shapes; reading checks values.
    Raises ConfigError, which names file and tensor."""

    bits: int
    rows: int
    columns: int

    def __init__(self, stem: str, file_of: FileOf, scheme: IntScheme) -> None:
        self._stem, self._file_of, self._scheme = stem, file_of, scheme
        self.parts: set[str] = set()
        """Names of the tensors that the weight is made of."""

    @cached_property
    def scales(self) -> torch.Tensor:
        """[rows, groups], of a plain float dtype."""
        name = self._scales_name
        scales = self._tensor(name)
        if not torch.isfinite(scales).all():
            raise ConfigError(f"{self._path(name)}: tensor {name} has numbers that are not finite")
        return self._by_rows(scales)

    @cached_property
    def group_of(self) -> torch.Tensor | None:
        """int64 [columns]: the group of each column; None if groups have the same size and follow each other."""
        name = self._group_name
        if name is None:
            return None
        groups = self._tensor(name).long()
        if len(groups) and bool((groups == -1).all()):
            return None  # never set
        if len(groups) and not (int(groups.min()) >= 0 and int(groups.max()) < self.groups):
            raise ConfigError(
                f"{self._path(name)}: tensor {name} names groups beyond the {self.groups} that there are"
            )
        size = self.columns // self.groups
        equal = self.columns % self.groups == 0 and torch.equal(groups, torch.arange(self.columns) // size)
        return None if equal else groups

    @property
    def groups(self) -> int:
        """Number of groups."""
        return self._groups

    def release(self) -> None:
        """Give back what was read."""
        for name in ("scales", "zeros", "group_of"):
            self.__dict__.pop(name, None)
        for name in self.parts:
            self._file(name).release(name)

    @property
    def num_bytes(self) -> int:
        """Bytes of its tensors that are no floats: those count as what they are."""
        files = ((self._file(name), name) for name in self.parts)
        return sum(file.num_bytes(name) for file, name in files if file.stored_as(name) is None)

    @property
    def stored_as(self) -> str:
        """What its numbers are called: `int4`."""
        return f"int{self.bits}"

    @abstractmethod
    def dequantized(self, begin: int, end: int) -> torch.Tensor:
        """Return rows `begin` to `end`, multiples of `ROWS` except for the last: float32 [end - begin, columns]."""

    @abstractmethod
    def form(self) -> StoredForm | None:
        """Return how the kernels take the weight, None if they do not."""

    @abstractmethod
    def raw(self, begin: int, end: int, form: StoredForm) -> torch.Tensor:
        """Return rows (see `dequantized`) of quantized_layouts.h, uint8 [end - begin, bytes of a row]: for every group of `size`
        columns the scale, the zero if it is of its own, and the codes."""

    @property
    @abstractmethod
    def _scales_name(self) -> str: ...

    @property
    def _group_name(self) -> str | None:
        return None

    def _by_rows(self, values: torch.Tensor) -> torch.Tensor:
        """Turn a tensor of the file's shape of scales into [rows, groups]."""
        return values

    def _settle(self, groups: int, indexed: bool) -> None:
        """Note the number of groups, which divides the columns unless they are `indexed`."""
        self._groups = groups
        self.parts |= {f"{self._stem}.{one}" for one in OF_INPUT if self._has(one)}
        if min(self.rows, self.columns) < 1:
            raise ConfigError(f"{self._path(self._scales_name)}: {self._stem}.weight has no elements")
        if groups < 1 or (not indexed and self.columns % groups):
            raise ConfigError(
                f"{self._path(self._scales_name)}: tensor {self._scales_name} has scales for {groups} groups, "
                f"into which {self.columns} columns cannot be divided"
            )

    def _part(self, suffix: str, dtypes: tuple[str, ...], shape: tuple[int | None, ...] | None = None) -> str:
        """Return the name of a tensor after checking it. `shape`: None stands for any size."""
        name = f"{self._stem}.{suffix}"
        file = self._file_of(name)
        if file is None:
            beside = next((self._path(one) for one in sorted(self.parts)), Path("the checkpoint"))
            raise ConfigError(
                f"{beside}: tensor {name} is missing; {self._scheme.form} needs it for {self._stem}.weight"
            )
        if file.type_name(name) not in dtypes:
            raise ConfigError(
                f"{file.path}: tensor {name} has dtype {file.type_name(name)}; {self._scheme.form} has {', '.join(dtypes)}"
            )
        actual = file.shape(name)
        if shape is not None and (
            len(actual) != len(shape)
            or any(n is not None and n != m for n, m in zip(shape, actual, strict=True))
        ):
            expected = ["any" if n is None else n for n in shape]
            raise ConfigError(
                f"{file.path}: tensor {name} has shape {list(actual)}; {expected} fits the others".replace(
                    "'", ""
                )
            )
        self.parts.add(name)
        return name

    def _has(self, suffix: str) -> bool:
        return self._file_of(f"{self._stem}.{suffix}") is not None

    def _file(self, name: str) -> SafetensorsFile:
        file = self._file_of(name)
        assert file is not None
        return file

    def _path(self, name: str) -> Path:
        return self._file(name).path

    def _shape(self, name: str) -> tuple[int, ...]:
        return self._file(name).shape(name)

    def _tensor(self, name: str) -> torch.Tensor:
        return self._file(name).view(name)


class IntWeight(QuantizedWeight):
    """A weight in whole numbers, scale * (number - zero)."""

    @abstractmethod
    def numbers(self, begin: int, end: int) -> torch.Tensor:
        """Return rows `begin` to `end`, multiples of `ROWS` except for the last: uint8 [end - begin, columns]."""

    @property
    def half(self) -> int:
        """The zero of numbers that have none of their own."""
        return 1 << (self.bits - 1)

    @property
    @abstractmethod
    def zeros(self) -> torch.Tensor:
        """int16 [rows, groups], or [1, 1] if all are the same."""

    def dequantized(self, begin: int, end: int) -> torch.Tensor:
        """See `QuantizedWeight`."""
        group_of = self.group_of
        if group_of is None:
            group_of = torch.arange(self.columns) // (self.columns // self.groups)
        zeros = self.zeros if len(self.zeros) == 1 else self.zeros[begin:end, group_of]
        return (self.numbers(begin, end) - zeros).float() * self.scales[begin:end, group_of].float()

    def form(self) -> StoredForm | None:
        """See `QuantizedWeight`."""
        if self.columns % self.groups:
            return None
        size, group_of, order = self.columns // self.groups, self.group_of, None
        if size % BLOCK:
            return None
        if group_of is not None:
            if not bool((torch.bincount(group_of, minlength=self.groups) == size).all()):
                return None
            order = group_of.argsort(stable=True)
        scales = self.scales
        wide = not torch.equal(scales.to(torch.float16).float(), scales.float())
        zeros = len(self.zeros) > 1 or int(self.zeros) != self.half
        if self.bits == 8:
            plain = not wide and not zeros
            return StoredForm("Q8_0" if plain else "uint8-f32", BLOCK, not plain, not plain, order)
        if wide:
            return StoredForm("uint4-f32", BLOCK, True, True, order)
        most = next(one for one in (4 * BLOCK, 2 * BLOCK, BLOCK) if size % one == 0)
        kind = f"uint4-g{most}" if zeros else "Q4_0" if most == BLOCK else f"int4-g{most}"
        return StoredForm(kind, most, False, zeros, order)

    def raw(self, begin: int, end: int, form: StoredForm) -> torch.Tensor:
        """See `QuantizedWeight`."""
        count, eight = self.columns // form.size, self.bits == 8
        group = torch.arange(count) * form.size // (self.columns // self.groups)
        scale_dtype = torch.float32 if form.wide else torch.float16
        parts = [self.scales[begin:end, group].to(scale_dtype)[:, :, None].view(torch.uint8)]
        if form.zeros:
            zeros = self.zeros.expand(self.rows, self.groups)[begin:end, group]
            zeros = (zeros - (128 if eight else 0)).to(torch.float16)
            parts.append(zeros[:, :, None].contiguous().view(torch.uint8))
        numbers = self.numbers(begin, end)
        if form.order is not None:
            numbers = numbers.index_select(1, form.order)
        if eight:
            codes = (numbers ^ 0x80).view(end - begin, count, -1)
        else:
            codes = halves_together(numbers.contiguous().view(end - begin, count, -1))
        return torch.cat([*parts, codes], 2).flatten(1).contiguous()


def halves_together(numbers: torch.Tensor) -> torch.Tensor:
    """Pack codes of 4 bits, uint8 [rows, groups, columns of a group]: of every 32, byte i has number i in its low half and 16 + i
    in its high half. Returns uint8 [rows, groups, bytes]."""
    rows, groups = numbers.shape[:2]
    halves = numbers.view(rows, groups, -1, 2, BLOCK // 2)
    return (halves[:, :, :, 0] | halves[:, :, :, 1] << 4).flatten(2)
