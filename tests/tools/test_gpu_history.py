"""What `make gpu-history`, README and docs/gpu.md say of a log: complete, stale, partial, cut short, or of other parts."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu.part import Options
from tools.gpu_check import history, log, page, sources
from tools.gpu_check.log import ROOT

PAGES = {"README.md": "gpu-lead", "docs/gpu.md": "gpu-figures"}


class Tree:
    """A project of two files, with a log and the two pages."""

    def __init__(self, root: Path) -> None:
        self.root, self.log = root, root / log.PATH.relative_to(ROOT)
        for name in ("engine/a.py", "engine/b.py"):
            self.edit(name, "x = 1\n")
        for name, marker in PAGES.items():
            self.edit(name, f"# Page\n\n<!-- {marker}:begin -->\n<!-- {marker}:end -->\n\nend\n")
        self.log.parent.mkdir(parents=True)
        (root / "modules").write_text("engine.a\nengine.b\n")
        self.sources = sources.of_modules(root / "modules", root=root)

    def edit(self, name: str, text: str) -> None:
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        (self.root / name).write_text(text)

    def add(self, part: str, figures: dict[str, Any], state: str = "pass", **more: Any) -> None:
        row = {"written": "2026-12-01T10:00:00Z", "card": "NVIDIA H200", "commit": "1234567", "part": part, "seconds": 12.5,
               "state": state, "detail": "", "figures": figures, "sources": self.sources}  # fmt: skip
        log.append(self.log, row | more)

    def report(self, *chosen: str, deep: bool = False) -> str:
        return history.report(self.log, chosen, deep, self.root)

    def page(self, word: str = "write") -> tuple[int, str]:
        code = page.main([word], self.root)
        return code, "\n".join((self.root / name).read_text() for name in PAGES)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


SINGLE = {"tokens_per_s": 1018.4, "share_of_roofline": 0.315, "executor_notes": ["graphs: 3 of 3 captured"]}


def test_the_course_of_a_figure_has_a_column_for_each_line(tree: Tree) -> None:
    tree.add("single-0.6b", SINGLE)
    tree.add(
        "single-0.6b", SINGLE | {"tokens_per_s": 1400.2, "ttft_ms": 4.5}, card="NVIDIA H100", commit="89abcde"
    )
    text = tree.report()
    assert "(1) 2026-12-01T10:00:00Z  NVIDIA H200  1234567  pass, 12.5 s" in text
    assert "(2) 2026-12-01T10:00:00Z  NVIDIA H100  89abcde  pass" in text
    rows = {line.split()[0]: line.split()[1:] for line in text.splitlines() if line.strip()}
    assert rows["tokens_per_s"] == ["1,018", "1,400"] and rows["ttft_ms"] == ["-", "4.5"]
    assert text.count("code: as it is now") == 2


def test_a_stale_line_says_by_which_files(tree: Tree) -> None:
    tree.add("single-0.6b", SINGLE)
    tree.edit("engine/b.py", "x = 2\n")
    assert "code: changed since: engine/b.py\n" in tree.report()
    tree.add("single-0.6b", SINGLE, sources={f"engine/{n}.py": "00000000" for n in range(5)})
    assert "code: changed since: engine/0.py, engine/1.py, engine/2.py and 2 more" in tree.report()
    tree.add("single-0.6b", SINGLE, sources=None)
    assert "code: not known\n" in tree.report()


def test_missed_targets_and_the_slow_way_are_told(tree: Tree) -> None:
    targets = {"tokens/s on an H200": {"target": 25000.0, "found": 24750.4, "reached": False},
               "share of the limit": {"target": 0.68, "found": 0.69, "reached": True}}  # fmt: skip
    tree.add("offline-0.6b", {"targets": targets, "reached": False, "fell_back": "graphs: none"})
    tree.add("cohort", {"reached": False})
    text = tree.report()
    assert "target missed: tokens/s on an H200: 24,750 of 25,000" in text and "roofline: 0" not in text
    assert "target missed: its own" in text and "the slow way: graphs: none" in text


def test_a_part_that_was_cut_off_shows_what_it_wrote_and_that_it_was_cut_off(tree: Tree) -> None:
    tree.add(
        "kernels",
        {"copy_gb_per_s": 4000.0},
        "cut off",
        detail="the call's time ended after 34 s",
        sources=None,
    )
    begun = log.begin(tree.log.parent, {"part": "churn", "card": "NVIDIA H100", "commit": "1234567"})
    with begun.open("a") as file:
        file.write('{"sequences": 12}\n{"identi')
    text = tree.report()
    assert "cut off, 12.5 s\n      the call's time ended after 34 s" in text and "4,000" in text
    assert "NVIDIA H100  1234567  cut off\n      the call ended before the part did" in text
    assert text.splitlines()[-1] == "never run to the end: churn, kernels"
    assert begun.exists(), "who only reads changes nothing"


def test_what_was_never_run_and_what_cannot_be_read_is_named(tree: Tree) -> None:
    tree.add("single-0.6b", SINGLE)
    tree.add("old-part", {"rate": 3})
    with tree.log.open("a") as file:
        file.write('{"part": "steps", "sta')
    text = tree.report()
    never = next(line for line in text.splitlines() if line.startswith("never run: "))
    assert "steps" in never and "churn" in never and "single-0.6b" not in never and "again" not in never
    assert "lines that cannot be read: 3 of log.jsonl" in text and "old-part: no part of this tree" in text


def test_some_parts_and_figures_of_mappings_are_asked_for(tree: Tree) -> None:
    tree.add("kernels", {"kernels": {"decode": {"us": 12.25}, "odd": {"not run": "absent"}}})
    tree.add("single-0.6b", SINGLE)
    assert "12.25" not in tree.report() and "kernels.decode.us" in tree.report("kernels", deep=True)
    assert "single-0.6b:" not in tree.report("kernels").partition("never run")[0]


def test_the_newest_lines_have_the_columns(tree: Tree) -> None:
    for n in range(11):
        tree.add("single-0.6b", {"tokens_per_s": float(n)})
    [row] = [line for line in tree.report().splitlines() if line.strip().startswith("tokens_per_s")]
    assert row.split()[1:] == [str(n) for n in range(3, 11)] and "(11)" in tree.report()


def test_an_empty_log_says_so(tree: Tree) -> None:
    assert tree.report().startswith("never run: device, ")
    code, text = tree.page()
    assert code == 0 and "has never run on a GPU" in text and "The log has no line" in text


# -- README and docs/gpu.md -------------------------------------------------------------------------------------------------


def table(text: str) -> dict[str, list[str]]:
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("|")
    ]
    return {f"{row[0]}, {row[3]}": row[1:] for row in rows[2:]}


def test_pages_tell_card_date_commit_and_figure(tree: Tree) -> None:
    tree.add("single-0.6b", SINGLE)
    tree.add(
        "single-0.6b", SINGLE | {"tokens_per_s": 700.0}, card="NVIDIA H100", written="2026-12-02T00:00:00Z"
    )
    tree.add("tests", {"tests": 966, "passed": 963})
    tree.add(
        "single-0.6b", SINGLE | {"tokens_per_s": 1100.0}, written="2026-12-03T00:00:00Z", commit="2222222"
    )
    code, text = tree.page()
    rows = table(text)
    assert code == 0 and rows["0.6B, one sequence, NVIDIA H200"] == [
        "1,100 tokens/s, 32% of the limit", "none", "NVIDIA H200", "2026-12-03", "2222222", "this tree's"
    ]  # fmt: skip
    assert rows["0.6B, one sequence, NVIDIA H100"][0] == "700 tokens/s, 32% of the limit"
    assert rows["tests that passed, NVIDIA H200"][0] == "963 of 966"
    lead = " ".join(text.partition("gpu-lead:begin")[2].partition("<!--")[0].split())
    assert (
        "963 of 966 tests passed (2026-12-01), one stream of Qwen3-0.6B got 1,100 tokens/s (2026-12-03)"
        in lead
        and "none has changed" in lead
    )
    assert tree.page("check")[0] == 0


def test_the_newest_line_counts_whichever_part_has_it(tree: Tree) -> None:
    served = {
        "single_tokens_per_s": 1400.0,
        "single_share_of_roofline": 0.43,
        "http": {"at once": {"requests_per_s": 118.6}},
    }
    tree.add("served-0.6b", served)
    rows = table(tree.page()[1])
    assert rows["0.6B, one sequence, NVIDIA H200"][0] == "1,400 tokens/s, 43% of the limit"
    assert rows["0.6B, 512 in, 128 out over HTTP, all at once, NVIDIA H200"][0] == "118.6 requests/s"
    tree.add("single-0.6b", SINGLE)
    text = tree.page()[1]
    assert table(text)["0.6B, one sequence, NVIDIA H200"][0] == "1,018 tokens/s, 32% of the limit"
    assert "one stream of Qwen3-0.6B got 1,018 tokens/s" in " ".join(text.split())


def test_a_figure_whose_files_changed_says_so_and_makes_the_check_fail(tree: Tree) -> None:
    tree.add("single-0.6b", SINGLE)
    tree.page()
    tree.edit("engine/a.py", "x = 3\n")
    assert tree.page("check")[0] == 1
    code, text = tree.page()
    assert code == 0 and table(text)["0.6B, one sequence, NVIDIA H200"][-1] == "changed since"
    assert "have changed since" in " ".join(text.split())
    tree.edit("engine/b.py", "x = 3\n")
    assert tree.page("check")[0] == 0, "it is said already"


def test_what_failed_later_or_was_cut_off_does_not_pass_for_a_figure(tree: Tree) -> None:
    tree.add("single-0.6b", SINGLE)
    tree.add("single-0.6b", SINGLE | {"tokens_per_s": 9000.0}, "cut off")
    tree.add("single-0.6b", SINGLE | {"tokens_per_s": 9999.0}, "fail", written="2026-12-05T00:00:00Z")
    row = table(tree.page()[1])["0.6B, one sequence, NVIDIA H200"]
    assert row[0].startswith("1,018") and row[-1] == "this tree's; failed on 2026-12-05"
    tree.add("single-0.6b", SINGLE, written="2026-12-06T00:00:00Z")
    assert table(tree.page()[1])["0.6B, one sequence, NVIDIA H200"][-1] == "this tree's"


def test_figures_of_the_smallest_shapes_or_of_a_cpu_are_none_of_the_models(tree: Tree) -> None:
    tree.add("single-0.6b", SINGLE)
    for other in ({"tiny": True}, {"device": "cpu"}, {"executor": "qwen3"}, {"block_size": 64}):
        tree.add("single-0.6b", SINGLE | {"tokens_per_s": 9e5}, options=asdict(Options()) | other)
    text = tree.page()[1]
    assert table(text)["0.6B, one sequence, NVIDIA H200"][0].startswith("1,018") and "900,000" not in text
    assert text.count("| 0.6B, one sequence |") == 1
    assert "as asked: tiny True" in tree.report() and "as asked: block_size 64" in tree.report()


def test_readme_has_a_sentence_where_no_part_of_it_passed(tree: Tree) -> None:
    tree.add("churn", {"identical": 212, "finished": 212})
    tree.add("served-8b", {"start_seconds": 24.0})
    lead = " ".join(tree.page()[1].partition("gpu-lead:begin")[2].partition("<!--")[0].split())
    assert (
        "Of the GPU check, 2 parts passed on an NVIDIA H200 (2026-12-01)" in lead and "weights: ;" not in lead
    )
    assert "none has changed" in lead
    tree.edit("engine/a.py", "x = 3\n")
    assert "have changed since" in " ".join(tree.page()[1].split())


def test_readme_tells_how_many_tests_passed_where_some_failed(tree: Tree) -> None:
    tree.add("tests", {"passed": 963, "tests": 966})
    tree.add(
        "tests",
        {"passed": 1329, "tests": 1364, "failed": ["one"]},
        state="fail",
        written="2026-12-09T00:00:00Z",
    )
    _, text = tree.page()
    assert "1,329 of 1,364 tests passed (2026-12-09)" in " ".join(text.split())
    assert "| tests that passed | 1,329 of 1,364 |" in text and "963" not in text


def test_readme_keeps_a_cards_figures_while_another_card_has_none_of_them(tree: Tree) -> None:
    tree.add("offline-0.6b", {"output_tokens_per_s": 24750.0})
    tree.add("single-0.6b", SINGLE)
    tree.add("churn", {"identical": 212, "finished": 212}, card="NVIDIA H100", written="2026-12-09T00:00:00Z")
    told = "256 streams of Qwen3-0.6B got 24,750 tokens/s (2026-12-01), one got 1,018 (2026-12-01)"
    assert f"on an NVIDIA H200, with random weights: {told}" in " ".join(tree.page()[1].split())
    tree.add("single-0.6b", SINGLE, card="NVIDIA H100")
    assert "on an NVIDIA H100, with random weights: one stream" in " ".join(tree.page()[1].split())


def test_each_line_of_the_record_can_be_read() -> None:
    assert log.unreadable(log.PATH) == [] and len(log.read(log.PATH)) > 10
    shown = page.table(log.read(log.PATH))
    assert "24,212 tokens/s" in shown and "NVIDIA H200 | 2026-11-29 |" in shown
