"""Chooses a token for each row of logits with three kernels, without a sort and without the host.

    tiles     (tile, row)  largest logit of each tile, and the weight of a tile relative to its own largest: one pass
    rows      (row)        greedy and unlimited rows: their token. Others: a lower bound of all that their limits can leave,
                           and the candidates above it, taken out of the row in the vocabulary's order
    limits    (row)        top-k, top-p and min-p among the candidates (or in the row, if there are too many), and the token

All kernels read logits through `load_logits`, which finds logits that penalties, biases and bans have changed.

Programs of a finished row exit at once. The weights of a row are integers, multiples of 1 / `ONE` of the largest. Their sums
are exact in any order, so a token without weight is never drawn, and a row does not depend on its batch.

The k-th largest logit, and the smallest one of a top-p set, are found by radix selection (Knuth, vol. 3, 5.2.5, from the top
digit): the amount at or above each of 16 numbers determines four more bits of the result. Top-p is cut before the search: all
tokens of less than (1 - p) / V of the weight have less than 1 - p of it together.
"""

from __future__ import annotations

import triton
import triton.language as tl

from executors.kernels.triton.shaping import count_input, load_logits, row_shape, shape_logits

ONE = tl.constexpr(2.0**42)
"""Weight of the largest logit. A row has at most 2^20 tokens, so a sum takes 62 bits."""
_MIN_TEMPERATURE = tl.constexpr(1e-8)
"""Smallest temperature. Below it the weight of every other token is 0 anyway; dividing by less would overflow."""
_LOG2E = tl.constexpr(1.4426950408889634)
_PIECE = tl.constexpr(1024)
"""Number of logits shaped at a time."""
_SLACK = tl.constexpr(0.999)
"""Factor of top-p's cut, a margin far larger than the rounding error of a sum."""


@triton.jit
def _scale(temperature):
    """Return the factor that turns a difference of logits into an exponent of 2, float32."""
    return _LOG2E / tl.maximum(temperature.to(tl.float32), _MIN_TEMPERATURE)


@triton.jit
def _share(values, best, scale):
    """Return weights relative to `best`'s, float32, 0 to 1; exactly 1 where a value reaches `best`."""
    return tl.exp2(tl.minimum(values - best, 0.0) * scale)


@triton.jit
def _integer(share):
    """Return a weight as int64."""
    return (share * ONE).to(tl.int64)


@triton.jit
def _goal(u, total):
    """Return the sum that the drawn token is the first to exceed: int64, below `total` > 0."""
    return tl.minimum((u * total.to(tl.float64)).to(tl.int64), total - 1)


@triton.jit
def _key(values, drop):
    """Return uint32 in the order of float32 `values`, equal for 0 and -0, without the lowest `drop` bits."""
    bits = values.to(tl.uint32, bitcast=True)
    bits = tl.where(values == 0.0, 0, bits)
    return tl.where(bits >= 0x80000000, bits ^ 0xFFFFFFFF, bits | 0x80000000) >> drop


@triton.jit
def _dropped(shape, DROP: tl.constexpr):
    """Return the number of lowest bits that do not distinguish a row's logits, uint32: DROP for its dtype; shaped logits use
    all bits."""
    return tl.where(shape[1], 0, DROP).to(tl.uint32)


@triton.jit
def tiles_kernel(
    logits, temperatures, top_ks, min_ps, maxima, sums, stride, num_tiles, table, table_stride, shaped, ends, inputs,
    WIDTH: tl.constexpr, TILE: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """PARTS tiles of one row: `maxima` (inf where a logit is NaN) and, where the row needs it, `sums`, float32 [n, tiles]."""
    row = tl.program_id(1)
    temperature = tl.load(temperatures + row)
    if temperature >= 0.0:
        tile = tl.program_id(0) * PARTS + tl.arange(0, PARTS)
        at = tile[:, None] * TILE + tl.arange(0, TILE)[None, :]
        line = logits + row.to(tl.int64) * stride
        shape = row_shape(table, table_stride, shaped, ends, inputs, row)
        if shape[1]:
            first = tl.program_id(0) * PARTS * TILE
            shape_logits(line, first, shape, PARTS * TILE, min(PARTS * TILE, _PIECE), WIDTH)
        values = load_logits(line, at, at < WIDTH, shape, WIDTH)
        values = tl.where(values != values, float("inf"), values)
        peak = tl.max(values, 1)
        into = row.to(tl.int64) * num_tiles + tile
        tl.store(maxima + into, peak, mask=tile < num_tiles)
        top_k = tl.load(top_ks + row)
        # Of what top-k and min-p leave, all is among the candidates: nobody asks what the row weighs.
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
    """Draw a token of the whole distribution: first the tile by the tiles' weights, then the token inside. `peaks` [TILES]
    are those of the row; `maxima` and `sums` point to the row's data in memory."""
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
    values = load_logits(line, at, at < WIDTH, shape, WIDTH)
    inside = _integer(_share(values, tl.load(maxima + chosen), scale))
    rest = (u * total.to(tl.float64) - before.to(tl.float64)) / own.to(tl.float64)
    goal_inside = _goal(tl.maximum(rest, 0.0), tl.sum(inside))
    return chosen * TILE + tl.sum((tl.cumsum(inside, 0) <= goal_inside).to(tl.int32))


@triton.jit
def _masses(peaks, sums, best, scale, WIDTH: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr):
    """Return the weights of a row's tiles, int64 [TILES]; a tile without weight has 0."""
    tile = tl.arange(0, TILES)
    weight = tl.load(sums + tile, mask=tile * TILE < WIDTH, other=0.0)
    return (weight.to(tl.float64) * _share(peaks, best, scale).to(tl.float64) * ONE).to(tl.int64)


@triton.jit
def _first_of_largest(
    line, shape, peaks, best, WIDTH: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr
):  # fmt: skip
    """Return the lowest id of the largest logit."""
    tile = tl.min(tl.where(peaks == best, tl.arange(0, TILES), TILES))
    at = tile * TILE + tl.arange(0, TILE)
    values = load_logits(line, at, at < WIDTH, shape, WIDTH)
    return tl.min(tl.where((values == best) & (at < WIDTH), at, WIDTH - 1))


@triton.jit
def _kth_of(
    peaks, k, drop, WIDTH: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr
):  # fmt: skip
    """Return the k-th largest of a row's maxima, float32: at least k logits are no smaller. -inf if there are fewer tiles."""
    keys = _key(peaks, drop)
    there = tl.arange(0, TILES) * TILE < WIDTH
    found = tl.full((), 0, tl.uint32)
    if tl.sum(there.to(tl.int32)) >= k:
        for digit in range((32 - drop) // 4):
            shift = 28 - drop - 4 * digit
            pivots = found + (tl.arange(0, 16).to(tl.uint32) << shift)
            counts = tl.sum(((keys[None, :] >= pivots[:, None]) & there[None, :]).to(tl.int32), 1)
            found += (tl.sum((counts >= k).to(tl.int32)) - 1).to(tl.uint32) << shift
        cut = tl.min(tl.where((keys >= found) & there, peaks, float("inf")))
    else:
        cut = tl.full((), float("-inf"), tl.float32)
    return cut


@triton.jit
def _floor(best, temperature, share):
    """Return the logit, float64, whose weight is `share` of the largest one's; -inf for a share of 0."""
    bounded = tl.where(share > 0.0, share, 1.0).to(tl.float64)
    under = tl.log(bounded) * tl.maximum(temperature.to(tl.float32), _MIN_TEMPERATURE).to(tl.float64)
    return tl.where(share > 0.0, best.to(tl.float64) + under, float("-inf"))


@triton.jit
def _take_out(
    line, shape, peaks, cut, kept, ids, WIDTH: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr, GROUP: tl.constexpr,
    CAPACITY: tl.constexpr,
):  # fmt: skip
    """Write logits of at least `cut` and their ids, in the vocabulary's order, to `kept` float32 and `ids` int32. Return
    their number, or a number above CAPACITY if they do not fit. Tiles without any are not read."""
    tile = tl.arange(0, TILES)
    holds = (peaks.to(tl.float64) >= cut) & (tile * TILE < WIDTH)
    place = tl.cumsum(holds.to(tl.int32), 0) - 1
    many = tl.sum(holds.to(tl.int32))
    found = tl.full((), 0, tl.int32)
    for first in range(0, many, GROUP):
        if found <= CAPACITY:
            wanted = first + tl.arange(0, GROUP)
            match = (place[None, :] == wanted[:, None]) & holds[None, :]
            named = tl.sum(tl.where(match, tile[None, :], 0), 1)
            at = named[:, None] * TILE + tl.arange(0, TILE)[None, :]
            real = (wanted < many)[:, None] & (at < WIDTH)
            values = load_logits(line, at, real, shape, WIDTH)
            stays = real & (values.to(tl.float64) >= cut)
            counts = tl.sum(stays.to(tl.int32), 1)
            before = found + tl.cumsum(counts, 0) - counts
            into = before[:, None] + tl.cumsum(stays.to(tl.int32), 1) - 1
            tl.store(kept + into, values, mask=stays & (into < CAPACITY))
            tl.store(ids + into, at, mask=stays & (into < CAPACITY))
            found += tl.sum(counts)
    return found


@triton.jit
def rows_kernel(
    logits, temperatures, top_ks, top_ps, min_ps, noise, maxima, sums, tokens, bad, bests, totals, lengths, kept, ids,
    stride, num_tiles, table, table_stride, shaped, ends, inputs,
    WIDTH: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr, GROUP: tl.constexpr, CAPACITY: tl.constexpr,
    DROP: tl.constexpr,
):  # fmt: skip
    """One row: writes `bad` (2: finite, but every token is forbidden), and `tokens` unless the row has limits.

    `lengths` int32 is the number of candidates of a row with limits (0: the row is done; above CAPACITY: the row itself is
    read), `kept` and `ids` [n, CAPACITY] hold them, `bests` float32 is the largest logit, and `totals` int64 is the row's
    weight if only top-p limits it.
    """
    row = tl.program_id(0)
    temperature = tl.load(temperatures + row)
    tl.store(lengths + row, 0)
    if temperature >= 0.0:
        wide = row.to(tl.int64)
        line, own_sums = logits + wide * stride, sums + wide * num_tiles
        shape = row_shape(table, table_stride, shaped, ends, inputs, row)
        tile = tl.arange(0, TILES)
        peaks = tl.load(maxima + wide * num_tiles + tile, mask=tile < num_tiles, other=float("-inf"))
        best = tl.max(peaks)
        wrong = tl.abs(best) == float("inf")
        emptied = shape[1] & (best == float("-inf"))
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
            found = _take_out(
                line, shape, peaks, cut, kept + wide * CAPACITY, ids + wide * CAPACITY, WIDTH, TILE, TILES, GROUP, CAPACITY
            )  # fmt: skip
            tl.store(lengths + row, found)


@triton.jit
def _listed(line, shape, kept, whole, at, length, WIDTH: tl.constexpr):
    """Return the logits of a list, float32: the whole row, or its candidates; -inf past the end."""
    if whole:
        values = load_logits(line, at, at < length, shape, WIDTH)
    else:
        values = tl.load(kept + at, mask=at < length, other=float("-inf"))
    return values


@triton.jit
def _amounts(
    line, shape, kept, whole, length, pivots, best, scale, floor, drop, WEIGH: tl.constexpr, LIST: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    """Return int64 [16]: how many entries of a list have a key of at least each of `pivots`; with WEIGH the weight of those
    that min-p's `floor` leaves."""
    found = tl.zeros((16,), tl.int64)
    for first in range(0, length, LIST):
        at = first + tl.arange(0, LIST)
        values = _listed(line, shape, kept, whole, at, length, WIDTH)
        counted = at < length
        if WEIGH:
            counted &= values.to(tl.float64) >= floor
            amount = tl.where(counted, _integer(_share(values, best, scale)), 0)
        else:
            amount = counted.to(tl.int64)
        above = _key(values, drop)[None, :] >= pivots[:, None]
        found += tl.sum(tl.where(above, amount[None, :], 0), 1)
    return found


@triton.jit
def _threshold(
    line, shape, kept, whole, length, goal, best, scale, floor, drop, WEIGH: tl.constexpr, LIST: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    """Return the largest key such that the list has at least `goal`, float64, at or above it; the list must have that much."""
    found = tl.full((), 0, tl.uint32)
    for digit in range((32 - drop) // 4):
        shift = 28 - drop - 4 * digit
        pivots = found + (tl.arange(0, 16).to(tl.uint32) << shift)
        amounts = _amounts(
            line, shape, kept, whole, length, pivots, best, scale, floor, drop, WEIGH, LIST, WIDTH
        )  # fmt: skip
        found += (tl.sum((amounts.to(tl.float64) >= goal).to(tl.int32)) - 1).to(tl.uint32) << shift
    return found


@triton.jit
def _draw_from_list(
    line, shape, kept, whole, length, least, ties, total, u, best, scale, floor, drop, LIST: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    """Return the place of the drawn token in the list: among keys above `least` and the first `ties` equal to it, which weigh
    `total` together."""
    goal = _goal(u, total)
    place, seen = tl.full((), 0, tl.int32), tl.full((), 0, tl.int32)
    before = tl.full((), 0, tl.int64)
    for first in range(0, length, LIST):
        at = first + tl.arange(0, LIST)
        values = _listed(line, shape, kept, whole, at, length, WIDTH)
        key = _key(values, drop)
        tie = ((key == least) & (at < length)).to(tl.int32)
        stays = (key > least) | ((tie > 0) & (seen + tl.cumsum(tie, 0) <= ties))
        stays &= (at < length) & (values.to(tl.float64) >= floor)
        weight = tl.where(stays, _integer(_share(values, best, scale)), 0)
        passed = (before + tl.cumsum(weight, 0) <= goal) & (at < length)
        place += tl.sum(passed.to(tl.int32))
        before += tl.sum(weight)
        seen += tl.sum(tie)
    return place


@triton.jit
def limits_kernel(
    logits, temperatures, top_ks, top_ps, min_ps, noise, tokens, bests, totals, lengths, kept, ids, stride,
    table, table_stride, shaped, ends, inputs,
    WIDTH: tl.constexpr, CAPACITY: tl.constexpr, DROP: tl.constexpr, LIST: tl.constexpr,
):  # fmt: skip
    """Choose the token of one row with limits, prepared by `rows_kernel`. Afterwards the row's shaping is no longer read, and
    its input is counted."""
    row = tl.program_id(0)
    length = tl.load(lengths + row)
    shape = row_shape(table, table_stride, shaped, ends, inputs, row)
    if length > 0:
        wide = row.to(tl.int64)
        line, own = logits + wide * stride, kept + wide * CAPACITY
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
            least = _threshold(
                line, shape, own, whole, length, goal, best, scale, floor, drop, False, LIST, WIDTH
            )
        pivots = least + tl.zeros((16,), tl.uint32)
        total = tl.max(
            _amounts(line, shape, own, whole, length, pivots, best, scale, floor, drop, True, LIST, WIDTH)
        )
        ties = tl.full((), WIDTH, tl.int32)
        if top_p < 1.0:
            weight = total
            if (by_k | (min_p > 0.0)) == 0:
                weight = tl.load(totals + row)
            # At least one token stays; what rounding asks beyond the candidates, they do not have.
            goal = tl.minimum(top_p.to(tl.float64) * weight.to(tl.float64), total.to(tl.float64))
            goal = tl.maximum(goal, 1.0)
            least = _threshold(
                line, shape, own, whole, length, goal, best, scale, floor, drop, True, LIST, WIDTH
            )
            # Of the tokens at the border, all of one weight, those stay that begin before the goal.
            pivots = least + (tl.arange(0, 16) > 0).to(tl.uint32)
            weights = _amounts(
                line, shape, own, whole, length, pivots, best, scale, floor, drop, True, LIST, WIDTH
            )
            counts = _amounts(
                line, shape, own, whole, length, pivots, best, scale, floor, drop, False, LIST, WIDTH
            )
            above, equal = tl.min(weights), (tl.max(counts) - tl.min(counts)).to(tl.int32)
            each = (tl.max(weights) - above) // equal
            ties = tl.ceil((goal - above.to(tl.float64)) / each.to(tl.float64)).to(tl.int32)
            ties = tl.minimum(tl.maximum(ties, 1), equal)
            total = above + each * ties
        u = tl.load(noise + row)
        place = _draw_from_list(
            line, shape, own, whole, length, least, ties, total, u, best, scale, floor, drop, LIST, WIDTH
        )  # fmt: skip
        if whole:
            token = place
        else:
            token = tl.load(ids + wide * CAPACITY + place)
        tl.store(tokens + row, token)
    if shape[1]:
        tl.debug_barrier()  # another warp may still read
        count_input(shape)
