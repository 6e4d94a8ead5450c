"""The console's live half in Debian's Chromium: ends, kills, marks, groups, the memory map, narrow screens."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.e2e.chromium import ADMIN_KEY, Watched, chromium, talking_server
from tests.e2e.server_process import ServerProcess
from tests.e2e.test_console import AXE

pytestmark = [pytest.mark.external, pytest.mark.timeout(180)]

NUM_BLOCKS = 32_000
SEATS = 64
"""Sequences that run at once."""


@pytest.fixture(scope="module")
def server(tokenizer_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    late = (
        "--executor",
        "tests.e2e.restarting_executor:RestartingFactory",
    )  # else it is back before it is seen to be lost
    args = (*late, "--max-num-seqs", str(SEATS), "--executor-option", f"num_blocks={NUM_BLOCKS}")
    with talking_server(tokenizer_dir, tmp_path_factory.mktemp("live"), *args) as one:
        yield one


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as one:
        yield one


@contextlib.contextmanager
def looking(
    browser: Browser, server: ServerProcess, width: int = 1400, scheme: str = "dark"
) -> Iterator[Page]:
    """A page with the steps in sight."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
    page = context.new_page()
    watched = Watched(page, f"{server.url}/")
    page.goto(f"{server.url}/#admin_key={ADMIN_KEY}")
    if width < 860:
        page.click("#tab-live")
    expect(page.locator("#stage")).to_have_attribute("data-stage", "ready")
    yield page
    watched.check("willReadFrequently")  # the tests read the canvases
    context.close()


@contextlib.contextmanager
def streams(server: ServerProcess, prompts: list[str], length: int = 3000) -> Iterator[None]:
    """One call with these prompts, which is left at the end."""
    body = {"prompt": prompts, "max_tokens": length, "ignore_eos": True, "stream": True}
    over = threading.Event()

    def read() -> None:
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as answer:
            for _ in answer.iter_lines():
                if over.is_set():
                    return

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield
    finally:
        over.set()
        reader.join()


def complete(server: ServerProcess, **more: Any) -> dict[str, Any]:
    body = {"prompt": "Hello", "temperature": 0, "seed": 7, **more}
    answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60)
    answer.raise_for_status()
    found: dict[str, Any] = answer.json()
    return found


def row_of(page: Page, request_id: str) -> Any:
    return page.locator("#requests tr", has_text=request_id[-6:]).first


def tip_at(page: Page, canvas: str, tip: str, x: float, y: float) -> str:
    """What a pointer at a point of a canvas is told; "" for nothing."""
    page.locator(canvas).hover(position={"x": x, "y": y}, force=True)
    return "" if page.locator(tip).is_hidden() else page.locator(tip).text_content() or ""


# -- the memory map -----------------------------------------------------------------------------------------------------------

CELLS = """() => {
  const canvas = document.getElementById("memory");
  const scale = canvas.width / canvas.clientWidth;
  const alpha = (x, y) => canvas.getContext("2d").getImageData(x * scale, y * scale, 1, 1).data[3];
  let cells = 0;
  for (let y = 23; y < canvas.clientHeight; y += 13) {
    for (let x = 3; x < canvas.clientWidth - 9; x += 13) cells += alpha(x, y) > 0;
  }
  const legend = document.getElementById("memory-legend").textContent;
  return [cells, ...["used", "cached"].map((kind) => Number(legend.match(`${kind} ([0-9,]+)`)[1].replace(",", "")))];
}"""


def test_the_memory_map_shows_what_is_used_and_cached(browser: Browser, server: ServerProcess) -> None:
    """Of 32,000 blocks; the first test, before others fill the cache."""
    with looking(browser, server) as page:
        expect(page.locator("#memory-legend")).to_contain_text(f"of {NUM_BLOCKS:,} blocks")
        assert page.evaluate(CELLS)[1:] == [0, 0]
        complete(server, prompt="x" * 200, max_tokens=3)
        with streams(server, ["one " * 10, "two " * 10]):
            expect(page.locator("#requests tr", has_text="running")).to_have_count(2)
            page.wait_for_timeout(300)
            expect(page.locator("#memory-note")).to_have_text("a cell is 1 block of 16 tokens")
            cells, used, cached = page.evaluate(CELLS)
            assert used >= 6 and cached >= 12 and cells == used + cached


# -- the record of the feed, without a page -----------------------------------------------------------------------------

RECORD = """async () => {
  const { History, statesText, stateText } = await import("/console/live/history.js");
  const { scaleOf } = await import("/console/live/memory.js");
  const { plural } = await import("/console/lib/format.js");
  const view = (id, more = {}) => ({ id, request_id: `req-${id}`, choice: 0, status: "running", arrived: 9, prompt_tokens: 3,
    cached_tokens: 0, computed_tokens: 3, output_tokens: 1, max_tokens: 128, blocks: 2, shared_blocks: 0, ttft: null, ...more });
  const frame = (at, more = {}) => ({ at, stage: "ready", detail: "", epoch: 1, running: 0, waiting: 0, num_steps: 0, steps: [],
    skipped: 0, ended: [], skipped_ends: 0, sequences: [], outages: [], output_tokens: 0,
    kv_blocks: { total: 9, used: 0, cached: 0, touched: 0 }, ...more });
  const step = (id, more) => ({ id, epoch: 1, began: 10 + id / 10, ended: 10.05 + id / 10, ...more });
  const end = (id, more) => view(id, { status: "finished", blocks: 0, ended: 10.5, finish_reason: "stop", ttft: 0.25, ...more });
  const facts = (history, id) => {
    const seq = history.sequences.get(id);
    return [seq.output, seq.max, stateText(seq), seq.blocks, seq.ttft];
  };
  const found = {};

  let history = new History();
  history.take(frame(10));
  history.take(frame(11, {
    steps: [step(1, { seq_ids: [1, 2], kinds: "pp", tokens: [3, 3], sampled: [1, 1], started: [view(1), view(2)],
      first_tokens: [[1, 0.25]] }),
      step(2, { seq_ids: [1, 2], kinds: "dd", tokens: [1, 1], sampled: [1, 1] }), step(3), step(4)],
    ended: [end(1, { output_tokens: 81 }), end(3, { output_tokens: 0, finish_reason: "abort", ttft: null })],
  }));
  found.short = facts(history, 1);
  found.neverStarted = facts(history, 3);
  found.endSkipped = facts(history, 2);

  history = new History();
  history.take(frame(10));
  const listed = Array.from({ length: 128 }, (_, i) => view(i + 1));
  const beyond = [view(200), view(201)];
  history.take(frame(11, { running: 130, waiting: 20, sequences: listed,
    steps: [step(1, { seq_ids: [5, 200, 201], kinds: "ppp", tokens: [3, 3, 3], sampled: [1, 1, 1],
      started: [view(5, { blocks: 1 }), ...beyond] }),
      step(2, { seq_ids: [5, 200, 201], kinds: "ddd", tokens: [1, 1, 1], sampled: [1, 1, 1] }), step(3)] }));
  found.beyond = facts(history, 200);
  found.newer = facts(history, 5);
  found.unknown = [history.unknown, statesText([...history.sequences.values()].slice(0, 2), history.unknown)];
  history.take(frame(12, { running: 129, sequences: listed, ended: [end(200, { output_tokens: 7, finish_reason: "length" })] }));
  found.beyondEnded = facts(history, 200);
  found.beyondGoesOn = facts(history, 201)[2];
  const lost = listed.map((one) => ({ ...one, status: "recovering" }));
  history.take(frame(13, { stage: "recovering", waiting: 129, sequences: lost }));
  found.beyondRecovers = facts(history, 201)[2];
  const marks = [...history.sequences.values()].map((seq) => seq.mark);
  found.marks = new Set(marks).size === marks.length;
  history.fillLanes(4);
  const gone = listed.filter((one) => one.id !== 100).map((one) => end(one.id, {}));
  history.take(frame(14, { sequences: [view(100)], ended: gone }));
  history.freeLanes(12);
  history.fillLanes(4);
  found.lane = history.sequences.get(100).lane;

  const pools = [[[1, 2, 3], 10], [[400, 400], 0], [[1000, 7, 1], 30000], [[], 0]];
  found.scales = pools.map(([used, cached]) => scaleOf(used, cached, 300));
  found.plurals = [0, 1, 2, 1200].map((number) => plural(number, "block"));
  return found;
}"""


def test_the_record_of_sequences(browser: Browser, server: ServerProcess) -> None:
    """Modules that know nothing of the page, with frames made for them."""
    with looking(browser, server) as page:
        found = page.evaluate(RECORD)
    assert found["short"] == [81, 128, "stop", 0, 0.25]
    assert found["neverStarted"] == [0, 128, "abort", 0, None]
    assert found["endSkipped"] == [4, 128, "ended", 0, None], "counted by its steps"
    assert found["beyond"] == [3, 128, "running", 2, None], "the frame had no view of it"
    assert found["newer"][3] == 2, "the frame's view is newer than the step's"
    assert found["unknown"] == [20, "2 running, 20 waiting"]
    assert found["beyondEnded"] == [7, 128, "length", 0, 0.25]
    assert (found["beyondGoesOn"], found["beyondRecovers"]) == ("running", "recovering")
    assert found["marks"] and found["lane"] < 4
    scales = found["scales"]
    assert scales[0] == {"per": 1, "cached": 10} and scales[1]["per"] == 3
    assert scales[2]["per"] == 5 and 0 < scales[2]["cached"] <= (300 - 200) * 5
    assert found["plurals"] == ["0 blocks", "1 block", "2 blocks", "1,200 blocks"]


# -- colours --------------------------------------------------------------------------------------------------------------


def _linear(colour: str) -> list[float]:
    values = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    return [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in values]


def contrast(one: str, other: str) -> float:
    """WCAG 2.1, contrast ratio."""
    low, high = sorted(
        sum(w * v for w, v in zip((0.2126, 0.7152, 0.0722), _linear(c), strict=True)) for c in (one, other)
    )
    return (high + 0.05) / (low + 0.05)


def oklab(colour: str) -> tuple[float, ...]:
    """https://bottosson.github.io/posts/oklab"""
    red, green, blue = _linear(colour)
    cones = [
        0.4122214708 * red + 0.5363325363 * green + 0.0514459929 * blue,
        0.2119034982 * red + 0.6806995451 * green + 0.1073969566 * blue,
        0.0883024619 * red + 0.2817188376 * green + 0.6299787005 * blue,
    ]
    long, middle, short = (cone ** (1 / 3) for cone in cones)
    return (
        0.2104542553 * long + 0.7936177850 * middle - 0.0040720468 * short,
        1.9779984951 * long - 2.4285922050 * middle + 0.4505937099 * short,
        0.0259040371 * long + 0.7827717662 * middle - 0.8086757660 * short,
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_of_sequences_are_told_apart(browser: Browser, server: ServerProcess, scheme: str) -> None:
    with looking(browser, server, scheme=scheme) as page:
        names = [
            *(f"mark-{i}" for i in range(12)),
            "surface",
            "raised",
            "accent-soft",
            "good",
            "bad",
            "warn",
            "muted",
            "text",
        ]
        found = page.evaluate(
            "async (names) => (await import('/console/lib/theme.js')).colours(names)", names
        )
    marks = [found[name] for name in names[:12]]
    assert min(contrast(mark, found["surface"]) for mark in marks) >= 3
    assert min(math.dist(oklab(a), oklab(b)) for a, b in itertools.combinations(marks, 2)) >= 0.15
    pairs = itertools.product(("good", "bad", "warn", "muted", "text"), ("surface", "raised"))
    for name, ground in (*pairs, ("muted", "accent-soft"), ("text", "accent-soft")):
        assert contrast(found[name], found[ground]) >= 4.5, (name, ground)


PIXELS = """([id, left, width]) => {
  const canvas = document.getElementById(id);
  const scale = canvas.width / canvas.clientWidth;
  const size = [Math.round((width || canvas.clientWidth) * scale), canvas.height];
  const data = canvas.getContext("2d").getImageData(Math.round(left * scale), 0, ...size).data;
  const seen = new Set();
  for (let i = 0; i < data.length; i += 4) if (data[i + 3] === 255) seen.add(`rgb(${data[i]}, ${data[i + 1]}, ${data[i + 2]})`);
  return [...seen];
}"""


def test_one_colour_in_steps_table_and_memory_map(browser: Browser, server: ServerProcess) -> None:
    """As the page draws it; and what is pointed at or focused in one place stands out in all."""
    with looking(browser, server) as page, streams(server, ["one", "two", "three"]):
        rows = page.locator("#requests tr", has_text="running")
        expect(rows).to_have_count(3)
        page.wait_for_timeout(600)
        for at in range(3):
            colour = rows.nth(at).locator(".mark").evaluate("(mark) => getComputedStyle(mark).fill")
            assert colour in page.evaluate(PIXELS, ["timeline", 0, 20]), "the mark before the row's name"
            assert colour in page.evaluate(PIXELS, ["timeline", 90, 0]), "the stripe under the row"
            assert colour in page.evaluate(PIXELS, ["memory", 0, 0])
        button = rows.nth(1).locator("button")
        plain = page.evaluate(PIXELS, ["memory", 0, 0])
        rows.nth(1).locator("td").nth(3).hover()
        expect(page.locator("tr.lit")).to_have_count(1)
        colours = [
            row.locator(".mark").evaluate("(mark) => getComputedStyle(mark).fill") for row in rows.all()
        ]
        lit = page.evaluate(PIXELS, ["memory", 0, 0])
        assert colours[1] in lit and not {colours[0], colours[2]} & set(lit) and {*colours} <= set(plain)
        page.mouse.move(5, 5)
        expect(page.locator("tr.lit")).to_have_count(0)
        button.focus()
        expect(page.locator("tr.lit button")).to_be_focused()
        button.blur()
        name = rows.nth(0).locator("button").inner_text().strip()
        assert name in tip_at(page, "#memory", "#memory-tip", 5, 25)
        expect(page.locator("tr.lit button")).to_contain_text(name)
        assert name in tip_at(page, "#timeline", "#tip", 20, 8)
        expect(page.locator("tr.lit button")).to_contain_text(name)


# -- rows, ends, tooltips -------------------------------------------------------------------------------------------------


def test_rows_that_ended_have_their_final_counts(browser: Browser, server: ServerProcess) -> None:
    with looking(browser, server) as page:
        page.wait_for_timeout(300)  # the feed's first frame
        for max_tokens in (1, 37):
            whole = complete(server, max_tokens=max_tokens, ignore_eos=True)
            row = row_of(page, whole["id"])
            expect(row.locator("td").nth(1)).to_have_text("length")
            expect(row.locator("td").nth(4)).to_have_text(f"{max_tokens} / {max_tokens}")
            expect(row.locator("td").nth(5)).to_have_text(re.compile(r"^\d.* m?s$"))
            expect(row.locator("td").nth(7)).to_have_text("0")
        stopped = complete(server, max_tokens=400, ignore_eos=True, stop=[whole["choices"][0]["text"][9:12]])
        count = stopped["usage"]["completion_tokens"]
        assert stopped["choices"][0]["finish_reason"] == "stop" and count < 37
        row = row_of(page, stopped["id"])
        expect(row.locator("td").nth(1)).to_have_text("stop")
        expect(row.locator("td").nth(4)).to_have_text(f"{count} / 400")


def test_a_click_anywhere_in_a_row_opens_its_story(browser: Browser, server: ServerProcess) -> None:
    with looking(browser, server) as page:
        request = complete(server, max_tokens=3, ignore_eos=True)["id"]
        row = row_of(page, request)
        for open_it in (
            lambda: row.locator("td").nth(4).click(),
            lambda: row.locator("td").nth(1).click(),
            lambda: row.locator("button").press("Enter"),
        ):
            open_it()
            expect(page.locator("#story")).to_contain_text(request)
            page.keyboard.press("Escape")
            expect(page.locator("#story")).to_be_hidden()


def test_a_pointer_over_empty_space_is_told_nothing(browser: Browser, server: ServerProcess) -> None:
    with looking(browser, server) as page, streams(server, ["one"]):
        expect(page.locator("#requests tr", has_text="running")).to_have_count(1)
        page.wait_for_timeout(1200)
        page.click("#pause")
        width, height = page.locator("#timeline").evaluate("(one) => [one.clientWidth, one.clientHeight]")
        texts = {
            (x, y): tip_at(page, "#timeline", "#tip", x, y)
            for x in (100, width - 12)
            for y in (9, 100, height - 70, height - 4)
        }
        right = width - 12
        assert {at for at, text in texts.items() if text} <= {(right, 9)}, texts
        text = texts[right, 9] or tip_at(page, "#timeline", "#tip", right - 6, 9)
        assert "here decode, 1 token\n" in text and "1 sequence decode, 1 token" in text
        assert re.search(r"^Request \w{6}: running\n", text)
        bars = [tip_at(page, "#timeline", "#tip", right - back, height - 22) for back in (0, 7, 13, 20)]
        assert any(bar.startswith("Step ") for bar in bars) and not any("Request" in bar for bar in bars)
        assert re.search(r"\n\d+ blocks? of its own", tip_at(page, "#memory", "#memory-tip", 5, 25))
        assert not tip_at(page, "#memory", "#memory-tip", 400, 5)
        page.mouse.move(5, 5)
        expect(page.locator(".tip:visible")).to_have_count(0)


# -- a kill -----------------------------------------------------------------------------------------------------------------


def test_a_kill_has_one_duration_and_its_streams_are_recovering(
    browser: Browser, server: ServerProcess
) -> None:
    with looking(browser, server) as page, streams(server, [f"stream {i}" for i in range(12)]):
        expect(page.locator("#requests tr", has_text="running")).to_have_count(12)
        page.click("#kill")
        page.click("#really-kill")
        expect(page.locator("#requests .state[data-state=recovering]")).to_have_count(12)
        assert not page.locator("#requests .state", has_text="preempted").count()
        expect(page.locator("#figures")).to_contain_text("12 recovering")
        notice = page.locator("#live-notice[data-tone=good]")
        expect(notice).to_contain_text("; 12 streams went on without losing a token.", timeout=20_000)
        matched = re.search(r"was ready after ([\d.]+ m?s);", notice.text_content() or "")
        assert matched is not None
        duration = matched[1]
        page.wait_for_timeout(700)
        page.click("#pause")
        width, height = page.locator("#timeline").evaluate("(one) => [one.clientWidth, one.clientHeight]")
        bands = (tip_at(page, "#timeline", "#tip", x, height - 22) for x in range(int(width) - 20, 100, -25))
        assert (
            next(text for text in bands if "executor" in text) == f"executor killed, ready after {duration}"
        )
        page.locator("#requests tr td").nth(2).click()
        expect(page.locator("#story dl")).to_contain_text(
            f"12 × executor_died:signal; the executor was ready after {duration}"
        )
        page.keyboard.press("Escape")


def test_the_steps_have_their_numbers_as_soon_as_they_are_in_sight(
    browser: Browser, server: ServerProcess
) -> None:
    with looking(browser, server, width=390) as page:
        page.click("#tab-chat")
        page.evaluate("document.querySelector('#figures .value span').textContent = 'none'")
        number = page.evaluate(
            """() => {
              document.getElementById("tab-live").click();
              return document.querySelector("#figures .value span").textContent;
            }"""
        )
        assert number != "none"


SPIED = """() => {
  window.words = [];
  const write = CanvasRenderingContext2D.prototype.fillText;
  CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {
    if (text.includes("executor killed")) window.words.push([x, x + this.measureText(text).width]);
    return write.call(this, text, x, y);
  };
}"""


def test_the_words_of_two_kills_in_quick_succession_are_apart(
    browser: Browser, server: ServerProcess
) -> None:
    with looking(browser, server) as page, streams(server, ["one", "two"]):
        for _ in range(2):
            page.click("#kill")
            page.click("#really-kill")
            notice = page.locator("#live-notice[data-tone=good]")
            expect(notice).to_contain_text("; 2 streams went on without losing a token.", timeout=20_000)
        page.wait_for_timeout(700)
        page.click("#pause")
        page.evaluate(SPIED)
        page.wait_for_timeout(200)
        places = sorted({(round(left), round(right)) for left, right in page.evaluate("window.words")})
        assert len(places) == 2 and places[0][1] <= places[1][0], places


# -- more than fits -----------------------------------------------------------------------------------------------------------


def test_what_does_not_fit_is_counted(browser: Browser, server: ServerProcess) -> None:
    """150 sequences: the feed lists 128, the table 40, and the timeline has room for some 25."""
    number = 150
    with looking(browser, server) as page, streams(server, [f"{i}" for i in range(number)]):
        more = page.locator("#requests .more")
        expect(more).to_have_text(f"and {number - 40} more: {SEATS - 40} running, {number - SEATS} waiting")
        expect(page.locator("#requests tr")).to_have_count(41)
        label = page.locator("#timeline").get_attribute("aria-label") or ""
        matched = re.search(r": (\d+) sequences, and (\d+) more: (?:\d+ \w+, )?\d+ waiting\.", label)
        assert matched is not None, label
        assert int(matched[1]) + int(matched[2]) == number and int(matched[1]) >= 25
        height = page.locator("#timeline").evaluate("(one) => one.clientHeight")
        assert f"{matched[2]} more: " in tip_at(page, "#timeline", "#tip", 30, height - 76)
        with looking(browser, server, width=390) as narrow:
            expect(narrow.locator("#requests .more")).to_contain_text(f"and {number - 40} more")


# -- narrow and wide, light and dark --------------------------------------------------------------------------------------------

CLIPPED = """() => {
  const found = [];
  for (const node of document.querySelectorAll("#live :not(.visually-hidden)")) {
    const words = [...node.childNodes].some((one) => one.nodeType === 3 && one.data.trim());
    if (!node.offsetParent || node.tagName === "CANVAS" || !words) continue;
    const { left, right } = node.getBoundingClientRect();
    const cut = node.scrollWidth > node.clientWidth + 1 && getComputedStyle(node).display !== "inline";
    const name = `${node.tagName} ${node.className} ${node.textContent.slice(0, 60)}`;
    if (cut || left < -0.5 || right > innerWidth + 0.5) found.push(name);
  }
  const box = document.querySelector(".table-box");
  if (box.scrollWidth > box.clientWidth + 1) found.push(`table ${box.scrollWidth} > ${box.clientWidth}`);
  if (document.documentElement.scrollWidth > innerWidth) found.push("the page scrolls sideways");
  return found;
}"""


def test_no_word_is_clipped_and_axe_finds_nothing(browser: Browser, server: ServerProcess) -> None:
    assert AXE.is_file(), "axe-core is missing: run `make test-external ONLY=console`"
    found: dict[str, Any] = {}
    with streams(server, [f"stream {i} " * (1 + i % 7) for i in range(90)]):
        for width, scheme in itertools.product((390, 1400), ("light", "dark")):
            with looking(browser, server, width, scheme) as page:
                expect(page.locator("#requests .more")).to_contain_text("waiting")
                page.locator("#requests button").first.focus()
                page.evaluate(AXE.read_text("utf-8"))
                report = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
                for fault in report["violations"]:
                    found[f"{width} {scheme}: {fault['id']}"] = [
                        node["html"][:200] for node in fault["nodes"][:3]
                    ]
                if clipped := page.evaluate(CLIPPED):
                    found[f"{width} {scheme}: clipped"] = clipped
    assert not found, json.dumps(found, indent=1)
