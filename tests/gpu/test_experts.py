"""The expert kernels against torch: the module that they stand in for, in float64, and what each kernel promises by itself."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime import interpreter

from executors.kernels.triton import experts as kernels
from executors.kernels.triton.experts import ExpertWeights, most_tiles, place, product, route
from executors.kernels.triton.tuning import FLOAT32, HALF, Choice, choose
from executors.llm.checkpoint.device_blocks import device_rows
from executors.llm.checkpoint.device_layers import keep
from executors.llm.checkpoint.gguf_blocks import dequantize
from executors.llm.checkpoint.loader import activation_bytes
from executors.llm.checkpoint.weights import load_weights, settle_config, stored_formats
from executors.llm.fused.triton_experts import (
    TritonExperts,
    choose_tile,
    triton_experts,
)
from executors.llm.model.config import parse_config, read_config
from executors.llm.model.decoder import Decoder
from executors.llm.model.layers.activations import ACTIVATIONS, CLAMPED
from executors.llm.model.layers.experts import Experts
from executors.llm.model.linear import StoredFormat
from tests.executors.checkpoints import QWEN3
from tests.executors.llm.checkpoint.gpt_oss_files import PACKED, in_mxfp4

FEW, SOME, MANY = (choose("experts", HALF, name) for name in ("few", "some", "many"))
WIDE = choose("experts", FLOAT32, "few"), choose("experts", FLOAT32, "some")
pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore:overflow encountered in exp")]
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPES = [torch.float32, torch.float16, *([torch.bfloat16] if DEVICE.type == "cuda" else [])]
"""Without a GPU no bf16: the interpreter multiplies it wrongly."""
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.2e-2}
MOE: dict[str, Any] = {
    **QWEN3, "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}  # fmt: skip


@pytest.fixture(autouse=True)
def _garbage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that nobody has written to is full of what must not be read."""
    empty = torch.empty

    def full(*shape: Any, **options: Any) -> torch.Tensor:
        made = empty(*shape, **options)
        if made.is_floating_point():
            return made.fill_(float("nan"))
        return made.fill_(min(2**30, torch.iinfo(made.dtype).max))

    monkeypatch.setattr(kernels.torch, "empty", full)


def of_nan() -> AbstractContextManager[object]:
    """Around what computes with NaN: NumPy, which interprets, says so."""
    return pytest.warns(RuntimeWarning, match="invalid value") if DEVICE.type == "cpu" else nullcontext()


def module(
    experts: int, top_k: int, dtype: torch.dtype, *, hidden: int = 40, inner: int = 24, normalized: bool = True,
) -> Experts:  # fmt: skip
    """Random experts; seeded by the caller."""
    shape = {
        "num_experts": experts,
        "num_experts_per_tok": top_k,
        "norm_topk_prob": normalized,
    }
    config = parse_config({**MOE, **shape, "hidden_size": hidden, "moe_intermediate_size": inner})
    found = Experts(config, dtype, DEVICE)
    for linear in found.linears:
        assert linear.weight is not None
        linear.weight.normal_(0.0, 1.5 / linear.weight.shape[1] ** 0.5)
    return found


def fused(experts: Experts) -> TritonExperts:
    found = triton_experts(experts)
    assert found is not None
    return found


def exact(experts: Experts, x: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """In float64; of equal logits the first wins."""
    moe, stacked = experts.moe, experts.stacked()
    assert stacked is not None
    gate_up, down = (weights.double() for weights in stacked)
    biases = experts.stacked_biases()
    gate_up_bias, down_bias = (0.0, 0.0) if biases is None else (one.double() for one in biases)
    order = logits.double().argsort(dim=-1, descending=True, stable=True)[:, : moe.top_k]
    shares = logits.double().softmax(-1).gather(1, order)
    if moe.normalized:
        shares = shares / shares.sum(-1, keepdim=True)
    gate, up = (torch.einsum("th,eoh->teo", x.double(), gate_up) + gate_up_bias).chunk(2, -1)
    if experts.activation == CLAMPED:
        gate, up = gate.clamp(max=moe.limit), up.clamp(-moe.limit, moe.limit) + 1
        inside = up * gate * torch.sigmoid(moe.alpha * gate)
    else:
        inside = ACTIVATIONS[experts.activation](gate) * up
    each = torch.einsum("tei,ehi->teh", inside, down) + down_bias
    return (each.gather(1, order[:, :, None].expand(-1, -1, x.shape[1])) * shares[:, :, None]).sum(1)


def gpt_oss(count: int, top_k: int, dtype: torch.dtype, hidden: int = 64, inner: int = 32) -> Experts:
    """Random experts with biases and a clamped activation whose limits are reached; seeded by the caller."""
    config = parse_config({
        **QWEN3, "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "num_local_experts": count,
        "num_experts_per_tok": top_k, "hidden_size": hidden, "intermediate_size": inner, "swiglu_limit": 1.0,
    })  # fmt: skip
    found = Experts(config, dtype, DEVICE)
    for linear in found.linears:
        assert linear.weight is not None and linear.bias is not None
        linear.weight.normal_(0.0, 1.5 / linear.weight.shape[1] ** 0.5)
        linear.bias.normal_(0.0, 0.5)
    return found


def close(found: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    error = (found.cpu().double() - expected.cpu()).norm() / expected.cpu().norm()
    assert error < TOLERANCE[dtype], float(error)


SHAPES: list[tuple[int, int, int, dict[str, Any]]] = [
    (1, 64, 8, {}),
    (3, 64, 8, {"normalized": False}),
    (5, 8, 1, {"hidden": 33, "inner": 17}),
    (23, 7, 3, {"hidden": 70, "inner": 50}),
    (64, 4, 4, {"hidden": 64, "inner": 32}),
    (200, 16, 2, {"hidden": 150, "inner": 20, "normalized": False}),
]
"""Tokens, experts, top_k and what else is not as usual: a tile per pair, widths that are no tiles, each size of tile."""
CASES = [
    (*shape, dtype)
    for i, shape in enumerate(SHAPES)
    for dtype in (DTYPES if DEVICE.type == "cuda" else [DTYPES[i % 2]])  # interpreted, each takes its time
]


OF_GPT_OSS = [
    (1, 8, 4, torch.float16),
    (3, 32, 4, torch.float32),
    (40, 5, 2, torch.float32),
    (70, 4, 2, torch.float16),
]
"""Tokens, experts, top_k: a tile per pair, and each size of tile."""


@pytest.mark.long(every=3)
@pytest.mark.parametrize(("tokens", "count", "top_k", "dtype"), OF_GPT_OSS)
def test_biases_a_softmax_over_the_chosen_and_a_clamped_activation(
    tokens: int, count: int, top_k: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(tokens)
    experts = gpt_oss(count, top_k, dtype, 40, 24)
    x = torch.randn(tokens, 40, device=DEVICE).to(dtype)
    close(fused(experts)(x), exact(experts, x, experts.router(x)), dtype)
    if dtype is torch.float32:
        torch.testing.assert_close(fused(experts)(x), experts(x), rtol=1e-4, atol=1e-5)


@pytest.mark.long(every=3)
@pytest.mark.parametrize(("tokens", "count", "top_k", "dtype"), OF_GPT_OSS)
def test_weights_in_mxfp4_are_those_that_were_widened(
    tokens: int, count: int, top_k: int, dtype: torch.dtype
) -> None:
    """Codes of every value, the signs of both zeros included, and columns that are no whole tiles."""
    torch.manual_seed(tokens)
    hidden, inner = 96, 32
    wide, packed = (gpt_oss(count, top_k, dtype, hidden, inner) for _ in range(2))
    packed.keep_on_device("MXFP4")
    assert packed.stacked() is None and packed.on_device is not None
    packed.router = wide.router
    for one, other in zip(packed.experts, wide.experts, strict=True):
        for kept, linear in zip(one.linears, other.linears, strict=True):
            assert kept.on_device is not None and kept.bias is not None and linear.bias is not None
            assert linear.weight is not None
            rows, columns = linear.weight.shape
            blocks = torch.randint(0, 256, (rows, columns // 32, 17), dtype=torch.uint8)
            blocks[:, :, 0] = torch.randint(122, 126, (rows, columns // 32))
            kept.on_device.take(device_rows(blocks.flatten(1), "MXFP4"), 0)
            numbers = torch.empty(rows, columns)
            dequantize(blocks.flatten(1), "MXFP4", numbers)
            linear.weight.copy_(numbers)
            kept.bias.copy_(linear.bias)
    x = torch.randn(tokens, hidden, device=DEVICE).to(dtype)
    logits = wide.router(x)
    close(fused(packed).mix(x, logits), exact(wide, x, logits), dtype)
    if dtype is torch.float32:
        torch.testing.assert_close(
            fused(packed).mix(x, logits), fused(wide).mix(x, logits), rtol=1e-5, atol=1e-6
        )
    close(packed.mix(x, logits), exact(wide, x, logits), dtype)
    assert packed.experts[1].gate_up.num_bytes == 2 * inner * hidden * 5 // 8


@pytest.mark.long(every=3)
@pytest.mark.parametrize(("tokens", "count", "top_k", "other", "dtype"), CASES)
def test_as_the_module(
    tokens: int, count: int, top_k: int, other: dict[str, Any], dtype: torch.dtype
) -> None:
    torch.manual_seed(tokens)
    experts = module(count, top_k, dtype, **other)
    x = torch.randn(tokens, other.get("hidden", 40), device=DEVICE).to(dtype)
    found = fused(experts)(x)
    close(found, exact(experts, x, experts.router(x)), dtype)
    if dtype is torch.float32:
        torch.testing.assert_close(found, experts(x), rtol=1e-4, atol=1e-5)


def test_random_shapes() -> None:
    generator = torch.Generator().manual_seed(3)

    def between(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=generator))

    torch.manual_seed(3)
    for _ in range(4):
        count = between(4, 24)
        hidden, dtype = between(16, 90), DTYPES[between(0, 1)]
        experts = module(count, between(1, min(count, 8)), dtype, hidden=hidden, inner=between(16, 60))
        x = torch.randn(between(1, 40), hidden, device=DEVICE).to(dtype)
        close(fused(experts)(x), exact(experts, x, experts.router(x)), dtype)


@pytest.mark.long(every=3)
@pytest.mark.parametrize("tile", [FEW, SOME, MANY, *WIDE])
def test_every_tile(tile: Choice) -> None:
    torch.manual_seed(1)
    dtype = torch.float32 if tile in WIDE else torch.float16
    experts = module(2, 1, dtype, hidden=136, inner=40)
    x, logits = torch.randn(140, 136, device=DEVICE).to(dtype), torch.randn(140, 2, device=DEVICE)
    stacked = experts.stacked()
    assert stacked is not None
    routing = route(logits, 1, normalized=True)
    placing = place(routing, tile.rows)
    inner = product(x, ExpertWeights(stacked[0]), routing, placing, tile, "silu")
    close(
        product(inner, ExpertWeights(stacked[1]), routing, placing, tile, None),
        exact(experts, x, logits),
        dtype,
    )


def test_all_to_one_and_none_to_the_others() -> None:
    torch.manual_seed(2)
    experts = module(9, 1, torch.float32)
    x, logits = torch.randn(70, 40, device=DEVICE), torch.zeros(70, 9, device=DEVICE)
    logits[:, 4] = 3.0
    close(fused(experts).mix(x, logits), exact(experts, x, logits), torch.float32)


def test_choices_are_of_the_first_among_equals_and_different_whatever_is_there() -> None:
    infinite, nan = float("inf"), float("nan")
    logits = torch.tensor(
        [
            [1.0, 5.0, 5.0, 1.0, 1.0],
            [nan, nan, nan, nan, nan],
            [0.0, nan, 2.0, 1.0, 0.5],
            [-infinite, 0.0, -infinite, -infinite, -infinite],
            [infinite, 0.0, 1.0, 2.0, 3.0],
        ],
        device=DEVICE,
    )
    with of_nan():
        routing = route(logits, 3, normalized=False)
    assert routing.chosen.tolist() == [[1, 2, 0], [0, 1, 2], [2, 3, 4], [1, 0, 2], [0, 4, 3]]
    assert routing.counts.sum(0).tolist() == [4, 3, 4, 2, 2]
    assert routing.shares[[1, 2]].isnan().all()
    torch.testing.assert_close(routing.shares[0], logits[0].softmax(-1)[[1, 2, 0]])
    assert routing.shares[3].tolist() == [1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("tokens", "count", "top_k", "rows"),
    [(1, 4, 2, 16), (37, 12, 8, 16), (300, 5, 3, 64)],
)
def test_places(tokens: int, count: int, top_k: int, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As drawn in the kernels' file, also with many blocks of several rounds and many splits of several chunks."""
    monkeypatch.setattr(kernels, "_SPLIT_PAIRS", 300)
    monkeypatch.setattr(kernels, "_CHUNK", 128)
    monkeypatch.setattr(kernels, "_MAX_BLOCKS", 20)
    torch.manual_seed(tokens)
    logits = torch.randn(tokens, count, device=DEVICE)
    logits[:, 1] -= 20.0  # chosen by nobody, or nearly
    routing = route(logits, top_k, normalized=True)
    placing = place(routing, rows)
    chosen, num_pairs = routing.chosen.flatten().cpu(), tokens * top_k
    pairs, owners, seen = [], [], chosen.bincount(minlength=count)
    for expert in range(count):
        own = (chosen == expert).nonzero().flatten().tolist()
        tiles = -(-len(own) // rows)
        pairs += [*own, *[num_pairs] * (tiles * rows - len(own))]
        owners += [expert] * tiles
    assert routing.counts.sum(0).tolist() == seen.tolist()
    assert int(placing.count) == len(owners) <= placing.max_tiles
    assert placing.owners[: len(owners)].tolist() == owners
    assert placing.pairs[: len(pairs)].tolist() == pairs
    assert len(placing.pairs) == placing.max_tiles * rows


@pytest.mark.parametrize("rows", [2, 16])
def test_no_choice_needs_more_than_most_tiles(rows: int) -> None:
    """One pair for each expert but the last, which takes the rest: nothing leaves more rows idle."""
    for num_pairs in range(1, 80):
        for count in (1, 3, 40):
            few = min(count, num_pairs) - 1
            rest = num_pairs - few
            needed = few + -(-rest // rows)
            assert needed <= most_tiles(num_pairs, count, rows) <= needed + (few + rows) // rows


def row_by_row(a: np.ndarray, b: np.ndarray, dtype: type) -> np.ndarray:
    """A product for the interpreter in which, as on a device, a row's place in the tile does not matter; in NumPy's it does."""
    return np.stack([row @ b.astype(dtype) for row in a.astype(dtype)])


@pytest.mark.parametrize("dtype", DTYPES if DEVICE.type == "cuda" else DTYPES[:1])
def test_steady_rows_do_not_know_their_batch(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    if DEVICE.type == "cpu":
        monkeypatch.setattr(interpreter.np, "matmul", row_by_row)
    torch.manual_seed(5)
    experts = module(6, 2, dtype, hidden=72, inner=20)
    experts.be_steady()
    x, logits = torch.randn(80, 72, device=DEVICE).to(dtype), torch.randn(80, 6, device=DEVICE)
    whole = fused(experts).mix(x, logits)
    for rows in ([7], [7, 70], list(range(3, 30, 2)), list(range(79, 9, -1))):
        assert torch.equal(fused(experts).mix(x[rows], logits[rows]), whole[rows]), len(rows)


def test_a_row_of_nan_is_alone() -> None:
    torch.manual_seed(6)
    experts = module(6, 2, torch.float32)
    x, logits = torch.randn(20, 40, device=DEVICE), torch.randn(20, 6, device=DEVICE)
    expected = fused(experts).mix(x, logits)
    x[11], logits[11] = float("nan"), float("nan")
    with of_nan():
        found = fused(experts).mix(x, logits)
    assert found[11].isnan().all()
    others = torch.arange(20, device=DEVICE) != 11
    torch.testing.assert_close(found[others], expected[others])


class Calls(TorchDispatchMode):
    """Names of torch's operators that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("tokens", [1, 9])
def test_the_host_waits_for_nothing(tokens: int) -> None:
    """Else it could not be captured."""
    torch.manual_seed(7)
    experts = module(4, 2, torch.float32)
    x, logits = torch.randn(tokens, 40, device=DEVICE), torch.randn(tokens, 4, device=DEVICE)
    with Calls() as calls:
        fused(experts).mix(x, logits)
    assert calls.names
    waiting = ("_local_scalar_dense", "nonzero", "bincount", "_to_copy", "unique", "masked_select")
    assert not [name for name in calls.names if any(part in name for part in waiting)]


def test_tiles_by_tokens_per_expert() -> None:
    half = torch.bfloat16
    assert [choose_tile(t, 8, 128, half, False) for t in (1, 128, 129, 1536, 1537)] == [
        FEW,
        FEW,
        SOME,
        SOME,
        MANY,
    ]
    assert {choose_tile(t, 8, 128, half, True) for t in (1, 10**5)} == {SOME}
    assert {choose_tile(t, 8, 128, torch.float32, False) for t in (1, 10**5)} == set(WIDE)
    assert {choose_tile(t, 8, 128, torch.float32, True) for t in (1, 10**5)} == {WIDE[1]}


def test_every_plan_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    experts = fused(module(16, 2, torch.float16))
    seen = []
    monkeypatch.setattr(experts, "mix", lambda x, logits: seen.append((x.shape, logits.shape)) or x)
    monkeypatch.setattr(Experts, "mix", lambda self, x, logits: x)
    assert experts.error() == 0.0
    assert sorted(x[0] for x, _ in seen) == [1, 8, 128, 1024]
    assert {experts.plan(x[0]) for x, _ in seen} == {experts.plan(tokens) for tokens in range(1, 4000)}
    assert all(x[1] == 40 and logits == (x[0], 16) for x, logits in seen)


def test_memory_is_reckoned_for_all_experts_of_a_token_where_they_run_at_once() -> None:
    def needed(top_k: int, device: str) -> int:
        config = parse_config(
            {
                **MOE,
                "num_experts": 9,
                "num_experts_per_tok": top_k,
                "norm_topk_prob": True,
                "moe_intermediate_size": 24,
            }
        )
        return activation_bytes(Decoder(config, torch.float16, torch.device(device)), None)

    assert needed(9, "cpu") == needed(6, "cpu")
    assert needed(9, "meta") - needed(6, "meta") == 2 * 3 * (24 + QWEN3["hidden_size"])


def test_no_tokens() -> None:
    experts = module(4, 2, torch.float32)
    assert fused(experts)(torch.ones(0, 40, device=DEVICE)).shape == (0, 40)


def test_weights_in_another_form_are_left_to_torch() -> None:
    experts = module(4, 2, torch.float32)
    gate_up, down = experts.stacked() or (torch.ones(0), torch.ones(0))
    assert gate_up.shape == (4, 48, 40) and down.shape == (4, 40, 24)
    for e, expert in enumerate(experts.experts):
        assert torch.equal(expert.gate_up.weight, gate_up[e]) and torch.equal(expert.down.weight, down[e])
    one = experts.experts[2].down
    kept = one.weight
    for other in (None, kept.clone(), kept.to("meta"), kept.half()):
        one.weight = other
        assert experts.stacked() is None and triton_experts(experts) is None
    one.weight = kept
    assert triton_experts(experts) is not None
    assert triton_experts(module(4, 2, torch.float64)) is None


def test_a_checkpoint_in_mxfp4_is_kept_in_it(tmp_path: Path) -> None:
    """Every part of every expert where it belongs, and nothing of them wide."""
    path, reference = in_mxfp4(tmp_path, {**PACKED, "num_hidden_layers": 2})

    def loaded(path: Path, stored: dict[str, StoredFormat]) -> Decoder:
        config = settle_config(read_config(path), path)
        decoder = Decoder(config, torch.float32, DEVICE, each_layer=partial(keep, stored=stored))
        load_weights(decoder, path, lambda *progress: None)
        return decoder

    packed = loaded(path, stored_formats(path, read_config(path).family))
    wide = loaded(reference.path, {})
    x = torch.randn(9, 64, device=DEVICE)
    for kept, layer in zip(packed.layers, wide.layers, strict=True):
        one, other = kept.feed_forward, layer.feed_forward
        assert isinstance(one, Experts) and isinstance(other, Experts)
        assert one.on_device is not None and other.on_device is None
        logits = other.router(x)
        assert torch.equal(one.router(x), logits)
        close(fused(one).mix(x, logits), fused(other).mix(x, logits), torch.float32)
        assert sum(linear.num_bytes for linear in one.linears) < 0.2 * sum(
            linear.num_bytes for linear in other.linears
        )
