"""Encoders on devices whose steps are launched, over a CPU: similar lengths in one call, nothing computed between host and
device, and what is refused. No GPU takes part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from executors.contract import (
    ConfigError,
    ExecutorAttentionConfig,
    ExecutorConfig,
    OptimizationConfig,
    Unavailable,
)
from executors.llm.device.cpu import CpuDevice
from executors.llm.encoder import executor as encoder_executor
from executors.llm.encoder import loading
from executors.llm.encoder.executor import EncoderExecutor, pool
from executors.llm.encoder.model import groups_of, padded_length
from executors.llm.encoder.reading import read_encoder
from executors.llm.factory import LlmFactory
from tests.executors.llm.encoder import rotary_models, test_encoders
from tests.executors.llm.encoder.rotary_models import CONFIGS
from tests.executors.llm.encoder.test_encoders import config, expected, off, step
from tests.executors.llm.encoder.test_heads import cross_encoder, pairs, right_logits

LENGTHS = (1, 16, 17, 40, 47, 48, 100, 120, 3)
POOLINGS = ["cls", "mean", "last", "mean", "last", "cls", "mean", "mean", "last"]
ROOM: dict[str, Any] = {"max_num_seqs": 16, "max_num_batched_tokens": 1024}


class LaunchedCpu(CpuDevice):
    """A CPU that is treated as a device."""

    launches = True
    shares_weights = False


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> None:
    device = LaunchedCpu(torch.device("cpu"))
    monkeypatch.setattr(loading, "device_for", lambda config: device)
    monkeypatch.setattr(encoder_executor, "shares_weights", lambda name: device.shares_weights)


def written(folder: Path, family: str) -> Any:
    if family in CONFIGS:
        return rotary_models.made(folder, family)
    return test_encoders.made(folder, family, max_position_embeddings=320)


async def started(folder: Path, **changes: Any) -> EncoderExecutor:
    """An executor that computes in torch."""
    return await test_encoders.started(
        folder, attention=ExecutorAttentionConfig(backend="torch"), **ROOM, **changes
    )


@pytest.mark.parametrize("family", ["bert", "xlm-roberta", *CONFIGS])
async def test_texts_of_similar_lengths_attend_in_one_call(
    tmp_path: Path, family: str, launched: None
) -> None:
    """Beyond the windows of the families that have them."""
    model = written(tmp_path, family)
    executor = await started(tmp_path)
    assert executor._loaded is not None and executor._loaded.model.launched
    ids = rotary_models.texts(LENGTHS)
    output = await executor.unified_decode(step(ids, POOLINGS))
    for number, (one, pooling) in enumerate(zip(ids, POOLINGS, strict=True)):
        hidden = expected(model, one)
        right = {"cls": hidden[0], "last": hidden[-1], "mean": hidden.mean(0)}[pooling]
        found = output.details[number].pooled
        assert off(found, right) < 1e-5 * max(1.0, float(np.abs(right).max())), (len(one), pooling)
    assert "torch, float32; an encoder" in "\n".join(executor.status().notes)


def test_groups_hold_each_token_once_and_are_few() -> None:
    lengths = [*range(1, 140), 300, 400]
    groups = groups_of(lengths, padded=True)
    widths = [group.shape[1] for group in groups]
    assert widths == sorted({padded_length(length) for length in lengths}) and len(widths) < 12
    mixed = torch.zeros(sum(lengths), 1)
    for group in groups:
        group.put(mixed, mixed[group.at] + 1)
        assert int(group.at.max()) < len(mixed)
    assert (mixed == 1).all()
    for length in range(1, 2000):
        assert length <= padded_length(length) < length + max(16, length // 2), length
    assert len({padded_length(length) for length in range(1, 513)}) == 10
    assert all(group.mask is None for group in groups_of(lengths))


async def test_heads_score_on_devices_too(tmp_path: Path, launched: None) -> None:
    model = cross_encoder(tmp_path, "bert", 3)
    executor = await started(tmp_path)
    ids = rotary_models.texts((5, 40, 17))
    output = await executor.unified_decode(pairs(ids, (0, 1, 2), (None, 7, 3)))
    for number, (one, segment) in enumerate(zip(ids, (None, 7, 3), strict=True)):
        right = right_logits(model, one, segment)
        assert off(output.details[number].pooled, right) < 1e-5 * max(1.0, float(abs(right).max()))


async def test_narrow_weights_attend_in_their_own_dtype(tmp_path: Path, launched: None) -> None:
    model = written(tmp_path, "modernbert")
    executor = await started(tmp_path, dtype="bfloat16")
    ids = rotary_models.texts(LENGTHS)
    output = await executor.unified_decode(step(ids, ["mean"] * len(ids)))
    for number, one in enumerate(ids):
        right = expected(model, one).mean(0)
        found = output.details[number].pooled
        cosine = float(found @ right / (np.linalg.norm(found) * np.linalg.norm(right)))
        assert cosine > 0.999, len(one)


class OneDevice(TorchDispatchMode):
    """Fails where an operation takes tensors of two devices: some of them work over "meta", and none on a GPU."""

    copied = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = [one for one in tree_leaves((args, kwargs or {})) if isinstance(one, torch.Tensor)]
        result = func(*args, **(kwargs or {}))
        made = [one for one in tree_leaves(result) if isinstance(one, torch.Tensor)]
        name = func.overloadpacket._qualified_op_name
        if name in ("aten::_to_copy", "aten::copy_", "aten::to"):
            self.copied += len({one.device.type for one in (*given, *made)}) > 1
        else:
            assert len({one.device.type for one in given}) <= 1, name
        return result


@pytest.mark.parametrize("family", ["bert", *CONFIGS])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_operation_mixes_host_and_device(tmp_path: Path, family: str, dtype: torch.dtype) -> None:
    written(tmp_path, family)
    model = loading._model(read_encoder(tmp_path), dtype, torch.device("meta"), launched=True)
    ids = torch.zeros(sum(LENGTHS), dtype=torch.int64)
    with OneDevice() as mode:
        hidden = model.forward(ids, ids, LENGTHS)
    assert (hidden.device.type, hidden.dtype, tuple(hidden.shape)) == ("meta", torch.float32, (len(ids), 48))
    groups = groups_of(LENGTHS, padded=True)
    ropes = len(getattr(model.config, "ropes", ()))
    most = 3 + ropes + sum(1 if group.mask is None else 3 for group in groups)
    assert 3 < mode.copied <= most, "copies to the device: ids, types, places, tables, and what a group is"


def test_the_check_of_devices_fails_where_they_are_mixed() -> None:
    with OneDevice(), pytest.raises(AssertionError, match="aten::index"):
        torch.empty(4, 2, device="meta")[torch.zeros(3, dtype=torch.int64)]


def test_pooling_is_one_operation_for_all_texts() -> None:
    hidden = torch.randn(60, 8)
    starts = np.array([0, 1, 20, 60])
    found = pool(hidden, starts, ["mean", "last", "mean"])
    right = torch.stack((hidden[0], hidden[19], hidden[20:].mean(0)))
    torch.testing.assert_close(found, right)
    torch.testing.assert_close(pool(hidden, starts, ["cls", "last", "cls"]), hidden[[0, 19, 20]])


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_quantization_is_for_the_cpu_alone(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path, "bert")
    optimization = OptimizationConfig(quantization=kind)
    with pytest.raises(ConfigError, match=f"quantization {kind}, device cuda: .* take device cpu"):
        LlmFactory().validate_config(replace(config(tmp_path), device="cuda", optimization=optimization))
    asked: list[str] = []
    found: Callable[[str], object] = asked.append
    monkeypatch.setattr(loading, "find_device", found)
    for device, quantization in (("auto", kind), ("auto", None), ("cuda:1", None)):
        settings = OptimizationConfig(quantization=quantization)
        loading.device_for(ExecutorConfig("llm", str(tmp_path), device=device, optimization=settings))
    assert asked == ["cpu", "auto", "cuda:1"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has such a device")
async def test_a_device_that_is_not_there_is_named(tmp_path: Path) -> None:
    written(tmp_path, "bert")
    executor = LlmFactory().create_executor(replace(config(tmp_path), device="cuda"))
    with pytest.raises((ConfigError, Unavailable), match="device 'cuda': no CUDA device is available"):
        await executor.warmup()


def test_weights_on_a_device_are_not_shared_with_forks(tmp_path: Path, launched: None) -> None:
    written(tmp_path, "bert")
    made = EncoderExecutor.over_shared_weights(config(tmp_path), lambda stage, done, total: None)
    assert made is None
