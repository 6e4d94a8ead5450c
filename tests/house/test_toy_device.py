"""An accelerator is added by one file and one line, and no other room of the product names one."""

from __future__ import annotations

import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from executors.contract.config import ExecutorMemoryConfig
from executors.contract.errors import ConfigError
from executors.devices import DEVICES, DeviceKind
from executors.llm.device.table import device_of, find_device
from executors.llm.executor import LlmExecutor
from executors.llm.factory import LlmFactory
from executors.testing.driver import Driver as KitDriver
from executors.testing.driver import Feed
from tests.executors.checkpoints import QWEN3, write_checkpoint
from tests.executors.llm.driver import Driver, config, start

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("engine", "executors", "server", "cohort_server")
NAMED_IN = {
    "executors/devices.py": "the line of its kind",
    "executors/llm/device/cuda.py": "the file of its kind",
    "executors/contract/faults.py": "what its driver says when memory is short",
    "executors/llm/model/quantization/keys.py": "a key of checkpoints that other tools write",
    "server/settings/foreign/vllm.py": "flags of another server",
    "server/settings/foreign/others.py": "a flag of another server",
}

TOY = '''
import torch

from executors.contract.status import ExecutorMemoryUsage
from executors.llm.device.base import Device

TOTAL = 1 << 34


class ToyMemory:
    """Its figures never change."""

    def free_and_total(self):
        return TOTAL // 2, TOTAL

    def reserved(self):
        return 1000

    def peak(self):
        return 1000

    def reset_peak(self): ...

    def empty_cache(self): ...

    def usage(self):
        return ExecutorMemoryUsage(1000, 900, 1000, TOTAL)


class ToyDevice(Device):
    """Computes where the CPU does, in memory of its own, and has no attention kernels but torch's."""

    name = "toy"
    dtypes = ("float32",)
    attention_order = ()

    def __init__(self, place):
        super().__init__(place)
        self.memory = ToyMemory()

    @classmethod
    def find(cls, number):
        return cls(torch.device("cpu"))
'''


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file and the line."""
    (tmp_path / "toy_device_of_a_test.py").write_text(textwrap.dedent(TOY), "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(DEVICES, "toy", DeviceKind("toy_device_of_a_test:ToyDevice"))


@pytest.mark.usefixtures("toy")
async def test_a_device_is_a_file_and_a_line(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "model", QWEN3)
    chosen = config(path, max_num_seqs=3, max_num_batched_tokens=32, max_model_len=64)
    executor = LlmFactory().create_executor(
        replace(chosen, device="toy", memory=ExecutorMemoryConfig(gpu_memory_utilization=0.6))
    )
    await executor.warmup()
    await executor.begin_epoch(1)
    tokens = []
    plain = await start(path)
    for one in (executor, plain):
        driver = Driver(one)
        tokens.append(await driver.generate([driver.add([5, 9, 100, 3, 17]), driver.add([1])], 8))
    assert tokens[0] == tokens[1]
    usage = executor.status().memory
    assert (usage.total_bytes, usage.used_bytes) == (1 << 34, 900)
    assert executor.kv_layout().capacity_tokens == 3 * 64, "sized by what the toy has"
    assert any(note.startswith("attention: torch") for note in executor.status().notes)
    facts = executor.capabilities()
    assert facts.dtypes == ("float32",) and "toy" in facts.devices
    await plain.shutdown()
    await executor.shutdown()


@pytest.mark.usefixtures("toy")
async def test_a_draft_model_is_sized_and_computed_there(tmp_path: Path) -> None:
    """Where steps are not launched it drafts as on a CPU. The same model's drafts are the tokens that come."""
    path = write_checkpoint(tmp_path / "model", QWEN3)
    chosen = config(path, max_num_seqs=3, max_num_batched_tokens=32, max_model_len=64)
    sizes = []
    for draft in ("", str(path)):
        optimization = replace(chosen.optimization, draft_model=draft)
        memory = ExecutorMemoryConfig(gpu_memory_utilization=0.6)
        executor = LlmExecutor.from_config(
            replace(chosen, device="toy", memory=memory, optimization=optimization)
        )
        driver = await KitDriver.start(executor)
        sizes.append(executor.kv_layout().groups[0].bytes_per_block)
    seq, drafts = driver.add([5, 9, 100, 3, 17]), list[int]()
    while len(seq.output) < 8:
        before = len(seq.output)
        await driver.step(Feed(seq, drafts=drafts, num_drafts=2))
        assert seq.output[before:][: len(drafts)] == drafts
        assert seq.outputs[-1] is not None
        drafts = list(seq.outputs[-1].drafts)
        assert len(drafts) == 2
    assert sizes[1] == 2 * sizes[0]
    await executor.shutdown()


@pytest.mark.usefixtures("toy")
async def test_its_memory_decides(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "model", QWEN3)
    small = replace(
        config(path, device="toy"),
        memory=ExecutorMemoryConfig(gpu_memory_utilization=0.05, kv_cache_dtype="auto"),
    )
    executor = LlmExecutor.from_config(small)
    with pytest.raises(ConfigError, match=r"16\.00 GiB times 0\.05 \(gpu_memory_utilization\)"):
        await executor.warmup()


@pytest.mark.usefixtures("toy")
def test_it_is_found_by_its_name() -> None:
    assert find_device("toy").name == find_device("auto").name == "toy"
    assert device_of(find_device("cpu").place).name == "cpu"
    with pytest.raises(ConfigError, match=r"supported: auto, cpu, \w+, toy, \w+:N$"):
        find_device("toys")


def named(folder: Path) -> set[str]:
    """Files below a folder in which the word stands."""
    files = (file for package in PRODUCT for file in (folder / package).rglob("*.py"))
    return {file.relative_to(folder).as_posix() for file in files if "cuda" in file.read_text("utf-8")}


def test_one_kind_of_accelerator_is_named_where_it_must_be() -> None:
    assert named(ROOT) == set(NAMED_IN) and len(NAMED_IN) <= 6


def test_a_file_that_names_it_is_found(tmp_path: Path) -> None:
    for place in ("engine/core/loop.py", "executors/llm/step/forward.py"):
        (tmp_path / place).parent.mkdir(parents=True)
        (tmp_path / place).write_text("from executors.llm.device import cuda\n")
    assert named(tmp_path) == {"engine/core/loop.py", "executors/llm/step/forward.py"}
