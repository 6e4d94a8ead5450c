"""The console's pages and files, the feed of steps, and the kill button."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any
from urllib.parse import urljoin

import pytest

from engine.core.step_watch import SequenceEnd, SequenceView, StepItems, StepRecord
from engine.errors import Overloaded
from engine.interruptions import Outage
from engine.request import EngineStats, Stage
from executors.contract import NotReady
from server.console import assets, feed
from server.console.feed import MAX_ENDS, MAX_STEPS, MAX_WATCHERS, OUTAGE_SPAN, StepFeed
from tests.server.api_schema import check
from tests.server.fakes import FakeExecutor, House, error_of

HTML = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
VIEW = SequenceView(7, "req_1", 0, "running", 99.0, 12, 4, 15, 3, 64, 2, 1)
ITEMS = StepItems((7, 8), "dp", (1, 30), (1, 0))


def record(step_id: int, items: StepItems = ITEMS, **more: Any) -> StepRecord:
    return StepRecord(step_id, 1, 99.0 + step_id / 100, 99.01 + step_id / 100, items, **more)


# -- pages and files ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/docs"])
async def test_a_browser_gets_a_page_and_curl_gets_text(house: House, path: str) -> None:
    page = await house.get(path, headers=HTML)
    assert page.status_code == 200 and page.headers["content-type"] == "text/html; charset=utf-8"
    text = await house.get(path, headers={"Accept": "*/*"})
    assert text.status_code == 200 and text.headers["content-type"].startswith("text/plain")
    assert "/openapi.json" in text.text and max(map(len, text.text.splitlines())) <= 110
    assert page.headers["vary"] == "Accept, X-Forwarded-Prefix" and text.headers["vary"] == "Accept"


async def test_no_page_may_load_or_run_anything_from_elsewhere(house: House) -> None:
    files = {name for name in assets.assets() if not name.endswith(".html")}
    for path in ("/", "/docs", *(f"/console/{name}" for name in files)):
        response = await house.get(path, headers=HTML)
        policy = response.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; ") and "trusted-types 'none'" in policy
        assert not re.search(r"unsafe|\*|https?:|data:|blob:|nonce|sha\d", policy), policy
        assert response.headers["x-content-type-options"] == "nosniff"


def test_no_file_names_another_host_or_holds_inline_code() -> None:
    """What the policy would block in a browser, and what would turn text into markup."""
    for name, asset in assets.assets().items():
        text = asset.body.decode()
        hosts = set(re.findall(r"\b(?:https?:)?//([a-z0-9.-]+\.[a-z]{2,})", text)) - {"www.w3.org"}
        assert not hosts, (name, hosts)
        if name.endswith(".html"):
            assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\son\w+=|\sstyle=|javascript:", text), name
        forbidden = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|localStorage\.\w*[kK]ey"
        assert not re.search(forbidden, text), name


async def test_files_are_sent_once_per_version(house: House) -> None:
    first = await house.get("/console/app.js")
    assert first.headers["content-type"] == "text/javascript; charset=utf-8"
    again = await house.get("/console/app.js", headers={"If-None-Match": first.headers["etag"]})
    assert again.status_code == 304 and not again.content
    for path in ("/console/../assets.py", "/console/%2e%2e/assets.py", "/console/nope.js"):
        assert (await house.get(path)).status_code == 404, path


# -- below a path of a proxy -------------------------------------------------------------------------------------------

ABSOLUTE = re.compile(r"""(?:href|src|action)="/|\b(?:fetch|import|from|url)\b\s*\(?\s*["'`]/""")


def test_no_link_begins_at_the_root_of_the_host() -> None:
    """Paths of the API go through `call` of lib/api.js, which puts them below the server's address."""
    for name, asset in assets.assets().items():
        assert not ABSOLUTE.search(asset.body.decode()), name
    for text in ('<a href="/docs">', 'fetch("/v1/models")', "import('/console/app.js')", 'from "/x.js"'):
        assert ABSOLUTE.search(text), text


@pytest.mark.parametrize("path", ["/", "/docs"])
async def test_links_are_right_below_any_path(house: House, path: str) -> None:
    """Resolved as a browser does, and with the proxy's path taken off again, every one is answered."""
    page = await house.get(path, headers=HTML)
    for base in ("", "/llm", "/a/b.c"):
        for link in re.findall(r'(?:href|src)="([^"#]+)"', page.text):
            target = urljoin(f"https://host{base}{path}", link)
            assert target.startswith(f"https://host{base}/"), (base, link)
            answer = await house.get(target.removeprefix(f"https://host{base}"), headers=HTML)
            assert answer.status_code == 200, target


@pytest.mark.parametrize(
    ("header", "prefix"),
    [
        ("/llm", "/llm"),
        ("/llm/", "/llm"),
        ("/a/b-c_d.e~1", "/a/b-c_d.e~1"),
        ("/a, /b", "/a/b"),
        ("/a/,/", "/a"),
    ],
)
async def test_the_path_that_a_proxy_took_off_stands_before_links(
    house: House, header: str, prefix: str
) -> None:
    """For an address without a slash at the end, from which relative links lead elsewhere."""
    plain = await house.get("/", headers=HTML)
    page = await house.get("/", headers={**HTML, "X-Forwarded-Prefix": header})
    links = re.findall(r'(?:href|src)="([^"#]+)"', page.text)
    assert f"{prefix}/console/app.js" in links and all(link.startswith(f"{prefix}/") for link in links)
    assert page.headers["etag"] != plain.headers["etag"], "a cache must not mix them"
    again = {**HTML, "X-Forwarded-Prefix": header, "If-None-Match": page.headers["etag"]}
    assert (await house.get("/", headers=again)).status_code == 304
    assert (await house.get("/", headers={**HTML, "If-None-Match": page.headers["etag"]})).status_code == 200


async def test_two_proxies_may_name_their_paths_in_a_header_each(house: House) -> None:
    """Traefik adds a header to those that are there; two headers of one name are one with a comma (RFC 9110, 5.2)."""
    two = [(b"Accept", b"text/html"), (b"X-Forwarded-Prefix", b"/a"), (b"X-Forwarded-Prefix", b"/b/")]
    page = await house.get("/", headers=two)
    assert '"/a/b/console/app.js"' in page.text
    page = await house.get("/", headers=[*two, (b"X-Forwarded-Prefix", b"//evil.example")])
    assert '"./console/app.js"' in page.text


@pytest.mark.parametrize(
    "header",
    ["", "/", "llm", "//evil.example", "/a,//evil.example", "https://evil.example", "/a\"><script>", "/a b", "/a/../..", "/./a",
     "/é", "/%2e%2e", "/\\evil.example", "/" + "a" * 300],
)  # fmt: skip
async def test_a_prefix_that_is_no_plain_path_means_nothing(house: House, header: str) -> None:
    plain = await house.get("/", headers=HTML)
    headers = [*((name.encode(), value.encode()) for name, value in HTML.items())]
    page = await house.get("/", headers=[*headers, (b"X-Forwarded-Prefix", header.encode())])
    assert page.content == plain.content and page.headers["etag"] == plain.headers["etag"]


@pytest.mark.parametrize(
    ("path", "page"),
    [("/console", "/"), ("/console/", "/"), ("/console/index.html", "/"), ("/console/docs.html", "/docs"), ("/docs/", "/docs")],
)  # fmt: skip
async def test_redirects_are_relative(path: str, page: str) -> None:
    """What the proxy calls this server is not known; no key is needed, as for the pages themselves."""
    house = House(options={"api_keys": ["key"]})
    answer = await house.get(path, headers=HTML)
    assert answer.status_code == 307 and "/" not in answer.headers["location"][:1]
    for base in ("", "/llm"):
        assert urljoin(f"https://host{base}{path}", answer.headers["location"]) == f"https://host{base}{page}"


async def test_the_description_of_the_api_is_relative_to_its_own_address(house: House) -> None:
    """A client appends an operation's path to the server's address, which it resolves by the document's (OpenAPI 3.1, Server)."""
    document = (await house.get("/openapi.json")).json()
    [server] = document["servers"]
    for base in ("https://host", "https://host/llm"):
        address = urljoin(f"{base}/openapi.json", server["url"]).rstrip("/")
        assert f"{address}/v1/models" == f"{base}/v1/models" and "/v1/models" in document["paths"]


# -- the feed ----------------------------------------------------------------------------------------------------------


async def read(frames: AsyncGenerator[bytes, None]) -> dict[str, Any]:
    """The next frame, which keeps to its description."""
    event, _, data = (await anext(frames)).decode().partition("\n")
    assert event == "event: frame" and data.endswith("\n\n")
    frame: dict[str, Any] = json.loads(data.removeprefix("data: "))
    check("StepsFrame", frame)
    return frame


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "INTERVAL", 0.005)


@pytest.mark.usefixtures("quick")
async def test_a_frame_has_every_step(house: House) -> None:
    house.core.views = [VIEW]
    feed_: StepFeed = house.app.state.step_feed
    frames = feed_.frames()
    first = await read(frames)
    for one in (record(1, started=(VIEW,), first_tokens=((7, 0.25),)), record(2), record(3, error="it died")):
        house.core.watch._tell(one)
    second = await read(frames)
    assert first["server"]["model"] == "fake" and not first["server"]["kill_button"] and not first["steps"]
    assert first["kv_blocks"] == {"total": 20, "used": 5, "cached": 4, "touched": 12}
    assert first["states"] == {"total": 10, "used": 3, "snapshots": 6}
    steps = second["steps"]
    assert [one["id"] for one in steps] == [1, 2, 3] and "server" not in second
    assert steps[0]["seq_ids"] == [7, 8] and steps[0]["kinds"] == "dp" and steps[0]["tokens"] == [1, 30]
    assert steps[0]["first_tokens"] == [[7, 0.25]] and steps[0]["started"][0]["request_id"] == "req_1"
    assert "seq_ids" not in steps[1] and steps[2]["error"] == "it died"
    assert (second["output_tokens"], second["prompt_tokens"], second["skipped"]) == (3, 90, 0)
    assert second["sequences"][0]["output_tokens"] == 3
    await frames.aclose()
    assert not house.core.watch.active and not feed_.num_watchers, "nobody watches any more"


def end_of(view: SequenceView, reason: str = "stop") -> SequenceEnd:
    return SequenceEnd(replace(view, status="finished", blocks=0, shared_blocks=0), 99.5, reason)


@pytest.mark.usefixtures("quick")
async def test_a_sequence_that_lives_shorter_than_a_frame_has_its_end(house: House) -> None:
    frames = house.app.state.step_feed.frames()
    first = await read(frames)
    watch = house.core.watch
    watch._tell(record(1, started=(VIEW,), first_tokens=((7, 0.25),)))
    [on_end] = watch._end_listeners
    on_end(end_of(replace(VIEW, output_tokens=81, max_tokens=128, ttft=0.25)))
    second, third = await read(frames), await read(frames)
    await frames.aclose()
    [end] = second["ended"]
    assert (end["output_tokens"], end["max_tokens"], end["finish_reason"]) == (81, 128, "stop")
    assert (end["id"], end["status"], end["blocks"], end["ended"], end["ttft"]) == (
        7,
        "finished",
        0,
        99.5,
        0.25,
    )
    assert not first["ended"] and not third["ended"] and not watch._end_listeners


@pytest.mark.usefixtures("quick")
async def test_ends_without_a_step_wake_an_idle_feed_and_are_bounded(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    idle = EngineStats(
        stage=Stage.READY,
        running=0,
        waiting=0,
        kv_blocks_used=0,
        kv_blocks_total=20,
        epoch=1,
        steps=0,
        preemptions=0,
    )
    monkeypatch.setattr(house.core, "stats", lambda: idle)
    monkeypatch.setattr(feed, "_IDLE_FRAMES", 10**9)
    frames = house.app.state.step_feed.frames()
    await read(frames)
    await read(frames)
    [on_end] = house.core.watch._end_listeners
    for seq_id in range(MAX_ENDS + 5):
        on_end(end_of(replace(VIEW, seq_id=seq_id), "abort"))
    async with asyncio.timeout(5):
        frame = await read(frames)
    await frames.aclose()
    assert (len(frame["ended"]), frame["skipped_ends"], frame["ended"][0]["id"]) == (MAX_ENDS, 5, 5)


async def test_outages_under_way_and_of_the_last_minute(house: House) -> None:
    now = house.core.clock()
    house.core.lost = [
        Outage(1, now - 200, "executor_died:signal", now - OUTAGE_SPAN - 1),
        Outage(2, now - 9, "executor_died:signal", now - 7.5),
        Outage(3, now - 2, "out_of_memory"),
    ]
    house.core.views = [replace(VIEW, status="recovering")]
    frames = house.app.state.step_feed.frames()
    frame = await read(frames)
    await frames.aclose()
    assert frame["outages"] == [
        {"epoch": 2, "began": now - 9, "ended": now - 7.5, "cause": "executor_died:signal"},
        {"epoch": 3, "began": now - 2, "ended": None, "cause": "out_of_memory"},
    ]
    assert frame["sequences"][0]["status"] == "recovering"


@pytest.mark.usefixtures("quick")
async def test_a_burst_of_steps_is_bounded(house: House) -> None:
    frames = house.app.state.step_feed.frames()
    await read(frames)
    for step_id in range(MAX_STEPS + 40):
        house.core.watch._tell(record(step_id))
    late = house.app.state.step_feed.frames()
    assert (await read(late))["skipped"] == 0
    second, third = await read(frames), await read(late)
    assert second == third, "one frame for all"
    await frames.aclose()
    await late.aclose()
    assert len(second["steps"]) == MAX_STEPS and second["skipped"] == 40
    assert second["steps"][0]["id"] == 40 and second["steps"][0]["seq_ids"] == [7, 8]
    assert second["output_tokens"] == MAX_STEPS + 40


@pytest.mark.usefixtures("quick")
async def test_one_producer_for_all_and_an_end_for_each(house: House) -> None:
    feed_: StepFeed = house.app.state.step_feed
    watchers = [feed_.frames() for _ in range(MAX_WATCHERS)]
    for frames in watchers:
        await read(frames)
    assert len([task for task in asyncio.all_tasks() if task.get_name() == "step feed"]) == 1
    assert len(house.core.watch._listeners) == 1
    with pytest.raises(Overloaded):
        await anext(feed_.frames())
    refused = await house.get("/v1/steps")
    assert refused.status_code == 429 and error_of(refused)["code"] == "overloaded"
    await watchers.pop().aclose()
    house.state.draining = True  # the drain waits for every answer
    async with asyncio.timeout(5):
        for frames in watchers:
            assert [frame async for frame in frames] == []
    assert not house.core.watch.active and not feed_.num_watchers


@pytest.mark.usefixtures("quick")
async def test_a_client_that_leaves_ends_the_feed(house: House) -> None:
    """Cancelled while it waits for a frame."""
    frames = house.app.state.step_feed.frames()
    await read(frames)
    waiting = asyncio.create_task(anext(frames))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not house.core.watch.active and house.app.state.step_feed._task is None


@pytest.mark.usefixtures("quick")
async def test_a_slow_watcher_loses_the_oldest_frames(house: House) -> None:
    house.core.views = [VIEW]
    feed_: StepFeed = house.app.state.step_feed
    slow = feed_.frames()
    await anext(slow)
    frames = feed_.frames()
    for _ in range(30):
        await read(frames)
    await frames.aclose()
    assert len(feed_._watchers[0]._frames) == feed._MAX_BEHIND
    await slow.aclose()
    assert feed_._task is None


async def test_while_the_model_loads_there_is_a_stage(house: House) -> None:
    house.state.core, house.state.model = None, None
    frames = house.app.state.step_feed.frames()
    first = await read(frames)
    await frames.aclose()
    assert first["stage"] == "loading" and "kv_blocks" not in first


@pytest.mark.usefixtures("quick")
async def test_who_watches_the_load_is_told_of_the_model() -> None:
    house = House(options={"kill_button": True})
    house.core.executor = Killable()
    core, model = house.state.core, house.state.model
    house.state.core = house.state.model = None
    frames = house.app.state.step_feed.frames()
    first = (await read(frames))["server"]
    assert first["max_model_len"] is None and not first["kill_button"]
    house.state.core, house.state.model = core, model
    while "server" not in (frame := await read(frames)):
        pass
    assert frame["server"]["max_model_len"] == 512 and frame["server"]["kill_button"]
    assert "server" not in await read(frames), "once"
    await frames.aclose()


# -- keys, hosts and the kill button ------------------------------------------------------------------------------------


async def test_steps_of_other_clients_need_the_admin_key() -> None:
    house = House(options={"api_keys": ["key"], "admin_key": "admin"})
    for key, status in ((None, 401), ("key", 401), ("admin", 200)):
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        async with house.client() as client:
            assert (await client.head("/v1/steps", headers=headers)).status_code == status


class Killable(FakeExecutor):
    def __init__(self) -> None:
        super().__init__()
        self.killed = 0

    def kill(self) -> int:
        if self.killed:
            raise NotReady("no executor process lives")
        self.killed += 1
        return 4711


async def test_the_kill_button_is_the_admins_and_only_if_offered() -> None:
    for offered in (False, True):
        house = House(options={"kill_button": offered, "api_keys": ["key"], "admin_key": "admin"})
        house.core.executor = executor = Killable()
        async with house.client() as client:
            for key in ("", "key"):
                refused = await client.post("/v1/kill_executor", headers={"Authorization": f"Bearer {key}"})
                assert refused.status_code == 401 and not executor.killed
            answer = await client.post("/v1/kill_executor", headers={"Authorization": "Bearer admin"})
            if not offered:
                assert answer.status_code == 404 and "--enable-kill-button" in error_of(answer)["message"]
                assert not executor.killed
                continue
            assert answer.status_code == 200 and answer.json() == {"killed": 4711}
            again = await client.post("/v1/kill_executor", headers={"Authorization": "Bearer admin"})
            assert again.status_code == 503


async def test_an_executor_that_loads_is_not_killed() -> None:
    house = House(options={"kill_button": True, "admin_key": "admin"})
    house.core.executor = executor = Killable()
    house.state.model = None
    async with house.client() as client:
        answer = await client.post("/v1/kill_executor", headers={"Authorization": "Bearer admin"})
    assert answer.status_code == 503 and not executor.killed


async def test_an_executor_without_a_process_is_not_killed() -> None:
    house = House(options={"kill_button": True})
    answer = await house.post("/v1/kill_executor", {})
    assert answer.status_code == 400 and "--executor-mode inline" in error_of(answer)["message"]
