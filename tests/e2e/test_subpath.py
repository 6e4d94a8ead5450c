"""The server below a path of a proxy: Debian's nginx, configured as docs/deploy.md says, and Chromium in front of it.
`make test-external ONLY=console` brings what it needs."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from openai import OpenAI
from playwright.sync_api import expect

from clients.chat.client import ChatClient
from tests.e2e.checkpoints import VOCAB_SIZE
from tests.e2e.chromium import chromium, grown, opened, talking_server, without_end
from tests.e2e.nginx import nginx
from tests.e2e.server_process import ServerProcess
from tests.ops.expressions import ROOT

pytestmark = [pytest.mark.external, pytest.mark.timeout(180)]

BODY = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 100, "ignore_eos": True}
OLLAMA = {"model": "fake", "messages": BODY["messages"], "options": {"num_predict": 100}}
STREAMS = {
    "/v1/chat/completions": BODY | {"stream": True},
    "/api/chat": OLLAMA,
    "/v1/completions": {"prompt": "Hi", "max_tokens": 100, "ignore_eos": True, "stream": True},
}
OTHERS = {
    "/v1/responses": {"input": "Hi", "max_output_tokens": 4, "stream": True},
    "/v1/messages": {"messages": BODY["messages"], "max_tokens": 4, "model": "fake", "stream": True},
    "/api/generate": {"model": "fake", "prompt": "Hi", "options": {"num_predict": 4}},
}
PREFIXED = "location {path} {{ proxy_pass {url}/; proxy_set_header X-Forwarded-Prefix /llm; }}"


def documented(url: str) -> str:
    """The directives of docs/deploy.md, for a server at `url`."""
    [snippet] = re.findall(r"```nginx\n(.*?)```", (ROOT / "docs/deploy.md").read_text("utf-8"), re.S)
    assert snippet.count("http://127.0.0.1:8000") == 1
    return str(snippet).replace("http://127.0.0.1:8000", url)


@pytest.fixture(scope="module")
def server(tokenizer_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with talking_server(tokenizer_dir, tmp_path_factory.mktemp("server")) as one:
        yield one


@pytest.fixture(scope="module")
def address(server: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where the proxy serves it, without a slash at the end."""
    with nginx(tmp_path_factory.mktemp("nginx"), documented(server.url)) as url:
        yield f"{url}/llm"


def test_chat_steps_story_and_kill(address: str) -> None:
    """Everything that the console calls: nothing of it leaves the path."""
    with opened(address) as watched:
        page = watched.page
        page.route("**/v1/chat/completions", without_end)
        expect(page.locator("#stage")).to_have_attribute("data-stage", "ready")
        expect(page.locator("#model")).to_have_value("fake")
        assert page.url == f"{address}/"
        page.fill("#message", "Hello")
        page.press("#message", "Enter")
        first = grown(page, 0)
        assert grown(page, len(first) + 40).startswith(first), "it streams"
        page.click("#kill")
        page.click("#really-kill")
        expect(page.locator("#live-notice[data-tone=good]")).to_contain_text("went on without losing a token")
        page.click("#stop")
        expect(page.locator(".message .meta")).to_contain_text("stopped")
        page.locator("#requests button").first.click()
        expect(page.locator("#story-title")).to_contain_text("Request ")
        page.keyboard.press("Escape")
        page.click("text=API")
        expect(page.locator("#createChatCompletion")).to_contain_text("temperature")
        assert page.url == f"{address}/docs"
        page.click("text=Console")
        expect(page.locator(".composer")).to_be_visible()
        watched.check()


@pytest.mark.parametrize(
    ("path", "page"),
    [("", "/"), ("/docs/", "/docs"), ("/console", "/"), ("/console/", "/"), ("/console/docs.html", "/docs")],
)
def test_other_addresses_of_the_pages_lead_there(address: str, path: str, page: str) -> None:
    with opened(address, path) as watched:
        ready = "#stage[data-stage=ready]" if page == "/" else "#createChatCompletion"
        expect(watched.page.locator(ready)).to_be_visible()
        assert watched.page.url == address + page
        watched.foreign = [url for url in watched.foreign if url != address]
        watched.check("401 (Unauthorized)" if page == "/" else "")


def test_redirects_name_no_host(address: str) -> None:
    """Another proxy, which ends TLS or maps the port, may stand before this one."""
    for path in ("", "/docs/", "/console"):
        answer = httpx.get(address + path, headers={"Host": "elsewhere.example", "Accept": "text/html"})
        assert answer.status_code in (301, 307) and "://" not in answer.headers["location"]


def test_a_proxy_that_names_its_path_needs_no_slash(server: ServerProcess, tmp_path: Path) -> None:
    directives = [PREFIXED.format(path=path, url=server.url) for path in ("= /llm", "/llm/")]
    with nginx(tmp_path, "\n".join(directives)) as url, opened(f"{url}/llm", "") as watched:
        expect(watched.page.locator("#stage")).to_have_attribute("data-stage", "ready")
        assert watched.page.url == f"{url}/llm"
        watched.page.click("text=API")
        expect(watched.page.locator("#createChatCompletion")).to_be_visible()
        watched.foreign.remove(f"{url}/llm")
        watched.check()


def test_keys_stay_with_their_server(server: ServerProcess, tokenizer_dir: Path, tmp_path: Path) -> None:
    """Two servers of one host share the tab's storage: the key of one must not be sent to the other."""
    args = [str(tokenizer_dir), "--executor", "echo", "--executor-option", f"vocab_size={VOCAB_SIZE}"]
    args += ["--served-model-name", "locked", "--api-key", "client"]
    with ServerProcess(args, tmp_path) as locked:
        other = documented(locked.url).replace("absolute_redirect off;", "").replace("/llm", "/locked")
        (tmp_path / "nginx").mkdir()
        with nginx(tmp_path / "nginx", documented(server.url) + other) as url, chromium() as browser:
            page = browser.new_page()
            sent: list[tuple[str, str]] = []
            page.on("request", lambda one: sent.append((one.url, one.headers.get("authorization", "no key"))))
            page.goto(f"{url}/locked/")
            expect(page.locator("#keys")).to_contain_text("This server requires an API key.")
            page.fill("#key-api", "client")
            page.click("text=Use them")
            expect(page.locator("#model")).to_have_value("locked")
            page.goto(f"{url}/llm/")
            expect(page.locator("#model")).to_have_value("fake")
            page.goto(f"{url}/locked/")
            expect(page.locator("#model")).to_have_value("locked")
            keys = {url.split("/")[3]: set() for url, _ in sent}
            for one, key in sent:
                keys[one.split("/")[3]].add(key)
            assert keys["llm"] == {"no key"} and "Bearer client" in keys["locked"]


@pytest.mark.parametrize("path", STREAMS)
@pytest.mark.parametrize("bare", [False, True])
def test_nginx_holds_no_stream_back(
    server: ServerProcess, address: str, tmp_path: Path, path: str, bare: bool
) -> None:
    """Without the documented lines nginx speaks HTTP/1.0 to the server, and collects answers in its buffers: the 100 tokens, 20
    ms each, would come all at once."""
    with nginx(tmp_path, f"location /llm/ {{ proxy_pass {server.url}/; }}") as url:
        base = f"{url}/llm" if bare else address
        for _ in range(20):  # Ollama's API has no `ignore_eos`: the fake may end an answer early.
            began = time.monotonic()
            with httpx.stream("POST", base + path, json=STREAMS[path], timeout=30) as answer:
                assert answer.status_code == 200, answer.read()
                arrivals = [time.monotonic() for _ in answer.iter_bytes()]
            if (took := time.monotonic() - began) > 1.0:
                break
    assert len(arrivals) > 10 and arrivals[-1] - arrivals[0] > took / 3


@pytest.mark.parametrize("path", [*STREAMS, *OTHERS, "/v1/steps"])
def test_every_stream_asks_not_to_be_held_back(server: ServerProcess, path: str) -> None:
    method = "GET" if path == "/v1/steps" else "POST"
    with httpx.stream(method, server.url + path, json=(STREAMS | OTHERS).get(path), timeout=30) as answer:
        assert answer.status_code == 200 and answer.headers["x-accel-buffering"] == "no"


def test_clients_use_the_path_as_their_base(address: str) -> None:
    with OpenAI(base_url=f"{address}/v1", api_key="none") as client:
        assert [model.id for model in client.models.list()] == ["fake"]
        answer = client.chat.completions.create(model="fake", messages=[{"role": "user", "content": "Hi"}])
        assert answer.choices[0].message.content is not None
    for url in (address, f"{address}/", f"{address}/v1"):
        assert ChatClient(url, None, None, {}).choose_model() == "fake", "cohort chat"
    large = BODY | {"messages": [{"role": "user", "content": "x" * 5_000_000}]}
    refused = httpx.post(f"{address}/v1/chat/completions", json=large, timeout=60)
    assert refused.status_code == 400 and refused.json()["error"]["code"] == "context_length_exceeded"
    document = httpx.get(f"{address}/openapi.json").json()
    server = httpx.URL(f"{address}/openapi.json").join(document["servers"][0]["url"])
    assert httpx.get(f"{str(server).rstrip('/')}/v1/models").json()["data"][0]["id"] == "fake"
