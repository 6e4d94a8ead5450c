"""What an NVIDIA GPU is asked, by a fake of torch.cuda: no GPU is needed."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from executors.llm.device.cuda import CudaDevice
from executors.llm.device.table import device_of, kinds_here, open_device

GPU = torch.device("cuda:1")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is done to streams, in order."""
    found: list[str] = []

    class Stream:
        def __init__(self, device: torch.device) -> None:
            found.append(f"made on {device}")

        def synchronize(self) -> None:
            found.append("waited for")

    class Current:
        def __init__(self, stream: Stream) -> None: ...

        def __enter__(self) -> None:
            found.append("entered")

        def __exit__(self, *error: object) -> None:
            found.append("left")

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", Current)
    return found


def test_copies_are_made_beside_steps_and_waited_for(calls: list[str]) -> None:
    copies = device_of(GPU).copies()
    for _ in range(2):
        with copies:
            calls.append("copied")
    assert calls == ["made on cuda:1", *2 * ["entered", "copied", "left", "waited for"]]


def test_copies_that_fail_leave_the_stream(calls: list[str]) -> None:
    copies = device_of(GPU).copies()
    with pytest.raises(ValueError, match="no copy"), copies:
        raise ValueError("no copy")
    assert calls[1:] == ["entered", "left"]


def test_its_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    properties = SimpleNamespace(name="H", major=9, minor=0, multi_processor_count=132, total_memory=9)
    answers: dict[str, Any] = {
        "is_available": lambda: True, "device_count": lambda: 2, "mem_get_info": lambda device: (4, 9),
        "get_device_properties": lambda device: properties, "get_device_capability": lambda device: (9, 0),
    }  # fmt: skip
    for name, answer in answers.items():
        monkeypatch.setattr(torch.cuda, name, answer)
    device = CudaDevice.find(1)
    assert device.place == GPU and kinds_here() == ("cpu", "cuda")
    assert (device.capability, device.processors, device.why_no_fp8()) == ((9, 0), 132, None)
    assert device.facts() == 2 * [{"name": "H", "capability": "9.0", "free": 4, "total": 9}]
    assert device.memory is not None and device.memory.free_and_total() == (4, 9)
    assert (device.launches, device.compiles, device.pinned, device.memory_on_demand) == (
        True,
        True,
        True,
        False,
    )


def test_it_becomes_the_threads_own_if_it_has_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    for name in ("cuda", "cuda:1"):
        CudaDevice(torch.device(name)).use()
    assert taken == [GPU]


@pytest.mark.parametrize(("name", "index"), [("cuda", None), ("cuda:1", 1)])
def test_it_is_opened_as_the_first_tensor_would(
    name: str, index: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda place: done.append(f"set {place}"))
    monkeypatch.setattr(torch, "zeros", lambda size, device: done.append(f"tensor on {device}"))
    monkeypatch.setattr(torch.cuda, "current_blas_handle", lambda: done.append("cuBLAS"))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda place: done.append(f"waited for {place}"))
    assert open_device(name) == name
    chosen = [] if index is None else [f"set {name}"]
    assert done == [*chosen, f"tensor on {name}", "cuBLAS", f"waited for {name}"]


def test_a_cpu_is_not_opened() -> None:
    assert open_device("cpu") == ""


@pytest.mark.parametrize(
    ("said", "lost"),
    [
        ("CUDA error: an illegal memory access was encountered", True),
        ("CUDA error: unspecified launch failure", True),
        ("CUDA error: operation not permitted when stream is capturing", False),
        ("CUDA error: operation failed due to a previous error during capture", False),
        (None, False),
    ],
)
def test_a_loss_is_told_from_a_capture_that_was_refused(
    said: str | None, lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what waiting for the stream of the steps raises, after a capture has failed."""

    class Stream:
        device = GPU

        def __init__(self, device: torch.device) -> None: ...

        def synchronize(self) -> None:
            if said is not None:
                raise RuntimeError(said)

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))
    steps = CudaDevice(GPU).steps()
    with pytest.raises(RuntimeError, match="CUDA error") if lost else contextlib.nullcontext():
        steps.check()
