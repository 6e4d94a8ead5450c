"""Keeps docs/promises.yaml honest: what docs/promises.md promises is shown by tests that exist and run.

`python -m tools.promises check` reports every promise whose test is missing, skipped or expected to fail, and a
table in docs/promises.md that is out of date. `python -m tools.promises write` rewrites that table.

An entry of `shown_by` that starts with `tests/` is a pytest node id: a file, class, function or one case of it.
Any other entry is a command; the make target, the scripts and the module (`python -m`) it names must exist.
`planned` is not looked at.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import yaml

from tools import skips

REPORTS = ("junit.xml", "junit-all.xml")
"""Of `make test` and `make test-all`, in .reports/."""
PAGE = "docs/promises.md"
BEGIN, END = "<!-- features:begin -->", "<!-- features:end -->"


class State(StrEnum):
    DONE = "done"
    PARTIAL = "partial"
    ABSENT = "absent"


@dataclass(frozen=True)
class Promise:
    """One row. `figure` is the last value measured, as text; None when there is nothing to measure."""

    id: str
    area: str
    wording: str
    state: State
    shown_by: list[str] = field(default_factory=list)
    figure: str | None = None
    planned: list[str] = field(default_factory=list)

    @property
    def node_ids(self) -> list[str]:
        return [entry for entry in self.shown_by if entry.startswith("tests/")]

    @property
    def commands(self) -> list[str]:
        return [entry for entry in self.shown_by if not entry.startswith("tests/")]


def load(path: Path) -> list[Promise]:
    """Raises ValueError naming the row that is malformed."""
    rows: list[dict[str, Any]] = yaml.safe_load(path.read_text())
    promises = []
    for row in rows:
        try:
            promises.append(Promise(**{**row, "state": State(row.get("state", ""))}))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{row.get('id', row)}: {error}") from error
    return promises


def problems(root: Path) -> Iterator[str]:
    """Everything wrong with the promises of the checkout `root`, a line each."""
    try:
        promises = load(root / "docs/promises.yaml")
    except ValueError as error:
        yield str(error)
        return
    ids = [p.id for p in promises]
    yield from (f"{i}: the id is used twice" for i in sorted({i for i in ids if ids.count(i) > 1}))
    collected, complaints = _collect(root, sorted({n for p in promises for n in p.node_ids}))
    yield from complaints
    left_out = [one for name in REPORTS for one in skips.from_report(root, root / ".reports" / name)]
    for promise in promises:
        if promise.state is State.DONE and not promise.shown_by:
            yield f"{promise.id}: done, but no test or command shows it"
        for node_id in promise.node_ids:
            if not any(skips.covers(node_id, c) for c in collected):
                yield f"{promise.id}: there is no test {node_id}"
                continue
            reasons = skips.from_source(root, node_id) + [r for n, r in left_out if skips.covers(node_id, n)]
            yield from (f"{promise.id}: {node_id} {reason}" for reason in dict.fromkeys(reasons))
        for command in promise.commands:
            yield from (f"{promise.id}: `{command}` names {part}" for part in _absent_parts(root, command))
    yield from _page_problems(root / PAGE, promises)


def _collect(root: Path, node_ids: list[str]) -> tuple[set[str], list[str]]:
    """The node ids that pytest finds in the files named, and what it says about files that it cannot import."""
    files = sorted({n.split("::")[0] for n in node_ids})
    files = [f for f in files if (root / f).is_file()]
    if not files:
        return set(), []
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *files]
    run = subprocess.run(command, cwd=root, capture_output=True, text=True)
    found = {line for line in run.stdout.splitlines() if re.match(r"tests/\S+\.py::", line)}
    if run.returncode in (0, 5):  # 5: nothing collected
        return found, []
    errors = [line for line in run.stdout.splitlines() if line.startswith("ERROR ")]
    return found, [
        f"pytest cannot collect: {line}" for line in errors or [run.stdout[-500:] + run.stderr[-500:]]
    ]


def _absent_parts(root: Path, command: str) -> Iterator[str]:
    words = command.split()
    if words[0] == "make" and not re.search(
        rf"^{re.escape(words[1])}:", (root / "Makefile").read_text(), re.M
    ):
        yield f"the make target {words[1]}, which does not exist"
    is_module = words[:2] == ["python", "-m"] and (root / words[2].partition(".")[0]).is_dir()
    if is_module and not any(_module_files(root, words[2])):
        yield f"the module {words[2]}, which does not exist"
    for word in words:
        is_script = word.endswith((".py", ".sh")) or (word is words[0] and "/" in word)
        if is_script and not (root / word).is_file():
            yield f"{word}, which does not exist"


def _module_files(root: Path, name: str) -> Iterator[Path]:
    """Files that `python -m NAME` runs."""
    path = root.joinpath(*name.split("."))
    yield from (file for file in (path.with_suffix(".py"), path / "__main__.py") if file.is_file())


def _page_problems(page: Path, promises: list[Promise]) -> Iterator[str]:
    text = page.read_text()
    if BEGIN not in text or END not in text:
        yield f"{PAGE} has no place for the table: add the lines {BEGIN} and {END}"
    elif text != with_table(text, promises):
        yield f"{PAGE}: the table is out of date; run `make promises`"


def with_table(page: str, promises: list[Promise]) -> str:
    """`page` with the text between the markers replaced. Raises ValueError when there are none."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{PAGE} lacks the lines {BEGIN} and {END}")
    return f"{before}{begin}\n{table(promises)}{end}{after}"


def table(promises: list[Promise]) -> str:
    """What works as a table, what does not yet as a list per area. Areas in order of first appearance."""
    shown = [p for p in promises if p.state is not State.ABSENT]
    lines = []
    if shown:
        lines += ["| area | what | state | last measured |", "|---|---|---|---|"]
        areas = list(dict.fromkeys(p.area for p in shown))
        lines += [
            f"| {p.area} | {_cell(p.wording)} | {p.state} | {_cell(p.figure or '')} |"
            for area in areas
            for p in shown
            if p.area == area
        ]
        lines.append("")
    absent = [p for p in promises if p.state is State.ABSENT]
    if absent:
        lines += ["Not there yet:", ""]
        for area in dict.fromkeys(p.area for p in absent):
            wordings = [p.wording.rstrip(".") + "." for p in absent if p.area == area]
            lines.append(f"- **{area}**: " + " ".join(wordings))
    return "\n".join(lines) + "\n" if lines else ""


def _cell(text: str) -> str:
    return text.replace("|", r"\|").replace("\n", " ")


def main(arguments: list[str], root: Path) -> int:
    match arguments:
        case ["check"]:
            found = list(problems(root))
            for problem in found:
                print(problem, file=sys.stderr)
            print(f"promises: {len(found)} problem(s)" if found else "promises: all shown")
            return 1 if found else 0
        case ["write"]:
            page = root / PAGE
            try:
                text = with_table(page.read_text(), load(root / "docs/promises.yaml"))
            except ValueError as error:
                print(error, file=sys.stderr)
                return 1
            page.write_text(text)
            return 0
        case _:
            print("usage: python -m tools.promises check|write", file=sys.stderr)
            return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], Path(__file__).resolve().parent.parent))
