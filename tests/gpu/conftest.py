"""On a GPU kernels run as they are, bf16 included. Without one, or with TRITON_INTERPRET=1, they run interpreted on the CPU: the
switch has to be there before the first of them is imported."""

import os
from collections.abc import Generator
from typing import Any

import pytest

INTERPRET = os.environ.get("TRITON_INTERPRET") == "1"
if INTERPRET:
    # Modules ask torch for a GPU, and would put their tensors there.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""

import torch  # noqa: E402

from benchmarks.gpu import interpreted  # noqa: E402

if not torch.cuda.is_available():
    interpreted.prepare()
elif INTERPRET:
    raise pytest.UsageError("TRITON_INTERPRET=1: something used the GPU before; run tests/gpu by itself")


def pytest_configure(config: pytest.Config) -> None:
    """Beside `gpu`, for tests that need one: those that play the device on a CPU."""
    config.addinivalue_line("markers", "interpreted: runs Triton kernels on CPU tensors; left out on a GPU")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """There may be a GPU that is not to be used, and kernels that are compiled take no CPU tensors."""
    unfit = "interpreted" if torch.cuda.is_available() else "gpu" if INTERPRET else None
    if unfit is None:
        return
    left_out = [item for item in items if item.get_closest_marker(unfit) is not None]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> Generator[None, Any, Any]:
    """An illegal access ends CUDA for the process it happens in, and every test after it would fail. A process of
    pytest-xdist's ends itself then, during the test that did it, and is replaced."""
    result = yield
    if report.failed and "PYTEST_XDIST_WORKER" in os.environ and torch.cuda.is_initialized():
        try:
            torch.cuda.synchronize()
        except RuntimeError:
            os._exit(70)
    return result


@pytest.fixture(autouse=True)
def unmeasured_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start on a CPU computes no steps to measure how fast they are, whether or not there is a GPU beside it: tests count the
    steps of devices that are played there, interpreted kernels take half a second a step, and what they take says nothing. A
    start on a GPU measures its pace."""
    from executors.llm.step.pace import measure_pace

    def on_gpus(run: Any, *limits: Any) -> Any:
        on_cpu = run.__self__.runner.cache.spec.device.type == "cpu"
        return None if on_cpu else measure_pace(run, *limits)

    monkeypatch.setattr("executors.llm.runtime.measure_pace", on_gpus)
