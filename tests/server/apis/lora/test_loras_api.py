"""LoRA adapters over HTTP, on a real engine whose executor answers otherwise for each digest."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from engine.config import EngineConfig
from engine.core import lora as engine_lora
from engine.core.engine import EngineCore
from engine.text.generation import TextEngine
from server.answer.notation import ModelNotation
from server.lora import registry as registry_module
from server.lora.registry import LoraRegistry
from server.lora.store import LoraStore
from server.templates.template import ChatTemplate
from tests.engine.harness import fake
from tests.engine.tokenizers_for_tests import byte_level, load
from tests.server.fakes import House, error_of
from tests.server.lora.lora_files import pack, write_adapter

ADMIN = {"Authorization": "Bearer admin"}
PROMPT = "the quick brown fox jumps over the lazy dog"


@dataclass
class Serving:
    house: House
    core: EngineCore
    registry: LoraRegistry
    store: LoraStore
    root: Path
    executor: Any

    async def load(
        self, name: Any, path: Any, headers: dict[str, str] = ADMIN, **more: Any
    ) -> httpx.Response:
        async with self.house.client(headers=headers) as client:
            body = {"lora_name": name, "lora_path": path, **more}
            return await client.post("/v1/load_lora_adapter", json=body)

    async def unload(self, name: str, headers: dict[str, str] = ADMIN) -> httpx.Response:
        async with self.house.client(headers=headers) as client:
            return await client.post("/v1/unload_lora_adapter", json={"lora_name": name})

    async def text(self, model: str, prompt: str = PROMPT, **more: Any) -> str:
        body = {"model": model, "prompt": prompt, "max_tokens": 8, "temperature": 0, **more}
        answer = await self.house.post("/v1/completions", body)
        assert answer.status_code == 200, answer.text
        assert answer.json()["model"] == model
        text: str = answer.json()["choices"][0]["text"]
        return text

    async def models(self) -> list[str]:
        return [one["id"] for one in (await self.house.get("/v1/models")).json()["data"]]


@asynccontextmanager
async def opened(
    tmp_path: Path, most: int = 2, *, root: bool = True, on_demand: bool = False
) -> AsyncIterator[Serving]:
    executor = fake(block_size=4, vocab_size=264, max_adapters=most + 1)
    core = EngineCore(executor, EngineConfig(max_num_batched_tokens=48, max_loras=most))
    await core.start()
    house = House(core=core, options={"admin_key": "admin"})  # type: ignore[arg-type]
    info, tokenizer = core.info(), load(byte_level(), tmp_path)
    assert house.state.model is not None and info is not None
    house.state.model = model = replace(
        house.state.model,
        engine=TextEngine(core, tokenizer),
        tokenizer=tokenizer,
        info=info,
        max_model_len=core.max_model_len,
    )
    folder = tmp_path / "root"
    folder.mkdir()

    async def text_side(source: str) -> tuple[ChatTemplate, ModelNotation]:
        return ChatTemplate(source, {}), ModelNotation()

    store = LoraStore()
    registry = LoraRegistry(
        core,
        model,
        house.names,
        store,
        pack,
        text_side,
        max_loras=most,
        root=folder if root else None,
        on_demand=on_demand,
    )
    house.state.adapters = registry
    house.state.metrics.watch_adapters(registry)
    try:
        yield Serving(house, core, registry, store, folder, executor)
    finally:
        await core.stop()
        store.close()
        house.state.threads.close()


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
async def serving(tmp_path: Path) -> AsyncIterator[Serving]:
    async with opened(tmp_path) as one:
        yield one


async def test_load_use_list_and_unload(serving: Serving) -> None:
    write_adapter(serving.root / "sql", "sql")
    loaded = await serving.load("sql", "sql")
    assert loaded.status_code == 200
    assert loaded.text == "Success: LoRA adapter 'sql' added successfully."
    plain, adapted = await serving.text("fake"), await serving.text("sql")
    assert plain != adapted
    assert await serving.models() == ["fake", "org/fake-1", "sql"]
    card = (await serving.house.get("/v1/models/sql")).json()
    assert (card["id"], card["root"], card["parent"]) == ("sql", "sql", "fake")
    assert (await serving.house.get("/v1/models/fake")).json()["parent"] is None
    answer = await serving.house.post("/v1/embeddings", {"model": "sql", "input": "x"})
    assert answer.status_code == 200 and answer.json()["model"] == "sql"
    chat = {"model": "sql", "messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
    base, other = [(await serving.house.chat(**{**chat, "model": one})).json() for one in ("fake", "sql")]
    assert base["system_fingerprint"] != other["system_fingerprint"]

    gone = await serving.unload("sql")
    assert gone.text == "Success: LoRA adapter 'sql' removed successfully."
    refused = await serving.house.complete(model="sql")
    assert refused.status_code == 404 and error_of(refused)["code"] == "model_not_found"
    assert await serving.models() == ["fake", "org/fake-1"]
    again = await serving.unload("sql")
    assert again.status_code == 404 and error_of(again)["param"] == "lora_name"


async def test_only_the_admin_may(tmp_path: Path, serving: Serving) -> None:
    write_adapter(serving.root / "a")
    for headers in ({}, {"Authorization": "Bearer other"}, {"Authorization": "admin"}):
        assert (await serving.load("a", "a", headers)).status_code == 401
        assert (await serving.unload("a", headers)).status_code == 401
    async with serving.house.client(headers={}) as client:
        for path in ("/v1/load_lora_adapter/", "/v1/unload_lora_adapter/"):
            assert (await client.post(path, json={"lora_name": "a", "lora_path": "a"})).status_code == 401
    assert await serving.models() == ["fake", "org/fake-1"]
    # Without an admin key nobody may, with an API key neither.
    house = House(options={"api_keys": ["key"]})
    async with house.client() as client:
        answer = await client.post("/v1/load_lora_adapter", json={}, headers={"Authorization": "Bearer key"})
    assert answer.status_code == 401


async def test_streams_keep_the_generation_they_began_with(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_lora, "LINGER", 0.0)
    folder = write_adapter(serving.root / "a", "old")
    await serving.load("a", "a")
    old = await serving.text("a", max_tokens=100)
    serving.executor.step_delay_ms = 2.0
    running = asyncio.create_task(serving.text("a", max_tokens=100))
    await asyncio.sleep(0.03)
    write_adapter(folder, "new")
    assert (await serving.load("a", "a")).status_code == 200
    new = await serving.text("a", max_tokens=100)
    assert new != old and not running.done()
    assert await running == old
    for _ in range(300):
        if len(serving.executor.adapters) == 1:
            break
        await asyncio.sleep(0.01)
    assert len(serving.executor.adapters) == 1 == len(serving.core.adapter_uses())
    assert len(list(serving.store.folder.glob("*/*.safetensors"))) == 1, (
        "the old file went with its last stream"
    )


async def test_the_same_content_loaded_again_finds_its_prefixes(serving: Serving) -> None:
    write_adapter(serving.root / "a", "same")
    write_adapter(serving.root / "b", "other")
    await serving.load("a", "a")
    await serving.text("a")
    before = serving.core.stats().prefix_hits
    await serving.unload("a")
    await serving.load("again", "a")
    await serving.load("b", "b")
    assert await serving.text("again") and serving.core.stats().prefix_hits - before > 30
    before = serving.core.stats().prefix_hits
    await serving.text("b")
    assert serving.core.stats().prefix_hits == before


async def test_two_names_of_one_content(serving: Serving) -> None:
    write_adapter(serving.root / "a", "same")
    for name in ("x", "y"):
        await serving.load(name, "a")
    assert await serving.text("x") == await serving.text("y")
    await serving.unload("x")
    assert await serving.text("y")
    assert len(serving.core.adapter_uses()) == 1


@pytest.mark.parametrize(
    ("name", "path", "status", "param"),
    [
        ("a", "nowhere", 404, "lora_path"),
        ("a", "../outside", 400, "lora_path"),
        ("a", "/etc", 400, "lora_path"),
        ("a", "", 400, "lora_path"),
        ("a", "broken", 400, "lora_path"),
        ("a", "empty", 400, "lora_path"),
        ("a", "pickled", 400, "lora_path"),
        ("fake", "good", 400, "lora_name"),
        ("", "good", 400, "lora_name"),
        ("x" * 201, "good", 400, "lora_name"),
        ("line\nbreak", "good", 400, "lora_name"),
        (1, "good", 400, "lora_name"),
        ("a", None, 400, "lora_path"),
    ],
)
async def test_what_is_refused(serving: Serving, name: Any, path: Any, status: int, param: str) -> None:
    write_adapter(serving.root / "good")
    write_adapter(serving.root / "broken", "broken")
    write_adapter(serving.root.parent / "outside")
    (serving.root / "empty").mkdir()
    (write_adapter(serving.root / "pickled") / "adapter_model.safetensors").rename(
        serving.root / "pickled" / "adapter_model.bin"
    )
    answer = await serving.load(name, path)
    assert answer.status_code == status, answer.text
    assert error_of(answer)["param"] == param
    assert str(serving.root) not in answer.text and str(serving.store.folder) not in answer.text
    assert await serving.models() == ["fake", "org/fake-1"]
    assert [one.name for one in serving.store.folder.iterdir()] == ["lock"], "a copy was left"
    assert await serving.text("fake")


async def test_a_used_name_may_be_kept(serving: Serving) -> None:
    write_adapter(serving.root / "a", "one")
    write_adapter(serving.root / "b", "two")
    await serving.load("x", "a")
    first = await serving.text("x")
    refused = await serving.load("x", "b", load_inplace=False)
    assert refused.status_code == 400 and "already been loaded" in refused.text
    assert await serving.text("x") == first
    assert (await serving.load("x", "b", load_inplace=True)).status_code == 200
    assert await serving.text("x") != first


async def test_an_adapter_brings_its_template(serving: Serving) -> None:
    write_adapter(serving.root / "a", "a", template="{% for m in messages %}<own>{{ m.content }}{% endfor %}")
    write_adapter(serving.root / "b", "b")
    for name in "ab":
        await serving.load(name, name)
    counts = {}
    for name in ("fake", "a", "b"):
        body = {"model": name, "messages": [{"role": "user", "content": "Hi"}]}
        counts[name] = (await serving.house.post("/tokenize", body)).json()["count"]
    assert counts["fake"] == counts["b"] != counts["a"]


async def test_a_template_that_does_not_parse(serving: Serving) -> None:
    write_adapter(serving.root / "a", "a", template="{% for %}")
    answer = await serving.load("a", "a")
    assert answer.status_code == 400 and error_of(answer)["param"] == "lora_path"


async def test_loaded_on_demand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_module, "MOST_ON_DEMAND", 3)
    async with opened(tmp_path, on_demand=True) as serving:
        for name in "abcde":
            write_adapter(serving.root / "team" / name, name)
        write_adapter(serving.root / "bad", "broken")
        texts = await asyncio.gather(*(serving.text(f"team/{name}") for name in "aaabbb"))
        assert len(set(texts)) == 2
        for name in "cde":
            await serving.text(f"team/{name}")
        assert await serving.models() == ["fake", "org/fake-1", "team/c", "team/d", "team/e"]
        assert await serving.text("team/a") == texts[0]
        for name, status in (
            ("nobody", 404),
            ("../outside", 404),
            ("/etc", 404),
            ("bad", 400),
            ("team", 400),
        ):
            answer = await serving.house.complete(model=name)
            assert answer.status_code == status, (name, answer.text)
            assert error_of(answer)["param"] == "model"
            assert str(serving.root) not in answer.text


async def test_no_demand_no_load(serving: Serving) -> None:
    write_adapter(serving.root / "a")
    assert (await serving.house.complete(model="a")).status_code == 404


async def test_without_a_root_nothing_is_loaded(tmp_path: Path) -> None:
    async with opened(tmp_path, root=False) as serving:
        write_adapter(serving.root / "a")
        answer = await serving.load("a", "a")
        assert answer.status_code == 400 and "--lora-root" in answer.text


async def test_without_adapters(house: House) -> None:
    house.state.adapters = None
    async with house.client() as client:
        answer = await client.post("/v1/unload_lora_adapter", json={"lora_name": "a"}, headers=ADMIN)
    assert answer.status_code == 400 and "--enable-lora" in answer.text


async def test_metrics_name_a_bounded_number(tmp_path: Path) -> None:
    async with opened(tmp_path, most=1) as serving:
        for number in range(70):
            write_adapter(serving.root / str(number), str(number))
            await serving.load(f"n{number:02}", str(number))
        serving.executor.step_delay_ms = 20.0  # the fake's answer has 20 tokens: it lasts for 0.4 s
        running = asyncio.create_task(serving.text("n69", max_tokens=100))
        await asyncio.sleep(0.05)
        text = (await serving.house.get("/metrics")).text
        await running
    found = {one.name: one for one in text_string_to_metric_families(text)}
    assert found["cohort_lora_adapters_known"].samples[0].value == 70
    assert found["cohort_lora_adapters_held"].samples[0].value == 1
    names = {
        sample.labels["adapter"]: sample.value for sample in found["cohort_lora_requests_running"].samples
    }
    assert len(names) == 65 and names["n69"] == 1 and names["other"] == 0
    [gateway] = found["cohort_lora_requests_info"].samples
    assert gateway.labels == {"max_lora": "1", "running_lora_adapters": "n69", "waiting_lora_adapters": ""}
    assert gateway.value > 1.7e9


async def test_thousands_of_loads_leave_nothing(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_lora, "LINGER", 0.0)
    folder = write_adapter(serving.root / "a")
    for number in range(300):
        write_adapter(folder, str(number))
        answer = await serving.load("a", "a")
        assert answer.status_code == 200, answer.text
    for _ in range(300):
        if len(serving.core.adapter_uses()) == 1:
            break
        await asyncio.sleep(0.01)
    assert len(list(serving.store.folder.glob("*/*.safetensors"))) == 1
    assert await serving.text("a")
    shutil.rmtree(folder)
    assert await serving.text("a"), "the files of the folder are not needed any more"


async def test_a_gguf_file_and_what_is_left_out(tmp_path: Path) -> None:
    async with opened(tmp_path) as serving:
        serving.root.mkdir(exist_ok=True)
        (serving.root / "sql.gguf").write_text("pairs for vision")
        (serving.root / "bad.gguf").write_text("broken")
        assert (await serving.load("sql", "sql.gguf")).status_code == 200
        cards = {one["id"]: one for one in (await serving.house.get("/v1/models")).json()["data"]}
        assert cards["sql"]["notes"] == ["a part is left out"] and cards["sql"]["root"] == "sql.gguf"
        assert "notes" not in cards[serving.house.state.names[0]]
        refused = await serving.load("bad", "bad.gguf")
        assert refused.status_code == 400 and "bad.gguf: it is broken" in refused.text
        assert "bad.gguf" in refused.text and str(serving.root) not in refused.text
