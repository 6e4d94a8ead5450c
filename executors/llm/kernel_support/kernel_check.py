"""Checks that Cohort's own Triton kernels compute correct results on this device for this model: each kernel in use runs on
small inputs beside torch.

Compilers and drivers have given wrong results without an error, so launched kernels are checked as libraries are
(`attention/check.py`): at the start, on GPUs, in the shapes and dtypes of the model, because those decide what is compiled. A
kernel that fails is named, and torch computes in its place. The check uses random weights, so that a checkpoint's values do
not affect it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING

import torch

from executors.kernels.device_layouts import DeviceRows, table_of
from executors.kernels.device_layouts import widened as widened_rows
from executors.kernels.lora_tiles import FEW_ROWS, LoraMatrix, LoraTiles, in_tiles, tile_rows
from executors.kernels.shaping_layout import (
    BIASES,
    ENTRY_SHIFT,
    FREQUENCY,
    HEADER,
    IN_PROMPT,
    PRESENCE,
    REPETITION,
    UNTIL,
    result_words,
    row_words,
)
from executors.kernels.triton import fp8 as fp8_kernels
from executors.kernels.triton import stored as stored_kernels
from executors.kernels.triton.activation import gated
from executors.kernels.triton.decode_attention import tuned
from executors.kernels.triton.extend_attention import is_plain, many_from
from executors.kernels.triton.lora import splits_of
from executors.kernels.triton.norms import rms_norm
from executors.kernels.triton.rotary import rotate_and_store
from executors.kernels.triton.tuning import choose, head_shape, kind_of, processors
from executors.llm.attention.check import CHUNKS, LIMITS, PAST, Backend, Problem, verdict
from executors.llm.attention.key_pieces import PieceRule
from executors.llm.attention.packed import StepMeta
from executors.llm.device.table import device_of
from executors.llm.kernel_support.rehearsals import rehearsing
from executors.llm.lean_torch import random_numbers
from executors.llm.lora.device import DeviceWeights, add_by_torch, of_place, part_of
from executors.llm.memory import int8_kv
from executors.llm.memory.kv_cache import KvCache, plain
from executors.llm.model.caches import LayerHeads, kv_group
from executors.llm.model.fp8 import GROUP, Fp8Weight, narrowed, quantized, widened
from executors.llm.model.layers.activations import ACTIVATIONS
from executors.llm.model.layers.mlp import Mlp
from executors.llm.model.layers.norms import Norm
from executors.llm.sampling.columns import PADDING, SamplingColumns
from executors.llm.sampling.device_sampler import DeviceSampler, TorchDeviceSampler
from executors.llm.sampling.device_shaping import RowShaping
from executors.llm.sampling.row_masks import RowMasks, mask_words
from executors.llm.step_arrays import StepArrays

if TYPE_CHECKING:
    from executors.llm.attention.triton_attention import TritonAttend, TritonAttention
    from executors.llm.fused.few_rows import FewRows
    from executors.llm.fused.triton_experts import TritonExperts
    from executors.llm.model.caches import KvSpec
    from executors.llm.model.decoder import Decoder
    from executors.llm.model.layers.layer import Layer
    from executors.llm.model.linear import Linear

_ROWS = 5
_FEW = (1, 3, 16)
"""Numbers of rows of products with norm and activation: one, some, and the maximum."""
_PAGE = 16
_E4M3_LIMIT = 0.1
"""Largest relative error of e4m3 results: a number between two e4m3 numbers may be rounded either way, which is an eighth of
it."""
_INT8_LIMIT = 0.02
"""The same of int8: a number between two codes may be rounded either way, which is 1/127 of the largest of its head."""
_SCHEMES = ((0.0, 0, 1.0, 0.0), (1.0, 0, 1.0, 0.0), (0.6, 20, 1.0, 0.0), (0.8, 0, 0.9, 0.0), (1.2, 0, 1.0, 0.05),
            (0.7, 40, 0.95, 0.01))  # fmt: skip
"""Sampling settings to check: temperature, top-k, top-p, min-p."""
_EACH = 3
"""Number of rows of each setting."""
_MORE = 4
"""Number of tokens of each sequence after its chunk."""
MOST_SPLITS = 49
SPLITS = (1, 3, 17, MOST_SPLITS)
"""Numbers of programs that share the keys of a sequence: one, few, not a power of two, and the number for one sequence on a
device of 132 multiprocessors with eight key heads."""
Checks = Mapping[str, tuple[Callable[[], float], float]]
"""A function that returns the largest error of a kernel, and its limit, by the kernel's name."""


@dataclass(frozen=True, slots=True)
class _Draw:
    """Random numbers that are the same on every device, because the host draws them."""

    dtype: torch.dtype
    device: torch.device
    noise: torch.Generator

    @classmethod
    def of(cls, dtype: torch.dtype, device: torch.device) -> _Draw:
        """Start from the beginning."""
        return cls(dtype, device, random_numbers(0))

    def __call__(self, *shape: int) -> torch.Tensor:
        """Draw normally distributed numbers."""
        return torch.randn(*shape, generator=self.noise).to(self.dtype).to(self.device)

    def order(self, count: int) -> torch.Tensor:
        """int64 [count]: 0 .. count - 1, shuffled."""
        return torch.randperm(count, generator=self.noise).to(self.device)


def wanted(device: torch.device) -> bool:
    """Return whether kernels are checked before use: where they are compiled. The interpreter would take minutes."""
    return device_of(device).compiles


def first_fault(checks: Checks) -> str | None:
    """Return the first kernel that fails and its fault, None if all pass. Raises an error that says the device is out of
    memory. In a rehearsal, where results mean nothing, all run."""
    with torch.inference_mode():
        for name, (worst, limit) in checks.items():
            if (wrong := verdict(worst, limit)) is not None and not rehearsing():
                return f"{name}: {wrong}"
    return None


def distance(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the largest relative error of a row [..., n]; infinity if a result is not a number."""
    actual, expected = actual.float(), expected.float()
    error = (actual - expected).norm(dim=-1) / expected.norm(dim=-1).clamp_min(1e-6)
    return float(error.nan_to_num(torch.inf).max())


# -- attention -----------------------------------------------------------------------------------------------------------


def attention_fault(backend: TritonAttention, spec: KvSpec, block_size: int) -> str | None:
    """Check the attention kernels, with keys and values written by Cohort's kernels as well. Takes some ten megabytes of the
    device, a hundred for 64 heads."""
    problem = Problem(spec, block_size, PAST, [count + _MORE for count in CHUNKS])
    chunks = [count if count > 1 else 0 for count in CHUNKS]
    alone = [int(past == max(PAST)) for past in PAST]
    short = [int(past == min(PAST)) for past in PAST]
    beside = [1, 0, 1, 2, 0]

    uncut = _TilesIn(backend, 1)

    def decodes() -> float:
        # Many keys and few: split, and in one piece; and beside a chunk.
        return max(problem.step(uncut, counts) for counts in ([1] * len(PAST), alone, short, beside))

    borders = cache(lambda: border_problem(spec, block_size))

    def in_parts(splits: int) -> float:
        return split_error(backend, borders(), splits)

    def prompts() -> float:
        return max(problem.step(uncut, chunks), _many_queries(uncut, spec, block_size))

    limit = LIMITS[spec.dtype]
    return first_fault(
        {
            "extend_attention": (prompts, limit),
            "decode_attention": (decodes, limit),
            **{
                f"decode_attention in {splits} splits": (
                    partial(in_parts, splits), limit,
                )
                for splits in SPLITS
            },
        }
    )  # fmt: skip


def shared_tiles_fault(backend: TritonAttention, spec: KvSpec, block_size: int) -> str | None:
    """Check the attention of chunks whose keys programs share, in two pieces and in more: of long histories and short ones,
    of a tile that is full and ones that are not. The longest history alone has as many as a tile may have."""
    problem = Problem(spec, block_size, PAST, list(CHUNKS))
    past = problem.past.copy()
    chunks = [count if count > 1 else 0 for count in CHUNKS]
    alone = [count if before == max(PAST) else 0 for count, before in zip(CHUNKS, PAST, strict=True)]

    def worst() -> float:
        largest = 0.0
        for pieces, counts in ((2, chunks), (5, chunks), (max(backend.tile_rule.parts, 2), alone)):
            problem.past = past.copy()
            largest = max(largest, problem.step(_TilesIn(backend, pieces), counts))
        return max(largest, _many_queries(_TilesIn(backend, 2), spec, block_size))

    return first_fault({"extend_attention with shared keys": (worst, LIMITS[spec.dtype])})


def _many_queries(backend: Backend, spec: KvSpec, block_size: int) -> float:
    """Return the largest relative error of a prompt and a chunk that are many queries together, behind a border of a tile of keys
    and before one; 0 where many queries are computed as few are."""
    heads, kind = (spec.num_heads, spec.num_kv_heads, spec.head_dim), kind_of(spec.dtype, spec.stored_dtype)
    tokens = many_from(*heads, spec.dtype)
    window = None if None in spec.windows else max(filter(None, spec.windows))
    many = is_plain(tokens, *heads, spec.dtype, window=window, softcap=spec.softcap, sinks=spec.sinks)
    shapes = head_shape(spec.head_dim, many), head_shape(spec.head_dim)
    kernels = ("extend_attention", "shared_extend")
    if all(choose(kernel, kind, shapes[0]) == choose(kernel, kind, shapes[1]) for kernel in kernels):
        return 0.0
    counts = [tokens, 101]
    return Problem(spec, block_size, (0, 300), counts).step(backend, counts)


@dataclass(frozen=True, slots=True)
class _TilesIn:
    """A `Backend` that cuts the keys of each tile of queries into so many `pieces`, if there are enough; 1: it cuts none."""

    backend: TritonAttention
    pieces: int

    def begin(self, step: StepArrays, cache: KvCache) -> TritonAttend:
        """See `Backend`."""
        backend, rule = self.backend, self.backend.tile_rule
        backend.tile_rule = replace(rule, count=self.pieces if self.pieces > 1 else 0, parts=self.pieces)
        try:
            return backend.begin(step, cache)
        finally:
            backend.tile_rule = rule


def border_lengths(spec: KvSpec, page: int) -> list[int]:
    """Lengths in tokens of sequences that end at, before and after borders of pages and of the tiles of keys, and of one in
    which each of MOST_SPLITS has a tile of its own."""
    # No tile is larger, and those that are smaller divide it: an end is on a border of theirs as well.
    tile = max(
        64 if spec.head_dim > 64 else 128,
        tuned(spec.head_dim, spec.dtype, spec.stored_dtype, spec.softcap).depth,
    )
    borders = {3 * page, 2 * tile}
    return [MOST_SPLITS * tile, 1, *sorted({end + off for end in borders for off in (-1, 0, 1)})]


def border_problem(spec: KvSpec, page: int) -> Problem:
    """Sequences of `border_lengths`, each without its last token."""
    lengths = border_lengths(spec, page)
    return Problem(spec, page, [length - 1 for length in lengths], [1] * len(lengths))


def split_error(backend: TritonAttention, problem: Problem, splits: int) -> float:
    """Return the largest relative error of decode steps whose keys are shared by `splits` programs, whatever number the
    device would get. Checks all items in order, as in a step of decodes only, and items in a list, as beside prompts. The
    problem is unchanged afterwards."""
    worst, past = 0.0, problem.past.copy()
    for listed in (False, True):
        worst = max(worst, problem.step(_Split(backend, splits, listed), [1] * len(past)))
        problem.past = past.copy()
    return worst


@dataclass(frozen=True, slots=True)
class _Split:
    """A `Backend` that splits the keys of decode steps into `splits` parts, with items `listed` or all in order."""

    backend: TritonAttention
    splits: int
    listed: bool

    def begin(self, step: StepArrays, cache: KvCache) -> TritonAttend:
        """See `Backend`."""
        meta = self.backend.begin(step, cache).meta
        return self.backend.bind(in_splits(meta, self.splits, self.listed), cache)


def in_splits(meta: StepMeta, splits: int, listed: bool) -> StepMeta:
    """Return the same step of decodes only, with the keys of each item in `splits` parts, or in as many as there are keys.
    `listed`: items are listed, the last one first."""
    order = torch.arange(meta.num_decodes - 1, -1, -1, dtype=torch.int32, device=meta.lengths.device)
    lengths = meta.lengths.cpu().numpy()
    pieces = PieceRule(1, 1, count=splits).cut(lengths[::-1] if listed else lengths)
    return replace(
        meta, pieces=torch.from_numpy(pieces).to(meta.lengths.device),
        decodes=torch.stack((order, order), 1) if listed else None,
    )  # fmt: skip


# -- the forward ---------------------------------------------------------------------------------------------------------


def forward_fault(decoder: Decoder, experts: TritonExperts | None) -> str | None:
    """Check the kernels around attention and products; `experts` of a layer that has some. The rotary tables must exist."""
    limit = LIMITS[decoder.dtype]
    turning = {None: limit, torch.int8: max(limit, _INT8_LIMIT)}.get(decoder.kv_dtype, _E4M3_LIMIT)
    layers = {layer.config.rope: layer for layer in decoder.layers}.values()
    checks: dict[str, tuple[Callable[[], float], float]] = {
        "rms_norm": (lambda: _norms(decoder), limit),
        "rotate_and_store": (lambda: max(_rotary(decoder, layer) for layer in layers), turning),
    }
    mlps = (layer.feed_forward for layer in decoder.layers)
    mlp = next((one for one in mlps if isinstance(one, Mlp)), None)
    if mlp is not None:
        checks["gated"] = lambda: _gated(decoder, mlp.inner), limit
    if experts is not None:
        checks["experts"] = experts.error, limit
    return first_fault(checks)


def _norms(decoder: Decoder) -> float:
    draw, norm = _Draw.of(decoder.dtype, decoder.device), decoder.final_norm
    layer = Norm(norm.kind, norm.size[0], norm.eps, decoder.dtype, decoder.device)
    layer.weight.copy_(draw(*norm.size))
    x, residual = draw(_ROWS, *norm.size), draw(_ROWS, *norm.size)
    added = x + residual
    plus_one = norm.kind == "rms1"
    pairs = [
        (rms_norm(x, layer.weight, layer.eps, plus_one=plus_one), layer(x)),
        # Behind it `residual` holds the sum.
        (rms_norm(x, layer.weight, layer.eps, residual=residual, plus_one=plus_one), layer(added)),
        (residual, added),
    ]
    return max(distance(actual, expected) for actual, expected in pairs)


def _rotary(decoder: Decoder, layer: Layer) -> float:
    config, draw = decoder.config, _Draw.of(decoder.dtype, decoder.device)
    heads, kv_heads, dim = config.num_heads, config.num_kv_heads, config.head_dim
    qkv = draw(_ROWS, (heads + 2 * kv_heads) * dim)
    norms = None if layer.attention.qk_norm is None else draw(heads + kv_heads, dim)
    table = None if layer.config.rope is None else decoder.rotary[layer.config.rope]
    longest = 1 if table is None else len(table)
    positions = torch.arange(_ROWS, device=decoder.device) * (longest - 1) // (_ROWS - 1)
    spec = replace(kv_group(decoder).with_heads([LayerHeads(heads, kv_heads, dim, 1.0)]), num_layers=1)
    (kv, peaks), (expected, expected_peaks) = (
        KvCache(spec, 2, _PAGE, by_block=False).parts(0) for _ in range(2)
    )
    cells = draw.order(2 * _PAGE)[:_ROWS].to(torch.int32)
    cells[-1] = -1  # one that is not kept
    scales = spec.scales(0)
    queries = rotate_and_store(
        qkv, kv, cells, heads, positions=positions, table=table, norms=norms, eps=config.norm_eps,
        plus_one=config.family.stream.norm == "rms1", kv_scales=scales,
        neighbours=any(rope.neighbours for rope in config.ropes),
        norm_last=config.family.attention.norm_last, query_factors=decoder.query_factors, peaks=peaks,
    )  # fmt: skip
    parts = qkv.view(_ROWS, -1, dim)
    qk, v = parts[:, :-kv_heads], parts[:, -kv_heads:]
    qk = layer.attention.turned(qk, norms, None if table is None else table.index_select(0, positions))
    q = qk[:, :heads]
    if decoder.query_factors is not None:
        q = q * decoder.query_factors[positions][:, None, None]
    places = cells[:-1].long()
    at = places // _PAGE, places % _PAGE
    for number, (new, scale) in enumerate(zip((qk[:, heads:], v), scales, strict=True)):
        stored = new[:-1]
        if expected_peaks is not None:
            turned = stored if number else int8_kv.turned(stored)
            stored, expected_peaks[number].transpose(1, 2)[at] = int8_kv.narrowed(turned)
        elif spec.kv_dtype is not None:
            stored = plain(narrowed(stored, scale))
        plain(expected[number]).transpose(1, 2)[at] = stored
    if peaks is not None and expected_peaks is not None:
        q = int8_kv.turned(q)
        kv, expected = int8_kv.widened(kv, peaks), int8_kv.widened(expected, expected_peaks)
    return max(distance(queries, q), distance(kv, expected))


def _gated(decoder: Decoder, inner: int) -> float:
    x = _Draw.of(decoder.dtype, decoder.device)(_ROWS, 2 * inner)
    gate, up = x.float().chunk(2, -1)
    activation = decoder.config.activation
    return distance(gated(x, activation), ACTIVATIONS[activation](gate) * up)


def few_rows_fault(decoder: Decoder, few: FewRows) -> str | None:
    """Check the products with norm, activation and residual, with the weights of the first layer, and of the first of those whose
    linear layers have e4m3 elsewhere; other layers are alike. Both kernels of a sublayer are checked in turn, each with few rows
    and with the maximum."""
    limit, counts = LIMITS[decoder.dtype], [min(rows, few.most) for rows in _FEW]

    def worst(compare: Callable[[Decoder, Layer, FewRows, int], float]) -> Callable[[], float]:
        return lambda: max(compare(decoder, layer, few, rows) for layer in few.kinds for rows in counts)

    return first_fault(
        {
            "few_rows before attention": (worst(_few_qkv), limit),
            "few_rows behind attention": (worst(_few_o), limit),
            "few_rows of the MLP": (worst(_few_mlp), limit),
        }
    )


def _few_qkv(decoder: Decoder, layer: Layer, few: FewRows, rows: int) -> float:
    x = _Draw.of(decoder.dtype, decoder.device)(rows, decoder.config.hidden_size)
    assert layer.attn_norm is not None
    return distance(few.qkv(layer, x), _exact(layer.attention.qkv, layer.attn_norm(x)))


def _few_o(decoder: Decoder, layer: Layer, few: FewRows, rows: int) -> float:
    draw, config = _Draw.of(decoder.dtype, decoder.device), decoder.config
    x = draw(rows, config.q_size)
    expected = _exact(layer.attention.o, x) * config.residual_scale
    residual = _as_large(draw(rows, config.hidden_size), expected)
    return _added(residual, expected, lambda into: few.add_attention(layer, x, into))


def _few_mlp(decoder: Decoder, layer: Layer, few: FewRows, rows: int) -> float:
    def mlp(x: torch.Tensor) -> torch.Tensor:
        assert layer.mlp_norm is not None and isinstance(layer.feed_forward, Mlp)
        gate_up, down = layer.feed_forward.linears
        if gate_up.fp8 is None and down.fp8 is None:
            return layer.feed_forward(layer.mlp_norm(x)) * decoder.config.residual_scale
        gate, up = _exact(gate_up, layer.mlp_norm(x)).chunk(2, -1)
        inner = ACTIVATIONS[decoder.config.activation](gate) * up
        return _exact(down, inner) * decoder.config.residual_scale

    x = _Draw.of(decoder.dtype, decoder.device)(rows, decoder.config.hidden_size)
    residual = _as_large(x, mlp(x))  # whose norm is the same
    return _added(residual, mlp(residual), lambda into: few.add_mlp(layer, into))


def _exact(linear: Linear, x: torch.Tensor) -> torch.Tensor:
    """Compute a layer; with a weight in e4m3 by x as it is, which the layer's own product rounds to e4m3."""
    if linear.fp8 is None:
        return linear(x)
    weight = linear.fp8.data.to(x.dtype)
    product = (x @ weight.T).float() * linear.fp8.scales.view(1, -1)
    return (product if linear.bias is None else product + linear.bias.float()).to(x.dtype)


def _as_large(x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Scale `x` to the size of `other`: beside a larger residual an error of a sum would not show."""
    return (x.float() * (other.float().norm() / x.float().norm())).to(x.dtype)


def _added(residual: torch.Tensor, addend: torch.Tensor, add: Callable[[torch.Tensor], None]) -> float:
    """Return the error of what `add` adds to a residual. It runs twice, because the first launch must leave the workspace as
    it was."""
    worst = 0.0
    for _ in range(2):
        into = residual.clone()
        add(into)
        worst = max(worst, distance(into, residual + addend))
    return worst


# -- choosing tokens -----------------------------------------------------------------------------------------------------


def sampler_fault(
    sampler: DeviceSampler, rows: int, width: int, dtype: torch.dtype, device: torch.device
) -> str | None:
    """Check a sampler made for that many `rows` of `width` logits."""
    # Where a target lies next to a border, the neighbour may be drawn: one row may differ.
    count = min(rows, len(_SCHEMES) * _EACH)
    return first_fault({"sampler": (lambda: _sampled(sampler, count, width, dtype, device), 1.0 / count)})


def _sampled(
    sampler: DeviceSampler, rows: int, width: int, dtype: torch.dtype, device: torch.device
) -> float:
    """Return the share of rows whose token differs; infinity if the sampler does not report a row that is not finite."""
    draw = _Draw.of(dtype, device)
    logits = 3.0 * draw(rows, width)
    columns = torch.tensor(
        [_SCHEMES[row % len(_SCHEMES)] for row in range(rows)], dtype=torch.float64, device=device
    )
    settings = SamplingColumns(
        temperature=columns[:, 0].contiguous(), top_k=columns[:, 1].int(), top_p=columns[:, 2].contiguous(),
        min_p=columns[:, 3].contiguous(), u=torch.rand(rows, dtype=torch.float64, generator=draw.noise).to(device),
    )  # fmt: skip
    tokens, expected = (torch.full((rows,), -7, dtype=torch.int32, device=device) for _ in range(2))
    bad = torch.zeros(rows, dtype=torch.int8, device=device)
    ours = _shaping(draw, rows, width)
    theirs = replace(ours, table=ours.table.clone())
    masks = _masks(draw, rows, width)
    sampler.sample(logits, settings, tokens, bad, ours, masks)
    firsts = [*torch.nonzero(ours.guessed.cpu() == 0).flatten().tolist(), rows]
    for one in map(
        slice, firsts, firsts[1:]
    ):  # sequence by sequence: a row takes some float64 copies of itself
        alone = settings.take(one)
        TorchDeviceSampler().sample(
            logits[one], alone, expected[one], torch.zeros_like(bad[one]), theirs.part(one), masks.part(one)
        )
    valid = slice(0, len(ours.table) - 1), slice(0, HEADER + width)
    missed = bool(bad.any()) or not torch.equal(ours.table[valid], theirs.table[valid])
    logits[:, width // 2] = torch.nan
    sampler.sample(logits, settings, torch.empty_like(tokens), bad, ours)
    missed |= not bool(bad.all())
    settings.temperature.fill_(PADDING)
    untouched = expected.clone()
    sampler.sample(logits, settings, untouched, bad, replace(ours, rows=torch.full_like(ours.rows, -1)))
    missed |= not torch.equal(untouched, expected)
    # In Python's numbers, as the limit is: float32's 1 / 18 is more than that.
    return torch.inf if missed else int((tokens != expected).sum()) / rows


def _masks(draw: _Draw, rows: int, width: int) -> RowMasks:
    """Masks of three rows of four, in reverse order, which forbid half of the tokens."""
    places = torch.tensor([row if row % 4 else -1 for row in range(rows)][::-1], dtype=torch.int32)
    words = torch.randint(-(2**31), 2**31, (rows, mask_words(width)), generator=draw.noise).int()
    return RowMasks(words.to(draw.device), places.to(draw.device))


def _shaping(draw: _Draw, rows: int, width: int) -> RowShaping:
    """Shaping of every third row: penalties, a bias, a permanent ban and one until a length, and an input to be counted. Half of
    these rows are a sequence's second ones, behind a draft."""
    drafted = [row // 3 % 2 == 1 for row in range(rows)]
    slots = torch.tensor(
        [row // 3 if row % 3 == 2 or (row % 3 and drafted[row]) else -1 for row in range(rows)],
        dtype=torch.int32,
    )
    behind = torch.tensor([row % 3 == 2 and drafted[row] for row in range(rows)])
    guessed = torch.where(behind, behind.cumsum(0), 0).int()
    results = torch.zeros(max(1, int(behind.sum())), result_words(width))
    table = torch.zeros(rows // 3 + 1, row_words(width), dtype=torch.int32)
    numbers = table.view(torch.float32)
    numbers[:, REPETITION], numbers[:, FREQUENCY], numbers[:, PRESENCE] = 1.25, 0.5, -0.25
    numbers[:, BIASES + 1 : BIASES + 3] = torch.tensor([-torch.inf, 2.0])
    table[:, UNTIL + 3] = 8
    words = table[:, HEADER : HEADER + width]
    ids = torch.randint(0, width, (len(table), max(1, width // 8)), generator=draw.noise)
    values = torch.randint(0, 4, ids.shape, generator=draw.noise)
    values += IN_PROMPT * torch.randint(0, 2, ids.shape, generator=draw.noise)
    values += torch.randint(0, 4, ids.shape, generator=draw.noise) << ENTRY_SHIFT
    words.scatter_(1, ids, values.int())
    table[:, 0] = 6
    lengths = 7 + behind.int()
    inputs = torch.randint(0, width, (rows,), generator=draw.noise).int()
    return RowShaping(*(one.to(draw.device) for one in (table, slots, lengths, inputs, guessed, results)))


# -- LoRA adapters -------------------------------------------------------------------------------------------------------


def adapters_fault(weights: DeviceWeights, decoder: Decoder) -> str | None:
    """Check what adapters add to the products of a layer, in small and in large tiles. No adapter is loaded yet; what is written
    meanwhile is not read afterwards."""
    layers = [layer for layer in decoder.layers if isinstance(layer.feed_forward, Mlp)] or decoder.layers
    linears = layers[0].adapted_linears()
    fault = first_fault(
        {
            f"lora of {name}": (partial(_added_by_adapters, weights, decoder, linear), LIMITS[decoder.dtype])
            for name, linear in zip(("qkv", "o", "gate and up", "down"), linears, strict=False)
        }
    )
    for linear in linears:
        for place in range(_LORA_PLACES):
            of_place(weights.matrix(linear), place)[0].zero_()
    return fault


_LORA_PLACES = 2
_LORA_ROWS = (1, 40, 600)
"""Numbers of rows: one, some, and enough for large tiles."""


def _added_by_adapters(weights: DeviceWeights, decoder: Decoder, linear: Linear) -> float:
    """The error for rows of two adapters, of the highest rank and of others, and rows without one."""
    draw, matrix = _Draw.of(decoder.dtype, decoder.device), weights.matrix(linear)
    count = min(_LORA_PLACES, -(-matrix.a.numel() // matrix.stride))
    for place in range(count):
        ranks, scales = of_place(matrix, place)
        for which in range(len(matrix.begins)):
            ranks[which] = matrix.most if place == 0 else 1 + which * (matrix.most - 1) // 2
            scales[which] = 0.5 + which
            for part in part_of(matrix, place, which):
                part.copy_(draw(*part.shape) / matrix.inputs**0.5)
    worst = 0.0
    for tokens in _LORA_ROWS:
        places = torch.randint(-1, count, (tokens,), generator=draw.noise).numpy()
        size = tile_rows(tokens)
        rows, owners = (torch.from_numpy(one).to(decoder.device) for one in in_tiles(places, size))
        x = draw(tokens, matrix.inputs)
        expected = torch.zeros(tokens, matrix.outputs, dtype=decoder.dtype, device=decoder.device)
        add_by_torch(matrix, LoraTiles(rows, owners, size), x, expected)
        for idle in _idle_tiles(matrix, len(owners), size):
            tiles = LoraTiles(
                torch.nn.functional.pad(rows, (0, idle * size), value=-1),
                torch.nn.functional.pad(owners, (0, idle), value=-1),
                size,
            )
            actual = torch.zeros_like(expected)
            weights.add(linear, tiles, x, actual)
            worst = max(worst, distance(actual, expected))
    return worst


def _idle_tiles(matrix: LoraMatrix, used: int, size: int) -> list[int]:
    """Numbers of tiles behind those that are used, as in a graph: one at least, and one number for each way to share the depth,
    because each is compiled on its own."""
    counts: dict[int, int] = {}
    count = processors(matrix.a.device)
    for idle in range(1, count + 1):
        splits = splits_of(used + idle, len(matrix.begins), matrix.inputs, size == FEW_ROWS, count)
        counts.setdefault(splits, idle)
    return list(counts.values())


# -- FP8 -----------------------------------------------------------------------------------------------------------------


def fp8_fault(device: torch.device) -> str | None:
    """Check the kernels of linear layers in e4m3."""
    draw = _Draw.of(torch.bfloat16, device)
    return first_fault(
        {
            "quantize": (lambda: max(_quantized(draw, blocks) for blocks in (False, True)), _E4M3_LIMIT),
            # Tiles are of 16, 32, 64 or 128 rows, and each is another kernel.
            "block_matmul": (
                lambda: max(_product(draw, rows, None) for rows in (3, 24, 40, 200)),
                LIMITS[torch.bfloat16],
            ),
            "block_gated": (
                lambda: max(_product(draw, rows, "silu") for rows in (3, 24, 40, 200)),
                LIMITS[torch.bfloat16],
            ),
        }
    )


def stored_fault(device: torch.device) -> str | None:
    """Check the kernels of weights that stay as a file holds them."""
    draw = _Draw.of(torch.bfloat16, device)
    return first_fault(
        {f"stored {kind}": (partial(_stored, draw, kind), LIMITS[torch.bfloat16]) for kind in _STORED}
    )


_STORED = (
    "Q4_0",
    "Q4_1",
    "Q5_0",
    "Q8_0",
    "Q3_K",
    "Q4_K",
    "Q5_K",
    "Q6_K",
    "IQ4_XS",
    "MXFP4",
    "uint4-g128",
    "uint8-f32",
    "lut4-iq2",
    "lut4-fp4",
)
"""Formats whose layouts differ, each of them compiled in its own way."""


_STORED_ROWS = (3, 7, 24, 40, 200)
"""A few, tiles of 16, 32 and 64 rows, and many: each is another kernel."""


def _stored(draw: _Draw, kind: str) -> float:
    """The error of products of few and many rows; infinity if rows that are looked up are others."""
    outputs, columns = 80, 1280  # of tiles that two programs share
    rows = random_rows(draw.noise, kind, outputs, columns, draw.device)
    wide, table, ids = widened_rows(rows), table_of(rows.layout, draw.device), draw.order(outputs)[:7]
    # A product and a difference in one instruction round once where the definition rounds twice.
    if distance(stored_kernels.widened(rows, table, ids, torch.float32), wide[ids]) > 1e-6:
        return torch.inf
    weight, worst = wide.to(draw.dtype), 0.0
    for count in _STORED_ROWS:
        x = draw(count, columns)
        out = torch.empty(count, outputs, dtype=draw.dtype, device=draw.device)
        stored_kernels.matmul(x, rows, table, None, out)
        worst = max(worst, distance(out, x.float() @ weight.float().T))
    return worst


def random_rows(
    drawn: torch.Generator, kind: str, rows: int, columns: int, device: torch.device
) -> DeviceRows:
    """Rows of any codes, with scales about 1."""
    stored = DeviceRows.empty(kind, rows, columns, device)
    for tensor in stored.tensors:
        if tensor.dtype.is_floating_point:
            tensor.copy_(1 + torch.rand(tensor.shape, generator=drawn, device=drawn.device))
        else:
            shape = tensor.view(torch.uint8).shape
            tensor.view(torch.uint8).copy_(
                torch.randint(0, 256, shape, dtype=torch.uint8, generator=drawn, device=drawn.device)
            )
    return stored


def _quantized(draw: _Draw, blocks: bool) -> float:
    x = draw(_ROWS, 5 * GROUP)
    (codes, scales), (expected, factors) = fp8_kernels.quantize(x, blocks), quantized(x, blocks)
    return max(distance(widened(codes, scales), widened(expected, factors)), distance(scales, factors))


def _product(draw: _Draw, rows: int, activation: str | None) -> float:
    outputs, columns = 4 * GROUP, 5 * GROUP
    x, x_scales = quantized(draw(rows, columns), True)
    weight = Fp8Weight(outputs, columns, draw.device, True, GROUP)
    weight.fill(draw(outputs, columns), 0)
    operands = x, x_scales, weight.data, weight.scales, GROUP, torch.bfloat16
    expected = widened(x, x_scales) @ widened(weight.data, weight.scales.repeat_interleave(GROUP, 0)).T
    if activation is None:
        return distance(fp8_kernels.block_matmul(*operands), expected)
    gate, up = expected.chunk(2, -1)
    return distance(fp8_kernels.block_gated(*operands, activation), ACTIVATIONS[activation](gate) * up)
