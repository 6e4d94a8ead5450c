"""An ingress by HTTP, over engines in this process: what it tells of its replicas, and what it passes on to one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from server.ray_serve.ingress import check_settings
from server.settings.load import SettingsError, load
from tests.e2e.checkpoints import write_tokenizer
from tests.server.ray_serve.local import LocalTransport
from tests.server.remote.replicas.test_core import World, until, world

pytestmark = pytest.mark.timeout(60)

KEY, ADMIN = {"Authorization": "Bearer client"}, {"Authorization": "Bearer admin"}


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("echo-model"))


@asynccontextmanager
async def served(
    model_dir: Path, count: int = 2, **flags: Any
) -> AsyncIterator[tuple[World, httpx.AsyncClient]]:
    keys = {"api_key": ["client"], "admin_key": "admin", "served_model_name": ["echo"]}
    async with world(model_dir, count, **keys, **flags) as w:
        transport = httpx.ASGITransport(w.ingress.app("127.0.0.1"))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            yield w, client


def body(length: int = 20, **fields: Any) -> dict[str, Any]:
    return {"prompt": "abc", "max_tokens": length, "temperature": 0, "ignore_eos": True, **fields}


async def test_what_is_told_of_replicas(model_dir: Path) -> None:
    async with served(model_dir) as (w, client):
        assert (await client.get("/ready")).status_code == 200
        assert (await client.post("/v1/completions", json=body())).status_code == 401
        answer = await client.post("/v1/completions", json=body(n=2), headers=KEY)
        assert answer.status_code == 200 and len(answer.json()["choices"]) == 2, answer.text
        found = (await client.get("/v1/executors", headers=KEY)).json()
        assert sorted(card["replica"] for card in found["data"]) == ["r0", "r1"] and "missing" not in found
        await until(lambda: all(one.stats and not one.stats.running for one in w.ingress.fleet.present))
        text = (await client.get("/metrics")).text
        families = {one.name: one for one in text_string_to_metric_families(text)}
        assert text.count("# TYPE cohort_requests_running ") == 1, "a family twice is refused by Prometheus"
        by_replica = {
            sample.labels["replica"]: sample.value
            for sample in families["cohort_tokens"].samples
            if sample.labels["kind"] == "output"
        }
        assert sorted(by_replica) == ["r0", "r1"] and sum(by_replica.values()) == 40
        stages = [one.labels.get("replica") for one in families["cohort_stage"].samples if one.value]
        assert sorted(stages, key=str) == [None, "r0", "r1"]
        [length] = [
            one for one in families["cohort_request_output_tokens"].samples if one.name.endswith("_sum")
        ]
        assert length.value == 40 and "replica" not in length.labels
        assert families["cohort_replicas"].samples[0].value == 2
        [story] = (await client.get("/v1/requests", headers=ADMIN)).json()["data"]
        assert story["output_tokens"] == 40 and story["prompt_tokens"] == 3
        assert w.core.router.decisions["hash"] == 1


async def test_what_concerns_one_replica(model_dir: Path) -> None:
    async with served(model_dir, enable_kill_button=True) as (_, client):
        where = "/v1/kill_executor?replica="
        assert (await client.post(f"{where}r1", headers=KEY)).status_code == 401
        unknown = await client.post(f"{where}r7", headers=ADMIN)
        assert unknown.status_code == 400 and "r0, r1" in unknown.json()["error"]["message"]
        # Its executor is inline: the replica's own answer, which says so, comes through.
        inline = await client.post(f"{where}r1", headers=ADMIN)
        assert inline.status_code == 400 and "inline" in inline.json()["error"]["message"]
        for word in ("load", "unload"):
            answer = await client.post(f"/v1/{word}_lora_adapter", json={"lora_name": "a"}, headers=ADMIN)
            assert answer.status_code == 400 and "--lora-modules" in answer.json()["error"]["message"]


async def test_no_key_of_a_client_reaches_a_replica(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In whatever header it comes."""
    sent: list[bytes] = []

    async def send(self: LocalTransport, replica: str, session: str, data: bytes) -> None:
        sent.append(data)
        await plain(self, replica, session, data)

    plain = LocalTransport.send
    monkeypatch.setattr(LocalTransport, "send", send)
    async with served(model_dir, 1, enable_kill_button=True) as (_, client):
        for headers in (ADMIN, {"X-Api-Key": "admin"}):
            more = {"Cookie": "session=cookie", "Proxy-Authorization": "proxy", "X-Request-Id": "mine"}
            answer = await client.post("/v1/kill_executor", headers={**headers, **more})
            assert answer.status_code == 400 and "inline" in answer.json()["error"]["message"]
        said = b"".join(sent)
        assert b"mine" in said and not any(one in said for one in (b"admin", b"cookie", b"proxy"))


async def test_without_a_replica(model_dir: Path) -> None:
    """What is not begun waits; probes say what is the matter, and what is asked of a replica has an answer."""
    async with served(model_dir, 1, max_queue_wait="1") as (w, client):
        await w.transport.kill("r0")
        await until(lambda: not w.ingress.fleet.present)
        ready = await client.get("/ready")
        assert ready.status_code == 503 and ready.json()["detail"] == "no replica is ready"
        assert (await client.get("/live")).status_code == 200
        assert (await client.get("/v1/executors", headers=KEY)).json()["data"] == []
        assert (await client.get("/v1/steps", headers=ADMIN)).status_code == 503
        waiting = asyncio.create_task(client.post("/v1/completions", json=body(), headers=KEY))
        refused = await waiting
        assert refused.status_code == 429 and int(refused.headers["retry-after"]) >= 1


@pytest.mark.parametrize(
    "flags", [{"api_server_count": "2"}, {"lora_root": "."}, {"lora_root": ".", "lora_on_demand": True}]
)
def test_settings_that_do_not_go_together(flags: dict[str, Any]) -> None:
    with pytest.raises(SettingsError):
        check_settings(load({"model": "m", **flags}, {})[0])
