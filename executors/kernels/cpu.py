"""Cohort's own CPU kernels: the compiled library, and weights packed for it.

cohort_cpu.cpp      what is exported       simd.h      vectors: AVX512 or AVX2
cohort_cpu_*.cpp    the library's other parts, see parts.h
gemm.h              linear layers          team.h      threads of one call
attention.h         paged attention        forward.h   all layers of a step in one call
quantize.h          floats to 4 bits       checksum.h   checksums of blocks
quantized_layouts.h, quantized_tiles.h    quantized weights: how they lie, and products with them
experts.h           mixtures of experts    scan.h      layers with states, see scan.py
encoder.h           encoders in one call   rows.h      norms, rotations, activations
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch

from executors.contract.errors import OutOfMemory
from executors.kernels.compiler import library

SOURCE = Path(__file__).with_name("cohort_cpu.cpp")
DTYPES = {torch.float32: 0, torch.bfloat16: 1}
"""Numbers that the library uses for dtypes of rows that it reads or writes."""
MODEL_DTYPES = DTYPES | {torch.float16: 2}
"""Those of models and of keys and values: `Dtype` of attention.h. In a model of float16 weights, embeddings, hidden states, keys
and values have that dtype, and the library computes in float32."""
FIRST_STORED = 16
"""Number of the first of STORED_KINDS: `FIRST_LAYOUT` of operands.h."""
STORED_KINDS = {
    name: FIRST_STORED + i for i, name in enumerate((
        "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4",
        "int4-g64", "int4-g128", "uint4-g32", "uint4-g64", "uint4-g128", "uint4-f32", "uint8-f32",
        "lut4-iq2", "lut4-iq3xxs", "lut4-iq3s", "lut4-fp4",
    ))
}  # fmt: skip
"""Formats of weights that are packed as a file has them, `with_layout` of quantized_layouts.h: by GGUF names of blocks, then
groups of 64 or 128 4-bit codes with the zero 8, and groups with zeros of their own: of 32, 64 or 128 codes with a float16
scale, or of 32 codes of 4 or 8 bits with a float32 scale; then codes of 4 bits that stand for values in a table, with a scale for
each 16: a byte, times a float32 for 256, or ("lut4-fp4") a float32."""
KINDS = {"float32": 0, "bfloat16": 1, "int8": 2, "float16": 3}
"""Formats of weights that are packed from floats: `Kind` of operands.h. "int4" is another, which fills Q4_1."""
INT4_ROW = 20
"""Bytes that "int4" takes for every `BLOCK` columns of a row."""
_KINDS = KINDS | {"int4": STORED_KINDS["Q4_1"]} | STORED_KINDS
BLOCK = 32
"""Number of columns that share a scale in int8: `BLOCK` of operands.h."""
MAX_PARTS = 3
"""Largest number of parts of a weight: `MAX_PARTS` of operands.h."""
_BLOCK_SCALE, _STORED_SCALE = 8, 16
"""Size of a scale in bytes: `BlockScale` and `QuantScale` of operands.h."""
ACTIVATIONS = {"silu": 0, "gelu_pytorch_tanh": 1, "gelu_new": 1, "clamped_swiglu": 2}
"""Activations by their names in config.json, or the one that they stand for: `Activation` of gemm.h. Others are not fused."""
OUT_OF_MEMORY = "no memory for a kernel's scratch space"

I64, POINTER = ctypes.c_int64, ctypes.c_void_p


class LinearStruct(ctypes.Structure):
    """`Linear` of gemm.h."""

    _fields_ = [
        *((name, I64) for name in ("kind", "form", "rows", "columns")),
        *((name, POINTER) for name in ("packed", "bias", "next")),
        ("first", I64), ("order", POINTER), ("alpha", ctypes.c_float), ("limit", ctypes.c_float),
    ]  # fmt: skip


class CpuKernels:
    """The library, for one instruction set. Raises KernelUnavailable."""

    def __init__(self, isa: str | None = None) -> None:
        """`isa` is one of compiler.ISAS; the default is the best that the CPU has."""
        loaded, self.isa = library(SOURCE, isa)
        self.name = Path(loaded._name).name
        """Name of the library's file: its instruction set, and a digest of sources, flags and compiler."""
        self.panel_rows: int = loaded.cohort_nr()
        """Number of weight rows that are stored side by side."""
        self.pack, self.linear, self.attend, self.forward = (
            loaded.cohort_pack, loaded.cohort_linear, loaded.cohort_attend, loaded.cohort_forward,
        )  # fmt: skip
        self.pack.argtypes = [POINTER, I64, POINTER, I64, I64, I64]
        self.pack_blocks, self.packed_bytes = loaded.cohort_pack_blocks, loaded.cohort_packed_bytes
        # The weight, rows as the file has them, first row and how many, threads.
        self.pack_blocks.argtypes, self.pack_blocks.restype = [POINTER, POINTER, I64, I64, I64], None
        # kind, form, rows, columns.
        self.packed_bytes.argtypes, self.packed_bytes.restype = [I64] * 4, I64
        # kind, rows as the file has them, indices of rows and how many, columns, out.
        self.dequantize = loaded.cohort_dequantize
        self.dequantize.argtypes, self.dequantize.restype = [I64, POINTER, POINTER, I64, I64, POINTER], None
        # dtype, rows and how many, columns, out, threads.
        self.quantize = loaded.cohort_quantize
        self.quantize.argtypes, self.quantize.restype = [I64, POINTER, I64, I64, POINTER, I64], None
        self.linear.argtypes = [POINTER, I64, POINTER, I64, I64, POINTER, I64, POINTER, POINTER, I64]
        # The step, kv, then (pointer, elements between tokens) of q, k and v, out, and sinks.
        self.attend.argtypes = [POINTER, POINTER, POINTER, I64, POINTER, I64, POINTER, I64, POINTER, POINTER]
        self.forward.argtypes = [POINTER, POINTER]
        # dtype, logits, rows, width, elements between rows, block size, out, threads.
        self.block_maxima, self.block_weights = loaded.cohort_block_maxima, loaded.cohort_block_weights
        self.block_maxima.argtypes = [I64, POINTER, I64, I64, I64, I64, POINTER, I64]
        # dtype, logits, indices of rows and how many, width, elements between rows, block size, best, scale, out, threads.
        self.block_weights.argtypes = [I64, POINTER, POINTER, *[I64] * 4, POINTER, POINTER, POINTER, I64]
        self.block_maxima.restype = self.block_weights.restype = None
        # logits, width, elements between rows, maxima, block size, choices and how many, least temperature, tokens, threads.
        self.choose = loaded.cohort_choose
        self.choose.argtypes = [
            POINTER, I64, I64, POINTER, I64, POINTER, I64, ctypes.c_double, POINTER, I64,
        ]  # fmt: skip
        self.touch = loaded.cohort_touch
        """Function (address, bytes) that makes memory resident without changing it, even while other threads write to it."""
        self.touch.argtypes, self.touch.restype = [POINTER, I64], None
        # What scan.py describes; then rows and elements between them, rates and how many rows, dtype, out, threads.
        self.delta, self.short_convolution = loaded.cohort_delta, loaded.cohort_short_convolution
        self.delta.argtypes = [*[POINTER] * 4, I64, POINTER, I64, I64, POINTER, I64]
        self.short_convolution.argtypes = [*[POINTER] * 4, I64, I64, POINTER, I64]
        self.delta.restype = self.short_convolution.restype = None
        # base, bytes between blocks, bytes of a block, blocks and how many, seed, out, threads.
        self.checksums = loaded.cohort_checksums
        self.checksums.argtypes = [POINTER, I64, I64, POINTER, I64, ctypes.c_uint64, POINTER, I64]
        self.checksums.restype = None
        # The model, and a step of whole texts: see encoder.h.
        self.encode = loaded.cohort_encode
        self.encode.argtypes = [POINTER, POINTER]
        for call in (self.pack, self.linear, self.attend, self.forward, self.encode, self.choose):
            call.restype = ctypes.c_int


@lru_cache(maxsize=8)
def cpu_kernels(isa: str | None = None) -> CpuKernels:
    """Return the library, loaded once. Raises KernelUnavailable; a failed load is tried again at the next call."""
    return CpuKernels(isa)


_in_use: CpuKernels | None = None


def use_kernels(kernels: CpuKernels | None) -> None:
    """Set the kernels (or none) for everything in this process that belongs to no model, such as sampling."""
    global _in_use
    _in_use = kernels


def kernels_in_use() -> CpuKernels | None:
    """Return the kernels set by `use_kernels`."""
    return _in_use


CHOICE = np.dtype([
    ("row", np.int64), ("top_k", np.int64), ("temperature", np.float64), ("top_p", np.float64), ("min_p", np.float64),
    ("u", np.float64),
])  # fmt: skip
"""`Choice` of sampling.h: how to choose the token of a row."""


class PackedWeight:
    """A weight [rows, columns] laid out for the kernels, filled in any number of pieces and then callable.

    `gated`: the first half of the rows is a gate projection and the second half an up projection; calling it returns
    act(gate(x)) * up(x). `kind` is "int4" or one of KINDS or, for rows that a file holds quantized, of STORED_KINDS.
    """

    def __init__(self, kernels: CpuKernels, rows: int, columns: int, kind: str, gated: bool = False) -> None:
        self._kernels = kernels
        self.outputs = rows // 2 if gated else rows
        self.rows = rows
        self._memory = huge_pages(packed_bytes(kernels, rows, columns, kind, gated))
        self._bias: torch.Tensor | None = None
        self._buffers: tuple[torch.Tensor, torch.Tensor] | None = None
        self._order: torch.Tensor | None = None
        self.struct = LinearStruct(
            _KINDS[kind], int(gated), rows, columns, self._memory.ctypes.data, None, None, 0, None
        )
        self.address = ctypes.addressof(self.struct)

    @property
    def num_bytes(self) -> int:
        """Bytes of memory that the weight takes."""
        return self._memory.nbytes

    def fill(self, source: torch.Tensor, begin: int) -> None:
        """Store rows [count, columns] of any float dtype from row `begin` on."""
        if source.dtype not in DTYPES:
            source = source.float()
        source = source.contiguous()
        if self.struct.kind >= FIRST_STORED:
            self.fill_blocks(quantized_rows(self._kernels, source), begin)
            return
        failed = self._kernels.pack(
            self.address, DTYPES[source.dtype], source.data_ptr(), begin, len(source), torch.get_num_threads()
        )
        if failed:
            raise OutOfMemory(OUT_OF_MEMORY)

    def fill_blocks(self, source: np.ndarray, begin: int) -> None:
        """Store rows from row `begin` on as a file holds them: uint8 [count, bytes of a row], contiguous, in the weight's
        kind."""
        source = np.ascontiguousarray(source, np.uint8)
        self._kernels.pack_blocks(
            self.address, source.ctypes.data, begin, len(source), torch.get_num_threads()
        )

    def set_order(self, order: torch.Tensor) -> None:
        """Say which of a row's values each column of the weight multiplies: int64 [columns], each column once."""
        self._order = order.contiguous()
        self.struct.order = self._order.data_ptr()

    def set_bias(self, bias: torch.Tensor | None) -> None:
        """Set the bias [rows], added to the results (before the activation)."""
        self._bias = None if bias is None else bias.float().contiguous()
        self.struct.bias = None if self._bias is None else self._bias.data_ptr()

    def set_clamp(self, alpha: float, limit: float) -> None:
        """Set the numbers of the activation "clamped_swiglu"."""
        self.struct.alpha, self.struct.limit = alpha, limit

    def __call__(
        self, x: torch.Tensor, activation: int = 0, wide: bool = False, extra: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Compute [m, columns] -> [m, outputs], both in one of MODEL_DTYPES; `wide`: float32, not rounded to the dtype of x. A
        row's result is the same for every m, bit for bit. `extra`, float32 [m, rows], is added before the activation."""
        return self.multiply(x, self.outputs, activation, wide, extra)

    def multiply(
        self, x: torch.Tensor, outputs: int, activation: int, wide: bool, extra: torch.Tensor | None = None
    ) -> torch.Tensor:
        """See `__call__`; `outputs` counts those of the parts that follow as well, see `MergedWeight`."""
        dtype = torch.float32 if wide else x.dtype
        x = _readable(x)
        out = torch.empty((len(x), outputs), dtype=torch.float32 if wide else x.dtype)
        self._multiply(x, out, activation, None, extra)
        return out.to(dtype)

    def with_maxima(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return float32 [m, outputs], and [m, panels] the largest of each `panel_rows` of them (NaN if one is NaN).

        Both are valid until this weight's next call: fresh pages would cost as much as writing to them.
        """
        x, panels = _readable(x), -(-self.outputs // self._kernels.panel_rows)
        if self._buffers is None or len(self._buffers[0]) < len(x):
            self._buffers = torch.empty(len(x), self.outputs), torch.empty(len(x), panels)
        out, maxima = self._buffers[0][: len(x)], self._buffers[1][: len(x)]
        self._multiply(x, out, 0, maxima.data_ptr())
        return out, maxima

    def _multiply(
        self,
        x: torch.Tensor,
        out: torch.Tensor,
        activation: int,
        maxima: int | None,
        extra: torch.Tensor | None = None,
    ) -> None:
        rows = None
        if extra is not None:
            extra = extra.contiguous()
            rows = extra.data_ptr() + np.arange(len(x), dtype=np.int64) * extra.stride(0) * 4
        if len(x) and self._kernels.linear(
            self.address, DTYPES[x.dtype], x.data_ptr(), len(x), DTYPES[out.dtype], out.data_ptr(), activation, maxima,
            None if rows is None else rows.ctypes.data, torch.get_num_threads(),
        ):  # fmt: skip
            raise OutOfMemory(OUT_OF_MEMORY)


def _readable(x: torch.Tensor) -> torch.Tensor:
    return (x if x.dtype in DTYPES else x.float()).contiguous()


class MergedWeight:
    """Weights of STORED_KINDS, one below the other, that are multiplied in one call: queries, keys and values, which a file
    may hold in different formats. At most MAX_PARTS. Raises ValueError."""

    def __init__(self, parts: Sequence[PackedWeight]) -> None:
        if not 1 < len(parts) <= MAX_PARTS:
            raise ValueError(f"a weight has 2 to {MAX_PARTS} parts, not {len(parts)}")
        self.parts = tuple(parts)
        self.address = parts[0].address
        self.struct = parts[0].struct
        begin = 0
        for part, following in zip(parts, [*parts[1:], None], strict=True):
            part.struct.first = begin
            part.struct.next = None if following is None else following.address
            begin += part.outputs
        self.outputs = self.rows = begin

    @property
    def num_bytes(self) -> int:
        """Bytes of memory that the weights take."""
        return sum(part.num_bytes for part in self.parts)

    def fill_blocks(self, source: np.ndarray, begin: int) -> None:
        """See `PackedWeight`; the rows belong to one part."""
        part = next(part for part in reversed(self.parts) if part.struct.first <= begin)
        part.fill_blocks(source, begin - part.struct.first)

    def set_order(self, order: torch.Tensor) -> None:
        """See `PackedWeight`; all parts have the same order."""
        self.parts[0].set_order(order)

    def set_bias(self, bias: torch.Tensor | None) -> None:
        """Set the bias [rows] of all parts."""
        for part in self.parts:
            part.set_bias(None if bias is None else bias[part.struct.first :][: part.outputs])

    def __call__(
        self, x: torch.Tensor, activation: int = 0, wide: bool = False, extra: torch.Tensor | None = None
    ) -> torch.Tensor:
        """See `PackedWeight`."""
        return self.parts[0].multiply(x, self.outputs, activation, wide, extra)


class StoredRows:
    """A matrix [rows, columns] that stays as a file holds it, of STORED_KINDS, and is looked up by rows: an embedding."""

    def __init__(self, kernels: CpuKernels, raw: torch.Tensor, columns: int, kind: str) -> None:
        """`raw`: uint8 [rows, bytes of a row], contiguous, such as a view of the mapped file."""
        self._kernels = kernels
        self.raw = raw
        self.columns = columns
        self.kind = STORED_KINDS[kind]

    def look_up(self, at: torch.Tensor) -> torch.Tensor:
        """Return float32 [n, columns], the rows `at`, int64 [n], with the roundings of the format's definition."""
        at = at.contiguous()
        out = torch.empty(len(at), self.columns)
        self._kernels.dequantize(
            self.kind, self.raw.data_ptr(), at.data_ptr(), len(at), self.columns, out.data_ptr()
        )
        return out


def quantized_rows(kernels: CpuKernels, rows: torch.Tensor) -> np.ndarray:
    """Quantize float32 or bfloat16 rows [count, columns], contiguous, to "int4": rows of Q4_1 as a GGUF file has them, uint8
    [count, columns / BLOCK * INT4_ROW]. See quantize.h. Raises ValueError if `columns` is no multiple of BLOCK."""
    count, columns = rows.shape
    if columns % BLOCK:
        raise ValueError(f"rows of {columns} columns are no whole blocks of {BLOCK}")
    out = np.empty((count, columns // BLOCK * INT4_ROW), np.uint8)
    kernels.quantize(
        DTYPES[rows.dtype], rows.data_ptr(), count, columns, out.ctypes.data, torch.get_num_threads()
    )
    return out


def packed_bytes(kernels: CpuKernels, rows: int, columns: int, kind: str, gated: bool = False) -> int:
    """Return the bytes of a `PackedWeight` of these sizes. int8: every 32 columns have a scale of 2 bytes."""
    if _KINDS[kind] >= FIRST_STORED:
        return kernels.packed_bytes(_KINDS[kind], int(gated), rows, columns)
    outputs, per_panel = (rows // 2, kernels.panel_rows // 2) if gated else (rows, kernels.panel_rows)
    panels = -(-outputs // per_panel)
    if kind == "int8":
        return panels * kernels.panel_rows * -(-columns // BLOCK) * (BLOCK + 2)
    row = 4 * columns if kind == "float32" else 4 * -(-columns // 2) if kind == "bfloat16" else 2 * columns
    return panels * kernels.panel_rows * row


def operand_bytes(kernels: CpuKernels, columns: int, kind: str) -> int:
    """Return the bytes of one row of a left operand, [columns], as products with a weight of `kind` read it: see `convert` in
    operands.h.

    int8: a scale and the start of a sum for every 32 values.
    """
    if _KINDS[kind] >= FIRST_STORED:
        return columns // BLOCK * (BLOCK + _STORED_SCALE)
    if kind == "int8":
        return -(-columns // BLOCK) * (BLOCK + _BLOCK_SCALE)
    return columns * (2 if kind == "bfloat16" and kernels.isa == "avx512_bf16" else 4)


def value_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of values between products in a model of `dtype`."""
    return torch.float32 if dtype is torch.float16 else dtype


def huge_pages(num_bytes: int) -> np.ndarray:
    """Return uint8 [num_bytes] of zeros, in large pages if the system supports them: reading weights then causes fewer TLB
    misses, and filling them a fraction of the page faults. Raises OutOfMemory."""
    try:
        memory = mmap.mmap(-1, max(1, num_bytes), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise OutOfMemory(f"no memory for {num_bytes:,} bytes of weights: {error.strerror}") from None
    try:
        memory.madvise(mmap.MADV_HUGEPAGE)
    except OSError:
        pass  # a kernel without them
    return np.frombuffer(memory, np.uint8, num_bytes)
