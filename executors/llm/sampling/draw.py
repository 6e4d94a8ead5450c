"""Draws tokens from rows of logits: block maxima first, then only as much of the vocabulary as a row needs.

    greedy                            the first maximum, found in the first block that holds it
    temperature alone                 sums of weights by block, then inside one block
    min-p, top-k, top-p, typical-p    the most likely candidates, more of them only where they turn out too few

The candidates come from the blocks with the largest maxima: the C largest logits of a row lie in the C blocks whose maxima
are largest. A row is read once for its maxima, and again only if the weight of the whole vocabulary matters (temperature
alone, and top-p or typical-p without top-k or min-p).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from executors.kernels.cpu import DTYPES, CpuKernels, kernels_in_use
from executors.llm.sampling.columns import MIN_TEMPERATURE, SamplingColumns
from executors.llm.sampling.scratch import scratch

SUM_BLOCK = 512
"""Tokens per block of the two-level sum."""
_FIRST_CANDIDATES = 64
"""Number of candidates that is enough for the usual top-k and for most top-p."""
_GROWTH = 8
_BLOCK = 64
"""Tokens per block of the maxima."""
_GROUP = 8
"""Numbers per group in the search for the largest of a few thousand."""
_NO_WEIGHT = -200.0
"""Exponent whose float32 result is 0: a finite replacement for -inf."""
_DENSE_ROWS = 1
"""Rows exponentiated at a time on a CPU: few enough to stay in the cache between passes."""
_DEVICE_ROWS = 32
"""Rows exponentiated at a time on an accelerator, where a launch takes longer than a row."""


@dataclass(frozen=True, slots=True)
class Draw(SamplingColumns[np.ndarray]):
    """Settings of n rows that are drawn: `top_k` is the width for no limit, `row` int64 the index of each row in the logits."""

    row: np.ndarray
    typical_p: np.ndarray


class Blocks:
    """Logits [n, V] with the maxima of each row's blocks of `size` tokens: [n, blocks], the last block may be shorter.

    `widen` makes `logits` a float32 copy of the input, in this thread's scratch memory. `maxima`, if known already, are those
    of blocks whose size is a power of two.
    """

    def __init__(self, logits: torch.Tensor, widen: bool = False, maxima: torch.Tensor | None = None) -> None:
        self.width = logits.shape[1]
        self.size = _BLOCK if maxima is None else 1 << (-(-self.width // maxima.shape[1]) - 1).bit_length()
        if widen and logits.is_cpu:
            self.logits = scratch("wide", len(logits), self.width, logits.device)
            own = torch.empty(len(logits), -(-self.width // self.size), device=logits.device)
            # Row by row, so that the maxima are taken of what is still in the cache.
            for i in range(len(logits)):
                wide = self.logits[i : i + 1].copy_(logits[i : i + 1])
                if maxima is None:
                    own[i] = _block_maxima(wide, self.size)[0]
            self.maxima = own if maxima is None else own.copy_(maxima)  # they may change
        else:
            self.logits = (logits.float() if widen else logits).contiguous()
            self.maxima = _block_maxima(self.logits, self.size) if maxima is None else maxima
        self.best = _largest_of_rows(self.maxima)
        wide = self.logits.dtype is torch.float32 and self.maxima.dtype is torch.float32
        self.kernels = _kernels_for(self.logits) if wide and self.maxima.is_contiguous() else None
        """Cohort's own kernels, if they can choose tokens from these logits."""

    def renew(self, rows: np.ndarray) -> None:
        """Update the maxima after logits of these rows were changed."""
        if not self.logits.is_cpu:
            at = torch.from_numpy(rows).to(self.logits.device)
            self.maxima[at] = _block_maxima(self.logits[at], self.size)
        else:
            # Reading a row in order is faster than gathering the few hundred blocks that penalties touch.
            for row in rows.tolist():
                self.maxima[row] = _block_maxima(self.logits[row : row + 1], self.size)[0]
        self.best = _largest_of_rows(self.maxima)

    def bad_rows(self) -> np.ndarray:
        """Return bool [n]: rows in which a logit is NaN or infinite, or all are -inf."""
        return ~np.isfinite(self.best.float().numpy() if self.best.is_cpu else self.best.cpu().numpy())

    def rows(self, row: torch.Tensor) -> torch.Tensor:
        """Return whole rows, float32 [m, V]."""
        return self.logits[row].float()

    def block(self, row: torch.Tensor, blocks: torch.Tensor, size: int) -> torch.Tensor:
        """Return the logits of some blocks [m, b] of `size` tokens of rows [m]: float32 [m, b * size], -inf past the end."""
        return _gather(self.logits, row, blocks, size).float()

    def candidates(self, row: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the `count` largest logits of each row, float32, and their ids, largest first, lower id first on a tie.

        Among logits that tie with the smallest of them, the choice of ids is arbitrary unless `count` is the whole row.
        """
        if count >= self.width:
            values, ids = self.rows(row).sort(dim=-1, descending=True, stable=True)
            return values, ids
        if count * self.size * 2 >= self.width:
            values = self.rows(row)
            columns = values.topk(count, -1, sorted=False).indices.sort(-1).values
            return _sorted(values.gather(1, columns), columns)
        blocks = _largest(self.maxima[row], count)
        values = self.block(row, blocks, self.size)
        place = _largest(values, count)
        ids = blocks.gather(1, place // self.size) * self.size + place % self.size
        # Places past the end of the last block hold -inf: the id of one must be one of the row's all the same.
        ids, order = ids.clamp_max_(self.width - 1).sort(-1)
        return _sorted(values.gather(1, place).gather(1, order), ids)


def _largest_of_rows(maxima: torch.Tensor) -> torch.Tensor:
    """Return the largest of each row, [n]; NaN where one is NaN."""
    if maxima.is_cpu and maxima.dtype is torch.float32:
        # A step's few calls of torch run code that its weights have driven out of the cache: ten times what NumPy takes here.
        return torch.from_numpy(maxima.numpy().max(-1))
    return maxima.amax(-1)


def _kernels_for(logits: torch.Tensor) -> CpuKernels | None:
    """Return Cohort's own kernels if they can read these logits."""
    readable = logits.device.type == "cpu" and logits.dtype in DTYPES and logits.stride(1) == 1
    return kernels_in_use() if readable else None


def _block_maxima(logits: torch.Tensor, size: int) -> torch.Tensor:
    """Return the maxima of blocks of `size` tokens, [n, blocks], in float32 or the logits' dtype."""
    n, width = logits.shape
    whole = width // size * size
    maxima = torch.empty(n, -(-width // size), dtype=torch.float32, device=logits.device)
    kernels = _kernels_for(logits)
    if kernels is not None:
        kernels.block_maxima(
            DTYPES[logits.dtype], logits.data_ptr(), n, width, logits.stride(0), size, maxima.data_ptr(),
            torch.get_num_threads(),
        )  # fmt: skip
        return maxima
    if whole < width:
        maxima[:, -1] = logits[:, whole:].amax(-1)
    if not whole:
        return maxima
    into = maxima[:, : whole // size]
    if not logits.is_cpu or logits.dtype == torch.float32:
        torch.amax(logits[:, :whole].unflatten(1, (-1, size)).float(), -1, out=into)
        return maxima
    # Processors reduce short runs of 16-bit floats one by one; converted in the cache they are as fast as others.
    buffer = scratch("maxima", min(_DENSE_ROWS, n), whole, logits.device)
    for begin in range(0, n, _DENSE_ROWS):
        part = logits[begin : begin + _DENSE_ROWS, :whole]
        work = buffer[: len(part)].copy_(part)
        into[begin : begin + len(part)] = work.unflatten(1, (-1, size)).amax(-1)
    return maxima


def _gather(values: torch.Tensor, row: torch.Tensor, blocks: torch.Tensor, size: int) -> torch.Tensor:
    """Gather runs of `size` columns: [m, b * size], -inf past the end."""
    width = values.shape[1]
    full = width // size
    if not full:
        padded = torch.full((len(row), size), -torch.inf, dtype=values.dtype, device=values.device)
        padded[:, :width] = values[row]
        return padded
    runs = values[:, : full * size].unflatten(1, (-1, size))
    if full * size == width:
        return runs[row[:, None], blocks].flatten(1)
    groups = runs[row[:, None], blocks.clamp_max(full - 1)]
    tail = torch.full((len(row), 1, size), -torch.inf, dtype=values.dtype, device=values.device)
    tail[:, 0, : width - full * size] = values[:, full * size :][row]
    return torch.where((blocks == full)[:, :, None], tail, groups).flatten(1)


def _largest(values: torch.Tensor, count: int) -> torch.Tensor:
    """Return int64 [m, count]: the places of the `count` largest of each row, in any order. Wide rows are searched by maxima
    of groups, because the groups with the largest maxima contain the largest values."""
    m, width = values.shape
    if width < _GROUP * count:
        return values.topk(min(count, width), -1, sorted=False).indices
    whole = width // _GROUP
    maxima = values[:, : whole * _GROUP].unflatten(1, (-1, _GROUP)).amax(-1)
    if whole * _GROUP < width:
        maxima = torch.cat([maxima, values[:, whole * _GROUP :].amax(-1, keepdim=True)], 1)
    groups = maxima.topk(count, -1, sorted=False).indices
    members = _gather(values, torch.arange(m, device=values.device), groups, _GROUP)
    place = members.topk(count, -1, sorted=False).indices
    return groups.gather(1, place // _GROUP) * _GROUP + place % _GROUP


def _sorted(values: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Sort by value, largest first. `ids` ascend, so that the lower id comes first among equal values."""
    values, order = values.sort(dim=-1, descending=True, stable=True)
    return values, ids.gather(1, order)


def greedy(blocks: Blocks, row: np.ndarray) -> np.ndarray:
    """int64 [m]: the lowest id of the largest logits of each row."""
    at = torch.from_numpy(row).to(blocks.logits.device)
    first = blocks.maxima[at].argmax(-1, keepdim=True)
    inside = blocks.block(at, first, blocks.size).argmax(-1, keepdim=True)
    return (first * blocks.size + inside)[:, 0].cpu().numpy()


def draw(blocks: Blocks, settings: Draw) -> np.ndarray:
    """Return int64 [m]: a token for each row with a temperature above 0."""
    width = blocks.width
    prefix = (settings.top_k < width) | (settings.min_p > 0.0)
    limited = prefix | (settings.top_p < 1.0) | (settings.typical_p < 1.0)
    dense = np.flatnonzero(~prefix)
    # Side by side, the rows that need more than sums make few others pay for it.
    dense = dense[np.argsort(settings.typical_p[dense] < 1.0, kind="stable")]
    mass, mean = np.zeros(len(settings)), np.zeros(len(settings))
    tokens = np.zeros(len(settings), np.int64)
    if len(dense):
        sums, mean[dense] = _masses(blocks, settings.take(dense))
        mass[dense] = sums.sum(-1).cpu().numpy()
        plain = ~limited[dense]
        if plain.any():
            chosen = dense[plain]
            tokens[chosen] = _draw_plain(blocks, settings.take(chosen), sums[torch.from_numpy(plain)])
    rest = np.flatnonzero(limited)
    count = _FIRST_CANDIDATES
    while len(rest):
        count = min(count, width)
        chosen_ids, complete = _draw_from(blocks, count, settings.take(rest), mass[rest], mean[rest])
        tokens[rest[complete]] = chosen_ids[complete]
        rest = rest[~complete]
        count *= _GROWTH
    return tokens


def _column(values: np.ndarray, device: torch.device, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Return [n, 1] on the device."""
    return torch.from_numpy(values).to(device, dtype)[:, None]


def _scale(settings: Draw) -> np.ndarray:
    return np.maximum(settings.temperature, MIN_TEMPERATURE)


def _masses(blocks: Blocks, settings: Draw) -> tuple[torch.Tensor, np.ndarray]:
    """Return sums of the weights exp((logit - largest) / T) by `SUM_BLOCK`, float64 [m, blocks], and float64 [m] the mean of
    the exponent under these weights if typical-p needs it, else 0."""
    device, width = blocks.logits.device, blocks.width
    padded = -(-width // SUM_BLOCK) * SUM_BLOCK
    row = torch.from_numpy(settings.row).to(device)
    typical = settings.typical_p < 1.0
    scale, best = _column(_scale(settings), device, torch.float32), blocks.best[row][:, None].float()
    sums = torch.empty(len(settings), padded // SUM_BLOCK, dtype=torch.float32, device=device)
    mean = np.zeros(len(settings))
    kernels = _kernels_for(blocks.logits)
    if kernels is not None and not typical.any():
        best, scale = best.contiguous(), scale.contiguous()
        kernels.block_weights(
            DTYPES[blocks.logits.dtype], blocks.logits.data_ptr(), row.data_ptr(), len(row), width,
            blocks.logits.stride(0), SUM_BLOCK, best.data_ptr(), scale.data_ptr(), sums.data_ptr(), torch.get_num_threads(),
        )  # fmt: skip
        return sums.double(), mean
    at_once = _DENSE_ROWS if device.type == "cpu" else _DEVICE_ROWS
    buffer = scratch("weights", min(at_once, len(settings)), padded, device)
    weights = scratch("exponents", len(buffer), padded, device) if typical.any() else buffer
    for begin in range(0, len(settings), at_once):
        part = slice(begin, begin + at_once)
        work = buffer[: len(row[part])]
        work[:, width:] = -torch.inf
        if at_once == 1:  # choosing by an index would copy to fresh pages first; this stays in the cache
            work[0, :width] = blocks.logits[int(settings.row[begin])]
        else:
            work[:, :width] = blocks.logits.index_select(0, row[part])
        work -= best[part]
        # Subtract first: the largest becomes exactly 0, and no temperature, however small, overflows.
        work /= scale[part]
        if typical[part].any():
            exponent = weights[: len(work)].copy_(work).clamp_min_(_NO_WEIGHT)
        work.exp_()
        torch.sum(work.unflatten(1, (-1, SUM_BLOCK)), -1, out=sums[part])
        if typical[part].any():
            moment = exponent.mul_(work).unflatten(1, (-1, SUM_BLOCK)).sum(-1).double().sum(-1)
            mean[part] = (moment / sums[part].double().sum(-1)).cpu().numpy()
    return sums.double(), mean


def _draw_plain(blocks: Blocks, settings: Draw, sums: torch.Tensor) -> np.ndarray:
    """Draw tokens from the whole softmax: int64 [m]."""
    device = sums.device
    row = torch.from_numpy(settings.row).to(device)
    cumulative = sums.cumsum(-1)
    target = _column(settings.u, device) * cumulative[:, -1:]
    # Rounding must not carry the target past the last block that has any weight.
    target = torch.minimum(target, cumulative[:, -1:].nextafter(torch.zeros_like(target)))
    block = (cumulative > target).byte().argmax(-1, keepdim=True)
    before = torch.where(block > 0, cumulative.gather(1, (block - 1).clamp_min(0)), 0.0)
    values = blocks.block(row, block, SUM_BLOCK)
    scaled = (values - blocks.best[row][:, None].float()).double() / _column(_scale(settings), device)
    inside = scaled.exp().cumsum(-1)
    rest = torch.minimum(target - before, inside[:, -1:].nextafter(torch.zeros_like(target)))
    return (block * SUM_BLOCK + (inside > rest).byte().argmax(-1, keepdim=True))[:, 0].cpu().numpy()


def _draw_from(
    blocks: Blocks, count: int, settings: Draw, mass: np.ndarray, mean: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Draw tokens from the `count` most likely of each row; also return for which rows these candidates were enough.

    They are enough if the kept candidates end before the least likely one, because then no token outside can tie with the
    last one kept, or if the tokens outside have no weight.
    """
    device, width = blocks.logits.device, blocks.width
    values, ids = blocks.candidates(torch.from_numpy(settings.row).to(device), count)
    exponent = (values - values[:, :1]).double() / _column(_scale(settings), device)
    weights = exponent.exp()
    enough = weights[:, -1:] == 0.0
    if count >= width:
        enough = torch.ones_like(enough)
    remaining, prefix_done = _prefix(values, weights, settings, count, width)
    limited = _column((settings.top_k < width) | (settings.min_p > 0.0), device)
    total = torch.where(limited, remaining.sum(-1, keepdim=True), _column(mass, device))
    done = limited & prefix_done
    if (settings.top_p < 1.0).any():
        p = _column(settings.top_p, device)
        before = remaining.cumsum(-1) - remaining
        # A token stays iff the tokens before it have not reached p; the first always stays.
        stays = (before < p * total) | (p >= 1.0)
        stays[:, 0] = True
        remaining = remaining.masked_fill(~stays, 0.0)
        last = _last_kept(remaining)
        done |= ~limited & (p < 1.0) & (values.gather(1, last) > values[:, -1:])
    if (settings.typical_p < 1.0).any():
        bounded = limited | _column(settings.top_p < 1.0, device)
        remaining, typical_done = _typical(remaining, exponent, settings, bounded, mass, mean)
        done |= ~bounded & typical_done
    return _inverse(remaining, ids, settings.u), (done | enough)[:, 0].cpu().numpy()


def _last_kept(weights: torch.Tensor) -> torch.Tensor:
    """Return int64 [m, 1]: the index of the last candidate with any weight."""
    return ((weights > 0) * torch.arange(weights.shape[1], device=weights.device)).amax(-1, keepdim=True)


def _prefix(
    values: torch.Tensor, weights: torch.Tensor, settings: Draw, count: int, width: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Apply min-p and top-k to the weights; also return [m, 1] whether one of them ended before the last candidate."""
    limit, min_p = _column(settings.top_k, values.device), _column(settings.min_p, values.device)
    kth = values.gather(1, (limit - 1).clamp_max(count - 1))
    by_k = (limit < width) & (kth > values[:, -1:]) & (limit <= count)
    by_p = weights[:, -1:] < min_p
    dropped = ((values < kth) & (limit < width)) | (weights < min_p)
    return weights.masked_fill(dropped, 0.0), by_k | by_p


def _typical(
    weights: torch.Tensor, exponent: torch.Tensor, settings: Draw, bounded: torch.Tensor, mass: np.ndarray, mean: np.ndarray
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Apply typical-p (Meister et al. 2022); also return [m, 1] whether no token outside the candidates is as typical.

    |-log p - entropy| is the distance of the exponent from its mean under the weights. `bounded` rows have all tokens with
    weight among the candidates; for other rows `mass` and `mean` are those of the vocabulary.
    """
    p = _column(settings.typical_p, weights.device)
    own = weights.sum(-1, keepdim=True)
    some = weights > 0
    own_mean = torch.where(some, weights * exponent, 0.0).sum(-1, keepdim=True) / own
    total = torch.where(bounded, own, _column(mass, weights.device))
    centre = torch.where(bounded, own_mean, _column(mean, weights.device))
    distance = (exponent - centre).abs().masked_fill(~some, torch.inf)
    order = distance.argsort(dim=-1, stable=True)
    ordered = weights.gather(1, order)
    stays = ordered.cumsum(-1) - ordered < p * total
    stays[:, 0] = True
    stays = torch.empty_like(stays).scatter_(1, order, stays) | (p >= 1.0)
    rest = weights.masked_fill(~stays, 0.0)
    farthest = torch.where(rest > 0, distance, 0.0).amax(-1, keepdim=True)
    done = (p < 1.0) & (centre - exponent[:, -1:] > farthest)
    return rest, done


def _inverse(weights: torch.Tensor, ids: torch.Tensor, u: np.ndarray) -> np.ndarray:
    """int64 [m]: the first id, in vocabulary order, at which the cumulative weight exceeds u."""
    # Only as wide as the largest set.
    most = int(_last_kept(weights).max()) + 1
    in_order, order = ids[:, :most].sort(-1)
    line = weights[:, :most].gather(1, order).cumsum(-1)
    target = _column(u, weights.device) * line[:, -1:]
    target = torch.minimum(target, line[:, -1:].nextafter(torch.zeros_like(target)))
    chosen = (line > target).byte().argmax(-1, keepdim=True)
    return in_order.gather(1, chosen)[:, 0].cpu().numpy()
