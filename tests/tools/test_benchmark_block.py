"""README's figures are those of the recorded headlines, and a headline that does not hold is found."""

from __future__ import annotations

import json
import statistics
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tools import benchmark_block as tool

PAGE = (
    "# It\n\n<!-- bench-lead:begin -->\n<!-- bench-lead:end -->\n\n<!-- bench:begin -->\n<!-- bench:end -->\n"
)
ZEN5 = {"name": "zen5-2cores", "words": "2 cores of an AMD EPYC (Zen 5, avx512_bf16), 25 GB"}
ZEN4 = {"name": "zen4-2cores", "words": "2 cores of an AMD EPYC (Zen 4, avx512_bf16), 25 GB"}


def spread(rounds: list[float]) -> dict[str, Any]:
    return {"median": statistics.median(rounds), "min": min(rounds), "max": max(rounds), "rounds": rounds}


def headline(
    commit: str, peer: str = "vllm", machine: dict[str, str] = ZEN5, factor: float = 1.0
) -> dict[str, Any]:
    """Five rounds, in which the first side's figures are 10 to 14 times the factor and the other's 20 to 28."""
    ours = [factor * value for value in (10.0, 11.0, 12.0, 13.0, 14.0)]
    sides = {"cohort": spread(ours), peer: spread([2 * value for value in ours])}
    figure = {"unit": "x", "sides": sides, "ratio": spread([2.0, 2.0, 2.0, 1.5, 2.5])}
    condition = {"commit": commit, "changed": [], "trusted": True, "why": [], "read_gb_per_s": [45.2, 79.9]}
    return {
        "headline": True, "peer": peer, "title": peer.upper(), "version": "0.9", "date": "2026-01-02", "commit": commit,
        "rounds": 5, "machine": machine, "sides": ["cohort", peer], "conditions": [condition] * 5,
        "figures": dict.fromkeys(tool.ROWS[peer], figure),
    }  # fmt: skip


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A git repository with a README that has the markers; HEAD's parent is `parent`."""
    (tmp_path / tool.RESULTS).mkdir(parents=True)
    (tmp_path / "README.md").write_text(PAGE)
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine/a.py").write_text("")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "one")
    return tmp_path


def git(root: Path, *words: str) -> str:
    command = ["git", "-C", str(root), "-c", "user.name=a", "-c", "user.email=a@b", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def put(root: Path, made: dict[str, Any]) -> Path:
    path = root / tool.RESULTS / f"headline-{made['peer']}-{made['machine']['name']}.json"
    path.write_text(json.dumps(made))
    return path


def test_readme_has_median_spread_machine_date_and_commit(checkout: Path) -> None:
    commit = git(checkout, "rev-parse", "HEAD")
    put(checkout, headline(commit))
    put(checkout, headline(commit, "ik"))
    assert tool.main(["check"], checkout) == 1
    assert tool.main(["write"], checkout) == 0
    assert tool.main(["check"], checkout) == 0
    page = (checkout / "README.md").read_text()
    one_line = " ".join(page.split())
    assert (
        f"{ZEN5['words']}, 2026-01-02, commit `{commit[:10]}`, 5 rounds, memory read at 45 to 80 GB/s"
        in one_line
    )
    assert (
        "| one stream: ms between tokens | 12.0 (10.0 to 14.0) | 24.0 (20.0 to 28.0) | 2.00 (1.50 to 2.50) |"
        in page
    )
    assert "a single stream gets a token every 12.0 ms (vLLM: 24.0 ms)" in one_line
    assert "| IK (0.9, AVX2, as Cohort here) | behind 4,096 tokens: ms between tokens | 12.0" in page
    # Milliseconds become seconds.
    assert "seconds to the first token | 0.0 (0.0 to 0.0)" in page
    assert max(map(len, page.splitlines())) <= 180


def test_a_figure_changed_by_hand_is_found_on_either_side(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = headline(git(checkout, "rev-parse", "HEAD"))
    path = put(checkout, made)
    tool.main(["write"], checkout)
    page = (checkout / "README.md").read_text()
    (checkout / "README.md").write_text(page.replace("12.0 (10.0", "11.0 (10.0", 1))
    assert tool.main(["check"], checkout) == 1
    assert "README.md is stale: run `python -m tools.benchmark_block write`" in capsys.readouterr().err
    figure = {**made["figures"]["single"], "ratio": {**made["figures"]["single"]["ratio"], "median": 3.0}}
    path.write_text(json.dumps({**made, "figures": {**made["figures"], "single": figure}}))
    tool.main(["write"], checkout)
    assert tool.main(["check"], checkout) == 1
    assert "single, ratio: median, least or greatest are not those of the rounds" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"headline": False}, "not a headline of 5 rounds"),
        ({"rounds": 4}, "not a headline of 5 rounds"),
        (
            {"conditions": [{"commit": "x", "changed": [], "trusted": True}] * 5},
            "rounds are of other commits",
        ),
    ],
)
def test_a_file_that_is_no_headline_is_found(change: dict[str, Any], fault: str, checkout: Path) -> None:
    commit = git(checkout, "rev-parse", "HEAD")
    files = {"a.json": {**headline(commit), **change}}
    assert fault in " ".join(tool.problems(checkout, files))
    changed = {"commit": commit, "changed": ["engine/a.py"], "trusted": True}
    files = {"a.json": {**headline(commit), "conditions": [changed] * 5}}
    assert list(tool.problems(checkout, files)) == ["a.json: measured with changed files"]


def test_the_commit_is_an_ancestor_and_not_too_old(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first = git(checkout, "rev-parse", "HEAD")
    for number in range(3):
        (checkout / "engine/a.py").write_text(f"{number}")
        git(checkout, "commit", "-q", "-a", "-m", f"{number}")
    (checkout / "README.md").write_text(PAGE + "more\n")
    git(checkout, "commit", "-q", "-a", "-m", "not the engine")
    files = {"a.json": headline(first)}
    monkeypatch.setattr(tool, "WARN_AGE", 3)
    assert list(tool.problems(checkout, files)) == [] and capsys.readouterr().err == ""
    monkeypatch.setattr(tool, "WARN_AGE", 2)
    assert list(tool.problems(checkout, files)) == []
    assert "warning: 3 commits to engine, executors, server" in capsys.readouterr().err
    git(checkout, "checkout", "-q", "--orphan", "other")
    git(checkout, "commit", "-q", "-a", "-m", "elsewhere")
    assert "is no ancestor of this one" in " ".join(tool.problems(checkout, files))


def test_readme_says_that_figures_are_old(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(checkout, headline(git(checkout, "rev-parse", "HEAD")))
    put(checkout, headline(git(checkout, "rev-parse", "HEAD"), "ik"))
    assert tool.main(["write"], checkout) == 0
    assert "commits ago" not in (checkout / "README.md").read_text()
    for number in range(2):
        (checkout / "engine/a.py").write_text(f"{number}")
        git(checkout, "commit", "-q", "-a", "-m", f"{number}")
    monkeypatch.setattr(tool, "MAX_AGE", 2)
    assert tool.main(["check"], checkout) == 0
    monkeypatch.setattr(tool, "MAX_AGE", 1)
    assert tool.main(["check"], checkout) == 1
    assert tool.main(["write"], checkout) == 0
    page = " ".join((checkout / "README.md").read_text().split())
    assert page.count("[table](#benchmarks), more than 400 commits ago)") == 2
    assert page.count("`, more than 400 commits ago, 5 rounds") == 2
    # Without the history nothing tells the age, and README stays as it is.
    (checkout / ".git").rename(checkout / "history")
    assert tool.main(["check"], checkout) == 0


def test_each_kind_of_machine_has_its_table(checkout: Path) -> None:
    commit = git(checkout, "rev-parse", "HEAD")
    put(checkout, headline(commit))
    put(checkout, {**headline(commit, machine=ZEN4, factor=10.0), "date": "2026-01-01"})
    put(checkout, headline(commit, "llamacpp", machine=ZEN4))
    parts = tool.parts(tool.load(checkout))
    assert (
        parts["bench"].count("| 24.0 (20.0 to 28.0) |") == 5 + 4
        and parts["bench"].count("| 240 (200 to 280) |") == 5
    )
    assert parts["bench"].count(ZEN4["words"]) == 2
    # The first bullets are of the newest.
    assert ZEN5["words"] in " ".join(parts["bench-lead"].split()) and "12.0 ms" in parts["bench-lead"]


def test_without_a_headline_readme_has_no_figures(checkout: Path) -> None:
    assert tool.main(["write"], checkout) == 0
    page = (checkout / "README.md").read_text()
    assert "no measurement of this version that can be trusted yet" in page and "ms (vLLM" not in page
    assert tool.main(["check"], checkout) == 0


def test_a_page_without_markers_and_a_file_without_figures_are_one_line(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (checkout / "README.md").write_text("# It\n")
    assert tool.main(["check"], checkout) == 1
    assert "no markers <!-- bench-lead:begin -->" in capsys.readouterr().err
    put(checkout, {**headline("c"), "figures": {}})
    assert tool.main(["check"], checkout) == 1
    assert capsys.readouterr().err.startswith("README.md: headline-vllm-zen5-2cores.json has no figures")
