"""Choosing a token of each row of logits, by three kernels, without a sort and without a word from the host.

    tiles     (tile, row)  largest logit of each tile, and the weight of a tile relative to its own largest: one pass
    rows      (row)        greedy and unlimited rows: their token. Others: a bound below all that their limits can leave,
                           and the candidates above it, taken out of the row in the vocabulary's order
    limits    (row)        top-k, top-p and min-p among the candidates (or in the row, where too many are), and the token

All reads of logits go through `load_logits`, which knows where those lie that penalties, biases and bans have changed, and
applies the masks of grammars.

A row that is done leaves at once. The weights of a row are integers, multiples of 1 / `ONE` of the largest: sums of them are
exact whatever their order, so that no token without weight is ever drawn, and a row does not depend on its batch.

The k-th largest logit, and the smallest one of a top-p set, are found by radix selection (Knuth, vol. 3, 5.2.5, from the
top digit): how much lies at or above each of 16 numbers gives four bits more of the one that is looked for. Top-p's cut
before the search: all tokens of less than (1 - p) / V of the weight have less than 1 - p of it together.
"""

from __future__ import annotations

import triton
import triton.language as tl

from executors.contract.sampling import MIN_TEMPERATURE
from executors.kernels.triton.shaping import count_input, load_logits, row_shape, shape_logits

ONE = tl.constexpr(2.0**42)
"""The weight of the largest logit. A row has at most 2^20 tokens: 62 bits."""
_MIN_TEMPERATURE = tl.constexpr(MIN_TEMPERATURE)
_LOG2E = tl.constexpr(1.4426950408889634)
_PIECE = tl.constexpr(512)
"""Logits that are shaped at a time."""
_LEAST = tl.constexpr(-3.4028234663852886e38)
"""The smallest number of float32 that is finite."""
_SLACK = tl.constexpr(0.999)
"""Factor of top-p's cut: far more than rounding can move a sum."""


@triton.jit
def _scale(temperature):
    """What a difference of logits is multiplied with to be the exponent of 2, float32."""
    return _LOG2E / tl.maximum(temperature.to(tl.float32), _MIN_TEMPERATURE)


@triton.jit
def _share(values, best, scale):
    """Weights relative to `best`'s, float32, 0 to 1; of exactly 1 where it is reached."""
    return tl.exp2(tl.minimum(values - best, 0.0) * scale)


@triton.jit
def _integer(share):
    """A weight as int64."""
    return (share * ONE).to(tl.int64)


@triton.jit
def _goal(u, total):
    """The sum that the drawn token is the first to exceed: int64, below `total` > 0."""
    return tl.minimum((u * total.to(tl.float64)).to(tl.int64), total - 1)


@triton.jit
def _key(values, drop):
    """uint32 in the order of float32 `values`, equal for 0 and -0, less the lowest `drop` bits."""
    bits = values.to(tl.uint32, bitcast=True)
    bits = tl.where(values == 0.0, 0, bits)
    return tl.where(bits >= 0x80000000, bits ^ 0xFFFFFFFF, bits | 0x80000000) >> drop


@triton.jit
def _dropped(shape, DROP: tl.constexpr):
    """Lowest bits of a row's logits that tell none apart, uint32: DROP, for its type; shaped ones have all bits."""
    return tl.where(shape[1], 0, DROP).to(tl.uint32)


@triton.jit
def tiles_kernel(
    logits, temperatures, top_ks, min_ps, maxima, sums, stride, num_tiles,
    table, table_stride, shaped, ends, inputs, guessed, results, results_stride, masks, masks_stride, masked,
    WIDTH: tl.constexpr, TILE: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """PARTS tiles of one row: `maxima` (inf where a logit is NaN) and, where the row needs it, `sums`, float32 [n, tiles]."""
    row = tl.program_id(1)
    temperature = tl.load(temperatures + row)
    if temperature >= 0.0:
        tile = tl.program_id(0) * PARTS + tl.arange(0, PARTS)
        at = tile[:, None] * TILE + tl.arange(0, TILE)[None, :]
        line = logits + row.to(tl.int64) * stride
        shape = row_shape(
            table, table_stride, shaped, ends, inputs, guessed, results, results_stride, masks, masks_stride, masked, row, WIDTH,
        )  # fmt: skip
        if shape[1]:
            first = tl.program_id(0) * PARTS * TILE
            shape_logits(
                line, first, shape, ends, inputs, guessed, row, PARTS * TILE, min(PARTS * TILE, _PIECE), WIDTH
            )  # fmt: skip
        values = load_logits(line, at, at < WIDTH, shape)
        values = tl.where(values != values, float("inf"), values)
        peak = tl.max(values, 1)
        into = row.to(tl.int64) * num_tiles + tile
        tl.store(maxima + into, peak, mask=tile < num_tiles)
        top_k = tl.load(top_ks + row)
        # The candidates include all that top-k and min-p leave, so the weight of the row is not needed.
        prefix = ((top_k > 0) & (top_k < WIDTH)) | (tl.load(min_ps + row) > 0.0)
        if (temperature > 0.0) & (prefix == 0):
            # A tile of nothing but -inf: its difference to itself is no number.
            base = tl.where(tl.abs(peak) == float("inf"), 0.0, peak)
            weight = tl.sum(_share(values, base[:, None], _scale(temperature)), 1)
            tl.store(sums + into, weight, mask=tile < num_tiles)


@triton.jit
def _draw_from_tiles(
    line, shape, peaks, maxima, sums, temperature, u, best, WIDTH: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr
):  # fmt: skip
    """A token of the whole distribution: the tile by the tiles' weights, then inside. `peaks` [TILES] are those of the row,
    `maxima` and `sums` where the row has them in memory."""
    scale = _scale(temperature)
    mass = _masses(peaks, sums, best, scale, WIDTH, TILE, TILES)
    total = tl.sum(mass)
    goal = _goal(u, total)
    upto = tl.cumsum(mass, 0)
    passed = upto <= goal
    chosen = tl.sum(passed.to(tl.int32))
    own = tl.sum(tl.where(tl.arange(0, TILES) == chosen, mass, 0))
    before = tl.sum(tl.where(passed, mass, 0))
    at = chosen * TILE + tl.arange(0, TILE)
    values = load_logits(line, at, at < WIDTH, shape)
    inside = _integer(_share(values, tl.load(maxima + chosen), scale))
    rest = (u * total.to(tl.float64) - before.to(tl.float64)) / own.to(tl.float64)
    goal_inside = _goal(tl.maximum(rest, 0.0), tl.sum(inside))
    return chosen * TILE + tl.sum((tl.cumsum(inside, 0) <= goal_inside).to(tl.int32))


@triton.jit
def _masses(peaks, sums, best, scale, WIDTH: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr):
    """Weights of a row's tiles, int64 [TILES]; a tile that weighs nothing has 0."""
    tile = tl.arange(0, TILES)
    weight = tl.load(sums + tile, mask=tile * TILE < WIDTH, other=0.0)
    return (weight.to(tl.float64) * _share(peaks, best, scale).to(tl.float64) * ONE).to(tl.int64)


@triton.jit
def _first_of_largest(
    line, shape, peaks, best, WIDTH: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr
):  # fmt: skip
    """The lowest id of the largest logit."""
    tile = tl.min(tl.where(peaks == best, tl.arange(0, TILES), TILES))
    at = tile * TILE + tl.arange(0, TILE)
    values = load_logits(line, at, at < WIDTH, shape)
    return tl.min(tl.where((values == best) & (at < WIDTH), at, WIDTH - 1))


@triton.jit
def _kth_of(
    peaks, k, drop, WIDTH: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr
):  # fmt: skip
    """The k-th largest of a row's maxima, float32: at least k logits are no smaller. -inf where there are fewer tiles."""
    keys = _key(peaks, drop)
    there = tl.arange(0, TILES) * TILE < WIDTH
    bound = tl.full((), 0, tl.uint32)
    if tl.sum(there.to(tl.int32)) >= k:
        for digit in range((32 - drop) // 4):
            shift = 28 - drop - 4 * digit
            pivots = bound + (tl.arange(0, 16).to(tl.uint32) << shift)
            counts = tl.sum(((keys[None, :] >= pivots[:, None]) & there[None, :]).to(tl.int32), 1)
            bound += (tl.sum((counts >= k).to(tl.int32)) - 1).to(tl.uint32) << shift
        cut = tl.min(tl.where((keys >= bound) & there, peaks, float("inf")))
    else:
        cut = tl.full((), float("-inf"), tl.float32)
    return cut


@triton.jit
def _floor(best, temperature, share):
    """The logit, float64, whose weight is `share` of the largest one's; -inf for a share of 0."""
    bounded = tl.where(share > 0.0, share, 1.0).to(tl.float64)
    under = tl.log(bounded) * tl.maximum(temperature.to(tl.float32), _MIN_TEMPERATURE).to(tl.float64)
    return tl.where(share > 0.0, best.to(tl.float64) + under, float("-inf"))


@triton.jit
def _take_out(
    line, shape, peaks, cut, listed, ids, WIDTH: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr, GROUP: tl.constexpr,
    CAPACITY: tl.constexpr,
):  # fmt: skip
    """Write logits of at least `cut` and their ids, in the vocabulary's order, to `listed` float32 and `ids` int32. Return how
    many there are, or a number above CAPACITY for more than fit. Tiles without any are not read."""
    tile = tl.arange(0, TILES)
    holds = (peaks.to(tl.float64) >= cut) & (tile * TILE < WIDTH)
    place = tl.cumsum(holds.to(tl.int32), 0) - 1
    many = tl.sum(holds.to(tl.int32))
    count = tl.full((), 0, tl.int32)
    for first in range(0, many, GROUP):
        if count <= CAPACITY:
            numbers = first + tl.arange(0, GROUP)
            match = (place[None, :] == numbers[:, None]) & holds[None, :]
            tiles = tl.sum(tl.where(match, tile[None, :], 0), 1)
            at = tiles[:, None] * TILE + tl.arange(0, TILE)[None, :]
            real = (numbers < many)[:, None] & (at < WIDTH)
            values = load_logits(line, at, real, shape)
            stays = real & (values.to(tl.float64) >= cut)
            counts = tl.sum(stays.to(tl.int32), 1)
            before = count + tl.cumsum(counts, 0) - counts
            into = before[:, None] + tl.cumsum(stays.to(tl.int32), 1) - 1
            tl.store(listed + into, values, mask=stays & (into < CAPACITY))
            tl.store(ids + into, at, mask=stays & (into < CAPACITY))
            count += tl.sum(counts)
    return count


@triton.jit
def rows_kernel(
    logits, temperatures, top_ks, top_ps, min_ps, noise, maxima, sums, tokens, bad, bests, totals, lengths, listed, ids,
    stride, num_tiles,
    table, table_stride, shaped, ends, inputs, guessed, results, results_stride, masks, masks_stride, masked,
    WIDTH: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr, GROUP: tl.constexpr, CAPACITY: tl.constexpr,
    DROP: tl.constexpr,
):  # fmt: skip
    """One row: `bad` (2: finite, but nothing is left of it), and `tokens` unless the row has limits. Then `lengths` int32 says
    how many candidates there are (0: the
    row is done; above CAPACITY: it is to be read itself), `listed` and `ids` [n, CAPACITY] hold them, `bests` float32 the largest
    logit, and `totals` int64 what the row weighs where only top-p limits it."""
    row = tl.program_id(0)
    temperature = tl.load(temperatures + row)
    tl.store(lengths + row, 0)
    if temperature >= 0.0:
        wide = row.to(tl.int64)
        line, own_sums = logits + wide * stride, sums + wide * num_tiles
        shape = row_shape(
            table, table_stride, shaped, ends, inputs, guessed, results, results_stride, masks, masks_stride, masked, row, WIDTH,
        )  # fmt: skip
        tile = tl.arange(0, TILES)
        peaks = tl.load(maxima + wide * num_tiles + tile, mask=tile < num_tiles, other=float("-inf"))
        best = tl.max(peaks)
        wrong = tl.abs(best) == float("inf")
        emptied = (shape[1] | shape[5]) & (best == float("-inf"))
        tl.store(bad + row, wrong.to(tl.int8) + emptied.to(tl.int8))
        top_k, top_p, min_p = tl.load(top_ks + row), tl.load(top_ps + row), tl.load(min_ps + row)
        by_k = (top_k > 0) & (top_k < WIDTH)
        prefix = by_k | (min_p > 0.0)
        if wrong:
            tl.store(tokens + row, 0)
        elif temperature == 0.0:
            tl.store(tokens + row, _first_of_largest(line, shape, peaks, best, WIDTH, TILE, TILES))
        elif (prefix == 0) & (top_p >= 1.0):
            token = _draw_from_tiles(
                line, shape, peaks, maxima + wide * num_tiles, own_sums, temperature, tl.load(noise + row), best,
                WIDTH, TILE, TILES,
            )  # fmt: skip
            tl.store(tokens + row, token)
        else:
            tl.store(bests + row, best)
            cut = _floor(best, temperature, min_p)
            if by_k:
                cut = tl.maximum(
                    cut, _kth_of(peaks, top_k, _dropped(shape, DROP), WIDTH, TILE, TILES).to(tl.float64)
                )
            if prefix == 0:
                total = tl.sum(_masses(peaks, own_sums, best, _scale(temperature), WIDTH, TILE, TILES))
                tl.store(totals + row, total)
                rare = (1.0 - top_p.to(tl.float64)) * (total.to(tl.float64) / ONE) / WIDTH * _SLACK
                cut = _floor(best, temperature, rare)
            # Logits of -inf weigh nothing: where a mask leaves fewer than top-k, they would fill the list.
            cut = tl.maximum(cut, _LEAST)
            length = _take_out(
                line, shape, peaks, cut, listed + wide * CAPACITY, ids + wide * CAPACITY, WIDTH, TILE, TILES, GROUP, CAPACITY
            )  # fmt: skip
            tl.store(lengths + row, length)


@triton.jit
def _listed(line, shape, listed, whole, at, length):
    """Logits of a list, float32: the whole row, or its candidates; -inf past the end."""
    if whole:
        values = load_logits(line, at, at < length, shape)
    else:
        values = tl.load(listed + at, mask=at < length, other=float("-inf"))
    return values


@triton.jit
def _amounts(
    line, shape, listed, whole, length, pivots, best, scale, floor, drop, WEIGH: tl.constexpr, LIST: tl.constexpr,
):  # fmt: skip
    """int64 [16]: how many of a list have a key of at least each of `pivots`; with WEIGH what those of them weigh that
    min-p's `floor` leaves."""
    sums = tl.zeros((16,), tl.int64)
    for first in range(0, length, LIST):
        at = first + tl.arange(0, LIST)
        values = _listed(line, shape, listed, whole, at, length)
        counted = at < length
        if WEIGH:
            counted &= values.to(tl.float64) >= floor
            amount = tl.where(counted, _integer(_share(values, best, scale)), 0)
        else:
            amount = counted.to(tl.int64)
        above = _key(values, drop)[None, :] >= pivots[:, None]
        sums += tl.sum(tl.where(above, amount[None, :], 0), 1)
    return sums


@triton.jit
def _threshold(
    line, shape, listed, whole, length, goal, best, scale, floor, drop, WEIGH: tl.constexpr, LIST: tl.constexpr,
):  # fmt: skip
    """The largest key with at least `goal`, float64, of the list at or above it; the list must have as much."""
    bound = tl.full((), 0, tl.uint32)
    for digit in range((32 - drop) // 4):
        shift = 28 - drop - 4 * digit
        pivots = bound + (tl.arange(0, 16).to(tl.uint32) << shift)
        amounts = _amounts(
            line, shape, listed, whole, length, pivots, best, scale, floor, drop, WEIGH, LIST
        )  # fmt: skip
        bound += (tl.sum((amounts.to(tl.float64) >= goal).to(tl.int32)) - 1).to(tl.uint32) << shift
    return bound


@triton.jit
def _draw_from_list(
    line, shape, listed, whole, length, least, ties, total, u, best, scale, floor, drop, LIST: tl.constexpr,
):  # fmt: skip
    """The place in the list of the drawn token: of keys above `least`, and of the first `ties` equal to it, which weigh
    `total` together."""
    goal = _goal(u, total)
    place, num_ties = tl.full((), 0, tl.int32), tl.full((), 0, tl.int32)
    before = tl.full((), 0, tl.int64)
    for first in range(0, length, LIST):
        at = first + tl.arange(0, LIST)
        values = _listed(line, shape, listed, whole, at, length)
        key = _key(values, drop)
        tie = ((key == least) & (at < length)).to(tl.int32)
        stays = (key > least) | ((tie > 0) & (num_ties + tl.cumsum(tie, 0) <= ties))
        stays &= (at < length) & (values.to(tl.float64) >= floor)
        weight = tl.where(stays, _integer(_share(values, best, scale)), 0)
        passed = (before + tl.cumsum(weight, 0) <= goal) & (at < length)
        place += tl.sum(passed.to(tl.int32))
        before += tl.sum(weight)
        num_ties += tl.sum(tie)
    return place


@triton.jit
def limits_kernel(
    logits, temperatures, top_ks, top_ps, min_ps, noise, tokens, bests, totals, lengths, listed, ids, stride,
    table, table_stride, shaped, ends, inputs, guessed, results, results_stride, masks, masks_stride, masked,
    WIDTH: tl.constexpr, CAPACITY: tl.constexpr, DROP: tl.constexpr, LIST: tl.constexpr,
):  # fmt: skip
    """The token of one row with limits, as `rows_kernel` left it. Then nothing else reads what shapes the row, and its input is
    counted."""
    row = tl.program_id(0)
    length = tl.load(lengths + row)
    shape = row_shape(
        table, table_stride, shaped, ends, inputs, guessed, results, results_stride, masks, masks_stride, masked, row, WIDTH,
    )  # fmt: skip
    if length > 0:
        wide = row.to(tl.int64)
        line, own = logits + wide * stride, listed + wide * CAPACITY
        whole = length > CAPACITY
        length = tl.where(whole, WIDTH, length)
        temperature, best = tl.load(temperatures + row), tl.load(bests + row)
        top_k, top_p, min_p = tl.load(top_ks + row), tl.load(top_ps + row), tl.load(min_ps + row)
        scale, floor = _scale(temperature), _floor(best, temperature, min_p)
        by_k = (top_k > 0) & (top_k < WIDTH)
        drop = _dropped(shape, DROP)
        least = tl.full((), 0, tl.uint32)
        if by_k:
            # Where min-p's cut is the higher one, the list may have fewer.
            goal = tl.minimum(top_k, length).to(tl.float64)
            least = _threshold(line, shape, own, whole, length, goal, best, scale, floor, drop, False, LIST)
        pivots = least + tl.zeros((16,), tl.uint32)
        total = tl.max(
            _amounts(line, shape, own, whole, length, pivots, best, scale, floor, drop, True, LIST)
        )
        ties = tl.full((), WIDTH, tl.int32)
        if top_p < 1.0:
            weight = total
            if (by_k | (min_p > 0.0)) == 0:
                weight = tl.load(totals + row)
            # At least one token stays; what rounding asks beyond the candidates, they do not have.
            goal = tl.minimum(top_p.to(tl.float64) * weight.to(tl.float64), total.to(tl.float64))
            goal = tl.maximum(goal, 1.0)
            least = _threshold(line, shape, own, whole, length, goal, best, scale, floor, drop, True, LIST)
            # Of the tokens at the border, all of one weight, those stay that begin before the goal.
            pivots = least + (tl.arange(0, 16) > 0).to(tl.uint32)
            weights = _amounts(line, shape, own, whole, length, pivots, best, scale, floor, drop, True, LIST)
            counts = _amounts(line, shape, own, whole, length, pivots, best, scale, floor, drop, False, LIST)
            above, equal = tl.min(weights), (tl.max(counts) - tl.min(counts)).to(tl.int32)
            each = (tl.max(weights) - above) // equal
            ties = tl.ceil((goal - above.to(tl.float64)) / each.to(tl.float64)).to(tl.int32)
            ties = tl.minimum(tl.maximum(ties, 1), equal)
            total = above + each * ties
        u = tl.load(noise + row)
        place = _draw_from_list(
            line, shape, own, whole, length, least, ties, total, u, best, scale, floor, drop, LIST
        )  # fmt: skip
        if whole:
            token = place
        else:
            token = tl.load(ids + wide * CAPACITY + place)
        tl.store(tokens + row, token)
    if shape[1]:
        tl.debug_barrier()  # another warp may still read
        count_input(shape)
