"""Linear layers that a safetensors checkpoint holds in FP4 (e2m1), with a scale for each group of columns.

    mxfp4-pack-quantized   weight_packed uint8 [rows, columns / 2], weight_scale e8m0 [rows, columns / 32], as uint8 or as such
    nvfp4-pack-quantized   weight_packed uint8 [rows, columns / 2], weight_scale e4m3 [rows, columns / 16], weight_global_scale
                           float32 [1], by which scales are divided
    modelopt-nvfp4         weight uint8 [rows, columns / 2], weight_scale e4m3 [rows, columns / 16], weight_scale_2 float32, by
                           which scales are multiplied

Byte i of a row has column 2i in its low half and 2i + 1 in its high half. A weight is scale * value; e8m0 is 2 to the exponent
less 127, and 255 is not a number. The formats are those of compressed-tensors 0.20 and of NVIDIA's Model Optimizer. Groups
of 32 with a power of two are kept as GGUF's MXFP4, groups of 16 where the kernels have a layout with a float32 for each.
"""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property

import torch

from executors.contract.errors import ConfigError
from executors.kernels.cpu import BLOCK
from executors.kernels.device_layouts import FP4
from executors.llm.checkpoint.quantized_weight import (
    FileOf,
    QuantizedWeight,
    StoredForm,
    halves_together,
)
from executors.llm.model.fp8 import from_e8m0
from executors.llm.model.quantization import IntScheme

_PAIRS = torch.tensor([[FP4[byte & 15] / 2, FP4[byte >> 4] / 2] for byte in range(256)]).view(torch.int64)[
    :, 0
]
"""The two values of a byte, each a float32; int64 [256]."""
_BYTES, _EXPONENTS, _E4M3, _WIDE = ("U8",), ("U8", "F8_E8M0"), ("F8_E4M3",), ("F32", "BF16", "F16")
_BY_SIXTEEN = "lut4-fp4"
"""The kind of STORED_KINDS with a scale for each 16 columns: of every 32 two scales, float32 and halved, because the table has
the values twice, and 16 bytes of codes."""
_FACTORS = ("pre_quant_scale", "weight_zero_point", "weight_g_idx")
"""Tensors that change a weight or its input, and are not computed."""


class _Fp4Weight(QuantizedWeight):
    """A weight with its codes in `codes_name` and scales of groups of `size` columns."""

    bits = 4
    size: int
    codes_name = "weight_packed"
    scale_dtypes: tuple[str, ...] = _E4M3

    def __init__(self, stem: str, file_of: FileOf, scheme: IntScheme) -> None:
        super().__init__(stem, file_of, scheme)
        self._codes = self._part(self.codes_name, _BYTES, (None, None))
        self.rows, half = self._shape(self._codes)
        self.columns = 2 * half
        self._scales = self._part(
            "weight_scale", self.scale_dtypes, (self.rows, -(-self.columns // self.size))
        )
        self._find_factor()
        self._settle(-(-self.columns // self.size), indexed=False)
        if self.columns % self.size:
            raise ConfigError(
                f"{self._path(self._codes)}: tensor {self._codes} has {self.columns} columns, which are no whole groups of "
                f"{self.size}"
            )
        for suffix in _FACTORS:
            if self._has(suffix):
                name = f"{stem}.{suffix}"
                raise ConfigError(f"{self._path(name)}: tensor {name} is not supported beside {scheme.form}")

    @abstractmethod
    def _find_factor(self) -> None:
        """Find what all scales have in common."""

    @cached_property
    def scales(self) -> torch.Tensor:
        """float32 [rows, groups]."""
        scales = self._wide_scales()
        if not torch.isfinite(scales).all():
            raise ConfigError(
                f"{self._path(self._scales)}: tensor {self._scales} has numbers that are not finite"
            )
        return scales

    @abstractmethod
    def _wide_scales(self) -> torch.Tensor: ...

    @property
    def stored_as(self) -> str:
        """See `QuantizedWeight`."""
        return "fp4"

    def dequantized(self, begin: int, end: int) -> torch.Tensor:
        """See `QuantizedWeight`."""
        values = _PAIRS[self._tensor(self._codes)[begin:end].int()].view(torch.float32)
        values.view(end - begin, self.groups, self.size).mul_(self.scales[begin:end, :, None])
        return values

    def form(self) -> StoredForm | None:
        """See `QuantizedWeight`."""
        if self.columns % BLOCK:
            return None
        self.scales  # noqa: B018  checked, as the kernels do not
        return StoredForm(_BY_SIXTEEN, BLOCK, True, False, None)

    def raw(self, begin: int, end: int, form: StoredForm) -> torch.Tensor:
        """Return rows (see `dequantized`) of _BY_SIXTEEN."""
        scales = (self.scales[begin:end] / 2).view(end - begin, -1, 2).view(torch.uint8)
        return torch.cat((scales, self._halves(begin, end)), 2).flatten(1)

    def _halves(self, begin: int, end: int) -> torch.Tensor:
        """Codes of rows as the kernels have them, uint8 [end - begin, columns / 32, 16]."""
        packed = self._tensor(self._codes)[begin:end]
        return halves_together(torch.stack((packed & 15, packed >> 4), 2).view(end - begin, -1, BLOCK))

    @property
    def _scales_name(self) -> str:
        return self._scales

    def _factor(self, suffix: str) -> str:
        """Return the name of a tensor of one number."""
        name = self._part(suffix, _WIDE)
        if self._shape(name) not in ((), (1,)):
            raise ConfigError(
                f"{self._path(name)}: tensor {name} has shape {list(self._shape(name))}; one number is supported"
            )
        return name

    def _number(self, name: str) -> float:
        return float(self._tensor(name).reshape(()))


class MxFp4Weight(_Fp4Weight):
    """compressed-tensors' "mxfp4-pack-quantized"."""

    size = 32
    scale_dtypes = _EXPONENTS

    def _find_factor(self) -> None: ...

    def _wide_scales(self) -> torch.Tensor:
        return from_e8m0(self._tensor(self._scales))

    def form(self) -> StoredForm | None:
        """See `QuantizedWeight`."""
        self.scales  # noqa: B018  checked, as the kernels do not
        return StoredForm("MXFP4", self.size, False, False, None)

    def raw(self, begin: int, end: int, form: StoredForm) -> torch.Tensor:
        """Return rows (see `dequantized`) as GGUF's MXFP4: of each group the exponent, and 16 bytes of codes."""
        exponents = self._tensor(self._scales)[begin:end, :, None]
        return torch.cat((exponents, self._halves(begin, end)), 2).flatten(1)


class NvFp4Weight(_Fp4Weight):
    """compressed-tensors' "nvfp4-pack-quantized"."""

    size = 16

    def _find_factor(self) -> None:
        self._global = self._factor("weight_global_scale")

    def _wide_scales(self) -> torch.Tensor:
        return self._tensor(self._scales).float() / self._number(self._global)


class ModelOptFp4Weight(_Fp4Weight):
    """Model Optimizer's NVFP4."""

    size = 16
    codes_name = "weight"

    def _find_factor(self) -> None:
        self._global = self._factor("weight_scale_2")

    def _wide_scales(self) -> torch.Tensor:
        return self._tensor(self._scales).float() * self._number(self._global)
