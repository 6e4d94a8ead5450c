"""Weights on their way to a device through pinned buffers, over a device that makes its copies as late as it may: the bytes are
the file's, whatever readers do, and a load that fails leaves no thread and no file open."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from executors.contract.errors import ConfigError
from executors.llm.checkpoint import device_copies, safetensors_file, weights
from executors.llm.checkpoint.device_copies import NUM_BUFFERS, DeviceCopies
from executors.llm.device.cpu import CpuDevice
from executors.llm.model.config import parse_config
from executors.llm.model.decoder import Decoder
from tests.executors.checkpoints import QWEN3, write_checkpoint

SMALL_PIECE = 1 << 10
CPU = torch.device("cpu")


class Queue(TorchDispatchMode):
    """Copies that were asked for without waiting are noted, and made when a mark behind them is waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.pending: list[tuple[torch.Tensor, torch.Tensor]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if "copy_" in str(func) and (kwargs.get("non_blocking") or (len(args) > 2 and args[2])):
            self.pending.append((args[0], args[1]))
            return args[0]
        return func(*args, **kwargs)


class Mark:
    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._behind: list[tuple[torch.Tensor, torch.Tensor]] = []

    def record(self) -> None:
        self._behind += self._queue.pending
        self._queue.pending.clear()

    def query(self) -> bool:
        return not self._behind

    def synchronize(self) -> None:
        copies, self._behind = self._behind, []
        for target, source in copies:
            target.copy_(source)


class LateDevice(CpuDevice):
    """`most` buffers may exist at once."""

    pinned = True

    def __init__(self) -> None:
        super().__init__(CPU)
        self.queue = Queue()
        self.marks: list[Any] = []
        self.given: list[int] = []
        self.freed = 0

    def event(self) -> Any:
        self.marks.append(Mark(self.queue))
        return self.marks[-1]

    def host_memory(self, num_bytes: int) -> torch.Tensor:
        self.given.append(num_bytes)
        return torch.full((num_bytes,), 0xAB, dtype=torch.uint8)

    def free_host_memory(self) -> None:
        assert all(mark.query() for mark in self.marks), "memory is given back that a copy still reads"
        self.freed += 1


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("small"), QWEN3)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> LateDevice:
    made = LateDevice()
    monkeypatch.setattr(weights, "device_of", lambda place: made)
    for module in (device_copies, safetensors_file):
        monkeypatch.setattr(module, "PIECE", SMALL_PIECE)
    return made


def _open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    before = _open_files()
    yield
    assert not [one for one in threading.enumerate() if one.name.startswith("weights")]
    assert _open_files() <= before


def decoder(path: Path, dtype: torch.dtype | None = None) -> Decoder:
    config = parse_config(QWEN3)
    made = Decoder(config, dtype or weights.checkpoint_dtype(path, config.family), CPU)
    for linear in made.linears():
        assert linear.weight is not None
        linear.weight.fill_(torch.nan)
    return made


def loaded(
    path: Path, device: LateDevice | None, dtype: torch.dtype | None = None, progress: Any = None
) -> list[bytes]:
    """Bytes of each of the model's tensors."""
    made = decoder(path, dtype)
    with device.queue if device else contextlib.nullcontext():
        weights.load_weights(made, path, progress or (lambda stage, done, total: None))
    return [one.contiguous().view(torch.uint8).numpy().tobytes() for one in tensors(made)]


def tensors(made: Decoder) -> list[torch.Tensor]:
    return [place.tensor for place in made.places().values()]


def test_the_bytes_are_the_files(path: Path, device: LateDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    found = loaded(path, device)
    pieces = sum(len(one) for one in found) // SMALL_PIECE
    assert device.given == [SMALL_PIECE] * NUM_BUFFERS, "whatever a model's size"
    assert pieces > 5 * NUM_BUFFERS and device.freed == 1
    monkeypatch.setattr(weights, "device_of", lambda place: CpuDevice(CPU))
    assert found == loaded(path, None)


def test_a_read_may_bring_less_than_was_asked(
    path: Path, device: LateDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, views, at: whole(fd, [views[0][:100]], at))
    found = loaded(path, device)
    monkeypatch.setattr(weights, "device_of", lambda place: CpuDevice(CPU))
    assert found == loaded(path, None)


def test_readers_that_end_in_any_order_change_nothing(
    path: Path, device: LateDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, count, lock = os.preadv, [0], threading.Lock()

    def uneven(fd: int, views: Any, at: int) -> int:
        with lock:
            count[0] += 1
            slow = count[0] % 3 == 0
        if slow:
            threading.Event().wait(2e-3)
        return whole(fd, views, at)

    monkeypatch.setattr(os, "preadv", uneven)
    found = loaded(path, device)
    monkeypatch.setattr(weights, "device_of", lambda place: CpuDevice(CPU))
    assert found == loaded(path, None)


def test_a_buffer_that_is_filled_before_its_copy_is_noticed(
    path: Path, device: LateDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault of a ring that does not wait for its marks."""
    expected = loaded(path, device)
    wait = Mark.synchronize
    held: list[Mark] = []
    monkeypatch.setattr(Mark, "synchronize", lambda self: held.append(self))
    monkeypatch.setattr(LateDevice, "free_host_memory", lambda self: [wait(mark) for mark in held])
    assert loaded(path, device) != expected


def test_a_cast_is_the_hosts(path: Path, device: LateDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    other = (
        torch.bfloat16
        if weights.checkpoint_dtype(path, parse_config(QWEN3).family) != torch.bfloat16
        else torch.float32
    )
    taken: list[str] = []
    monkeypatch.setattr(DeviceCopies, "take", lambda self, file, pieces: taken.append("piece"))
    found = loaded(path, device, other)
    assert taken == []
    monkeypatch.setattr(weights, "device_of", lambda place: CpuDevice(CPU))
    assert found == loaded(path, None, other)


def test_nothing_changes_where_tensors_lie_in_the_machines_memory() -> None:
    with weights._copies(CPU) as copies:
        assert copies is None


def test_without_pinned_memory_weights_are_copied_one_by_one(
    path: Path, device: LateDevice, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What there was before it is given back."""
    expected, real, taken, freed = loaded(path, device), device.host_memory, [], []

    def refuse(num_bytes: int) -> torch.Tensor:
        if len(taken) == 3:
            raise RuntimeError("CUDA error: out of memory")
        taken.append(num_bytes)
        return real(num_bytes)

    monkeypatch.setattr(device, "host_memory", refuse)
    monkeypatch.setattr(device, "free_host_memory", lambda: freed.append(len(taken)))
    assert loaded(path, device) == expected and freed == [3]
    assert (
        "weights are copied one by one: there is no pinned memory: CUDA error: out of memory" in caplog.text
    )


# -- faults ----------------------------------------------------------------------------------------------------------------


def test_a_file_that_is_cut_while_it_is_read(tmp_path: Path, device: LateDevice) -> None:
    """Of a mapped file the kernel would end the process."""
    path = write_checkpoint(tmp_path, QWEN3)
    file = next(path.glob("*.safetensors"))
    size = file.stat().st_size

    def cut(stage: str, done: int, total: int) -> None:
        if done > total // 4 and file.stat().st_size == size:
            os.truncate(file, size // 2)

    with pytest.raises(ConfigError, match=rf"{file.name}: truncated while it was read, at byte {size // 2}"):
        loaded(path, device, progress=cut)
    assert device.freed == 1


def test_a_file_that_is_replaced_before_it_is_read(
    tmp_path: Path, device: LateDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_checkpoint(tmp_path, QWEN3)
    file = next(path.glob("*.safetensors"))

    def replace(stage: str, done: int, total: int) -> None:
        if not done:
            (tmp_path / "new").write_bytes(file.read_bytes())
            (tmp_path / "new").replace(file)

    with pytest.raises(ConfigError, match=f"{file.name}: was replaced while it was read"):
        loaded(path, device, progress=replace)


@pytest.mark.parametrize("nth", [1, 7, 40])
def test_a_reader_that_fails(
    nth: int, path: Path, device: LateDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, count, lock = os.preadv, [0], threading.Lock()

    def failing(fd: int, views: Any, at: int) -> int:
        with lock:
            count[0] += 1
            if count[0] == nth:
                raise OSError(5, "Input/output error")
        return whole(fd, views, at)

    monkeypatch.setattr(os, "preadv", failing)
    with pytest.raises(ConfigError, match=r"cannot be read \(Input/output error\)"):
        loaded(path, device)
    assert device.freed == 1 and count[0] < nth + 3 * NUM_BUFFERS, "the rest is not read"
    assert loaded(path, device), "the next load is another one"


@pytest.mark.parametrize("error", [asyncio.CancelledError, KeyboardInterrupt, RuntimeError])
def test_a_load_that_is_given_up(error: type[BaseException], path: Path, device: LateDevice) -> None:
    def leave(stage: str, done: int, total: int) -> None:
        if done > total // 3:
            raise error

    with pytest.raises(error):
        loaded(path, device, progress=leave)
    assert device.freed == 1


def test_a_device_that_is_lost_says_so(
    path: Path, device: LateDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(self: Mark) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(LateDevice, "free_host_memory", lambda self: None)
    monkeypatch.setattr(Mark, "record", lost)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        loaded(path, device)
