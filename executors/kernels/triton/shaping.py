"""Penalties, biases and bans: `executors/llm/sampling/device_shaping.py` defines them and their layout. Masks of grammars:
`executors/llm/sampling/row_masks.py`.

The first kernel that reads a shaped row writes the shaped logits into the table, piece by piece to save registers; all later
reads use the table. A mask is read with each logit: a bit beside two or four bytes, and the raw logits stay for logprobs.
"""

from __future__ import annotations

import triton
import triton.language as tl

from executors.kernels import shaping_layout as layout

_REPETITION = tl.constexpr(layout.REPETITION)
_FREQUENCY = tl.constexpr(layout.FREQUENCY)
_PRESENCE = tl.constexpr(layout.PRESENCE)
_BIASES = tl.constexpr(layout.BIASES)
_UNTIL = tl.constexpr(layout.UNTIL)
_HEADER = tl.constexpr(layout.HEADER)
_COUNT = tl.constexpr(layout.IN_PROMPT - 1)
_IN_PROMPT = tl.constexpr(layout.IN_PROMPT)
_ENTRY_SHIFT = tl.constexpr(layout.ENTRY_SHIFT)
_ALIGN = tl.constexpr(layout.ALIGN)


@triton.jit
def row_shape(
    table, stride, shaped, lengths, inputs, guessed, results, results_stride, masks, masks_stride, masked, row,
    WIDTH: tl.constexpr,
):  # fmt: skip
    """Describe the shaping of a row of logits: its row of the table, whether it has one, the number of inputs, and the last
    input; then its mask, and whether it has one; then where its results are, float32, and whether its last input is a draft."""
    name, mask, number = tl.load(shaped + row), tl.load(masked + row), tl.load(guessed + row)
    own = table + tl.maximum(name, 0).to(tl.int64) * stride
    words = masks + tl.maximum(mask, 0).to(tl.int64) * masks_stride
    into = own + (_HEADER + (WIDTH + _ALIGN - 1) // _ALIGN * _ALIGN)
    into = into.to(tl.pointer_type(tl.float32), bitcast=True)
    if number > 0:
        into = results + (number - 1).to(tl.int64) * results_stride
    return own, name >= 0, tl.load(lengths + row), tl.load(inputs + row), words, mask >= 0, into, number > 0


@triton.jit
def load_logits(line, at, mask, shape):
    """Load logits `line` [at] as float32, -inf where `mask` is not set; `shape`: see `row_shape`. -inf is added where the row's
    mask forbids a token: a NaN or +inf is noticed there as well."""
    if shape[1]:
        values = tl.load(shape[6] + at, mask=mask, other=float("-inf"))
    else:
        values = tl.load(line + at, mask=mask, other=float("-inf")).to(tl.float32)
    if shape[5]:
        allowed = (tl.load(shape[4] + (at >> 5), mask=mask, other=0) >> (at & 31)) & 1
        values += tl.where(allowed > 0, 0.0, float("-inf"))
    return values


@triton.jit
def shape_logits(
    line, first, shape, lengths, inputs, guessed, row, COUNT: tl.constexpr, PIECE: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    """Write the shaped values of COUNT logits `line` from `first` on, for this program to read. `lengths`, `inputs` and `guessed`
    of all rows, of which this is `row`."""
    for piece in range(COUNT // PIECE):
        at = first + piece * PIECE + tl.arange(0, PIECE)
        values = tl.load(line + at, mask=at < WIDTH, other=float("-inf")).to(tl.float32)
        other = row
        new = _is_new(at, other, shape, lengths, inputs)
        while tl.load(guessed + other) > 0:  # up to the first of the sequence's rows
            other -= 1
            new += _is_new(at, other, shape, lengths, inputs)
        values = _shaped(values, at, at < WIDTH, shape[0], shape[2], new)
        tl.store(shape[6] + at, values, mask=at < WIDTH)
    tl.debug_barrier()


@triton.jit
def _is_new(at, other, shape, lengths, inputs):
    """Whether tokens `at` are the last input of a row of the same sequence, which is not counted yet: int32."""
    return ((at == tl.load(inputs + other)) & (tl.load(shape[0]) < tl.load(lengths + other))).to(tl.int32)


@triton.jit
def _number(own, at):
    """Load a float32 that is stored among int32."""
    return tl.load(own + at).to(tl.float32, bitcast=True)


@triton.jit
def _shaped(values, at, mask, own, length, new):
    """Shaped logits of the tokens `at`, of which there are so many `new` ones beside those that are counted."""
    word = tl.load(own + _HEADER + at, mask=mask, other=0)
    count = (word & _COUNT) + new
    entry = word >> _ENTRY_SHIFT
    has_entry = entry > 0
    bias = tl.load(own + _BIASES + entry, mask=has_entry, other=0).to(tl.float32, bitcast=True)
    until = tl.load(own + _UNTIL + entry, mask=has_entry, other=0)
    values = values + tl.where(has_entry & (until > length), float("-inf"), bias)
    repetition = _number(own, _REPETITION)
    repeated = tl.where(values > 0.0, tl.math.div_rn(values, repetition), values * repetition)
    values = tl.where((count > 0) | ((word & _IN_PROMPT) > 0), repeated, values)
    present = tl.where(count > 0, _number(own, _PRESENCE), 0.0)
    return values - _number(own, _FREQUENCY) * count.to(tl.float32) - present


@triton.jit
def count_input(shape):
    """Count the last input of a shaped row, unless it is a draft or has been counted already."""
    own, length, token = shape[0], shape[2], shape[3]
    if (tl.load(own) < length) & (shape[7] == 0):
        place = own + _HEADER + token
        tl.store(place, tl.load(place) + 1)
        tl.store(own, length)
