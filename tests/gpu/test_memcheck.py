"""Kernels stay within their arguments, and programs that share memory are ordered by a counter: checked while interpreted."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.errors import InterpreterError

from executors.kernels.triton.lora import add_lora
from executors.llm.attention.key_pieces import PieceRule
from tests.gpu import (
    sanitized,
    test_attention,
    test_experts,
    test_few_rows,
    test_fp8,
    test_fused,
    test_lora,
    test_sampling,
    test_stored,
)
from tests.gpu.memcheck import checked
from tests.gpu.test_attention import Batch, check, fresh

pytestmark = [
    pytest.mark.long,
    pytest.mark.interpreted,
    pytest.mark.filterwarnings("ignore:overflow encountered", "ignore:invalid value encountered"),
]
FP32 = torch.float32
_small_parts = test_few_rows._small_parts
"""The depths of tests are cut into parts, too."""


def decode(count: int, listed: bool, window: int | None = None) -> None:
    """Rows with `count` pieces, fewer and one, a row of length 0, and padding behind the pieces."""
    batch = Batch([1] * 4, [511, 99, 3, 0], (4, 2), 64, 16, FP32, count)
    expected = batch.expected(window, None)
    batch.lengths[2], expected[2] = 0, 0.0
    pieces = PieceRule(1, 64, count=count).cut(batch.lengths)
    padded = np.concatenate((pieces, np.full((5, pieces.shape[1]), -1)))
    out = fresh(batch)
    batch.decode(np.arange(4), padded, window, None, out, listed=listed)
    check(out, expected, FP32)


def shared_keys() -> None:
    """A tile's keys in pieces, which the last program adds up."""
    assert sanitized.shared_extend() <= sanitized.MOST_ERROR


LAUNCHES: dict[str, Callable[[], None]] = {
    "decode, 17 pieces": lambda: decode(17, False),
    "decode, 49 pieces, listed": lambda: decode(49, True),
    "decode, a window": lambda: decode(5, False, 100),
    "decode, keys of a row in any order": test_attention.test_a_row_is_added_up_by_whoever_ends_last,
    "extend, padding": test_attention.test_tiles_of_padding_write_nothing,
    "extend, a window": lambda: test_attention.test_extend(FP32, (2, 1), 80, 16, 9, None),
    "extend, keys shared": shared_keys,
    "decode and extend over e4m3": lambda: test_fp8.test_attention_over_fp8_kv(
        FP32, (2, 1), 80, 20, 30.0, (0.02, 0.5), True
    ),
    "rotation and KV": lambda: test_fused.test_rotate_and_store(FP32, 7, 1, 80, 80, "norm"),
    "norm": lambda: test_fused.test_rms_norm(FP32, 100, False, True),
    "16 rows, 5 parts": lambda: test_few_rows.test_a_sum_behind(16, 96, 640, True, 0.3, (3, 5, 128), FP32),
    "one row, 2 parts": lambda: test_few_rows.test_a_sum_behind(1, 50, 200, False, 1.0, (2, 2, 128), FP32),
    "16 rows, norm": lambda: test_few_rows.test_a_norm_before(50, 200, True, False, FP32),
    "adapters": lambda: test_lora.test_tiles_that_are_not_used_and_adapters_without_rows(add_lora),
    "adapters, shared depth": lambda: test_lora.test_programs_share_the_depth(1000),
    "sampler": test_sampling.test_padding_is_neither_read_nor_written,
    "experts": test_experts.test_all_to_one_and_none_to_the_others,
    "stored weights": lambda: test_stored.test_products("Q4_0", 19),
    "e4m3 blocks": test_fp8.test_a_block_product_of_many_tiles,
}


@pytest.mark.long(every=2)
@pytest.mark.parametrize("name", LAUNCHES)
def test_within_bounds_and_in_order(name: str) -> None:
    with checked() as checker:
        LAUNCHES[name]()
    assert checker.launches


# -- the checker's teeth ---------------------------------------------------------------------------------------------------


@triton.jit
def _copy_kernel(x, out, count, SHIFT: tl.constexpr, TILE: tl.constexpr):
    """A tile for each program; SHIFT moves what it reads."""
    at = tl.program_id(0) * TILE + tl.arange(0, TILE)
    tl.store(out + at, tl.load(x + at + SHIFT, mask=at < count, other=0.0), mask=at < count)


@triton.jit
def _sum_kernel(x, out, partial, arrived, PROGRAMS: tl.constexpr, COUNTS: tl.constexpr, ALONE: tl.constexpr):
    """Each program writes its number; the one that counts last adds them up. Not COUNTS: the last by number does."""
    tl.store(partial + (0 if ALONE else tl.program_id(0)), tl.load(x + tl.program_id(0)))
    last = tl.program_id(0) == PROGRAMS - 1
    if COUNTS:
        last = tl.atomic_add(arrived, 1, sem="acq_rel", scope="gpu") == PROGRAMS - 1
    if last:
        tl.store(out, tl.sum(tl.load(partial + tl.arange(0, PROGRAMS)), 0))


def test_an_element_behind_the_end_is_noticed() -> None:
    """Neighbours in memory are right there: nothing but the checker notices."""
    memory = torch.arange(30.0)
    x, out = memory[:10], torch.zeros(10)
    with checked():
        _copy_kernel[(3,)](x, out, 10, 0, 4)
    assert torch.equal(x, out)
    for given, into, count in ((x, out, 11), (memory[:11], out, 11), (x, torch.zeros(11), 11)):
        with (
            checked(),
            pytest.raises(InterpreterError, match=r"outside its arguments, the first 0 bytes behind"),
        ):
            _copy_kernel[(3,)](given, into, count, 0, 4)
    with checked(), pytest.raises(InterpreterError, match="outside its arguments"):
        _copy_kernel[(3,)](x, out, 10, -1, 4)


@pytest.mark.parametrize(
    ("counts", "alone", "fault"),
    [
        (True, False, None),
        (False, False, "read of an element written by program 0, which nothing orders"),
        (True, True, "write of an element written by program 0, which nothing orders"),
    ],
)
def test_programs_that_nothing_orders_are_noticed(counts: bool, alone: bool, fault: str | None) -> None:
    """The interpreter runs them in order, and the sums are right."""
    x, out, partial = torch.arange(4.0), torch.zeros(1), torch.zeros(4)
    arrived = torch.zeros(1, dtype=torch.int32)
    with checked():
        if fault is None:
            _sum_kernel[(4,)](x, out, partial, arrived, 4, counts, alone)
            assert out.item() == 6.0
        else:
            with pytest.raises(InterpreterError, match=fault):
                _sum_kernel[(4,)](x, out, partial, arrived, 4, counts, alone)


def test_an_element_that_is_written_over_while_another_reads_it_is_noticed() -> None:
    memory = torch.arange(16.0)
    with checked(), pytest.raises(InterpreterError, match="write of an element read by program 0"):
        _copy_kernel[(3,)](memory[:12], memory[:12], 8, 4, 4)
