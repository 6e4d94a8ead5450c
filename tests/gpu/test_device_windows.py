"""Windows with blocks of their own on a device: packed steps have the cells and tables of each group, in graphs and without."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from executors.contract.batch import SampledToken
from executors.contract.config import ExecutorAttentionConfig, OptimizationConfig
from executors.llm.attention.by_heads import AttentionByHeads
from executors.llm.executor import LlmExecutor
from executors.llm.fused.triton_forward import TritonForward
from tests.executors.checkpoints import write_checkpoint
from tests.executors.llm.driver import config
from tests.executors.llm.windows import Found, Walk, one_group
from tests.gpu.device_fakes import FakeDeviceExecutor
from tests.gpu.test_executor import GEMMA4, SMALL

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore:overflow encountered in exp"),
]

WINDOWED = {
    **SMALL, "num_hidden_layers": 3, "use_sliding_window": True, "sliding_window": 19, "max_window_layers": 1,
}  # fmt: skip
GEMMA2 = {
    **SMALL, "architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "sliding_window": 19, "query_pre_attn_scalar": 20,
    "attn_logit_softcapping": 20.0, "final_logit_softcapping": 15.0, "hidden_activation": "gelu_pytorch_tanh",
}  # fmt: skip


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("windows"), WINDOWED)


async def on_device(path: Path, eager: bool) -> tuple[Found, Walk, FakeDeviceExecutor]:
    settings = config(path, optimization=OptimizationConfig(num_threads=1, enforce_eager=eager))
    executor = FakeDeviceExecutor.from_config(settings)
    await executor.warmup()
    await executor.begin_epoch(1)
    while executor.unified.capture_next():
        pass
    walk = Walk(executor)
    return await walk.take(), walk, executor


@pytest.mark.parametrize("eager", [False, True], ids=["graphs", "calls"])
async def test_steps_that_are_launched(path: Path, eager: bool) -> None:
    with one_group():
        expected, alone, _ = await on_device(path, eager)
    found, walk, executor = await on_device(path, eager)
    assert alone.freed == 0 and walk.freed > 15 and len(walk.kv.caches) == 2
    assert [tables.tensor.shape for tables in executor.launched._tables] == [
        executor.launched._tables[0].tensor.shape
    ] * 2
    assert (executor.launched.graphs is None) == eager
    assert found == expected


async def test_heads_of_two_sizes_in_launched_steps(tmp_path: Path) -> None:
    """On a device without packed attention, as a model with heads of two sizes is computed."""
    model = write_checkpoint(tmp_path, GEMMA4)
    expected = await plain(model)
    found, walk, executor = await on_device(model, eager=False)
    assert isinstance(executor._ready().runner.attention, AttentionByHeads)
    assert walk.freed > 15 and ids(found) == ids(expected)


def ids(found: object) -> list[int]:
    """Token ids of all that was sampled, in order: logprobs of devices are rounded otherwise."""
    if isinstance(found, SampledToken):
        return [found.token_id]
    return [one for part in found for one in ids(part)] if isinstance(found, list | tuple) else []


async def plain(path: Path) -> Found:
    executor = LlmExecutor.from_config(config(path))
    await executor.warmup()
    await executor.begin_epoch(1)
    return await Walk(executor).take()


async def over_triton(path: Path) -> tuple[Found, Walk]:
    settings = replace(config(path), attention=ExecutorAttentionConfig(16, "triton"))
    executor = LlmExecutor.from_config(settings)
    await executor.warmup()
    await executor.begin_epoch(1)
    assert isinstance(executor._ready().runner.model._fused, TritonForward)  # type: ignore[attr-defined]
    walk = Walk(executor)
    first, second = walk.add(60, 1), walk.add(9, 2)
    while first.computed < 60:
        await walk.step((first, 30), (second, 9))
    for _ in range(2):
        await walk.step((first, 1), (second, 1))
    return walk.found, walk


@pytest.mark.long(extended=True)
@pytest.mark.interpreted
@pytest.mark.parametrize(
    "fields",
    [
        pytest.param(GEMMA2, id="gemma2"),
        pytest.param(WINDOWED, id="qwen3", marks=pytest.mark.long(extended=True)),
    ],
)
async def test_the_triton_kernels(fields: dict[str, object], tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, fields)
    with one_group():
        expected, alone = await over_triton(path)
    found, walk = await over_triton(path)
    assert alone.freed == 0 and walk.freed == 2 and len(walk.kv.caches) == 2
    assert found == expected
