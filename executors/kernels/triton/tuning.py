"""Numbers of the Triton kernels that are chosen for speed: one table by kernel, element kind, shape class and architecture.

    launcher:  choice = choose("extend_attention", HALF, 128)      a row for the architecture at hand

The rows were chosen on an H200 (sm_90), and hold for every architecture whose shared memory takes them. Others have rows of their
own below where a program of sm_90 does not fit: an L40S, an RTX 4090 or 5090 gives a program 99 KiB, an A100 163, an H100 227.
Those rows are reckoned, not measured: `make gpu-tune` times candidates on the GPU at hand and prints rows to put here.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch

HALF, E4M3, INT8, FLOAT32 = "half", "e4m3", "int8", "float32"
"""Element kinds: bfloat16 or float16; keys and values, or weights, of 8 bits; keys and values of 8 bits with a scale each;
float32, which no matrix instruction computes."""
TUNED_ON = 90
"""Architecture whose rows are measured: that of H100 and H200."""
PROCESSORS = 132
"""Multiprocessors to assume for tensors that lie on no device, as in tests: those of an H100 or H200."""
SHARED_KIB = {80: 163, 86: 99, 87: 163, 89: 99, 90: 227, 100: 227, 103: 227, 120: 99, 121: 99}
"""Shared memory that one program may have by architecture, in KiB (CUDA C++ Programming Guide, "Technical Specifications per
Compute Capability")."""
_LEAST_SHARED_KIB = min(SHARED_KIB.values())

Key = tuple[str, str, int | str]
"""Kernel, element kind ("" where it decides nothing) and shape class: a padded head size, rows of a tile, or a name."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A row. Zero: the kernel has no such number.

    `warps` and `stages` as Triton counts them. `rows`, `outputs` and `depth` of a program's tile: rows of the left operand (or
    queries), results per row, elements of the sum at a time (or keys). `merged`: partial results that are added up at once.
    `parts`: most programs that share a sum, and `least` elements of each of them. `group`: neighbouring tiles that run at once.
    `programs` of a multiprocessor that run at once. `most`: the largest size that is of this shape class. `widened`: 1 where
    values of 8 bits lie in shared memory in 16, see `tile.attend_tile`. `whole`: the loop over keys leaves out masks where all
    queries see all keys, see `extend_attention.LoopOptions`. `ordered`: a kernel before brings activations into the order in
    which a weight's codes lie, see `stored_tiles`.
    """

    warps: int
    stages: int = 0
    rows: int = 0
    outputs: int = 0
    depth: int = 0
    merged: int = 0
    parts: int = 0
    least: int = 0
    group: int = 0
    programs: int = 0
    most: int = 0
    widened: int = 0
    whole: bool = False
    ordered: bool = False


HEADS = (16, 32, 64, 128, 256, 512)
"""Padded head sizes."""
PLAIN, FILLED = "plain", "filled"
"""Attention's rows for heads whose loops take fewer registers than others, and more: see `head_shape`. A row that no table has is
that of the padded size."""
_ATTENTION = ("decode_attention", "extend_attention", "shared_extend")

# A step that looks up its pages first gets half of the stages as buffers: two of five, so that the next keys and values are
# loaded while the current ones are multiplied. Tiles are small: on an H200 32 keys of 128 numbers, in place of 64, take 4% less
# time for 256 sequences of 1,024 keys, 12% less for 32, and 14% less for one, whose keys make more pieces. Widening takes
# registers, and so do products of float32: with a larger tile they spill. 64 results a thread are added up at once: that leaves
# room for three programs, and a second, smaller wave would leave the device half empty. Queries of float32 have less room. One
# sequence of 1,024 keys takes 7.6 us in pieces of 64 keys at least, and 13.8 us with 256.
_DECODE = Choice(warps=4, stages=5, depth=64, merged=8192, programs=3, least=64)
_WIDE_DECODE = replace(_DECODE, warps=8, stages=3, merged=4096)
# Products of float32 take no matrix instruction, and each thread holds what it multiplies: many threads, small tiles. Five stages
# make three buffers for keys and values, if registers do. Heads of 512 have the largest tiles that spill no registers on Hopper,
# where a program takes 128 KiB; elsewhere it takes 98. Their speed was not measured.
_EXTEND = Choice(warps=8, stages=5, rows=128, depth=64, whole=True)
_WIDE_EXTEND = Choice(warps=16, stages=2, rows=128, depth=32)
# A tile of 128 rows takes the registers of a multiprocessor. Sixteen pieces: of a tile with n, the program that ends last reads
# n results of 64 KiB (heads of 128), at some 110 GB/s 0.6 us each; a tile of 64 keys takes 2.3 us (1 x 8,192, H200). Behind 7,000
# keys 253 / n + 0.6 n us is least at n = 20, behind 32,000 at 44, but for eight key heads a device has 16 programs each. A cut
# costs a result written and read, 1 to 2 us: less than a tenth of 256 keys. Reckoned; no GPU has run it. Eight warps: with four,
# heads of 256 spill 56 to 80 bytes. Where `parts` is 1 nothing is cut: those kernels spill. Over int8 tiles are those of
# `extend_attention`, whose loop they share.
_SHARED = Choice(warps=8, stages=5, depth=64, parts=16, least=256, programs=1, whole=True)
_WIDE_SHARED = replace(_SHARED, warps=16, stages=2, depth=32, parts=1)
# 24 KiB of weights are being loaded while 8 KiB are multiplied. At 3 TB/s and 0.7 us per load, 16 KiB for each of 132
# multiprocessors are enough. Below `least` elements of a part, adding up costs more than the device gains.
_FEW_ROWS = Choice(warps=4, stages=5, outputs=32, depth=128, least=512)
_SHRINK = Choice(warps=4, stages=4, outputs=16, depth=128, parts=8, least=256)
_EXPAND = Choice(warps=4, stages=2, outputs=128, depth=32)

_ROWS: dict[Key, Choice] = {
    **{("decode_attention", HALF, head): _DECODE for head in HEADS},
    ("decode_attention", HALF, 128): replace(_DECODE, depth=32),
    ("decode_attention", HALF, 256): replace(_DECODE, depth=16),
    ("decode_attention", HALF, 512): replace(_DECODE, depth=16, programs=2),
    **{("decode_attention", E4M3, head): _DECODE for head in HEADS},
    ("decode_attention", E4M3, 512): replace(_DECODE, depth=16, programs=2),
    # Of int8 as many keys as of 16 bits: with 64 of 128 numbers and their peaks two programs have room, not three. Reckoned.
    **{("decode_attention", INT8, head): _DECODE for head in HEADS},
    ("decode_attention", INT8, 128): replace(_DECODE, depth=32),
    ("decode_attention", INT8, 256): replace(_DECODE, depth=16, programs=2),
    ("decode_attention", INT8, 512): replace(_DECODE, depth=16, programs=2),
    **{("decode_attention", FLOAT32, head): _WIDE_DECODE for head in HEADS},
    ("decode_attention", FLOAT32, 512): replace(_WIDE_DECODE, depth=16, stages=2, programs=1),
    **{("extend_attention", kind, head): _EXTEND for kind in (HALF, E4M3, INT8) for head in HEADS},
    **{("extend_attention", kind, 256): Choice(warps=4, stages=2, rows=64, depth=32) for kind in (HALF, E4M3)},
    ("extend_attention", INT8, 256): Choice(warps=4, stages=2, rows=64, depth=16),  # with 32 keys it spills
    **{("extend_attention", FLOAT32, head): _WIDE_EXTEND for head in HEADS},
    ("extend_attention", FLOAT32, 128): replace(_WIDE_EXTEND, warps=8, depth=16, rows=64),  # 128 rows spill
    ("extend_attention", FLOAT32, 256): replace(_WIDE_EXTEND, depth=16, rows=64),
    **{("extend_attention", kind, 512): Choice(warps=8, stages=2, rows=64, depth=16) for kind in (HALF, E4M3, INT8)},
    ("extend_attention", FLOAT32, 512): replace(_WIDE_EXTEND, depth=16, rows=32),
    **{("shared_extend", kind, head): _SHARED for kind in (HALF, E4M3, INT8) for head in HEADS},
    **{("shared_extend", kind, 256): replace(_SHARED, stages=2, depth=32) for kind in (HALF, E4M3)},
    ("shared_extend", INT8, 256): replace(_SHARED, stages=2, depth=16),
    **{("shared_extend", kind, 512): replace(_SHARED, stages=2, depth=16, parts=1) for kind in (HALF, E4M3, INT8)},
    **{("shared_extend", FLOAT32, head): _WIDE_SHARED for head in HEADS},
    **{("shared_extend", FLOAT32, head): replace(_WIDE_SHARED, depth=16) for head in (128, 256, 512)},
    # One row: a program of one warp reads two whole rows of a short weight at once. A gated result is of two rows.
    ("one_row", "", "short"): Choice(warps=1, stages=3, outputs=2, depth=512, most=1024),
    ("one_row", "", "short gated"): Choice(warps=1, stages=3, outputs=1, depth=512, most=1024),
    ("one_row", "", "long"): Choice(warps=2, stages=3, outputs=4, depth=512),
    ("one_row", "", "long gated"): Choice(warps=1, stages=3, outputs=2, depth=512),
    # Of e4m3 as many numbers, which are half of the bytes: with more a thread has no room for their products. Reckoned.
    ("one_row", E4M3, "short"): Choice(warps=1, stages=3, outputs=2, depth=512, most=1024),
    ("one_row", E4M3, "short gated"): Choice(warps=1, stages=3, outputs=1, depth=512, most=1024),
    ("one_row", E4M3, "long"): Choice(warps=2, stages=4, outputs=4, depth=512),
    ("one_row", E4M3, "long gated"): Choice(warps=1, stages=4, outputs=2, depth=512),
    ("few_rows", HALF, ""): _FEW_ROWS,
    ("few_rows", FLOAT32, ""): replace(_FEW_ROWS, stages=2, depth=32),
    # Few rows: the weights' bytes count, and narrow tiles keep more processors reading.
    ("block_product", E4M3, 16): Choice(warps=4, stages=6, outputs=32),
    ("block_product", E4M3, 32): Choice(warps=4, stages=6, outputs=32),
    ("block_product", E4M3, 64): Choice(warps=4, stages=4, outputs=64),
    ("block_product", E4M3, 128): Choice(warps=8, stages=3, outputs=128),
    # 16 elements a thread, 32 of the widest rows: with 8 warps those would be 64, most of a thread's registers.
    ("quantize", E4M3, ""): Choice(warps=16, depth=512),
    # Depth in blocks of 32 columns. Half as many where a table's addresses take registers.
    ("stored_row", "", "plain"): Choice(warps=2, outputs=4, depth=32),
    ("stored_row", "", "table"): Choice(warps=2, outputs=4, depth=16),
    ("stored_row", "", "words"): Choice(warps=1, stages=3, outputs=4, depth=32),
    ("stored_widen", "", ""): Choice(warps=4, outputs=4, depth=16),
    # By the rows of a tile. Depth in columns: 256 are words of a whole line of 128 bytes. The first row is measured; the others
    # are reckoned from it (decision 403). 16 warps hide what eight wait for: with 64 rows tiles are half as deep, and there is
    # room for two programs. With x in order 32 rows take 0.6 of the time, 16 rows 0.75, which is left to `make gpu-tune`.
    ("stored_tile", HALF, 16): Choice(warps=4, stages=4, outputs=64, depth=256, programs=2, least=512),
    ("stored_tile", HALF, 32): Choice(warps=4, stages=3, outputs=64, depth=256, programs=2, least=512, ordered=True),
    ("stored_tile", HALF, 64): Choice(warps=8, stages=4, outputs=128, depth=128, programs=2, least=512, ordered=True),
    # Programs beyond an adapter's rank exit at once, and with many rows x is read less often. Every program of `expand` reads the
    # parts of all; more sums at once than its depth would take too many registers.
    ("lora_shrink", HALF, "few"): _SHRINK,
    ("lora_shrink", HALF, "many"): replace(_SHRINK, outputs=64, depth=64, parts=2),
    ("lora_shrink", FLOAT32, "few"): replace(_SHRINK, stages=2, depth=32),
    ("lora_shrink", FLOAT32, "many"): replace(_SHRINK, stages=2, outputs=64, depth=16, parts=2),
    ("lora_expand", HALF, ""): _EXPAND,
    ("lora_expand", FLOAT32, ""): replace(_EXPAND, outputs=64),
    # By the number of tokens per expert. The first two mainly read weights; from 64 rows on, Hopper's own matrix instructions are
    # used. Compiled for Hopper no registers are spilled and two or three programs share a processor; speed was not measured.
    ("experts", HALF, "few"): Choice(warps=4, stages=4, rows=16, outputs=64, depth=128, group=1, most=8),
    ("experts", HALF, "some"): Choice(warps=4, stages=4, rows=64, outputs=128, depth=64, group=4, most=96),
    ("experts", HALF, "many"): Choice(warps=8, stages=3, rows=128, outputs=128, depth=64, group=8),
    ("experts", FLOAT32, "few"): Choice(warps=4, stages=2, rows=16, outputs=32, depth=32, group=1, most=8),
    ("experts", FLOAT32, "some"): Choice(warps=4, stages=2, rows=64, outputs=64, depth=32, group=4),
    ("experts_sum", "", ""): Choice(warps=2, outputs=512),
    ("gated", "", ""): Choice(warps=4, outputs=1024),
    ("rms_norm", "", ""): Choice(warps=8, depth=512),
    ("rotary", "", ""): Choice(warps=4),
    ("rotary", "", "wide"): Choice(warps=8, outputs=8),
    # Logits that a program looks through at a time. With more than 2,048 in "rows" a multiprocessor holds one program, not two.
    ("sample", "", "tiles"): Choice(warps=4, depth=4096),
    ("sample", "", "rows"): Choice(warps=8, depth=2048),
    ("sample", "", "limits"): Choice(warps=8, depth=1024),
}  # fmt: skip
"""Rows of `TUNED_ON`."""

_FITTING: dict[int, dict[Key, Choice]] = {
    # Heads of 256 in float32 take 148 and 100 KiB as above, so 82 and 84: keys of half a tile, and values where the keys were.
    # Heads of 512 take 97 and 130, so 65 and 65: values where the keys were, and half as many queries.
    99: {
        ("decode_attention", FLOAT32, 256): replace(_ROWS["decode_attention", FLOAT32, 256], depth=32),
        ("extend_attention", FLOAT32, 256): replace(_ROWS["extend_attention", FLOAT32, 256], stages=1),
        ("decode_attention", FLOAT32, 512): replace(_ROWS["decode_attention", FLOAT32, 512], stages=1),
        ("extend_attention", FLOAT32, 512): replace(
            _ROWS["extend_attention", FLOAT32, 512], stages=1, rows=16
        ),
        # With four warps tiles of 128 columns spill 8 bytes (Q4_0).
        ("stored_tile", HALF, 64): replace(
            _ROWS["stored_tile", HALF, 64], warps=4, stages=3, outputs=64, depth=256, programs=1
        ),
    },
}
"""Rows for less shared memory, by the KiB that a program may have: what of `_ROWS` would not fit."""

# Blackwell's own matrix instructions take no operand from registers: codes would go through the tensor memory, at three times the
# instructions, and of 128 outputs Triton 3.6 compiles nothing. Products of 32 outputs take the instructions of older devices.
_BLACKWELL: dict[Key, Choice] = {
    **{
        ("stored_tile", HALF, rows): replace(
            _ROWS["stored_tile", HALF, rows], warps=warps, outputs=32, programs=4
        )
        for rows, warps in ((16, 2), (32, 2), (64, 4))
    },
    # Their sums are in the tensor memory, and a thread that widens keys of 8 bits, or multiplies float32, has too few registers.
    **{("shared_extend", INT8, head): replace(_SHARED, depth=32) for head in (64, 128)},
    **{("extend_attention", kind, 64): replace(_EXTEND, depth=32) for kind in (E4M3, INT8)},
    **{
        ("extend_attention", kind, 512): Choice(warps=8, stages=2, rows=32, depth=16)
        for kind in (HALF, E4M3, INT8)
    },
    ("decode_attention", E4M3, 256): replace(_DECODE, depth=32),
    ("decode_attention", FLOAT32, 256): replace(_WIDE_DECODE, depth=16),
    ("extend_attention", FLOAT32, 256): replace(_WIDE_EXTEND, warps=8, depth=16, rows=32),
    ("extend_attention", FLOAT32, 512): replace(_WIDE_EXTEND, warps=8, depth=16, rows=16),
}

# Where a warp multiplies by itself (mma.sync), what it adds up and what it multiplies share its registers. With these no thread
# spills any, by `python -m tests.gpu.compiled --of-each-size --architecture 80`.
_OWN_REGISTERS: dict[Key, Choice] = {
    ("shared_extend", HALF, 128): replace(_SHARED, depth=32),
    ("shared_extend", INT8, 128): replace(_SHARED, depth=16),
    ("shared_extend", INT8, 256): replace(_SHARED, stages=3, depth=16),
    ("shared_extend", INT8, 64): replace(_SHARED, depth=32),
    # Plain ones have room for 64 keys; with a window they spill 64 bytes.
    ("extend_attention", HALF, 128): replace(_EXTEND, depth=32),
    ("extend_attention", HALF, "128 plain"): _EXTEND,
    ("extend_attention", INT8, 64): replace(_EXTEND, depth=32),
    ("extend_attention", INT8, 128): replace(_EXTEND, depth=16),
    ("extend_attention", HALF, 256): Choice(warps=8, stages=2, rows=64, depth=32),
    ("extend_attention", INT8, 256): Choice(warps=8, stages=2, rows=64, depth=16),
    **{
        ("extend_attention", kind, 512): Choice(warps=8, stages=2, rows=32, depth=16)
        for kind in (HALF, E4M3, INT8)
    },
    ("decode_attention", INT8, 64): replace(_DECODE, depth=32),
    # With two programs those of Q4_K and Q6_K that share their depth spill 8 and 16 bytes.
    ("stored_tile", HALF, 64): replace(
        _ROWS["stored_tile", HALF, 64], warps=8, stages=3, outputs=128, depth=256, programs=1
    ),
    ("experts", HALF, "many"): replace(
        _ROWS["experts", HALF, "many"], depth=32
    ),  # those of gpt-oss spill 440 bytes with 64
    ("experts", HALF, "few"): replace(
        _ROWS["experts", HALF, "few"], stages=3
    ),  # those of Qwen1.5-MoE spill 16 bytes with four
}
# Measured on an H200 on 2026-11-29, microseconds with the row of `_ROWS` and with these, heads of 128: 256 sequences of 1,024
# keys over e4m3 293 and 249 (262 with 64 widened keys), over int8 331 and 207. Prompts 739 and 691 (8,192 tokens), 512 tokens
# behind 32,000 keys 367 and 328, behind 7,000 keys 96 and 91; but 64 tokens behind those 38 and 42. The other rows spilled.
_HOPPER: dict[Key, Choice] = {
    ("decode_attention", E4M3, "128 plain"): replace(_DECODE, depth=128, widened=1),
    ("decode_attention", E4M3, 128): replace(
        _DECODE, widened=1
    ),  # with a cap 128 keys spill, and where masks fill heads up
    ("decode_attention", INT8, 128): replace(_DECODE, depth=128, widened=1),
    ("decode_attention", E4M3, 256): replace(_DECODE, depth=32),
    ("decode_attention", FLOAT32, 256): replace(_WIDE_DECODE, depth=32),
    # 226 of 227 KiB, and 248 to 255 registers.
    ("extend_attention", HALF, "128 plain"): replace(_EXTEND, depth=128),
    ("shared_extend", HALF, "128 plain"): replace(_SHARED, depth=128),
    ("extend_attention", HALF, "256 filled"): Choice(warps=4, stages=2, rows=64, depth=16),
    ("extend_attention", FLOAT32, 256): replace(_WIDE_EXTEND, stages=1, depth=16, rows=64),
    ("lora_shrink", FLOAT32, "many"): replace(_SHRINK, stages=3, outputs=64, depth=16, parts=2),
}
_ARCHITECTURES: dict[int, dict[Key, Choice]] = {
    90: _HOPPER,
    100: _BLACKWELL,
    103: _BLACKWELL,
    **dict.fromkeys((80, 86, 87, 89, 120, 121), _OWN_REGISTERS),
}
"""Rows of other architectures: measured ones, as `make gpu-tune` prints them, and reckoned ones."""

_trial: dict[Key, Choice] = {}
"""Rows that take precedence, within `trying`."""


def rows(architecture: int) -> dict[Key, Choice]:
    """Return all rows of an architecture such as 90. An unknown one gets those for the least shared memory."""
    room = SHARED_KIB.get(architecture, _LEAST_SHARED_KIB)
    chosen = dict(_ROWS)
    for most in sorted(_FITTING, reverse=True):
        if room <= most:
            chosen |= _FITTING[most]
    chosen |= _ARCHITECTURES.get(architecture, {})
    general = [(key, row) for key, row in chosen.items() if key[0] in _ATTENTION and isinstance(key[2], int)]
    for (kernel, kind, head), row in general:
        for form in (PLAIN, FILLED):
            chosen.setdefault((kernel, kind, f"{head} {form}"), row)
    return chosen


def choose(kernel: str, kind: str, shape: int | str) -> Choice:
    """Return the row for the device at hand. Raises KeyError for a kernel, element kind or shape class without rows."""
    return _choose(kernel, kind, shape, architecture())


@functools.cache
def _choose(kernel: str, kind: str, shape: int | str, number: int) -> Choice:
    key = kernel, kind, shape
    size, _, form = str(shape).partition(" ")
    general = (kernel, kind, int(size)) if form in (PLAIN, FILLED) else key
    return _trial.get(key) or _trial.get(general) or rows(number)[key]


@contextlib.contextmanager
def trying(choices: Mapping[Key, Choice]) -> Iterator[None]:
    """Within, these rows take precedence; that of a padded head size over all rows of that size. Used to time candidates; what
    was captured or sized before keeps its own numbers. Raises KeyError for rows that no launcher reads."""
    if unknown := choices.keys() - rows(TUNED_ON).keys():
        raise KeyError(f"no kernel reads {sorted(map(str, unknown))}")
    earlier = dict(_trial)
    _trial.update(choices)
    _choose.cache_clear()
    try:
        yield
    finally:
        _trial.clear()
        _trial.update(earlier)
        _choose.cache_clear()


def architecture() -> int:
    """Return the architecture for which Triton compiles now, such as 90; `TUNED_ON` where kernels are interpreted."""
    try:
        return _architecture()
    except RuntimeError:  # Triton has no driver: nothing is launched
        return TUNED_ON


@functools.cache
def _architecture() -> int:
    import triton

    if triton.knobs.runtime.interpret:
        return TUNED_ON
    number = triton.runtime.driver.active.get_current_target().arch
    return number if isinstance(number, int) else TUNED_ON


def forget() -> None:
    """Ask Triton again for what it compiles."""
    _architecture.cache_clear()


@functools.cache
def processors(device: torch.device) -> int:
    """Return the number of multiprocessors of a tensor's device."""
    if device.type in ("cpu", "meta"):
        return PROCESSORS
    import triton

    driver = triton.runtime.driver.active
    number = driver.get_current_device() if device.index is None else device.index
    return int(driver.utils.get_device_properties(number)["multiprocessor_count"])


def head_class(head_dim: int) -> int:
    """Return the padded head size: the next power of two, of `HEADS`."""
    return next((head for head in HEADS if head_dim <= head), HEADS[-1])


@functools.cache
def head_shape(head_dim: int, plain: bool = False) -> int | str:
    """Return the shape class of heads for attention: the padded size, "128 filled" for heads of 65 to 127 numbers, whose loads
    take masks, or "128 plain" for heads of 128 of which a kernel says that their loop is `plain`."""
    padded = head_class(head_dim)
    return f"{padded} {FILLED}" if head_dim != padded else f"{padded} {PLAIN}" if plain else padded


def kind_of(dtype: torch.dtype, stored: torch.dtype | None = None) -> str:
    """Return the element kind of activations in `dtype` over keys or weights that are `stored` in another."""
    if dtype == torch.float32:
        return FLOAT32
    return {torch.float8_e4m3fn: E4M3, torch.int8: INT8}.get(stored, HALF)
