"""Early launches: a kernel's programs start while the kernel before it still runs, and wait where they need what it wrote.

CUDA calls it programmatic dependent launch (CUDA C++ Programming Guide, "Programmatic Dependent Launch and Synchronization"). A
decode step is a graph of some 190 small kernels; between two of them the device idles for a microsecond, and a kernel that reads
weights takes another one until enough loads are under way. On an H200 a chain of 190 kernels that read 2 MB each takes 546 us one
after the other and 158 us with early launches that read their weights before they wait (`benchmarks/gpu/chain.py`).

    launch_next()    the kernel behind this one may start its programs once all of this one have started
    ... reads of what no kernel of the chain writes ...
    wait_for_last()  all kernels before this one have ended, and what they wrote is visible
    ... everything else ...

The rule that makes this right: every program of an early kernel waits, on each of its paths, before it writes anything and before
it reads what an early kernel writes. Then no kernel ends before the one in front of it has ended, and "the one before has ended"
means all have. Read before the wait may be what ordinary launches and copies wrote: weights, tables of angles, the packed inputs
of a step; but not what the last ordinary launch in front of a run of early ones wrote, whose end alone does not make it visible.
An ordinary launch or copy, which a step's inputs arrive by, starts when everything before it has ended. Behind the inputs of a
step come other ordinary launches (embedding, block tables) before the first early one.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import triton
import triton.language as tl

from executors.kernels.triton.tuning import architecture

FIRST = 90
"""The first architecture whose kernels can wait so: Hopper."""
_LINE = tl.constexpr(128)
"""Bytes that the second cache reads from memory at once."""
_enabled = True


@triton.jit
def launch_next(EARLY: tl.constexpr):
    """Let the kernel behind this one start its programs."""
    if EARLY:
        tl.inline_asm_elementwise(
            "griddepcontrol.launch_dependents; // $0", "=r", [], dtype=tl.int32, is_pure=False, pack=1
        )


@triton.jit
def wait_for_last(EARLY: tl.constexpr):
    """Wait until all kernels before this one have ended."""
    if EARLY:
        tl.inline_asm_elementwise(
            "griddepcontrol.wait; // $0", "=r", [], dtype=tl.int32, is_pure=False, pack=1
        )


@triton.jit
def prefetch_rows(weight, rows, last, begin, COLUMNS: tl.constexpr, COUNT: tl.constexpr, EARLY: tl.constexpr):
    """Bring COUNT elements of rows of `weight` [n, COLUMNS], from column `begin` on, into the second cache. `rows` int64 [k]; of
    them those above `last` count as `last`. Nothing without EARLY or a COUNT."""
    if EARLY and COUNT > 0:
        each: tl.constexpr = _LINE // (weight.dtype.element_ty.primitive_bitwidth // 8)
        lines: tl.constexpr = (COUNT + each - 1) // each
        column = begin + tl.arange(0, triton.next_power_of_2(lines)) * each
        column = tl.minimum(column, COLUMNS - 1)
        place = weight + tl.minimum(rows, last)[:, None] * COLUMNS + column[None, :]
        tl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.u32 $0, 0;",
            "=r,l",
            [place.to(tl.int64)],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )


def options() -> dict[str, Any]:
    """Keywords of a launch for the device at hand: EARLY, and Triton's own where it is true."""
    return _options(_enabled, architecture())


@functools.cache
def _options(enabled: bool, number: int) -> dict[str, Any]:
    # Interpreted kernels count as those of Hopper.
    if not enabled or number < FIRST or triton.knobs.runtime.interpret:
        return {"EARLY": False}
    return {"EARLY": True, "launch_pdl": True}


@contextlib.contextmanager
def one_after_the_other() -> Iterator[None]:
    """Within, kernels are launched the ordinary way. Used to time what early launches bring; captured graphs stay as they are."""
    global _enabled
    earlier, _enabled = _enabled, False
    try:
        yield
    finally:
        _enabled = earlier
