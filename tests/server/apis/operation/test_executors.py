"""GET /v1/executors: everything declared, plain, never waiting."""

from __future__ import annotations

import json
from dataclasses import fields

import numpy as np
import pytest

from executors.contract import (
    ExecutorCapabilities,
    ExecutorConfig,
    ExecutorDied,
    ExecutorMetrics,
    ExecutorStatus,
    KvLayout,
    MemoryRequirements,
    ModelExecutor,
    ModelInfo,
)
from executors.process import connect
from executors.process.client import RemoteExecutor
from executors.registry import ExecutorRegistry
from tests.server.fakes import House, error_of

PAGED = ExecutorConfig("paged_fake", max_num_seqs=4, max_model_len=64, options={"num_blocks": 8})


def register(house: House, **executors: ModelExecutor) -> None:
    """As the composition root does."""
    live = ExecutorRegistry()
    for name, executor in executors.items():
        live.register(name, executor)
    house.state.executors, house.state.executor_names = live, ("echo", "llm")


async def test_all_that_is_declared(house: House) -> None:
    executor = connect(PAGED, "inline")
    await executor.warmup()
    register(house, paged_fake=executor)
    try:
        answer = (await house.get("/v1/executors")).json()
    finally:
        await executor.shutdown()
    assert (answer["object"], answer["registered"]) == ("list", ["echo", "llm"])
    [card] = answer["data"]
    assert (card["id"], card["object"], card["mode"], card["pid"]) == (
        "paged_fake",
        "executor",
        "inline",
        None,
    )
    assert card["snapshot_age_s"] == 0 and card["kv_capacity"] is None
    assert (
        card["cache"] == executor.cache_metrics_snapshot()
        and card["lora"] == executor.lora_metrics_snapshot()
    )
    records = {
        "info": ModelInfo,
        "capabilities": ExecutorCapabilities,
        "status": ExecutorStatus,
        "metrics": ExecutorMetrics,
        "kv_layout": KvLayout,
    }
    for name, record in records.items():
        assert set(card[name]) >= {field.name for field in fields(record)}, name
    assert card["capabilities"]["attention_types"] == ["Paged"] and card["capabilities"]["paged"] is True
    assert card["status"]["state"] == "Ready" and card["status"]["memory"]["percent"] >= 0
    assert card["kv_layout"]["num_blocks"] == 8
    assert card["kv_layout"]["capacity_tokens"] == 8 * card["kv_layout"]["block_size"]


async def test_total_memory_is_for_a_kv_pool_that_is_full(house: House) -> None:
    """8 blocks of 16 hold two sequences of 64, though four may run."""
    executor = connect(PAGED, "inline")
    await executor.warmup()
    register(house, paged_fake=executor)
    declared = executor.capabilities().memory
    layers = executor.info().num_layers
    try:
        [card] = (await house.get("/v1/executors")).json()["data"]
    finally:
        await executor.shutdown()
    memory = card["capabilities"]["memory"]
    assert set(memory) == {field.name for field in fields(MemoryRequirements)} | {"when_full"}
    expected = declared.calculate_total_memory(2, 64, layers)
    assert memory["when_full"] == {"batch_size": 2, "sequence_length": 64, "total_memory": expected}


async def test_a_process_and_its_death(house: House) -> None:
    """Before it is loaded 503; then its pid; killed, it is listed with its last numbers and what happened to it."""
    executor = connect(ExecutorConfig("echo", max_num_seqs=4), "process")
    assert isinstance(executor, RemoteExecutor)
    register(house, echo=executor)
    response = await house.get("/v1/executors")
    assert response.status_code == 503
    assert error_of(response)["code"] == "service_unavailable"
    await executor.warmup()
    try:
        [card] = (await house.get("/v1/executors")).json()["data"]
        assert (card["mode"], card["pid"]) == ("process", executor.pid)
        assert 0 <= card["snapshot_age_s"] < 60 and card["status"]["is_ready"] is True
        assert card["kv_layout"]["num_blocks"] == 0 and card["capabilities"]["paged"] is False
        assert executor._life is not None
        executor._life.kill("hang", "said the test")
        assert isinstance(await executor.wait_dead(), ExecutorDied)
        [card] = (await house.get("/v1/executors")).json()["data"]
        assert (card["status"]["state"], card["status"]["is_ready"]) == ("Error", False)
        assert "said the test" in card["status"]["last_operation"] and card["info"]["name"]
    finally:
        await executor.shutdown()


async def test_loading(house: House) -> None:
    house.state.model = None
    for _ in range(2):
        response = await house.get("/v1/executors")
        assert response.status_code == 503
        assert error_of(response)["message"] == "The model is still loading."
        assert int(response.headers["retry-after"]) > 0
        register(house)


async def test_key() -> None:
    house = House(options={"api_keys": ["secret"]})
    register(house)
    assert (await house.get("/v1/executors")).status_code == 401
    headers = {"Authorization": "Bearer secret"}
    assert (await house.get("/v1/executors", headers=headers)).json()["data"] == []


async def test_odd_numbers_are_plain(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    executor = connect(PAGED, "inline")
    await executor.warmup()
    odd = {"a": np.float32(1.5), "b": np.int64(3), "c": float("nan"), "d": "bf16"}
    monkeypatch.setattr(executor, "cache_metrics_snapshot", lambda: odd)
    register(house, paged_fake=executor)
    try:
        response = await house.get("/v1/executors")
    finally:
        await executor.shutdown()
    cards = json.loads(response.text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))["data"]
    assert cards[0]["cache"] == {"a": 1.5, "b": 3, "c": None, "d": "bf16"}
