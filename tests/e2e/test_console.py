"""The console in a real browser: Debian's Chromium, driven by Playwright.

`make test-external ONLY=console` brings what it needs.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect

from tests.e2e.checkpoints import VOCAB_SIZE
from tests.e2e.chromium import ADMIN_KEY, ANSWER, chromium, grown, opened, talking_server, without_end
from tests.e2e.server_process import ServerProcess

pytestmark = [pytest.mark.external, pytest.mark.timeout(180)]

AXE = Path(__file__).parents[2] / ".reports" / "axe" / "node_modules" / "axe-core" / "axe.min.js"


@pytest.fixture(scope="module")
def server(tokenizer_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with talking_server(tokenizer_dir, tmp_path_factory.mktemp("console")) as one:
        yield one


def test_send_stop_kill_and_open_a_story(server: ServerProcess) -> None:
    with opened(server.url) as watched:
        page = watched.page
        page.route("**/v1/chat/completions", without_end)
        expect(page.locator("#stage")).to_have_attribute("data-stage", "ready")
        assert "admin" not in page.url, "the key must not stay in the address"
        assert page.evaluate("JSON.stringify(localStorage)") == "{}"
        page.fill("#message", "Hello")
        page.press("#message", "Enter")
        expect(page.locator(ANSWER)).to_be_visible()
        before = grown(page, 40)
        page.click("#kill")
        page.click("#really-kill")
        notice = page.locator("#live-notice[data-tone=good]")
        expect(notice).to_contain_text("1 stream went on without losing a token")
        assert grown(page, len(before) + 40).startswith(before[:30])
        page.click("#stop")
        expect(page.locator(".message .meta")).to_contain_text("stopped")
        expect(page.locator("#send")).to_be_visible()

        page.click("text=Regenerate")
        grown(page, 10)
        assert page.locator(".message.assistant").count() == 1
        page.keyboard.press("Escape")
        expect(page.locator(".message .meta")).to_contain_text("stopped")

        page.locator("#requests button").first.click()
        expect(page.locator("#story-title")).to_contain_text("Request ")
        expect(page.locator("#story dl").first).to_contain_text("Output")
        page.keyboard.press("Escape")
        expect(page.locator("#story")).to_be_hidden()
        watched.check()


def test_streams_are_drawn(server: ServerProcess) -> None:
    """What the canvas shows has the colours of prefill and decode; the table has a row for each stream."""
    with opened(server.url) as watched:
        page = watched.page
        page.click("#load")
        expect(page.locator("#requests tr")).to_have_count(8)
        expect(page.locator("#figures li").first).to_contain_text("tok/s")
        page.wait_for_timeout(1500)
        drawn = page.evaluate(
            """() => {
              const canvas = document.getElementById("timeline");
              const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
              const seen = new Set();
              for (let i = 0; i < data.length; i += 4) seen.add(`${data[i]},${data[i + 1]},${data[i + 2]}`);
              return ["124,108,242", "18,165,148"].map((colour) => seen.has(colour));
            }"""
        )
        assert drawn == [True, True]
        page.click("#pause")
        first, second = (page.locator("#timeline").screenshot() for _ in range(2))
        assert first == second
        page.click("#load")
        expect(page.locator("#load")).to_have_text("Add 8 streams")
        watched.check()


def test_a_server_with_keys_asks_for_them(tokenizer_dir: Path, tmp_path: Path) -> None:
    args = [str(tokenizer_dir), "--executor", "echo", "--executor-option", f"vocab_size={VOCAB_SIZE}"]
    args += ["--served-model-name", "fake", "--api-key", "client", "--admin-key", ADMIN_KEY]
    with ServerProcess(args, tmp_path) as server, opened(server.url, "/") as watched:
        page = watched.page
        expect(page.locator("#keys")).to_contain_text("This server requires an API key.")
        page.fill("#key-api", "client")
        page.click("text=Use them")
        expect(page.locator("#model")).to_have_value("fake")
        expect(page.locator("#live-notice")).to_contain_text("needs the admin key")
        page.click("#open-keys")
        page.fill("#key-admin", ADMIN_KEY)
        page.click("text=Use them")
        expect(page.locator("#stage")).to_have_attribute("data-stage", "ready")
        expect(page.locator("#live-notice")).to_be_hidden()
        expect(page.locator("#kill")).to_be_hidden()
        page.reload()
        expect(page.locator("#stage")).to_have_attribute("data-stage", "ready")
        watched.check("401 (Unauthorized)")


def test_the_admin_key_alone_opens_the_whole_console(tokenizer_dir: Path, tmp_path: Path) -> None:
    """As by the link of the start-up text: no other key is asked for."""
    args = [str(tokenizer_dir), "--executor", "echo", "--executor-option", f"vocab_size={VOCAB_SIZE}"]
    args += ["--served-model-name", "fake", "--api-key", "client", "--admin-key", ADMIN_KEY]
    with ServerProcess(args, tmp_path) as server, opened(server.url) as watched:
        page = watched.page
        expect(page.locator("#model")).to_have_value("fake")
        expect(page.locator("#stage")).to_have_attribute("data-stage", "ready")
        expect(page.locator("#keys")).to_be_hidden()
        expect(page.locator("#live-notice")).to_be_hidden()
        watched.check()


CALL = [
    {
        "role": "assistant",
        "tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": {"name": "get_weather"}}],
    },
    {"tool_calls": [{"index": 0, "function": {"arguments": '{"city": '}}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": '"Rome"}'}}]},
]


def test_tool_calls_and_json(server: ServerProcess) -> None:
    """The model's side is played: no fake model calls a tool."""
    bodies: list[dict[str, Any]] = []

    def play(route: Route) -> None:
        bodies.append(json.loads(route.request.post_data or "{}"))
        deltas: list[Any] = CALL if len(bodies) == 1 else [{"content": '{"sunny":'}, {"content": " true}"}]
        chunks = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
        text = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
        route.fulfill(status=200, content_type="text/event-stream", body=text)

    with opened(server.url) as watched:
        page = watched.page
        page.route("**/v1/chat/completions", play)
        page.click("#open-settings")
        page.fill("#set-system", "Be brief.")
        page.fill("#set-temperature", "0.5")
        page.select_option("#set-format", "json_object")
        page.check("#set-useTools")
        page.keyboard.press("Escape")
        page.fill("#message", "Weather in Rome?")
        page.click("#send")
        call = page.locator(".call")
        expect(call).to_contain_text("get_weather")
        expect(call.locator("pre")).to_have_text('{\n  "city": "Rome"\n}')
        call.locator("input").fill("sunny")
        call.locator("button").click()
        expect(page.locator(".message.assistant .content pre")).to_have_text('{\n  "sunny": true\n}')
        watched.check()
    assert bodies[0]["temperature"] == 0.5 and bodies[0]["response_format"] == {"type": "json_object"}
    assert bodies[0]["tools"][0]["function"]["name"] == "get_weather"
    assert [one["role"] for one in bodies[1]["messages"]] == ["system", "user", "assistant", "tool"]
    assert bodies[1]["messages"][3] == {"role": "tool", "tool_call_id": "call_1", "content": "sunny"}


HOSTILE = """<img src=x onerror=alert(1)> **<b>bold</b>** [go](javascript:alert(1)) <script>alert(1)</script>

```html
<iframe src="https://evil.example"></iframe>
```

| <i>a</i> | b |
| --- | --- |
| <svg onload=alert(1)> | `<u>` |

- <style>*{display:none}</style>
> <object data=x>
"""


def test_what_a_model_writes_stays_text(server: ServerProcess) -> None:
    with opened(server.url) as watched:
        tags, text = watched.page.evaluate(
            """async (text) => {
              const { render } = await import("/console/lib/markdown.js");
              const box = document.createElement("div");
              box.append(...render(text));
              const nodes = [...box.querySelectorAll("*")];
              return [[...new Set(nodes.map((node) => node.tagName.toLowerCase()))].sort(), box.textContent];
            }""",
            HOSTILE,
        )
        allowed = (
            "blockquote br code em h3 h4 hr li ol p pre span strong table tbody td th thead tr ul".split()
        )
        assert set(tags) <= set(allowed)
        for part in (
            "<img src=x onerror=alert(1)>",
            "<script>",
            "<iframe",
            "<svg onload",
            "<style>",
            "<object",
        ):
            assert part in text
        watched.check()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(server: ServerProcess, scheme: str) -> None:
    assert AXE.is_file(), "axe-core is missing: run `make test-external ONLY=console`"
    found: dict[str, Any] = {}

    def look(page: Page, name: str) -> None:
        page.evaluate(AXE.read_text("utf-8"))
        report = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        for fault in report["violations"]:
            if fault["impact"] in ("serious", "critical"):
                found[f"{name}: {fault['id']}"] = [node["html"][:200] for node in fault["nodes"][:3]]

    with opened(server.url, color_scheme=scheme) as watched:
        page = watched.page
        page.route("**/v1/chat/completions", without_end)
        page.fill("#message", "Hello **you**")
        page.press("#message", "Enter")
        page.click("#load")
        page.wait_for_timeout(1000)
        look(page, "busy")
        page.click("#stop")
        page.click("#load")
        page.click("#open-settings")
        page.check("#set-useTools")
        look(page, "settings")
        page.keyboard.press("Escape")
        page.click("#open-keys")
        look(page, "keys")
        page.keyboard.press("Escape")
        page.locator("#requests button").first.click()
        page.wait_for_selector("#story dl")
        look(page, "story")
        page.keyboard.press("Escape")
        page.set_viewport_size({"width": 400, "height": 800})
        look(page, "narrow chat")
        page.click("#tab-live")
        look(page, "narrow steps")
        page.goto(f"{server.url}/docs")
        page.wait_for_selector(".operation")
        look(page, "docs")
        watched.check()
    assert not found


def test_the_reference_shows_every_operation(server: ServerProcess) -> None:
    paths = server.get("/openapi.json").json()["paths"]
    with opened(server.url, "/docs") as watched:
        page = watched.page
        expect(page.locator(".operation")).to_have_count(sum(map(len, paths.values())))
        expect(page.locator("#createChatCompletion")).to_contain_text("temperature")
        watched.check()


FOREIGN = """<!doctype html><title>evil</title><script>
const calls = {
  chat: ["/v1/chat/completions", {method: "POST", headers: {"Content-Type": "application/json"}, body: BODY}],
  plain: ["/v1/chat/completions", {method: "POST", mode: "no-cors", headers: {"Content-Type": "text/plain"}, body: BODY}],
  steps: ["/v1/steps", {}],
  kill: ["/v1/kill_executor", {method: "POST", headers: {Authorization: "Bearer KEY"}}],
  blind: ["/v1/kill_executor", {method: "POST", mode: "no-cors"}],
};
window.results = (async () => {
  const found = {};
  for (const [name, [path, options]] of Object.entries(calls)) {
    try { const answer = await fetch("TARGET" + path, options); found[name] = answer.type; } catch { found[name] = "refused"; }
  }
  return found;
})();
</script>"""
BODY = json.dumps({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2})


@contextlib.contextmanager
def page_elsewhere(html: str) -> Iterator[str]:
    """The address of a page of another origin."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(html.encode())

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as web:
        threading.Thread(target=web.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{web.server_port}/"
        web.shutdown()


def test_pages_of_others_reach_nothing(server: ServerProcess) -> None:
    """A page of another origin, and one whose name was pointed at this machine (DNS rebinding)."""
    while server.metric("cohort_requests_running"):  # streams of the tests before
        time.sleep(0.05)
    before = server.metric('cohort_tokens_total{kind="output"}')
    port = server.url.rpartition(":")[2]
    html = FOREIGN.replace("TARGET", server.url).replace("KEY", ADMIN_KEY).replace("BODY", json.dumps(BODY))
    with (
        page_elsewhere(html) as address,
        chromium("--host-resolver-rules=MAP evil.example 127.0.0.1") as browser,
    ):
        page = browser.new_page()
        page.goto(address)
        results = page.evaluate("window.results")
        assert {name: results[name] for name in ("chat", "steps", "kill")} == dict.fromkeys(
            ("chat", "steps", "kill"), "refused"
        )
        page.goto(f"http://evil.example:{port}/")
        assert "host_not_allowed" in page.content()
        statuses = page.evaluate(
            """async (body) => {
              const json = {method: "POST", headers: {"Content-Type": "application/json"}, body};
              const posts = ["/v1/chat/completions", "/v1/kill_executor"].map((path) => [path, json]);
              const calls = [...posts, ["/v1/steps", {}], ["/console/app.js", {}]];
              return Promise.all(calls.map(async ([path, options]) => (await fetch(path, options)).status));
            }""",
            BODY,
        )
        assert statuses == [403] * 4
    assert server.metric('cohort_tokens_total{kind="output"}') == before
