"""Candidates for rows of the kernels' table, each checked against torch and timed: which numbers suit the device at hand.

A candidate counts only if its result equals the reference. It replaces the row only if it is faster by more than `LEAST_GAIN`.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.gpu.kernels import Items, step_of
from benchmarks.gpu.timing import Call, noise
from executors.kernels import device_layouts
from executors.kernels.triton.activation import gated
from executors.kernels.triton.few_rows import FewRowsWorkspace, added_product, normed_product
from executors.kernels.triton.norms import rms_norm
from executors.kernels.triton.stored_tiles import tile_matmul
from executors.kernels.triton.tuning import HALF, Choice, Key, choose, head_shape, kind_of, trying
from executors.llm.attention.triton_attention import TritonAttention
from executors.llm.memory import int8_kv
from executors.llm.memory.kv_cache import KvCache
from executors.llm.model.caches import KvSpec

LEAST_GAIN = 0.02
"""Share of the time that a candidate must save: less is noise."""
TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 2e-2}
"""Largest distance from the reference, relative to its norm."""
PAGE = 16


@dataclass(frozen=True, slots=True)
class Work:
    """A problem for one row of the table. `bind` makes, with the rows that are in force, calls for the clock and the call whose
    result is compared with `reference`."""

    title: str
    reference: torch.Tensor
    bind: Callable[[], tuple[list[Call], Callable[[], torch.Tensor]]]


@dataclass(frozen=True, slots=True)
class Tuned:
    """A row's candidates and the problems that decide."""

    key: Key
    candidates: tuple[Choice, ...]
    works: Callable[[], list[Work]]


@dataclass(frozen=True, slots=True)
class Trial:
    """A candidate that was tried: seconds of each problem, or `fault`, the reason why it does not count."""

    choice: Choice
    seconds: tuple[float, ...] = ()
    fault: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """Where candidates are tried. `rows` and `keys` of the problems are small if `tiny`."""

    device: torch.device
    dtype: torch.dtype
    tiny: bool

    def random(self, *shape: int) -> torch.Tensor:
        """Return numbers, the same for the same shape."""
        drawn = torch.randn(*shape, device=self.device, generator=noise(self.device))
        return drawn.to(self.dtype)

    def copies(self, num_bytes: int) -> int:
        """Return how many copies of operands no cache keeps."""
        return 1 if self.tiny else max(2, min(64, -(-(256 << 20) // num_bytes)))


def attempt(
    choice: Choice, tuned: Tuned, works: Sequence[Work], clock: Callable[[list[Call]], float]
) -> Trial:
    """Check and time one candidate."""
    times = []
    try:
        with trying({tuned.key: choice}):
            for work in works:
                calls, result = work.bind()
                far = distance(result(), work.reference)
                if not far <= TOLERANCE[work.reference.dtype]:
                    return Trial(choice, fault=f"{work.title}: the result is off by {far:.2g}")
                times.append(clock(calls))
    except Exception as error:  # it does not fit, or does not compile: the next one may
        text = str(error).splitlines() or [""]
        return Trial(choice, fault=f"{type(error).__name__}: {text[0][:200]}")
    return Trial(choice, tuple(times))


def distance(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the largest distance of a row from the expected one, relative to that one's norm; infinity if it is no number."""
    both = (one.float().flatten(1) for one in (actual, expected))
    found, wanted = both
    far = (found - wanted).norm(dim=1) / wanted.norm(dim=1).clamp_min(1e-6)
    return float(far.nan_to_num(torch.inf).max())


def gain(trial: Trial, usual: Trial) -> float:
    """Return the share of time that a trial saves against the usual row: the mean over the problems."""
    shares = [1 - mine / other for mine, other in zip(trial.seconds, usual.seconds, strict=True)]
    return sum(shares) / len(shares)


def best(trials: Sequence[Trial]) -> Trial:
    """Return the trial to take; the first one is the row as it stands. Raises ValueError if that one is wrong itself."""
    usual, *others = trials
    if usual.fault:
        raise ValueError(f"the row as it stands: {usual.fault}")
    right = [trial for trial in others if not trial.fault and gain(trial, usual) > LEAST_GAIN]
    return max(right, key=lambda trial: gain(trial, usual), default=usual)


def variants(key: Key, **numbers: Sequence[int]) -> tuple[Choice, ...]:
    """Return the row as it stands, then all combinations of these numbers, those that change least first."""
    row = choose(*key)
    changes: list[dict[str, Any]] = [
        dict(zip(numbers, values, strict=True)) for values in itertools.product(*numbers.values())
    ]
    made = [replace(row, **one) for one in changes]
    made.sort(key=lambda one: sum(getattr(one, name) != getattr(row, name) for name in numbers))
    return (row, *(one for one in made if one != row))


def all_tuned(place: Place) -> Iterator[Tuned]:
    """Yield the rows that decide most of a step's time, those first that decide most."""
    kind, head = kind_of(place.dtype), 16 if place.tiny else 128
    few = place.tiny
    decode: Items = [(1, 19)] * 3 if few else [(1, 1023)] * 256
    alone: Items = [(1, 30)] if few else [(1, 1023)]
    prompts: Items = [(5, 4)] if few else [(128, 0)] * 32
    whole: Items = [(7, 20)] if few else [(4_096, 0)]
    behind: Items = [(512, 7_000)]
    turn: Items = [(64, 7_000)]
    key: Key = ("decode_attention", kind, head_shape(head, True))
    yield Tuned(
        key, variants(key, depth=(16, 32, 64), warps=(4, 8), stages=(3, 5)),
        lambda: [_attention(place, "256 x 1024", decode, head), _attention(place, "1 x 1024", alone, head)],
    )  # fmt: skip
    for name in ("short", "short gated", "long"):
        key = ("one_row", "", name)
        yield Tuned(
            key, variants(key, outputs=(1, 2, 4), warps=(1, 2, 4)), functools.partial(_one_row, place, name)
        )
    key = ("extend_attention", kind, head_shape(head, True))
    yield Tuned(
        key, variants(key, depth=(32, 64, 128), warps=(4, 8), stages=(2, 3, 5)),
        lambda: [_attention(place, "32 x 128", prompts, head), _attention(place, "1 x 4096", whole, head)],
    )  # fmt: skip
    if not place.tiny:  # of few keys no tile is cut
        key = ("shared_extend", kind, head)
        yield Tuned(
            key, variants(key, depth=(32, 64, 128), parts=(8, 16, 32), stages=(3, 5)),
            lambda: [_attention(place, "64 after 7000", turn, head)],
        )  # fmt: skip
        key = ("shared_extend", kind, head_shape(head, True))
        yield Tuned(
            key, variants(key, depth=(32, 64, 128), stages=(3, 5)),
            lambda: [_attention(place, "512 after 7000", behind, head)],
        )  # fmt: skip
    key = ("few_rows", kind, "")
    depths = (choose(*key).depth,) if kind != HALF else (64, 128, 256)
    yield Tuned(
        key, variants(key, depth=depths, stages=(3, 4, 5), warps=(2, 4)), functools.partial(_few_rows, place)
    )
    if kind == HALF:
        for tile_rows in (64, 32, 16):
            key = ("stored_tile", kind, tile_rows)
            yield Tuned(key, _stored_candidates(key), functools.partial(_stored_tiles, place, tile_rows))
        # Values of 8 bits are read byte by byte, or lie widened in shared memory.
        for name, stored in (("e4m3", torch.float8_e4m3fn), ("int8", torch.int8)):
            key = ("decode_attention", kind_of(place.dtype, stored), head_shape(head, True))
            yield Tuned(
                key, variants(key, depth=(32, 64, 128), widened=(0, 1), warps=(4, 8), stages=(3, 5)),
                functools.partial(_narrow, place, f"256 x 1024 in {name}", decode, head, stored),
            )  # fmt: skip
    key = ("rms_norm", "", "")
    yield Tuned(key, variants(key, depth=(256, 512, 1024)), functools.partial(_norm, place))
    key = ("gated", "", "")
    yield Tuned(
        key, variants(key, outputs=(512, 1024, 2048), warps=(2, 4, 8)), functools.partial(_gated, place)
    )


# -- problems ------------------------------------------------------------------------------------------------------------


def _attention(place: Place, title: str, items: Items, dim: int, stored: torch.dtype | None = None) -> Work:
    heads, kv_heads = (2, 1) if place.tiny else (16, 8)
    layers = 1 if place.tiny else 2
    spec = KvSpec(
        layers, heads, kv_heads, dim, place.dtype, place.device, dim**-0.5, None, (None,) * layers, stored
    )
    pages = sum(-(-(new + past) // PAGE) for new, past in items)
    cache = KvCache(spec, pages, PAGE)
    for number in range(layers):
        fill(cache, number, 1.0 + number)
    step = step_of(items, pages, PAGE)
    q = place.random(len(step.token_ids), heads, dim)

    def bind() -> tuple[list[Call], Callable[[], torch.Tensor]]:
        attend = TritonAttention(spec).begin(step, cache)
        return [functools.partial(attend.attend, layer, q) for layer in range(layers)], lambda: attend.attend(
            0, q
        )

    kv, peaks = cache.parts(0)
    # Queries are what the kernel multiplies by keys, which both are turned where it is int8.
    return Work(
        title, _attended(q, kv if peaks is None else int8_kv.widened(kv, peaks), step, dim**-0.5), bind
    )


def _narrow(place: Place, title: str, items: Items, dim: int, stored: torch.dtype) -> list[Work]:
    return [_attention(place, title, items, dim, stored)]


def fill(cache: KvCache, layer: int, size: float) -> None:
    """Fill a layer with normal numbers times `size`, the same for the same shape, as its dtype holds them."""
    (kv, peaks), device = cache.parts(layer), cache.spec.device
    drawn = torch.randn(kv.shape, device=device, generator=noise(device)) * size
    if peaks is None:
        kv.copy_(drawn)
        return
    codes, largest = int8_kv.narrowed(drawn)
    kv.copy_(codes)
    peaks.copy_(largest)


def _attended(q: torch.Tensor, kv: torch.Tensor, step: Any, scale: float) -> torch.Tensor:
    """The formula, in float32."""
    out, row = torch.empty_like(q), 0
    for item, (count, past) in enumerate(zip(step.q_lens.tolist(), step.pos_offsets.tolist(), strict=True)):
        blocks = torch.from_numpy(step.tables[item]).to(q.device)[: -(-(past + count) // PAGE)].long()
        keys, values = kv[:, blocks].float().transpose(2, 3).flatten(1, 2)[:, : past + count]
        group = q.shape[1] // keys.shape[1]
        keys, values = (one.repeat_interleave(group, 1) for one in (keys, values))
        scores = torch.einsum("qhd,khd->hqk", q[row : row + count].float(), keys) * scale
        place = torch.arange(past + count, device=q.device)
        hidden = place[None, :] > past + torch.arange(count, device=q.device)[:, None]
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        out[row : row + count] = torch.einsum("hqk,khd->qhd", weights, values).to(q.dtype)
        row += count
    return out


def _one_row(place: Place, name: str) -> list[Work]:
    deep = (
        (64 if name.startswith("short") else 1040)
        if place.tiny
        else 1024
        if name.startswith("short")
        else 3072
    )
    wide = 48 if place.tiny else 6144 if "gated" in name else 1024 if name == "long" else 4096
    x, norm = place.random(1, deep), place.random(deep).abs()
    weights = [place.random(wide, deep) for _ in range(place.copies(wide * deep * place.dtype.itemsize))]
    activation = "silu" if "gated" in name else None
    # The norm's weight is multiplied before the product, and rounded once.
    factor = torch.rsqrt(x.float().square().mean() + 1e-6)
    product = F.linear((x * norm).float(), weights[0].float()) * factor
    if activation is not None:
        product = F.silu(product[:, : wide // 2]) * product[:, wide // 2 :]

    def bind() -> tuple[list[Call], Callable[[], torch.Tensor]]:
        calls = [
            functools.partial(normed_product, x, norm, 1e-6, weight, activation=activation)
            for weight in weights
        ]
        return [*calls], calls[0]

    return [Work(f"{wide} x {deep}", product.to(place.dtype), bind)]


def _few_rows(place: Place) -> list[Work]:
    wide, deep = (64, 256) if place.tiny else (1024, 3072)
    x, residual = place.random(5, deep), place.random(5, wide)
    weights = [place.random(wide, deep) / 16 for _ in range(place.copies(wide * deep * place.dtype.itemsize))]
    expected = residual.float() + F.linear(x.float(), weights[0].float())

    def bind() -> tuple[list[Call], Callable[[], torch.Tensor]]:
        workspace, into = FewRowsWorkspace([(wide, deep)], place.device), residual.clone()

        def result() -> torch.Tensor:
            fresh = residual.clone()
            added_product(x, weights[0], fresh, workspace)
            return fresh

        return [functools.partial(added_product, x, weight, into, workspace) for weight in weights], result

    return [Work(f"{wide} x {deep}, 5 rows", expected.to(place.dtype), bind)]


def _stored_candidates(key: Key) -> tuple[Choice, ...]:
    """Both orders of activations with as many programs as fit; with 64 rows deep tiles, too, as decision 381 has them."""
    if key[2] != 64:
        return variants(key, ordered=(False, True), programs=(2, 3), stages=(3, 4))
    shallow = variants(key, ordered=(False, True), programs=(2, 4), stages=(3, 4))
    deep = [replace(one, depth=256, stages=3, programs=1) for one in shallow]
    return (*shallow, *dict.fromkeys(deep))


def _stored_tiles(place: Place, rows: int) -> list[Work]:
    """A wide and a square weight of four bits, and one of six."""
    shapes = [("Q4_K", 24576, 4096), ("Q4_K", 4096, 4096), ("Q6_K", 4096, 12288)]
    return [
        _stored_tile(place, kind, *((96, 512) if place.tiny else (wide, deep)), rows)
        for kind, wide, deep in shapes
    ]


def _stored_tile(place: Place, kind: str, wide: int, deep: int, rows: int) -> Work:
    from executors.llm.kernel_support.kernel_check import random_rows  # it imports all kernels

    drawn = torch.Generator().manual_seed(rows)
    size = device_layouts.DeviceRows.empty(kind, wide, deep, torch.device("meta")).num_bytes
    weights = [random_rows(drawn, kind, wide, deep, place.device) for _ in range(place.copies(size))]
    # Scales are about 1 times a small whole number: sums stay within float16.
    x = place.random(rows, deep) / 1024
    out = torch.empty(rows, wide, dtype=place.dtype, device=place.device)
    expected = F.linear(x.float(), device_layouts.widened(weights[0]))

    def bind() -> tuple[list[Call], Callable[[], torch.Tensor]]:
        calls = [functools.partial(tile_matmul, x, weight, None, out) for weight in weights]

        def result() -> torch.Tensor:
            calls[0]()
            return out.clone()

        return [*calls], result

    return Work(f"{wide} x {deep} in {kind}, {rows} rows", expected.to(place.dtype), bind)


def _norm(place: Place) -> list[Work]:
    x, weight = (
        place.random(3 if place.tiny else 256, 64 if place.tiny else 1024),
        place.random(64 if place.tiny else 1024),
    )
    wide = x.float()
    expected = wide * torch.rsqrt(wide.square().mean(1, keepdim=True) + 1e-6) * weight.float()
    call = functools.partial(rms_norm, x, weight, 1e-6)
    return [Work("256 rows", expected.to(place.dtype), lambda: ([call], call))]


def _gated(place: Place) -> list[Work]:
    x = place.random(3 if place.tiny else 256, 128 if place.tiny else 6144)
    gate, up = x.float().chunk(2, 1)
    call = functools.partial(gated, x, "silu")
    return [Work("256 rows", (F.silu(gate) * up).to(place.dtype), lambda: ([call], call))]
