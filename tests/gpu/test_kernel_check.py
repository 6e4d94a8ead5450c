"""Our own kernels are tried before they serve, as libraries are: right ones pass; wrong ones are named, and torch computes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from executors.contract.errors import ConfigError
from executors.kernels import triton_build
from executors.kernels.triton import extend_attention as extend_module
from executors.kernels.triton.tuning import HALF, choose, trying
from executors.llm.assembly.parts import device_sampler
from executors.llm.attention import triton_attention
from executors.llm.attention.check import fault
from executors.llm.attention.key_pieces import PieceRule
from executors.llm.attention.plain_torch import TorchAttention
from executors.llm.attention.tile_pieces import TileRule
from executors.llm.attention.triton_attention import TritonAttention
from executors.llm.fused import triton_experts
from executors.llm.fused.triton_forward import TritonForward
from executors.llm.kernel_support import fp8_support, kernel_check
from executors.llm.kernel_support.kernel_choice import choose_attention, fuse
from executors.llm.memory.kv_cache import KvCache
from executors.llm.model.config import parse_config
from executors.llm.model.decoder import Decoder
from executors.llm.sampling import triton_sampler
from executors.llm.sampling.columns import PADDING
from executors.llm.sampling.device_sampler import TorchDeviceSampler
from executors.llm.sampling.triton_sampler import TritonSampler
from executors.llm.step_arrays import StepArrays
from tests.executors.checkpoints import QWEN3
from tests.executors.kernels.steps import spec
from tests.gpu.attention_fakes import pretend
from tests.gpu.test_experts import MOE
from tests.tiers import sweep

pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore:overflow encountered in exp", "ignore:invalid value encountered"),
]
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
FP16, E4M3 = torch.float16, torch.float8_e4m3fn
GEMMA = {
    **QWEN3, "architectures": ["Gemma2ForCausalLM"], "query_pre_attn_scalar": 16, "sliding_window": 8,
    "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "hidden_activation": "gelu_pytorch_tanh",
}  # fmt: skip
EXPERTS = {
    **MOE,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
    "moe_intermediate_size": 24,
}
MODEL = replace(spec(2, 1, 16, FP16), device=DEVICE)
Patch = pytest.MonkeyPatch


@pytest.fixture(autouse=True)
def _shorter(monkeypatch: Patch) -> None:
    """What takes milliseconds on a GPU takes the interpreter half a minute."""
    if DEVICE.type == "cpu":
        monkeypatch.setattr(kernel_check, "PAST", (30, 0, 5, 60, 300))
        monkeypatch.setattr(kernel_check, "CHUNKS", (1, 9, 1, 20, 3))
        monkeypatch.setattr(kernel_check, "SPLITS", (17,))


@pytest.fixture
def tried(monkeypatch: Patch) -> Patch:
    """As on a GPU, also where there is none."""
    monkeypatch.setattr(kernel_check, "wanted", lambda device: True)
    return monkeypatch


def decoder(fields: dict[str, Any], dtype: torch.dtype = torch.float32, narrow: bool = False) -> Decoder:
    """Its weights are random, for experts' are part of what is tried."""
    made = Decoder(parse_config(fields), dtype, DEVICE)
    made.kv_dtype = E4M3 if narrow else None
    made.prepare(100)
    torch.manual_seed(3)
    for linear in made.linears():
        assert linear.weight is not None
        linear.weight.normal_(0.0, linear.weight.shape[1] ** -0.5)
    return made


def bent(function: Callable[..., Any], kept: int | None = None) -> Callable[..., Any]:
    """Its result, or one of its arguments, is a tenth too large in the last row."""

    def wrong(*given: Any, **named: Any) -> Any:
        found = function(*given, **named)
        (found if kept is None else given[kept])[-1] *= 1.1
        return found

    return wrong


# -- right ones ----------------------------------------------------------------------------------------------------------


@pytest.mark.long(every=3)
@pytest.mark.parametrize(
    ("fields", "dtype", "narrow"),
    [
        (QWEN3, torch.float32, False),
        (QWEN3, FP16, True),
        (GEMMA, FP16, False),
        (EXPERTS, torch.float32, False),
        ({**EXPERTS, "norm_topk_prob": False}, FP16, False),
    ],
)
def test_a_right_forward(fields: dict[str, Any], dtype: torch.dtype, narrow: bool) -> None:
    made = decoder(fields, dtype, narrow)
    assert kernel_check.forward_fault(made, TritonForward(made).experts) is None


@pytest.mark.long(every=2)
@sweep(every=3)
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("changes", [{}, {"kv_dtype": E4M3, "kv_scales": ((0.02, 0.5),)}, {"windows": (30,)}])
def test_right_attention(changes: dict[str, Any], deterministic: bool) -> None:
    model = replace(MODEL, **changes)
    backend = TritonAttention(model, deterministic)
    assert kernel_check.attention_fault(backend, model, 16) is None
    rule = backend.tile_rule
    assert rule.cuts is not deterministic
    assert kernel_check.shared_tiles_fault(backend, model, 16) is None and backend.tile_rule is rule


@pytest.mark.long(every=2)
@pytest.mark.parametrize("name", ["extend_attention", "shared_extend_attention"])
def test_attention_that_is_wrong_for_many_queries_only_is_named(name: str, tried: Patch) -> None:
    """Their tiles of keys have another size, which no other step of the check launches."""
    tried.setattr(extend_module, "_MANY", 1 if DEVICE.type == "cpu" else 4)
    many = extend_module.many_from(MODEL.num_heads, MODEL.num_kv_heads, MODEL.head_dim, MODEL.dtype)
    assert many > sum(kernel_check.CHUNKS)
    right = getattr(triton_attention, name)

    def wrong(q: torch.Tensor, *given: Any, **named: Any) -> Any:
        found = right(q, *given, **named)
        if len(q) >= many:
            found[-1] *= 1.1
        return found

    backend = TritonAttention(MODEL)
    checks = kernel_check.attention_fault, kernel_check.shared_tiles_fault
    key = "extend_attention", HALF, f"{MODEL.head_dim} plain"
    with trying({key: replace(choose(*key), depth=16)}):
        assert [check(backend, MODEL, 16) for check in checks] == [None, None]
        tried.setattr(triton_attention, name, wrong)
        said = "extend_attention: " if name == "extend_attention" else "extend_attention with shared keys: "
        check = checks[name != "extend_attention"]
        assert str(check(backend, MODEL, 16)).startswith(f"{said}{WRONG}")
    assert check(backend, MODEL, 16) is None, "where many queries are computed as few are, nothing is tried"


def test_the_problem_in_e4m3_is_a_right_one() -> None:
    for scales in ((), ((0.02, 0.5),)):
        model = replace(MODEL, kv_dtype=E4M3, kv_scales=scales)
        assert fault(TorchAttention(), model, 16) is None


@pytest.mark.long(every=2)
@pytest.mark.parametrize(("rows", "dtype"), [(64, torch.float32), (2, FP16)])
def test_a_right_sampler(rows: int, dtype: torch.dtype) -> None:
    assert kernel_check.sampler_fault(TritonSampler(rows, 300, DEVICE), rows, 300, dtype, DEVICE) is None


def test_right_products_in_e4m3() -> None:
    assert kernel_check.fp8_fault(DEVICE) is None


# -- wrong ones ----------------------------------------------------------------------------------------------------------

WRONG = "its results are wrong here: they differ from the reference by "


@pytest.mark.parametrize("name", ["rms_norm", "rotate_and_store", "gated"])
def test_a_wrong_kernel_of_the_forward_is_named(
    name: str, tried: Patch, caplog: pytest.LogCaptureFixture
) -> None:
    tried.setattr(kernel_check, name, bent(getattr(kernel_check, name)))
    model, backend = decoder(QWEN3), TritonAttention(MODEL)
    with caplog.at_level(logging.WARNING):
        fuse(backend, model)
    assert model._fused is None
    assert f"forward: torch, which is slower than Cohort's Triton kernels: {name}: {WRONG}" in caplog.text
    assert backend.note.startswith(f"attention: cohort-triton; forward by torch: {name}: {WRONG}")
    backend.deterministic = True
    with pytest.raises(ConfigError, match=f"deterministic: needs Cohort's own kernels: {name}: {WRONG}"):
        fuse(backend, model)


def test_keys_that_are_stored_wrong_are_found(tried: Patch) -> None:
    """Also a token that nobody was to keep."""
    store = kernel_check.rotate_and_store
    for damage in (lambda kv, cells: kv[1].mul_(1.2), lambda kv, cells: kv[0, :, :, 3].fill_(1.0)):

        def wrong(qkv: Any, kv: Any, cells: Any, heads: int, damage: Any = damage, **more: Any) -> Any:
            found = store(qkv, kv, cells, heads, **more)
            damage(kv, cells)
            return found

        tried.setattr(kernel_check, "rotate_and_store", wrong)
        assert str(kernel_check.forward_fault(decoder(QWEN3), None)).startswith("rotate_and_store: ")


def test_wrong_experts_are_named(tried: Patch) -> None:
    tried.setattr(triton_experts, "add_up", bent(triton_experts.add_up))
    model = decoder(EXPERTS)
    assert str(kernel_check.forward_fault(model, TritonForward(model).experts)).startswith(
        f"experts: {WRONG}"
    )


@pytest.mark.long(every=2)
@pytest.mark.parametrize("name", ["extend_attention", "decode_attention"])
def test_wrong_attention_is_named(name: str, tried: Patch, caplog: pytest.LogCaptureFixture) -> None:
    tried.setattr(triton_attention, name, bent(getattr(triton_attention, name), kept=2))
    pretend(tried)
    with caplog.at_level(logging.WARNING):
        chosen = choose_attention(MODEL)
    assert isinstance(chosen, TorchAttention) and f"not triton: {name}: {WRONG}" in chosen.note
    assert f"triton is not used: {name}: {WRONG}" in caplog.text
    with pytest.raises(ConfigError, match=f"attention backend triton: {name}: {WRONG}"):
        choose_attention(MODEL, "triton")
    with pytest.raises(
        ConfigError, match=f"deterministic: needs Cohort's own attention kernels: {name}: {WRONG}"
    ):
        choose_attention(MODEL, deterministic=True)


@pytest.mark.long(every=2)
def test_wrong_sharing_of_tiles_is_named_and_left_out(tried: Patch, caplog: pytest.LogCaptureFixture) -> None:
    """All other kernels are right, and serve."""
    name = "shared_extend_attention"
    tried.setattr(triton_attention, name, bent(getattr(triton_attention, name), kept=2))
    pretend(tried)
    with caplog.at_level(logging.WARNING):
        chosen = choose_attention(MODEL)
    assert isinstance(chosen, TritonAttention) and not chosen.tile_rule.cuts
    said = f"keys of prompts are not shared by programs: extend_attention with shared keys: {WRONG}"
    assert f"attention: {said}" in caplog.text
    assert chosen.note.startswith(f"attention: cohort-triton; {said}")
    assert chosen.most_tile_pieces(9, 10_000) == 0
    step = StepArrays(np.zeros(3, np.int64), np.array([3]), np.array([600]), np.zeros((1, 38), np.int32))
    assert not len(chosen.begin(step, KvCache(MODEL, 1, 16)).meta.tile_pieces)


@pytest.mark.long(every=2)
@pytest.mark.parametrize("lost", ["a piece", "a key"])
def test_a_wrong_cut_of_tiles_is_found(lost: str, tried: Patch) -> None:
    backend, cut = TritonAttention(MODEL), TileRule.cut

    def wrong(self: TileRule, keys: np.ndarray) -> np.ndarray:
        pieces = cut(self, keys)
        if self.count:
            pieces[-1, 2] = pieces[-1, 1] if lost == "a piece" else pieces[-1, 2] - 1
        return pieces

    tried.setattr(TileRule, "cut", wrong)
    assert kernel_check.attention_fault(backend, MODEL, 16) is None
    assert str(kernel_check.shared_tiles_fault(backend, MODEL, 16)).startswith(
        f"extend_attention with shared keys: {WRONG}"
    )


def wrong_in_splits(splits: int) -> Callable[..., Any]:
    """`decode_attention` whose last row is a tenth too large where keys are in so many splits, and right otherwise."""
    right = triton_attention.decode_attention

    def wrong(*given: Any, **named: Any) -> Any:
        found = right(*given, **named)
        if int(given[6][:, 5].max()) == splits:  # pieces, of a row
            found[-1] *= 1.1
        return found

    return wrong


@pytest.mark.long(every=2)
@sweep(every=2)
@pytest.mark.parametrize("splits", kernel_check.SPLITS)
def test_attention_that_is_wrong_in_so_many_splits_only_is_named(
    splits: int, tried: Patch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever this device would split its keys into."""
    tried.setattr(triton_attention, "decode_attention", wrong_in_splits(splits))
    if DEVICE.type == "cpu":  # nothing but the splits is of interest, and interpreted it takes its time
        tried.setattr(kernel_check, "SPLITS", (splits,))
        tried.setattr(kernel_check, "PAST", (4, 0, 2, 1, 3))
        tried.setattr(kernel_check, "CHUNKS", (1, 2, 1, 2, 2))
        tried.setattr(TritonAttention, "pieces", lambda self, lengths: PieceRule(1, 1, count=2).cut(lengths))
    pretend(tried)
    with caplog.at_level(logging.WARNING):
        chosen = choose_attention(MODEL)
    assert isinstance(chosen, TorchAttention)
    named = f"decode_attention in {splits} splits"
    if DEVICE.type == "cuda" and f"{named}:" not in caplog.text:
        named = "decode_attention"  # the number that this device takes itself is tried first
    assert f"triton is not used: {named}: {WRONG}" in caplog.text


@pytest.mark.long(extended=True)
@pytest.mark.parametrize("listed", [False, True])
def test_attention_that_is_wrong_for_listed_items_only_is_named(listed: bool, tried: Patch) -> None:
    right = triton_attention.decode_attention

    def wrong(*given: Any, items: torch.Tensor | None, **named: Any) -> Any:
        found = right(*given, items=items, **named)
        if (items is not None) is listed:
            found[-1] *= 1.1
        return found

    tried.setattr(triton_attention, "decode_attention", wrong)
    problem = kernel_check.border_problem(MODEL, 16)
    for splits in (3, 17):
        error = kernel_check.split_error(TritonAttention(MODEL), problem, splits)
        assert error > 2 * kernel_check.LIMITS[FP16]


@pytest.mark.long(every=3)
@sweep(every=3)
@pytest.mark.parametrize("name", ["block_matmul", "block_gated"])
@pytest.mark.parametrize("rows", [16, 32, 64, 128])
def test_each_tile_of_products_in_e4m3_is_tried(rows: int, name: str, tried: Patch) -> None:
    """A kernel of its own for each height of tiles."""
    right = getattr(kernel_check.fp8_kernels, name)

    def wrong(x: torch.Tensor, *given: Any) -> Any:
        found = right(x, *given)
        if max(16, min(128, 1 << (len(x) - 1).bit_length())) == rows:
            found[-1] *= 1.5
        return found

    tried.setattr(kernel_check.fp8_kernels, name, wrong)
    assert str(kernel_check.fp8_fault(DEVICE)).startswith(f"{name}: {WRONG}")


@pytest.mark.long(extended=True)
def test_an_epilogue_that_takes_gate_for_up_is_named(tried: Patch) -> None:
    """Sums that are right, and an activation on the wrong half."""
    right = kernel_check.fp8_kernels.block_gated

    def wrong(
        x: torch.Tensor, scales: torch.Tensor, weight: torch.Tensor, factors: torch.Tensor, *given: Any
    ) -> Any:
        swapped = (torch.cat(one.chunk(2)[::-1]) for one in (weight.view(torch.uint8), factors))
        turned, sizes = swapped
        return right(x, scales, turned.view(E4M3), sizes, *given)

    tried.setattr(kernel_check.fp8_kernels, "block_gated", wrong)
    assert str(kernel_check.fp8_fault(DEVICE)).startswith(f"block_gated: {WRONG}")


class Wrong(TritonSampler):
    """Takes the best token wherever another is likely."""

    def sample(
        self, logits: torch.Tensor, settings: Any, tokens: torch.Tensor, bad: torch.Tensor, shaping: Any,
        masks: Any = None,
    ) -> None:  # fmt: skip
        super().sample(logits, settings, tokens, bad, shaping, masks)
        drawn = (settings.temperature > 0) & (bad == 0)
        tokens[drawn] = logits.argmax(-1).int()[drawn]


class Blind(TritonSampler):
    """Notices no number that is none."""

    def sample(
        self, logits: torch.Tensor, settings: Any, tokens: torch.Tensor, bad: torch.Tensor, shaping: Any,
        masks: Any = None,
    ) -> None:  # fmt: skip
        super().sample(logits, settings, tokens, bad, shaping, masks)
        bad.zero_()


class Heedless(TritonSampler):
    """Knows of no penalties."""

    def sample(
        self, logits: torch.Tensor, settings: Any, tokens: torch.Tensor, bad: torch.Tensor, shaping: Any,
        masks: Any = None,
    ) -> None:  # fmt: skip
        super().sample(logits, settings, tokens, bad, None, masks)


class Free(TritonSampler):
    """Reads no masks."""

    def sample(
        self, logits: torch.Tensor, settings: Any, tokens: torch.Tensor, bad: torch.Tensor, shaping: Any,
        masks: Any = None,
    ) -> None:  # fmt: skip
        super().sample(logits, settings, tokens, bad, shaping)


@pytest.mark.long(every=3)
@pytest.mark.parametrize("kind", [Wrong, Blind, Heedless, Free])
def test_a_wrong_sampler_is_named(
    kind: type[TritonSampler], tried: Patch, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = kernel_check.sampler_fault(kind(18, 300, DEVICE), 18, 300, torch.float32, DEVICE)
    assert str(wrong).startswith(f"sampler: {WRONG}")
    tried.setattr(triton_build, "missing", lambda: None)
    tried.setattr(triton_sampler, "TritonSampler", lambda *given: object())
    tried.setattr(kernel_check, "sampler_fault", lambda *given: wrong)
    with caplog.at_level(logging.WARNING):
        chosen = device_sampler(torch.device("cuda"), 18, 300, torch.float32)
    assert isinstance(chosen, TorchDeviceSampler)
    assert f"sampling: torch, which is slower than Cohort's Triton kernels: sampler: {WRONG}" in caplog.text


class Off(TorchDeviceSampler):
    """Takes the next token in some rows of what it is first asked."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self._left = rows

    def sample(
        self, logits: torch.Tensor, settings: Any, tokens: torch.Tensor, bad: torch.Tensor, shaping: Any,
        masks: Any = None,
    ) -> None:  # fmt: skip
        before, nobodys = tokens.clone(), settings.temperature == PADDING
        super().sample(logits, settings, tokens, bad, shaping, masks)
        tokens[: self._left] += 1
        tokens[nobodys] = before[nobodys]
        self._left = 0


@sweep(every=4)
@pytest.mark.parametrize("rows", range(2, 19))
def test_one_row_may_lie_next_to_a_border(rows: int) -> None:
    """In float32 a third is more than a third."""

    def fault(off: int) -> str | None:
        return kernel_check.sampler_fault(Off(off), rows, 300, torch.float32, DEVICE)

    assert fault(0) is None and fault(1) is None and str(fault(2)).startswith(f"sampler: {WRONG}")


@pytest.mark.long(every=2)
@pytest.mark.parametrize("name", ["quantize", "block_matmul", "block_gated"])
def test_wrong_products_in_e4m3_are_named(name: str, tried: Patch, caplog: pytest.LogCaptureFixture) -> None:
    right = getattr(kernel_check.fp8_kernels, name)

    def wrong(*given: Any) -> Any:
        found = right(*given)
        (found[1] if name == "quantize" else found)[-1] *= 1.5
        return found

    tried.setattr(kernel_check.fp8_kernels, name, wrong)
    fp8_support._fault.cache_clear()
    try:
        with caplog.at_level(logging.WARNING):
            assert not fp8_support.has_triton(DEVICE, "triton")
            assert str(fp8_support.why_no_triton(DEVICE, "triton")).startswith(f"{name}: {WRONG}")
        assert caplog.text.count(f"Triton kernels are not used: {name}: {WRONG}") == 1
    finally:
        fp8_support._fault.cache_clear()


def test_a_kernel_that_does_not_compile_is_named_and_no_memory_is_no_fault(tried: Patch) -> None:
    def broken(error: Exception) -> Callable[..., Any]:
        def raising(*given: Any, **named: Any) -> Any:
            raise error

        return raising

    tried.setattr(kernel_check, "gated", broken(RuntimeError("PassManager::run failed\nmore")))
    model = decoder(QWEN3)
    assert kernel_check.forward_fault(model, None) == "gated: its self-check failed: PassManager::run failed"
    tried.setattr(kernel_check, "gated", broken(torch.OutOfMemoryError("CUDA out of memory")))
    with pytest.raises(torch.OutOfMemoryError):
        kernel_check.forward_fault(model, None)


def test_nothing_is_tried_on_a_cpu() -> None:
    assert kernel_check.wanted(torch.device("cuda", 1)) and not kernel_check.wanted(torch.device("cpu"))
