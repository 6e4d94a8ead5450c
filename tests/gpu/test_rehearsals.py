"""Kernels of a start are compiled together ahead of their first launches, and no start depends on that."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton
from triton.runtime import JITFunction

from executors.contract.status import DeviceChecks
from executors.llm.assembly import parts
from executors.llm.attention.backend import TRITON
from executors.llm.device.cpu import CpuDevice
from executors.llm.executor import LlmExecutor
from executors.llm.kernel_support import kernel_check, kernel_choice, rehearsals
from executors.llm.kernel_support.kernel_choice import AttentionWish, choose_attention, fuse, rehearse
from executors.llm.kernel_support.passed_checks import PassedChecks
from executors.llm.kernel_support.rehearsals import Rehearsals, Rehearsed, rehearsing
from executors.llm.model.caches import kv_group
from executors.llm.step.launched.captures import StepCaptures
from tests.executors.checkpoints import QWEN3, write_checkpoint
from tests.executors.llm.driver import config
from tests.gpu.second_life import NumberedDevice, NumberedExecutor
from tests.gpu.test_kernel_check import decoder
from tests.gpu.workloads import SMALL

active_mode = pytest.importorskip(
    "triton.runtime._async_compile", reason="Triton compiles in threads from 3.5 on"
).active_mode
Patch = pytest.MonkeyPatch
BOTH_S = 20.0
"""Seconds for two threads to meet."""
LOGGER = "executors.llm.kernel_support.rehearsals"


class Kernel:
    """Launched through `JITFunction.run`, as Triton's are. `compiled` and `launched` count; `fault`: what its compilation raises;
    `work`: called while it is compiled."""

    def __init__(self, work: Callable[[], object] = lambda: None, fault: Exception | None = None) -> None:
        self.work, self.fault = work, fault
        self.compiled = self.launched = 0
        self.threads: list[str] = []
        self.there = False

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]:
        return lambda *args: JITFunction.run(self, *args, grid=grid, warmup=False)

    def compile(self) -> Kernel:
        self.compiled += 1
        self.threads.append(threading.current_thread().name)
        self.work()
        if self.fault is not None:
            raise self.fault
        return self

    def keep(self, _: object = None) -> None:
        self.there = True


def run(self: Any, *args: Any, grid: Any, warmup: bool) -> Any:
    """As `JITFunction.run`: compiled at the first call, by the mode if there is one; then launched unless it is a warm-up."""
    kernel = self
    if not self.there:
        mode = active_mode.get()
        if mode is None:
            self.compile()
            self.keep()
        else:
            kernel = mode.submit(id(self), self.compile, self.keep)
    if not warmup:
        if hasattr(kernel, "result"):
            kernel.result()
        self.launched += 1
    return kernel


def noting(order: list[Any], what: Any, work: Callable[..., Any]) -> Callable[..., Any]:
    """`work`, which notes `what`, or its last argument, before it begins."""

    def noted(*args: Any) -> Any:
        order.append(args[-1] if what is None else what)
        return work(*args)

    return noted


class Reports:
    """Of progress, as they came."""

    def __init__(self) -> None:
        self.all: list[tuple[str, int, int]] = []

    def __call__(self, stage: str, done: int, total: int) -> None:
        self.all.append((stage, done, total))


@pytest.fixture
def compiling(monkeypatch: Patch) -> Patch:
    """Triton as where kernels are compiled, with `run` in place of its own."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(JITFunction, "run", run)
    monkeypatch.setattr(rehearsals, "LOADED_S", -1.0)  # these kernels take no time
    return monkeypatch


def ahead_of(report: Any = lambda *progress: None, **options: Any) -> Rehearsals:
    return Rehearsals(report, **{"threads": 4} | options)


def untouched() -> bool:
    """Whether launches are as they were before a rehearsal."""
    return JITFunction.run is run and active_mode.get() is None and not rehearsing()


def test_kernels_are_compiled_together_and_launched_afterwards(compiling: Patch) -> None:
    both, reports = threading.Barrier(2), Reports()
    kernels = [Kernel(lambda: both.wait(BOTH_S)) for _ in range(2)]
    seen: list[int] = []

    def stage() -> None:
        seen.append(rehearsing())
        for kernel in (*kernels, *kernels):
            kernel[(1,)](1)
        seen.append(sum(kernel.compiled for kernel in kernels))

    ahead_of(reports).compile("steps", stage)
    assert untouched() and seen == [True, 0], "compiled beside the rehearsal"
    assert [kernel.compiled for kernel in kernels] == [1, 1]
    assert [kernel.launched for kernel in kernels] == [0, 0]
    assert all(name.startswith("kernels") for kernel in kernels for name in kernel.threads)
    assert [name for name, *_ in reports.all[:2]] == [
        "rehearsing kernels",
        "compiling kernels",
    ] and reports.all[-1][1:] == (2, 2)
    stage()
    assert [kernel.compiled for kernel in kernels] == [1, 1], "compiled twice"
    assert [kernel.launched for kernel in kernels] == [2, 2] and seen[2:] == [False, 2]


def test_a_compiled_kernel_is_not_launched_either(compiling: Patch) -> None:
    """It would read what another one, left out, has not written."""
    kernel = Kernel()
    kernel[(1,)]()
    ahead_of().compile("steps", lambda: kernel[(1,)]())
    assert (kernel.compiled, kernel.launched) == (1, 1)


def test_other_threads_launch_as_before(compiling: Patch) -> None:
    mine, theirs = Kernel(), Kernel()

    def stage() -> None:
        other = threading.Thread(target=lambda: theirs[(1,)]())
        other.start()
        other.join()
        mine[(1,)]()

    ahead_of().compile("steps", stage)
    assert (mine.launched, theirs.launched) == (0, 1)


def test_a_rehearsal_that_fails_ends_no_start(compiling: Patch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, LOGGER)
    kernel, later, reports = Kernel(), Kernel(), Reports()

    def stage() -> None:
        kernel[(1,)]()
        raise RuntimeError("out of luck")

    ahead = ahead_of(reports)
    ahead.compile("checks", stage)
    assert untouched() and (kernel.compiled, kernel.launched, kernel.there) == (1, 0, True)
    assert reports.all[-1][1:] == (1, 1), "waited without a word"
    ahead.compile("steps", lambda: later[(1,)]())
    assert later.compiled == 0, "another rehearsal behind one that failed"
    assert [(one.levelno, "out of luck" in one.message) for one in caplog.records] == [(logging.DEBUG, True)]


def test_a_kernel_that_does_not_compile_says_so_at_its_launch(
    compiling: Patch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, LOGGER)
    right, wrong = Kernel(), Kernel(fault=ValueError("no such instruction"))
    ahead_of().compile("steps", lambda: (wrong[(1,)](), right[(1,)]()))
    assert untouched() and len(caplog.records) == 1
    right[(1,)]()
    assert right.launched == 1
    with pytest.raises(ValueError, match="no such instruction"):
        wrong[(1,)]()


def test_an_end_from_outside_is_not_kept_back(compiling: Patch) -> None:
    def stage() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ahead_of().compile("steps", stage)
    assert untouched()


def test_it_is_heard_while_kernels_are_compiled(compiling: Patch) -> None:
    compiling.setattr(rehearsals, "_REPORT_S", 0.01)
    enough, reports = threading.Event(), Reports()

    def report(*progress: Any) -> None:
        reports(*progress)
        if len(reports.all) == 6:
            enough.set()

    ahead_of(report).compile("steps", lambda: Kernel(lambda: enough.wait(BOTH_S))[(1,)]())
    assert enough.is_set() and reports.all[1:6] == [("compiling kernels", 0, 1)] * 5


def test_a_stage_is_rehearsed_once(compiling: Patch) -> None:
    stages: list[str] = []
    ahead = ahead_of()
    for name in ("checks", "steps", "checks", "steps"):
        ahead.compile(name, noting(stages, name, lambda: Kernel()[(1,)]()))
    assert stages == ["checks", "steps"]


@pytest.mark.parametrize("found", ["on disk", "in memory"])
def test_with_all_kernels_there_the_next_stage_is_not_rehearsed(compiling: Patch, found: str) -> None:
    compiling.setattr(rehearsals, "LOADED_S", 60.0)
    stages: list[str] = []
    kernel = Kernel()
    kernel.there = found == "in memory"
    ahead = ahead_of()
    for name in ("checks", "steps"):
        ahead.compile(name, noting(stages, name, lambda: kernel[(1,)]()))
    assert stages == ["checks"]


@pytest.mark.parametrize("why", ["interpreted", "one core", "a hook of others", "an older Triton"])
def test_where_nothing_is_rehearsed(compiling: Patch, why: str) -> None:
    options: dict[str, Any] = {}
    if why == "interpreted":
        compiling.setenv("TRITON_INTERPRET", "1")
    elif why == "one core":
        compiling.setattr(rehearsals, "cpu_threads", lambda: 1)
        options["threads"] = None
    elif why == "a hook of others":
        compiling.setattr(triton.knobs.runtime, "jit_cache_hook", lambda **launch: None)
    else:
        compiling.delattr(triton, "AsyncCompileMode")
    ahead_of(**options).compile("steps", lambda: pytest.fail("rehearsed"))


def test_a_mode_of_others_is_left_alone(compiling: Patch) -> None:
    mode = SimpleNamespace()
    token = active_mode.set(mode)
    try:
        ahead_of().compile("steps", lambda: pytest.fail("rehearsed"))
        assert active_mode.get() is mode
    finally:
        active_mode.reset(token)


# -- what is rehearsed -----------------------------------------------------------------------------------------------------


def test_in_a_rehearsal_all_checks_run_and_none_counts(compiling: Patch) -> None:
    ran: list[str] = []
    checks = {name: (noting(ran, name, lambda: 9.0), 0.1) for name in ("norm", "gate", "rope")}
    rehearsed, real = Rehearsed(), PassedChecks("here")
    results: list[str | None] = []

    def fault() -> str | None:
        return kernel_check.first_fault(checks)

    ahead_of().compile("checks", lambda: results.append(rehearsed.fault("forward", fault)))
    assert ran == ["norm", "gate", "rope"] and results == [None]
    assert "forward" not in rehearsed and rehearsed.record() is None
    wrong = real.fault("forward", fault)
    assert ran[3:] == ["norm"] and wrong is not None and wrong.startswith("norm: ")
    with pytest.raises(RuntimeError, match="in a rehearsal"):
        rehearsed.fault("forward", fault)


@pytest.mark.interpreted
def test_a_rehearsed_choice_leaves_model_and_checks_as_they_are(
    compiling: Patch, caplog: pytest.LogCaptureFixture
) -> None:
    compiling.setenv("TRITON_INTERPRET", "1")  # for what the kernels' modules are
    compiling.setattr(rehearsals, "_possible", lambda: True)
    compiling.setattr(kernel_check, "wanted", lambda device: True)
    ran: list[str] = []
    for name in ("attention_fault", "shared_tiles_fault", "forward_fault", "few_rows_fault"):
        compiling.setattr(kernel_check, name, noting(ran, name, lambda *made: "it is wrong"))
    device, model = CpuDevice(torch.device("cpu")), decoder(QWEN3)
    device.attention_order = ("flash-attn", "triton")  # type: ignore[misc]
    model.prepare(64)
    spec, checks = kv_group(model), PassedChecks("here")
    wish = AttentionWish(spec, device, 16, None, checks)
    ahead_of().compile("checks", lambda: rehearse(wish, model, "auto", False))
    assert set(ran) >= {"attention_fault", "forward_fault", "few_rows_fault"}
    assert not caplog.records and not model.fused
    ran.clear()
    backend = choose_attention(spec, block_size=16, device=device, checks=checks)
    assert ran == ["attention_fault"] and "it is wrong" in backend.note
    backend.name = TRITON
    fuse(backend, model, checks)
    assert ran[1:] == ["forward_fault"] and not model.fused, "a rehearsal was taken for a check"


@pytest.mark.parametrize("backend", ["torch", "flash-attn"])
def test_another_backend_needs_no_kernels(compiling: Patch, backend: str) -> None:
    wish = AttentionWish(kv_group(decoder(QWEN3)), CpuDevice(torch.device("cpu")), 16)
    compiling.setattr(kernel_choice, "_checked_forward", lambda *made: pytest.fail("checked"))
    rehearse(wish, decoder(QWEN3), backend, False)


class Ahead:
    """In place of `Rehearsals`: runs each stage by itself, once, with launches. `stages` in their order."""

    stages: list[str]

    def __init__(self, report: Any) -> None: ...

    def compile(self, stage: str, rehearse: Callable[[], object]) -> None:
        Ahead.stages.append(stage)
        if stage not in Ahead.stages[:-1]:
            token = rehearsals._rehearsing.set(True)
            rehearse()
            rehearsals._rehearsing.reset(token)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("small"), SMALL)


@pytest.fixture
def started(monkeypatch: Patch, path: Path) -> Callable[..., Any]:
    """Starts an executor on a device that compiles."""
    monkeypatch.setattr("executors.llm.executor.Rehearsals", Ahead)
    Ahead.stages = []

    async def start(**changes: Any) -> Any:
        given = config(path, max_num_seqs=4, max_num_batched_tokens=16, max_model_len=64)
        executor: Any = NumberedExecutor.from_config(replace(given, **changes))
        executor.device = NumberedDevice("1")
        await executor.warmup()
        executor._idle.stop()
        return executor

    return start


@pytest.mark.long
async def test_a_first_life_rehearses_before_what_it_launches(
    started: Callable[..., Any], monkeypatch: Patch
) -> None:
    """Steps before the largest ones, which are the first to launch them."""
    monkeypatch.setattr(parts, "_rehearsed", lambda model: True)
    largest = LlmExecutor._try_largest
    monkeypatch.setattr(LlmExecutor, "_try_largest", noting(Ahead.stages, "largest", largest))
    first = await started()
    assert Ahead.stages.index("checks") < Ahead.stages.index("steps") < Ahead.stages.index("largest")
    Ahead.stages.clear()
    checks = first.device_checks()
    assert isinstance(checks, DeviceChecks)
    await started(checks=checks, memory=first.config.memory)
    assert not set(Ahead.stages) & {"checks", "steps"}, "a second life believes the first"


def test_only_layers_whose_indices_come_from_no_kernel_are_rehearsed() -> None:
    model = decoder(QWEN3)
    assert not parts._rehearsed(model) and not parts._rehearsed(SimpleNamespace())
    model.fuse(SimpleNamespace())
    assert parts._rehearsed(model)
    model.config = replace(model.config, moe=SimpleNamespace())  # type: ignore[arg-type]
    assert not parts._rehearsed(model), "experts"


@pytest.mark.long
async def test_steps_that_are_rehearsed_are_among_those_that_are_compiled(
    started: Callable[..., Any], monkeypatch: Patch
) -> None:
    executor = await started()
    captures: StepCaptures = executor._runtime.unified.launched.captures
    shapes: list[Any] = []
    captured = captures._program.captured
    monkeypatch.setattr(captures._program, "captured", noting(shapes, None, captured))
    captures.rehearse()
    few = shapes.copy()
    shapes.clear()
    assert captures._compile()
    assert len(few) == len(set(few)) and set(few) <= set(shapes)
    assert {(one.listed, one.tokens == 1) for one in few} >= {(False, True), (False, False), (True, False)}
    assert max(one.tokens for one in few) == max(one.tokens for one in shapes)


# -- Triton itself ---------------------------------------------------------------------------------------------------------


_REAL = """
import threading
import torch, triton
from executors.kernels.triton.activation import gated
from executors.kernels.triton.norms import rms_norm
from executors.llm.kernel_support import rehearsals
from tests.gpu.launches import HOPPER, _NoDevice, functions

driver = _NoDevice(HOPPER)
launchers = []
driver.launcher_cls = lambda src, metadata: launchers.append((threading.current_thread().name, src.fn))
triton.runtime.driver.set_active(driver)
x, weight = torch.ones(2, 64, dtype=torch.bfloat16), torch.ones(64, dtype=torch.bfloat16)
threads, compile_kernel = set(), rehearsals._Compilers._compile

def compiled(self, *work):
    threads.add(threading.current_thread().name)
    return compile_kernel(self, *work)

rehearsals._Compilers._compile = compiled

def stage():
    for _ in range(2):
        rms_norm(x, weight, 1e-6)
        rms_norm(x, weight, 1e-6, residual=x.clone())
        gated(x, "silu")

ahead = rehearsals.Rehearsals(lambda *progress: reports.append(progress), threads=3)
reports = []
ahead.compile("checks", stage)
assert reports[-1] == ("compiling kernels", 3, 3), reports
assert len(threads) == 3 and len(launchers) == 3, (threads, launchers)
names = "executors.kernels.triton.norms._rms_norm_kernel", "executors.kernels.triton.activation._gated_kernel"
kernels = [functions()[name] for name in names]
there = [list(kernel.device_caches[0][0].values()) for kernel in kernels]
assert [len(ones) for ones in there] == [2, 1]
assert all(len(one.asm["cubin"]) > 1000 and one.metadata.target.arch == 90 for ones in there for one in ones)
# A launch for real finds it: nothing is compiled, and it goes as far as what launches it.
calls = []
for ones in there:
    for one in ones:
        one._run, one.module = (lambda *launch: calls.append(launch)), True
stage()
assert len(calls) == 6 and len(launchers) == 3, (len(calls), launchers)
print("compiled", len(threads))
"""


@pytest.mark.long
def test_triton_compiles_in_threads_what_a_rehearsal_launches(tmp_path: Path) -> None:
    """For sm_90, without a GPU."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", _REAL], capture_output=True, text=True, check=False, env=environment,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == "compiled 3"
