"""The console's pictures for the docs, taken of a real server that answers with the default model.

    python -m tools.console_pictures [FOLDER]

`console-light.png`: a chat beside eight streams. `console-dark.png`: the same a moment after the executor was killed. FOLDER is
docs/images if none is given. Needs Debian's Chromium, as `make test-external ONLY=console` does.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Browser, Page, expect

from tests.e2e.chromium import ADMIN_KEY, ANSWER, chromium
from tests.e2e.server_process import ServerProcess

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
SIZE = {"width": 1280, "height": 860}
QUESTION = "Write a long story about a lighthouse keeper and her daughter."
SHOWN = 2500
"""Milliseconds of streams before and after what a picture is of."""
WORDS = 150
"""Characters of the answer that a picture has at least."""


def light(page: Page) -> None:
    """A chat, and eight streams beside it."""
    page.wait_for_timeout(SHOWN)


def dark(page: Page) -> None:
    """The executor is killed, and the streams go on."""
    page.wait_for_timeout(SHOWN)
    page.click("#kill")
    page.click("#really-kill")
    expect(page.locator("#live-notice[data-tone=good]")).to_be_visible(timeout=60_000)
    page.wait_for_timeout(SHOWN)


def take(browser: Browser, url: str, scheme: str, act: Callable[[Page], None], path: Path) -> None:
    """A picture of the page in one colour scheme, after `act`."""
    context = browser.new_context(viewport=SIZE, color_scheme=scheme)  # type: ignore[arg-type]
    page = context.new_page()
    page.goto(f"{url}/#admin_key={ADMIN_KEY}")
    expect(page.locator("#stage")).to_have_attribute("data-stage", "ready")
    if (close := page.locator("#intro-close")).is_visible():  # what the first visit is told
        close.click()
    page.click("#load")
    page.fill("#message", QUESTION)
    page.press("#message", "Enter")
    expect(page.locator(ANSWER)).to_be_visible(timeout=60_000)
    while len(page.locator(ANSWER).first.text_content() or "") < WORDS:
        page.wait_for_timeout(50)
    act(page)
    page.mouse.move(5, 5)
    page.screenshot(path=path)
    context.close()


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=Path, default=IMAGES)
    folder: Path = parser.parse_args().folder
    args = ["--enable-kill-button", "--admin-key", ADMIN_KEY]
    with (
        tempfile.TemporaryDirectory() as logs,
        ServerProcess(args, Path(logs), ready_within=300) as server,
        chromium() as browser,
    ):
        take(browser, server.url, "light", light, folder / "console-light.png")
        take(browser, server.url, "dark", dark, folder / "console-dark.png")


if __name__ == "__main__":
    main()
