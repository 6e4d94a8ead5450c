"""A mixture of experts in four launches and the router's product, none of which waits for the host.

    route      logits [T, experts] -> each token's top_k experts and their weights, and how many of a block's tokens chose each
    place      a pair is (token, choice), numbered token * top_k + choice: pairs in order of experts, filled up to whole tiles

                   pairs    3 9 - - | 0 4 5 7 | 8 - - -     -: no pair (the number of pairs)
                   owners      0    |    2    |    2        the expert of each tile
                   count       3                            no token chose expert 1

    product    a tile's rows times its expert's weights: gate and up with the activation, then down with the weights of the router
    add_up     a token's top_k results, in the order of its choices

Grids are bounded by the most that T tokens can need; programs past `count`, which only the device knows, exit at once. The
launches therefore depend on T alone and can be captured in a graph. No sum uses atomics: the same inputs give the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from executors.kernels.triton.activation import CLAMPED, EXPERT_KINDS, activate, clamped
from executors.kernels.triton.tuning import Choice, choose

_MAX_BLOCKS = 128
"""Number of blocks of tokens that `route` processes at once: `place` reads the counts of all."""
_MAX_SPLITS, _SPLIT_PAIRS = 16, 4096
"""Largest number of programs that share the search for an expert's pairs, and the number of pairs below which there is one."""
_CHUNK = 1024


# Numbers of tokens take any value: a kernel compiled for some of them would be compiled while requests wait.
@triton.jit(do_not_specialize=["tokens", "rounds"])
def _route_kernel(
    logits, chosen, shares, counts, tokens, rounds,
    EXPERTS: tl.constexpr, PAD: tl.constexpr, TOP_K: tl.constexpr, K_PAD: tl.constexpr, ROWS: tl.constexpr,
    NORMALIZED: tl.constexpr,
):  # fmt: skip
    """`rounds` times ROWS tokens."""
    block = tl.program_id(0)
    experts = tl.arange(0, PAD)[None, :]
    places = tl.arange(0, K_PAD)[None, :]
    taken_by = tl.zeros((PAD,), tl.int32)
    for turn in range(rounds):
        row = (block * rounds + turn) * ROWS + tl.arange(0, ROWS)[:, None]
        there = row < tokens
        real = experts < EXPERTS
        logit = tl.load(logits + row.to(tl.int64) * EXPERTS + experts, mask=there & real, other=0.0).to(
            tl.float32
        )
        logit = tl.where(real, logit, float("-inf"))
        powers = tl.exp(logit - tl.max(logit, 1)[:, None])
        softmax = powers / tl.sum(powers, 1)[:, None]
        # Whatever the logits are, NaN (unequal to itself) too, an expert is chosen once: minus infinity is for those that
        # cannot be.
        rank = tl.maximum(tl.where(logit == logit, logit, -3.0e38), -3.0e38)
        rank = tl.where(real, rank, float("-inf"))
        best = tl.zeros((ROWS, K_PAD), tl.int32)
        share = tl.zeros((ROWS, K_PAD), tl.float32)
        for place in range(TOP_K):
            winner = tl.argmax(rank, 1)[:, None]
            wins = experts == winner
            best = tl.where(places == place, winner, best)
            share = tl.where(places == place, tl.sum(tl.where(wins, softmax, 0.0), 1)[:, None], share)
            rank = tl.where(wins, float("-inf"), rank)
        if NORMALIZED:
            share = share / tl.sum(share, 1)[:, None]
        is_chosen = there & (places < TOP_K)
        tl.store(chosen + row * TOP_K + places, best, mask=is_chosen)
        tl.store(shares + row * TOP_K + places, share, mask=is_chosen)
        taken_by += tl.sum((there & real & (rank == float("-inf"))).to(tl.int32), 0)
    every = tl.arange(0, PAD)
    tl.store(counts + block * EXPERTS + every, taken_by, mask=every < EXPERTS)


@triton.jit(do_not_specialize=["blocks", "blocks_per_split", "pairs_per_block", "num_pairs"])
def _place_kernel(
    chosen, counts, pairs, owners, count, blocks, blocks_per_split, pairs_per_block, num_pairs,
    EXPERTS: tl.constexpr, PAD: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """Place one expert's pairs among those of `blocks_per_split` blocks; the first split also fills up the expert's last
    tile."""
    expert = tl.program_id(0)
    split = tl.program_id(1)
    experts = tl.arange(0, PAD)
    totals = tl.zeros((PAD,), tl.int32)
    before = tl.zeros((PAD,), tl.int32)
    for start in range(0, blocks, BLOCKS):
        block = start + tl.arange(0, BLOCKS)[:, None]
        at = counts + block * EXPERTS + experts[None, :]
        part = tl.load(at, mask=(block < blocks) & (experts[None, :] < EXPERTS), other=0)
        totals += tl.sum(part, 0)
        before += tl.sum(tl.where(block < split * blocks_per_split, part, 0), 0)
    tiles = (totals + ROWS - 1) // ROWS
    first_tile = tl.sum(tl.where(experts < expert, tiles, 0), 0)
    own_tiles = tl.sum(tl.where(experts == expert, tiles, 0), 0)
    own = tl.sum(tl.where(experts == expert, totals, 0), 0)
    slot = first_tile * ROWS + tl.sum(tl.where(experts == expert, before, 0), 0)

    begin = split * blocks_per_split * pairs_per_block
    end = tl.minimum(begin + blocks_per_split * pairs_per_block, num_pairs)
    for start in range(begin, end, CHUNK):
        pair = start + tl.arange(0, CHUNK)
        hit = tl.load(chosen + pair, mask=pair < end, other=-1) == expert
        number = tl.cumsum(hit.to(tl.int32), 0)
        tl.store(pairs + slot + number - 1, pair, mask=hit)
        slot += tl.sum(hit.to(tl.int32), 0)
    if split == 0:
        idle = own + tl.arange(0, ROWS)
        tl.store(pairs + first_tile * ROWS + idle, num_pairs, mask=idle < own_tiles * ROWS)
        for start in range(0, own_tiles, CHUNK):
            tile = start + tl.arange(0, CHUNK)
            tl.store(owners + first_tile + tile, expert, mask=tile < own_tiles)
        if expert == EXPERTS - 1:
            tl.store(count, first_tile + own_tiles)


@triton.jit
def _fp4(code):
    """float32: twice e2m1, 0 to 3, then 2 or 3 times a power of two; the eighth bit is the sign."""
    size = code & 7
    value = tl.where(size < 4, size, (2 + (size & 1)) << (tl.maximum(size >> 1, 1) - 1))
    return tl.where(code > 7, -value, value).to(tl.float32)


@triton.jit
def _fp4_product(
    a_at, codes, scales, row, real, is_row, total,
    DEPTH: tl.constexpr, ROWS: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr,
):  # fmt: skip
    """`total` plus products with weights in MXFP4 as device_layouts.py has them: of every 32 columns those in the low halves of
    bytes, and then those in the high halves. `a_at`: the tile's rows of x; `row`: those of the weights, int64."""
    BLOCKS: tl.constexpr = TILE_K // 32
    HALF: tl.constexpr = TILE_K // 2
    place = tl.arange(0, HALF)
    column = place // 16 * 32 + place % 16
    for start in range(0, DEPTH, TILE_K):
        there = (start + column < DEPTH)[:, None] & is_row[None, :]
        byte_at = codes + row[None, :] * (DEPTH // 2) + (start // 2 + place)[:, None]
        byte = tl.load(byte_at, mask=there, other=0).to(tl.int32)
        block = start // 32 + tl.arange(0, BLOCKS)
        scale = tl.load(
            scales + row[None, :] * (DEPTH // 32) + block[:, None],
            mask=(block < DEPTH // 32)[:, None] & is_row[None, :], other=0.0,
        )  # fmt: skip
        scale = tl.reshape(tl.broadcast_to(scale[:, None, :], (BLOCKS, 16, TILE_N)), (HALF, TILE_N))
        for half in tl.static_range(2):
            inside = real[:, None] & (start + column + 16 * half < DEPTH)[None, :]
            a = tl.load(a_at + (start + column + 16 * half)[None, :], mask=inside, other=0.0)
            b = (_fp4((byte >> (4 * half)) & 15) * scale).to(a.dtype)
            total = tl.dot(a, b, total, input_precision="ieee")
    return total


@triton.jit(do_not_specialize=["num_pairs"])
def _product_kernel(
    x, weights, scales, bias, out, shares, pairs, owners, count, num_pairs,
    COLUMNS: tl.constexpr, DEPTH: tl.constexpr, TOP_K: tl.constexpr, KIND: tl.constexpr, GATED: tl.constexpr,
    ALPHA: tl.constexpr, LIMIT: tl.constexpr, FP4: tl.constexpr, BIAS: tl.constexpr,
    DIRECT: tl.constexpr, ROWS: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """ROWS pairs of one expert by TILE_N rows of its weights [COLUMNS, DEPTH], plus `bias` if BIAS.

    GATED: the weights alternate rows of gate and of up, so that factors are adjacent in the result; x has a row per token.
    Otherwise x has a row per pair, and results are multiplied by `shares`. FP4: `weights` are codes with `scales`. DIRECT: one
    tile for each pair.
    """
    program = tl.program_id(0)
    PARTS: tl.constexpr = (COLUMNS + TILE_N - 1) // TILE_N
    WIDTH: tl.constexpr = COLUMNS // 2 if GATED else COLUMNS
    within = program % (GROUP * PARTS)
    tile = program // (GROUP * PARTS) * GROUP + within % GROUP
    part = within // GROUP
    there = num_pairs if DIRECT else tl.load(count)
    if tile >= there:
        return
    lanes = tl.arange(0, ROWS)
    pair = tl.where(lanes == 0, tile, num_pairs) if DIRECT else tl.load(pairs + tile * ROWS + lanes)
    real = pair < num_pairs
    source = pair // TOP_K if GATED else pair
    columns = part * TILE_N + tl.arange(0, TILE_N)
    row = columns // 2 + columns % 2 * (COLUMNS // 2) if GATED else columns
    depth = tl.arange(0, TILE_K)
    expert = tl.load(owners + tile).to(tl.int64)
    a_at = x + source.to(tl.int64)[:, None] * DEPTH + depth[None, :]
    b_at = weights + expert * (COLUMNS * DEPTH) + row[None, :] * DEPTH + depth[:, None]
    total = tl.zeros((ROWS, TILE_N), tl.float32)
    if FP4:
        of_row = x + source.to(tl.int64)[:, None] * DEPTH
        of_expert = expert * COLUMNS + row
        total = _fp4_product(
            of_row, weights, scales, of_expert, real, columns < COLUMNS, total, DEPTH, ROWS, TILE_N, TILE_K
        )
    else:
        for start in range(0, DEPTH, TILE_K):
            if DEPTH % TILE_K == 0:
                a_mask, b_mask = real[:, None], (columns < COLUMNS)[None, :]
            else:
                inside = start + depth < DEPTH
                a_mask, b_mask = (
                    real[:, None] & inside[None, :],
                    (columns < COLUMNS)[None, :] & inside[:, None],
                )
            a = tl.load(a_at + start, mask=a_mask, other=0.0)
            if COLUMNS % TILE_N == 0 and DEPTH % TILE_K == 0:
                b = tl.load(b_at + start)
            else:
                b = tl.load(b_at + start, mask=b_mask, other=0.0)
            total = tl.dot(a, b, total, input_precision="ieee")
    if BIAS:
        added = tl.load(bias + expert * COLUMNS + row, mask=columns < COLUMNS, other=0.0)
        total += added.to(tl.float32)[None, :]
    if GATED:
        gate, up = tl.split(tl.reshape(total, (ROWS, TILE_N // 2, 2)))
        if LIMIT > 0.0:
            result = clamped(gate, up, ALPHA, LIMIT)
        else:
            result = activate(gate, KIND) * up
        place = part * (TILE_N // 2) + tl.arange(0, TILE_N // 2)
    else:
        result = total * tl.load(shares + pair, mask=real, other=0.0)[:, None]
        place = columns
    at = out + pair.to(tl.int64)[:, None] * WIDTH + place[None, :]
    tl.store(at, result.to(out.dtype.element_ty), mask=real[:, None] & (place < WIDTH)[None, :])


@triton.jit
def _add_up_kernel(parts, out, WIDTH: tl.constexpr, TOP_K: tl.constexpr, TILE: tl.constexpr):
    """TILE elements of one token."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * TILE + tl.arange(0, TILE)
    there = columns < WIDTH
    total = tl.zeros((TILE,), tl.float32)
    for choice in tl.static_range(TOP_K):
        total += tl.load(parts + (row * TOP_K + choice) * WIDTH + columns, mask=there, other=0.0).to(
            tl.float32
        )
    tl.store(out + row * WIDTH + columns, total.to(out.dtype.element_ty), mask=there)


@dataclass(frozen=True, slots=True)
class Routing:
    """Result of routing. `chosen` int32 and `shares` float32 [T, top_k], best first; `counts` int32 [blocks, experts]: how
    many tokens of each block of `block_tokens` tokens chose each expert."""

    chosen: torch.Tensor
    shares: torch.Tensor
    counts: torch.Tensor
    block_tokens: int


@dataclass(frozen=True, slots=True)
class ExpertWeights:
    """One linear layer of all experts; its tensors are contiguous.

    `numbers` [experts, rows, columns] in the dtype of activations; or, with `scales`, codes of MXFP4, uint8 [experts, rows,
    columns / 2], and float32 [experts, rows, columns / 32], see `device_layouts.py`. `bias` [experts, rows] or None.
    """

    numbers: torch.Tensor
    scales: torch.Tensor | None = None
    bias: torch.Tensor | None = None

    @property
    def columns(self) -> int:
        """Columns of a row."""
        return self.numbers.shape[2] * (1 if self.scales is None else 2)


@dataclass(frozen=True, slots=True)
class Placing:
    """Tiles of pairs. `pairs` int32 [max_tiles * rows of a tile] and `owners` int32 [max_tiles] as drawn above; `count` int32
    [1] tiles are valid. `direct`: one tile for each pair, whose expert is in `owners`; `pairs` and `count` are unused then."""

    pairs: torch.Tensor
    owners: torch.Tensor
    count: torch.Tensor
    max_tiles: int
    direct: bool


def route(logits: torch.Tensor, top_k: int, normalized: bool) -> Routing:
    """Return the `top_k` largest of the softmax over `logits` [T, experts], of any float dtype, contiguous, T > 0; with
    `normalized` divided by their sum. Of equal logits the first wins. A row with a NaN gets NaN weights and still valid
    experts."""
    tokens, experts = logits.shape
    pad = triton.next_power_of_2(experts)
    rows = max(1, min(16, 1024 // pad))
    rounds = triton.cdiv(tokens, rows * _MAX_BLOCKS)
    blocks = triton.cdiv(tokens, rows * rounds)
    chosen = torch.empty(tokens, top_k, dtype=torch.int32, device=logits.device)
    shares = torch.empty(tokens, top_k, dtype=torch.float32, device=logits.device)
    counts = torch.empty(blocks, experts, dtype=torch.int32, device=logits.device)
    _route_kernel[(blocks,)](
        logits, chosen, shares, counts, tokens, rounds, EXPERTS=experts, PAD=pad, TOP_K=top_k,
        K_PAD=triton.next_power_of_2(top_k), ROWS=rows, NORMALIZED=normalized, num_warps=4,
    )  # fmt: skip
    return Routing(chosen, shares, counts, rows * rounds)


def most_tiles(num_pairs: int, experts: int, rows: int) -> int:
    """Return the largest number of tiles of `rows` pairs: every chosen expert may leave all but one row of a tile idle."""
    return (num_pairs + min(experts, num_pairs) * (rows - 1)) // rows


def place(routing: Routing, rows: int) -> Placing:
    """Return tiles of `rows` pairs, a power of two, each of one expert."""
    chosen, counts = routing.chosen, routing.counts
    num_pairs, (blocks, experts) = chosen.numel(), counts.shape
    bound = most_tiles(num_pairs, experts, rows)
    # Each part at a multiple of 16 bytes: the compiler asks whether pointers are.
    packed = torch.empty(4 + (rows + 1) * bound, dtype=torch.int32, device=chosen.device)
    count, pairs, owners = packed[:1], packed[4 : 4 + rows * bound], packed[4 + rows * bound :]
    blocks_per_split = triton.cdiv(blocks, min(_MAX_SPLITS, triton.cdiv(num_pairs, _SPLIT_PAIRS)))
    pad = triton.next_power_of_2(experts)
    _place_kernel[(experts, triton.cdiv(blocks, blocks_per_split))](
        chosen, counts, pairs, owners, count, blocks, blocks_per_split, routing.block_tokens * chosen.shape[1], num_pairs,
        EXPERTS=experts, PAD=pad, ROWS=rows, CHUNK=_CHUNK, BLOCKS=max(1, min(32, 2048 // pad)), num_warps=4,
    )  # fmt: skip
    return Placing(pairs, owners, count, bound, direct=False)


def place_directly(routing: Routing) -> Placing:
    """Return one tile for each pair: there is nothing to sort, and weights are read once per pair. Suitable for few tokens."""
    chosen = routing.chosen
    return Placing(chosen, chosen, chosen, chosen.numel(), direct=True)


def product(
    x: torch.Tensor, weights: ExpertWeights, routing: Routing, placing: Placing, tile: Choice, activation: str | None,
    clamp: tuple[float, float] = (0.0, 0.0),
) -> torch.Tensor:  # fmt: skip
    """Multiply each pair's row by its expert's weights. `x` is contiguous; sums are float32. Weights in MXFP4 are rounded to the
    dtype of x, which holds them exactly but at its limits.

    With `activation` (one of `EXPERT_KINDS`) x is [T, hidden], the weights [experts, 2 * inner, hidden]: act(gate(x)) * up(x)
    [T * top_k, inner]. Without, x is [T * top_k, inner], the weights [experts, hidden, inner], and the result [T * top_k,
    hidden] is multiplied by the pairs' `shares`. `clamp`: alpha and limit of the activation "clamped_swiglu".

    `tile`: `rows` pairs by `outputs` rows of weights, `depth` elements at a time, all powers of two of at least 16; `group` tiles
    that are neighbours in `pairs` run at once over the same weights.
    """
    columns, depth = weights.numbers.shape[1], weights.columns
    num_pairs, top_k = routing.chosen.numel(), routing.chosen.shape[1]
    gated = activation is not None
    out = torch.empty(num_pairs, columns // 2 if gated else columns, dtype=x.dtype, device=x.device)
    tile_n = max(16, min(tile.outputs, triton.next_power_of_2(columns)))
    tile_k = max(16 if weights.scales is None else 32, min(tile.depth, triton.next_power_of_2(depth)))
    grid = triton.cdiv(placing.max_tiles, tile.group) * tile.group * triton.cdiv(columns, tile_n)
    kind = 0 if activation is None else EXPERT_KINDS[activation]
    alpha, limit = clamp if kind == CLAMPED else (0.0, 0.0)
    _product_kernel[(grid,)](
        x, weights.numbers, weights.scales, weights.bias, out, routing.shares, placing.pairs, placing.owners, placing.count,
        num_pairs,
        COLUMNS=columns, DEPTH=depth, TOP_K=top_k, KIND=kind, GATED=gated, ALPHA=alpha, LIMIT=limit,
        FP4=weights.scales is not None, BIAS=weights.bias is not None,
        DIRECT=placing.direct, ROWS=tile.rows, TILE_N=tile_n, TILE_K=tile_k, GROUP=tile.group,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return out


def add_up(parts: torch.Tensor, tokens: int) -> torch.Tensor:
    """Return [T, width], the sums of `parts` [T * top_k, width], contiguous, in float32 and always in the same order."""
    width = parts.shape[1]
    out = torch.empty(tokens, width, dtype=parts.dtype, device=parts.device)
    choice = choose("experts_sum", "", "")
    tile = min(choice.outputs, triton.next_power_of_2(width))
    _add_up_kernel[(tokens, triton.cdiv(width, tile))](
        parts, out, WIDTH=width, TOP_K=len(parts) // tokens, TILE=tile, num_warps=choice.warps
    )
    return out
