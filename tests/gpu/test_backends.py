"""Attention backends: the same battery over every one of them, who is chosen, and who is not trusted.

Without a GPU the libraries are stood in for by fakes that keep to their documentation (`attention_fakes.py`).
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import logging
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from executors.contract.config import ExecutorAttentionConfig
from executors.contract.errors import ConfigError
from executors.kernels import ATTENTION_BACKENDS
from executors.llm.attention.backend import TRITON
from executors.llm.attention.check import LIMITS, Problem, fault
from executors.llm.attention.library import Unsuitable, over
from executors.llm.attention.plain_torch import TorchAttention
from executors.llm.attention.varlen import Varlen
from executors.llm.factory import LlmFactory
from executors.llm.kernel_support.kernel_choice import choose_attention
from tests.executors.checkpoints import write_checkpoint
from tests.executors.kernels.steps import Sequences, spec
from tests.gpu import backend_battery
from tests.gpu import session as check_tests
from tests.gpu.attention_fakes import flash_2, flash_3, pretend, varlen_attn
from tests.gpu.backend_battery import BLOCK_SIZES, CASES, error_of
from tests.gpu.test_executor import SMALL
from tests.tiers import sweep

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore:overflow encountered in exp")]
CPU = torch.device("cpu")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
FP16 = torch.float16
DTYPES = [FP16, *([torch.bfloat16] if DEVICE.type == "cuda" else [])]
"""Without a GPU no bf16: the interpreter's products of bf16 operands are wrong."""
MODEL = replace(spec(4, 2, 64, FP16), device=DEVICE)
HOPPER = (9, 0)
STOOD_IN_FOR = ("flash-attn", "flash-attn 2", "varlen")
"""On a GPU these are run themselves, or not at all: a fake that passes there would be taken for them."""


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """See `pretend`."""
    return partial(pretend, monkeypatch)


@sweep(every=3)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.interpreted] if name in STOOD_IN_FOR else []) for name in BLOCK_SIZES]
)  # fmt: skip
@pytest.mark.parametrize("case", CASES)
def test_every_backend_passes_the_same_battery(
    name: str, case: str, dtype: torch.dtype, install: Callable[..., None]
) -> None:
    install(flash_2(), flash_3(), varlen=varlen_attn)
    refusal = "softcap" if name == "varlen" and CASES[case].softcap is not None else ""
    if name in STOOD_IN_FOR:
        refusal = refusal or (
            "no sinks" if CASES[case].sinks else "head_dim is 512" if CASES[case].dim > 256 else ""
        )
    if refusal:
        with pytest.raises(Unsuitable, match=refusal):
            error_of(name, CASES[case], dtype, DEVICE)
    else:
        assert error_of(name, CASES[case], dtype, DEVICE) < LIMITS[dtype] / 4


if DEVICE.type == "cuda":

    @pytest.mark.parametrize(
        ("name", "titles"),
        [
            *(pytest.param(name, (), id=name) for name in BLOCK_SIZES if name != "triton"),
            # A test for each: one for all would take longer to compile than a test may.
            *(pytest.param("triton", (title,), id=f"triton, {title}") for title in backend_battery.ALL),
        ],
    )
    def test_the_real_ones_pass_it_too(
        name: str, titles: tuple[str, ...], record_property: Callable[[str, object], None]
    ) -> None:
        """With longer sequences. A library that is not installed, or that the start would refuse, is not run, and gpu-check
        says so."""
        outcome = backend_battery.run_one(name, DEVICE, titles)
        state, _, why = outcome.partition(": ")
        if state == check_tests.NOT_RUN:
            record_property(check_tests.NOT_RUN, why)
        assert state != "fail", outcome


def test_the_battery_knows_what_is_right() -> None:
    """Its reference against the one of the CPU kernels' tests, with what both have: one window, bounded scores."""
    shape = spec(6, 2, 24, torch.float32, windows=(40,), softcap=4.0)
    seqs = Sequences(shape, [90, 61])
    problem = Problem(shape, 16, (50, 0), (40, 61))
    for item, q, k, v in zip(problem.items, seqs.q, seqs.k, seqs.v, strict=True):
        for mine, theirs in ((item.q, q), (item.k, k), (item.v, v)):
            mine.copy_(theirs)
    for i, begin in ((0, 50), (1, 0)):
        count = seqs.lengths[i] - begin
        expected = seqs.expected([(i, begin, count)])
        assert torch.allclose(problem._expected(i, begin, begin + count, 40), expected, atol=1e-6)


def test_the_fake_has_the_parameters_of_the_real_one() -> None:
    """Read, not imported: that takes seconds."""
    found = importlib.util.find_spec("torch.nn.attention.varlen")
    assert found is not None and found.origin is not None
    functions = {
        one.name: one
        for one in ast.parse(Path(found.origin).read_text()).body
        if isinstance(one, ast.FunctionDef)
    }
    real = functions["varlen_attn"].args
    if torch.__version__.startswith("2.11."):  # has no block tables yet: there it is not used
        assert "block_table" not in [one.arg for one in real.kwonlyargs]
        return
    kinds = {kind: [] for kind in ("args", "kwonlyargs")}  # type: dict[str, list[str]]
    for name, one in inspect.signature(varlen_attn).parameters.items():
        kinds["kwonlyargs" if one.kind is one.KEYWORD_ONLY else "args"].append(name)
    assert kinds == {kind: [one.arg for one in getattr(real, kind)] for kind in kinds}


# -- who is chosen -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("modules", "varlen", "block_size", "capability", "note"),
    [
        ((flash_2(), flash_3()), varlen_attn, 16, HOPPER, "attention: flash-attn 3"),
        ((flash_2(), flash_3()), varlen_attn, 256, HOPPER, "attention: flash-attn 2.8.3"),
        ((flash_2(),), varlen_attn, 256, (8, 6), "attention: flash-attn 2.8.3"),
        (
            (flash_2(),), varlen_attn, 16, HOPPER,
            "attention: cohort-triton; not flash-attn: block_size is 16; a multiple of 256 is needed (--block-size 256)",
        ),
        ((flash_2(), flash_3()), None, 64, HOPPER,
         "attention: cohort-triton; not flash-attn: block_size is 64; flash-attn 3 needs less than 64"),
        ((), varlen_attn, 256, HOPPER, "attention: cohort-triton"),
        ((), None, 16, HOPPER, "attention: cohort-triton"),
        ((flash_2(),), None, 256, (7, 5),
         "attention: cohort-triton; not flash-attn: a GPU of compute capability 8.0 or later is needed"),
    ],
)  # fmt: skip
def test_the_order_on_a_gpu(
    modules: tuple[ModuleType, ...], varlen: Any, block_size: int, capability: tuple[int, int], note: str,
    install: Callable[..., None],
) -> None:  # fmt: skip
    install(*modules, varlen=varlen, capability=capability)
    assert choose_attention(MODEL, block_size=block_size).note == note


def test_without_triton_torchs_own_then_torch_and_it_is_said(
    install: Callable[..., None], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "executors.llm.attention.triton_attention", None)
    monkeypatch.delattr("executors.llm.attention.triton_attention", raising=False)
    install(varlen=varlen_attn)
    chosen = choose_attention(MODEL, block_size=256)
    assert (
        chosen.note == f"attention: varlen (torch {torch.__version__}); not triton: triton is not installed"
    )
    with caplog.at_level(logging.WARNING):
        last = choose_attention(MODEL, block_size=16)
    assert last.note.startswith(
        "attention: torch (gathers KV before each call); not triton: triton is not installed; "
    )
    assert last.note.endswith("not varlen: block_size is 16; a multiple of 256 is needed (--block-size 256)")
    assert "triton is not used: triton is not installed" in caplog.text


@pytest.mark.parametrize(
    ("backend", "changes", "block_size", "modules", "capability", "words"),
    [
        ("flash-attn", {}, 256, (), HOPPER,
         r"flash-attn is not installed \(pip install 'cohort-server\[flash\]'\)"),
        ("flash-attn", {}, 256, (flash_2(),), None, "it needs a GPU; the device is cpu"),
        ("varlen", {}, 256, (), None, "it needs a GPU; the device is cpu"),
        ("varlen", {}, 256, (), HOPPER, r"torch .* has no varlen_attn with block_table; 2.12 or later"),
        ("flash-attn", {}, 16, (flash_2(),), HOPPER, "block_size is 16; a multiple of 256 is needed"),
        ("flash-attn", {"dtype": torch.float32}, 16, (flash_3(),), HOPPER, "it has no kernels for float32"),
        ("flash-attn", {"head_dim": 100}, 16, (flash_3(),), HOPPER, "head_dim is 100; a multiple of 8 up to 256"),
        ("flash-attn", {"head_dim": 320}, 256, (flash_2(),), HOPPER, "head_dim is 320"),
        ("flash-attn", {"num_heads": 3}, 16, (flash_3(),), HOPPER, "3 query heads do not share 2 key heads"),
        ("flash-attn", {"kv_dtype": torch.float8_e4m3fn}, 16, (flash_3(),), HOPPER,
         "it cannot read KV in float8_e4m3fn"),
        ("flash-attn", {}, 256, (flash_2(flash_attn_with_kvcache=None),), HOPPER,
         "flash-attn 2.8.3 has no flash_attn_with_kvcache"),
        ("flash-attn", {}, 256, (flash_2(flash_attn_varlen_func=lambda q, k, v: q, __version__="2.3"),), HOPPER,
         "flash-attn 2.3: 2.6 or later is needed"),
        *(
            pytest.param(
                "triton", {"head_dim": size}, 16, (), HOPPER, f"Triton kernels have no code for float16 and heads of {size}",
                marks=pytest.mark.interpreted,  # on a GPU, tensors of a CPU are what it has no code for
            )
            for size in (8, 640)
        ),
    ],
)  # fmt: skip
def test_what_was_asked_for_and_cannot_be_had_says_why(
    backend: str, changes: dict[str, Any], block_size: int, modules: tuple[ModuleType, ...],
    capability: tuple[int, int] | None, words: str, install: Callable[..., None],
) -> None:  # fmt: skip
    install(*modules, capability=capability)
    with pytest.raises(ConfigError, match=f"^attention backend {backend}: {words}"):
        choose_attention(replace(MODEL, device=CPU, **changes), backend, block_size=block_size)


def test_a_package_that_does_not_load_says_so(
    install: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    install()
    (tmp_path / "flash_attn.py").write_text("raise ImportError('libc10.so: undefined symbol: _ZN3c104cuda')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "flash_attn")
    note = choose_attention(MODEL, block_size=256).note
    assert note.endswith(
        "not flash-attn: flash-attn cannot be imported: libc10.so: undefined symbol: _ZN3c104cuda"
    )


def test_triton_without_a_gpu_has_to_be_interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ConfigError, match="attention backend triton: it needs a GPU; the device is cpu"):
        choose_attention(replace(MODEL, device=CPU), "triton")


def test_deterministic_is_ours_alone(install: Callable[..., None]) -> None:
    install(flash_2(), flash_3(), varlen=varlen_attn)
    for asked in ("auto", "triton"):
        chosen = choose_attention(MODEL, asked, deterministic=True)
        assert chosen.name == TRITON and chosen.deterministic  # type: ignore[attr-defined]
    for asked in ("flash-attn", "varlen", "torch"):
        with pytest.raises(
            ConfigError, match=f"deterministic: attention backend {asked} is not deterministic; use triton"
        ):
            choose_attention(MODEL, asked, deterministic=True)


def test_the_settings_know_the_same_names(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "model", SMALL)
    from tests.executors.llm.driver import config

    for name in ATTENTION_BACKENDS:
        LlmFactory().validate_config(config(path, attention=ExecutorAttentionConfig(16, name)))
    words = "'flashinfer' is not supported; supported: auto, flash-attn, varlen, triton, torch"
    with pytest.raises(ConfigError, match=words):
        LlmFactory().validate_config(config(path, attention=ExecutorAttentionConfig(16, "flashinfer")))


# -- who is not trusted --------------------------------------------------------------------------------------------------


def unwritten(*args: Any, block_table: Any = None, softcap: float = 0.0, **more: Any) -> torch.Tensor:
    """Rows of all sequences but the first stay as they were found, which is what splits of paged sequences have led to."""
    out = flash_2().flash_attn_varlen_func(*args, block_table=block_table, softcap=softcap, **more)
    out[int(args[3][1]) :] = 0.25
    return out


def wide(*args: Any, block_table: Any = None, softcap: float = 0.0, **more: Any) -> torch.Tensor:
    """A window that is a token too large: a small mistake."""
    left = more["window_size"][0]
    more["window_size"] = (left + 1 if left >= 0 else left, more["window_size"][1])
    return flash_2().flash_attn_with_kvcache(*args, block_table=block_table, softcap=softcap, **more)


def breaks(*args: Any, block_table: Any = None, softcap: float = 0.0, **more: Any) -> torch.Tensor:
    raise RuntimeError("no kernel image is available for execution on the device\nmore")


@pytest.mark.parametrize(
    ("fake", "windows", "words"),
    [
        (flash_2(flash_attn_varlen_func=unwritten), (None,), "its results are wrong here: they differ from the reference by "),
        (flash_2(flash_attn_with_kvcache=wide), (None, 7), "its results are wrong here: they differ from the reference by "),
        (flash_2(flash_attn_with_kvcache=breaks), (None,), "its self-check failed: no kernel image is available for "),
    ],
)  # fmt: skip
def test_a_library_that_is_wrong_is_not_used(
    fake: ModuleType, windows: tuple[int | None, ...], words: str, install: Callable[..., None],
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    install(fake)
    model = replace(MODEL, num_layers=len(windows), windows=windows)
    with caplog.at_level(logging.WARNING):
        chosen = choose_attention(model, block_size=256)
    assert chosen.name == TRITON
    assert chosen.note.startswith(f"attention: cohort-triton; not flash-attn: {words}")
    assert f"flash-attn is not used: {words}" in caplog.text
    with pytest.raises(ConfigError, match=f"attention backend flash-attn: {words}"):
        choose_attention(model, "flash-attn", block_size=256)


def test_the_self_check_lets_right_ones_pass() -> None:
    for dtype in (torch.float32, FP16):
        assert fault(TorchAttention(), replace(MODEL, dtype=dtype, windows=(30,), softcap=20.0), 16) is None


def test_varlen_is_told_not_to_split() -> None:
    """The fake leaves rows unwritten otherwise, as torch's does."""
    made = over("varlen", Varlen(varlen_attn))
    assert fault(made, MODEL, 256) is None
    splitting = over(
        "varlen", Varlen(lambda *args, **more: varlen_attn(*args, **{**more, "num_splits": None}))
    )
    assert "wrong" in str(fault(splitting, MODEL, 256))


def test_a_later_flash_attn_is_told_not_to_split(install: Callable[..., None]) -> None:
    told = []

    def varlen(
        *args: Any, block_table: Any = None, softcap: float = 0.0, num_splits: int = 0, **more: Any
    ) -> Any:
        told.append(num_splits)
        return flash_2().flash_attn_varlen_func(*args, block_table=block_table, softcap=softcap, **more)

    install(flash_2(flash_attn_varlen_func=varlen))
    assert choose_attention(MODEL, block_size=256).name == "flash-attn"
    assert set(told) == {1}
