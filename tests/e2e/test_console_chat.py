"""The console's chat half in Debian's Chromium: what a waiting chat says, what the page teaches, keys, settings, code.
`make test-external ONLY=console` brings what it needs."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.e2e.checkpoints import write_tokenizer
from tests.e2e.chromium import ADMIN_KEY, Watched, chromium, grown, talking_server, without_end
from tests.e2e.server_process import ServerProcess

pytestmark = [pytest.mark.external, pytest.mark.timeout(120)]

AXE = Path(__file__).parents[2] / ".reports" / "axe" / "node_modules" / "axe-core" / "axe.min.js"
DEFAULTS = {"temperature": 0.2, "top_k": 50}
WAIT = ".message.assistant .wait"
API_KEY = "client's key"
ADMIN = {"Authorization": f"Bearer {ADMIN_KEY}"}
LATE = ("--executor", "tests.e2e.restarting_executor:RestartingFactory")
REFUSED = "401 (Unauthorized)"


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_tokenizer(tmp_path_factory.mktemp("model"))
    (folder / "generation_config.json").write_text(json.dumps(DEFAULTS))
    return folder


@pytest.fixture(scope="module")
def server(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Two sequences at a time, 1 ms for each token of a prompt, 256 in a step at most, and a second for a restart."""
    args = [
        *LATE,
        "--max-num-seqs",
        "2",
        "--max-num-batched-tokens",
        "256",
        "--executor-option",
        "prompt_token_ms=1",
    ]
    with talking_server(model_dir, tmp_path_factory.mktemp("console"), *args) as one:
        yield one


@pytest.fixture(scope="module")
def locked(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server whose clients need a key."""
    with talking_server(model_dir, tmp_path_factory.mktemp("locked"), *LATE, "--api-key", API_KEY) as one:
        yield one


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    expect.set_options(timeout=15_000)
    with chromium() as one:
        yield one


@contextlib.contextmanager
def opened(
    browser: Browser, base: str, path: str = f"/#admin_key={ADMIN_KEY}", **options: Any
) -> Iterator[Watched]:
    context = browser.new_context(**{"viewport": {"width": 1400, "height": 900}, **options})
    page = context.new_page()
    page.set_default_timeout(15_000)
    watched = Watched(page, f"{base}/")
    page.goto(base + path)
    yield watched
    context.close()


@contextlib.contextmanager
def busy(url: str) -> Iterator[None]:
    """Four streams without end: two run, two wait. With the console's key: each key has slots of its own."""
    body = {"prompt": ["x"] * 4, "max_tokens": 400, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{url}/v1/completions", json=body, headers=ADMIN, timeout=30) as answer:
        assert answer.status_code == 200, answer.read()
        chunks = answer.iter_bytes()
        next(chunks)
        yield


def briefly(route: Route) -> None:
    """Eight tokens: the fake model talks without end."""
    body = json.loads(route.request.post_data or "{}")
    route.continue_(post_data=json.dumps(body | {"max_tokens": 8}))


def one_token(route: Route) -> None:
    body = json.loads(route.request.post_data or "{}")
    route.continue_(post_data=json.dumps(body | {"max_tokens": 1, "ignore_eos": True}))


def ask(page: Page, text: str) -> None:
    page.fill("#message", text)
    page.press("#message", "Enter")


# -- a waiting chat ---------------------------------------------------------------------------------------------------


def test_queue_prompt_and_restart_are_named(server: ServerProcess, browser: Browser) -> None:
    with opened(browser, server.url) as watched:
        page = watched.page
        page.route("**/v1/chat/completions", without_end)
        expect(page.locator("#model")).to_have_value("fake")
        page.evaluate(
            """() => {
              window.announced = [];
              const status = document.getElementById("chat-status");
              new MutationObserver(() => window.announced.push(status.textContent)).observe(status, {childList: true});
            }"""
        )
        with busy(server.url):
            ask(page, "long " * 300)
            expect(page.locator(WAIT)).to_have_text(re.compile(r"^waiting in the queue, place 3, [1-9] s$"))
        expect(page.locator(WAIT)).to_have_text(
            re.compile(r"^computing the prompt: [\d,]+ of 1,5\d\d tokens, \d+ s$")
        )
        grown(page, 20)
        expect(page.locator(WAIT)).to_be_hidden()
        httpx.post(f"{server.url}/v1/kill_executor", headers=ADMIN)
        expect(page.locator(WAIT)).to_contain_text("the executor was lost; your answer goes on in a moment")
        expect(page.locator(WAIT)).to_contain_text("computing the answer so far again")
        length = len(grown(page, 0))
        grown(page, length + 10)
        page.click("#stop")
        announced = [text for text in page.evaluate("window.announced") if text]
        assert len(announced) <= 6 and not [text for text in announced if re.search(r"\d s$", text)], (
            announced
        )
        assert "waiting in the queue, place 3" in announced
        watched.check()


def test_another_model_at_the_same_address_is_listed(server: ServerProcess, browser: Browser) -> None:
    """A server that was started anew is reached by the feed, and the chat asks it for its models again."""
    with opened(browser, server.url) as watched:
        page = watched.page
        expect(page.locator("#model")).to_have_value("fake")
        named = {"data": [{"id": "another", "object": "model"}]}
        page.route("**/v1/models", lambda route: route.fulfill(json=named))
        page.evaluate(
            "document.dispatchEvent(new Event('visibilitychange'))"
        )  # the page comes in sight: a new feed
        expect(page.locator("#model")).to_have_value("another")
        watched.check()


def test_one_token_is_no_tokens(server: ServerProcess, browser: Browser) -> None:
    with opened(browser, server.url) as watched:
        page = watched.page
        page.route("**/v1/chat/completions", one_token)
        ask(page, "a word")
        expect(page.locator(".message.assistant .meta")).to_contain_text("1 token")
        assert "1 tokens" not in (page.locator(".message.assistant .meta").text_content() or "")


def test_a_chat_waits_for_the_model_to_load(server: ServerProcess, browser: Browser) -> None:
    """The stage is played: it asks /ready, which needs no key, and sends the message again by itself."""
    loading = {"status": "loading", "phase": "weights", "detail": "weights", "done": 40, "total": 100}
    compiling = {
        "status": "loading",
        "phase": "kernels",
        "detail": "compiling kernels",
        "done": 0,
        "total": 1,
    }
    stages = [loading, loading, compiling, compiling, {"status": "ready"}]
    refusals: list[Route] = []

    def refuse(route: Route) -> None:
        if refusals:
            briefly(route)
            return
        refusals.append(route)
        route.fulfill(status=503, json={"error": {"message": "The model is still loading."}})

    with opened(browser, server.url) as watched:
        page = watched.page
        page.route("**/v1/chat/completions", refuse)
        page.route("**/ready", lambda route: route.fulfill(status=503, json=stages.pop(0)))
        ask(page, "Hello")
        expect(page.locator(WAIT)).to_contain_text("loading the model: 40%")
        expect(page.locator(WAIT)).to_contain_text("loading the model (compiling kernels)")
        expect(page.locator(".message .meta")).to_be_visible()
        assert page.locator(".message.user").count() == 1 and not stages
        watched.check("503 (Service Unavailable)")


# -- keys -------------------------------------------------------------------------------------------------------------


def test_what_a_missing_key_refused_is_repeated(locked: ServerProcess, browser: Browser) -> None:
    with opened(browser, locked.url, "/") as watched:
        page = watched.page
        page.route("**/v1/chat/completions", briefly)
        expect(page.locator("#keys")).to_contain_text("This server requires an API key.")
        expect(page.locator("#key-api")).to_be_focused()
        page.keyboard.press("Escape")
        expect(page.locator("#chat-notice")).to_contain_text("This server requires an API key.")

        ask(page, "Hello")
        expect(page.locator("#key-api")).to_be_focused()
        page.keyboard.type("wrong")
        page.keyboard.press("Enter")
        expect(page.locator("#keys")).to_contain_text("does not know this key")
        page.locator("#key-api").fill(API_KEY)
        page.keyboard.press("Enter")
        expect(page.locator(".message .meta")).to_be_visible()
        assert page.locator(".message.user").count() == 1
        expect(page.locator("#model")).to_have_value("fake")
        expect(page.locator("#chat-notice")).to_be_hidden()

        for place in ("#live-notice", "#earlier"):
            expect(page.locator(place)).to_contain_text("admin")
        page.click("text=Story >> nth=-1") if False else page.locator(
            ".meta button", has_text="Story"
        ).click()
        page.locator("#story button", has_text="Give the admin key").click()
        expect(page.locator("#key-admin")).to_be_focused()
        page.keyboard.type(ADMIN_KEY)
        page.keyboard.press("Enter")
        expect(page.locator("#story dl").first).to_contain_text("/v1/chat/completions")
        page.keyboard.press("Escape")
        expect(page.locator("#live-notice")).to_be_hidden()
        expect(page.locator("#earlier tbody tr")).to_have_count(1)
        watched.check(REFUSED)


def test_a_chat_with_an_api_key_alone_is_told_its_place(locked: ServerProcess, browser: Browser) -> None:
    """It may not watch the steps: what it waits for comes with its own stream."""
    with opened(browser, locked.url, "/") as watched:
        page = watched.page
        page.route("**/v1/chat/completions", without_end)
        page.fill("#key-api", API_KEY)
        page.keyboard.press("Enter")
        ask(page, "Hello")
        grown(page, 10)
        httpx.post(f"{locked.url}/v1/kill_executor", headers=ADMIN)
        expect(page.locator(WAIT)).to_contain_text("your answer goes on in a moment")
        page.click("#stop")
        watched.check(REFUSED)


# -- settings and code ------------------------------------------------------------------------------------------------


def test_settings_show_the_values_in_force(server: ServerProcess, browser: Browser) -> None:
    with opened(browser, server.url) as watched:
        page = watched.page
        expect(page.locator("#model")).to_have_value("fake")
        page.click("#open-settings")
        for name, value, origin in (
            ("temperature", "0.2", "model's default"),
            ("top_k", "50", "model's default"),
            ("top_p", "1", "API's default"),
        ):
            expect(page.locator(f"#set-{name}")).to_have_attribute("placeholder", value)
            expect(page.locator(f"#from-{name}")).to_have_text(origin)
        expect(page.locator("#set-max_tokens")).to_have_attribute("placeholder", "≤ 4,096")
        watched.check()


def test_the_copied_request_runs(locked: ServerProcess, browser: Browser) -> None:
    question = "It's \"quoted\", $HOME `id` \\ and\n  a 'line' of ünï😀"
    env = {**os.environ, "COHORT_API_KEY": API_KEY, "PYTHONUTF8": "1"}
    with opened(browser, locked.url, permissions=["clipboard-read", "clipboard-write"]) as watched:
        page = watched.page
        sent: list[Any] = []
        page.on("request", lambda one: one.method == "POST" and sent.append(one.post_data_json))
        expect(page.locator("#model")).to_have_value("fake")
        page.click("#open-settings")
        for name, value in (("max_tokens", "8"), ("seed", "7"), ("min_p", "0.05"), ("system", "Don't.")):
            page.fill(f"#set-{name}", value)
        page.check("#set-useTools")
        page.keyboard.press("Escape")
        ask(page, question)
        expect(page.locator(".message .meta")).to_be_visible()
        texts = {}
        for name in ("curl", "Python"):
            page.click(f".meta button:has-text('Copy as {name}')")
            expect(page.locator(".meta")).to_contain_text("Copied")
            texts[name] = page.evaluate("navigator.clipboard.readText()")
        watched.check()
    assert ADMIN_KEY not in "".join(texts.values()) and API_KEY not in "".join(texts.values())
    [body] = sent
    assert body["messages"][-1]["content"] == question

    echo = subprocess.run(
        ["bash", "-c", "curl() { printf '%s\\0' \"$@\"; }\n" + texts["curl"]], env=env, capture_output=True
    )
    words = echo.stdout.decode().split("\0")
    assert json.loads(words[words.index("-d") + 1]) == body, "exactly what the console sends"
    runs = [["bash", "-c", texts["curl"]], [sys.executable, "-c", texts["Python"]]]
    shell, program = (
        subprocess.run(one, env=env, capture_output=True, timeout=60, check=True).stdout.decode()
        for one in runs
    )
    chunks = [json.loads(line[6:]) for line in shell.splitlines() if line.startswith("data: {")]
    text = "".join(one["delta"].get("content") or "" for chunk in chunks for one in chunk["choices"])
    assert "data: [DONE]" in shell and chunks[-1]["usage"]["completion_tokens"] > 0
    assert program.rstrip("\n") == text.rstrip("\n"), "the same seed, the same answer"


# -- what it teaches --------------------------------------------------------------------------------------------------


def test_words_explain_themselves(server: ServerProcess, browser: Browser) -> None:
    with opened(browser, server.url, has_touch=True) as watched:
        page = watched.page
        stage = page.locator("#stage")
        expect(stage).to_have_attribute("data-stage", "ready")
        taught = page.evaluate(
            "[...document.querySelectorAll('.term')].map((one) => document.getElementById(one.getAttribute('aria-describedby')))"
            ".map((one) => [one.id, one.getAttribute('role'), one.textContent.length])"
        )
        names = {name.removeprefix("term-") for name, _, _ in taught}
        assert {"prefill", "decode", "kv", "prefix", "itl", "ttft"} <= names
        assert all(role == "tooltip" and length > 40 for _, role, length in taught)

        word, tip = page.locator(".legend .term", has_text="prefill"), page.locator("#term-prefill")
        expect(tip).to_be_hidden()
        word.hover()
        expect(tip).to_be_visible()
        tip.hover()
        page.wait_for_timeout(250)
        expect(tip).to_be_visible()
        page.mouse.move(5, 5)
        expect(tip).to_be_hidden()
        page.locator(".legend .term", has_text="waiting").focus()
        page.keyboard.press("Tab")
        expect(word).to_be_focused()
        expect(tip).to_be_visible()
        page.keyboard.press("Escape")
        expect(tip).to_be_hidden()
        expect(word).to_be_focused()
        word.tap()
        expect(tip).to_be_visible()
        page.touchscreen.tap(300, 500)
        expect(tip).to_be_hidden()
        watched.check()


def test_the_strip_of_the_first_visit(server: ServerProcess, browser: Browser) -> None:
    with opened(browser, server.url) as watched:
        page = watched.page
        strip, help_button = page.locator("#intro"), page.locator("#help")
        expect(strip.locator("p")).to_have_count(3)
        bottom = strip.bounding_box()
        top = page.locator("main").bounding_box()
        assert bottom and top and bottom["y"] + bottom["height"] <= top["y"], "it covers nothing"
        page.click("text=Got it")
        expect(strip).to_be_hidden()
        page.reload()
        expect(page.locator("#stage")).to_have_attribute("data-stage", "ready")
        expect(strip).to_be_hidden()
        help_button.click()
        expect(strip).to_be_visible()
        expect(help_button).to_have_attribute("aria-expanded", "true")
        help_button.click()
        expect(strip).to_be_hidden()
        watched.check()


def test_earlier_requests(server: ServerProcess, browser: Browser) -> None:
    """With the admin key the last ones are listed, more on demand, and a row opens the story."""
    with httpx.Client(base_url=server.url) as client:
        for _ in range(21):
            client.post("/v1/completions", json={"prompt": "x", "max_tokens": 1})
    with opened(browser, server.url) as watched:
        page = watched.page
        rows = page.locator("#earlier tbody tr")
        expect(rows).to_have_count(20)
        page.click("#earlier-more")
        page.wait_for_timeout(100)
        expect(rows.nth(20)).to_be_visible()
        rows.first.locator("td").last.click()
        expect(page.locator("#story dl").first).to_contain_text("/v1/completions")
        watched.check()


# -- both themes, both sizes ------------------------------------------------------------------------------------------

CLIPPED = """() => {
  const modal = document.querySelector("dialog[open]");
  const left_out = ".visually-hidden, .skip, [popover], option, textarea, .table-box, pre, .picker .label";
  return [...document.querySelectorAll("body *")].filter((node) => {
    const text = [...node.childNodes].some((one) => one.nodeType === 3 && one.textContent.trim());
    if (!text || !node.checkVisibility() || node.closest(left_out) || (modal && !modal.contains(node))) return false;
    const box = node.getBoundingClientRect();
    const cut = getComputedStyle(node).overflowX !== "visible" && node.scrollWidth > node.clientWidth + 1;
    return cut || box.left < -0.5 || box.right > innerWidth + 0.5;
  }).map((node) => node.outerHTML.slice(0, 120));
}"""


@pytest.mark.parametrize("width", [390, 1400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_clipped_and_axe_finds_nothing(
    server: ServerProcess, browser: Browser, scheme: str, width: int
) -> None:
    assert AXE.is_file(), "axe-core is missing: run `make test-external ONLY=console`"
    faults: dict[str, list[str]] = {}

    def look(page: Page, name: str) -> None:
        report = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        for fault in report["violations"]:
            faults[f"{name}: {fault['id']}"] = [node["html"][:200] for node in fault["nodes"][:3]]
        if clipped := page.evaluate(CLIPPED):
            faults[f"{name}: clipped"] = clipped

    size = {"width": width, "height": 844}
    with opened(browser, server.url, color_scheme=scheme, viewport=size) as watched:
        page = watched.page
        page.route("**/v1/chat/completions", briefly)
        page.evaluate(AXE.read_text("utf-8"))
        expect(page.locator("#model")).to_have_value("fake")
        with busy(server.url):
            ask(page, "Hello **you**")
            expect(page.locator(WAIT)).to_contain_text("waiting in the queue")
            look(page, "waiting")
        expect(page.locator(".message .meta")).to_be_visible()
        page.click("#intro-close")
        page.click("#open-settings")
        page.check("#set-useTools")
        look(page, "settings")
        page.keyboard.press("Escape")
        page.click("#open-keys")
        look(page, "keys")
        page.keyboard.press("Escape")
        page.locator(".meta button", has_text="Story").click()
        page.wait_for_selector("#story dl")
        page.locator("#story .term").first.hover()
        look(page, "story")
        if scheme == "light" and width == 390:
            page.goto(f"{server.url}/docs")
            page.wait_for_selector(".operation")
            page.evaluate(AXE.read_text("utf-8"))
            look(page, "docs")
        watched.check()
    assert not faults
