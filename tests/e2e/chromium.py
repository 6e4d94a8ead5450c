"""Debian's Chromium, driven by Playwright, and a server for it to look at: for tests of the console."""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, ConsoleMessage, Page, Request, Route, sync_playwright

from tests.e2e.checkpoints import VOCAB_SIZE
from tests.e2e.server_process import ServerProcess

ADMIN_KEY = "admin-key-of-the-test"
ANSWER = ".message.assistant .content"


def talking_server(tokenizer_dir: Path, folder: Path, *arguments: str) -> ServerProcess:
    """A fake model that talks without end, 20 ms a token, in a server with an admin key and the kill button."""
    options = (f"vocab_size={VOCAB_SIZE}", "step_delay_ms=20")
    args = [str(tokenizer_dir), "--executor", "paged_fake", "--served-model-name", "fake"]
    args += [word for option in options for word in ("--executor-option", option)]
    args += ["--max-model-len", "4096", "--enable-kill-button", "--admin-key", ADMIN_KEY]
    return ServerProcess([*args, *arguments], folder)


@contextlib.contextmanager
def chromium(*args: str) -> Iterator[Browser]:
    path = shutil.which("chromium")
    assert path is not None, "Debian's package chromium is missing: run `make test-external ONLY=console`"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", *args])
        try:
            yield browser
        finally:
            browser.close()


class Watched:
    """A page and all that went wrong on it. `base`: all requests belong below this address."""

    def __init__(self, page: Page, base: str) -> None:
        self.page = page
        self.faults: list[str] = []
        self.foreign: list[str] = []
        self._base = base
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.on("console", self._take_line)
        page.on("request", self._take_request)

    def _take_line(self, line: ConsoleMessage) -> None:
        if line.type in ("error", "warning"):
            self.faults.append(f"{line.text} {line.location}")

    def _take_request(self, request: Request) -> None:
        if not request.url.startswith(self._base):
            self.foreign.append(request.url)

    def check(self, *allowed: str) -> None:
        faults = [fault for fault in self.faults if not any(part in fault for part in allowed)]
        assert not faults and not self.foreign, (faults, self.foreign)


@contextlib.contextmanager
def opened(base: str, path: str = f"/#admin_key={ADMIN_KEY}", **options: Any) -> Iterator[Watched]:
    """A page of the server at `base`, an address without a slash at the end."""
    with chromium() as browser:
        page = browser.new_context(viewport={"width": 1280, "height": 860}, **options).new_page()
        page.set_default_timeout(30_000)
        watched = Watched(page, f"{base}/")
        page.goto(base + path)
        yield watched


def without_end(route: Route) -> None:
    """The fake model says anything, its end token and Markdown among it: here no answer ends by itself, and all are the same."""
    body = json.loads(route.request.post_data or "{}")
    route.continue_(post_data=json.dumps(body | {"ignore_eos": True, "seed": 7}))


def grown(page: Page, length: int) -> str:
    """The answer once it is longer than that. Playwright's own wait evaluates a string, which the page's policy forbids."""
    deadline = time.monotonic() + 40
    while len(text := page.locator(ANSWER).first.text_content() or "") <= length:
        assert time.monotonic() < deadline, f"{len(text)} characters, no more than {length}"
        page.wait_for_timeout(20)
    return text
