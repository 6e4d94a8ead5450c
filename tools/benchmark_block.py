"""Keeps README's figures those of benchmarks/results/headline-*.json: `python -m tools.benchmark_block write|check`.

`make bench-peers` writes such a file, for one peer and one kind of machine, only from five rounds on one commit and a quiet
machine (benchmarks/peers/headline.py). `check` fails where README says anything else, where a file contradicts its own rounds,
and where its commit is no ancestor of this one. It warns where engine, executors and server have had more than WARN_AGE commits
since. After more than MAX_AGE README says so beside the figures: not every machine that changes the code can measure them anew.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tools.generated_page import run, with_parts

ROOT = Path(__file__).resolve().parents[1]
RESULTS = "benchmarks/results"
ROUNDS = 5
WARN_AGE, MAX_AGE = 100, 400
"""Commits to the code that is measured, since the measurement."""
OLD = f"more than {MAX_AGE} commits ago"
MEASURED = ("engine", "executors", "server")
WIDTH = 140

LABELS = {
    "single": "one stream: ms between tokens",
    "burst": "32 prompts of 128 tokens at once: tokens/s",
    "steady": "16 streams: output tokens/s",
    "wide": "32 streams: output tokens/s",
    "prompt-ttft": "prompt of 4,096 tokens: seconds to the first token",
    "prompt": "behind 4,096 tokens: ms between tokens",
    "start": "start to ready: seconds",
}
ROWS = {
    "vllm": ("single", "burst", "steady", "wide", "start"),
    "llamacpp": ("single", "burst", "wide", "start"),
    "openvino": ("single", "prompt-ttft", "prompt"),
    "ik": ("single", "prompt-ttft", "prompt"),
}
"""Figures by peer, in order of the tables. The last two have no server of their own, so their start is not compared."""
SCALE = {"prompt-ttft": 1e-3}
NOTES = {"ik": ", AVX2, as Cohort here"}

Headline = Mapping[str, Any]


def main(argv: Sequence[str], root: Path = ROOT) -> int:
    """The command. Returns 1 where `check` finds something wrong."""
    cure = "python -m tools.benchmark_block write"
    try:
        files = load(root)
        wrong = list(problems(root, files)) if list(argv) == ["check"] else []
        stale = run(
            "benchmark_block", argv, root / "README.md", lambda old: with_parts(old, parts(files)), cure
        )
    except ValueError as error:
        print(f"README.md: {error}", file=sys.stderr)
        return 1
    for problem in wrong:
        print(problem, file=sys.stderr)
    return stale or bool(wrong)


def load(root: Path) -> dict[str, Headline]:
    """Every headline by its file's name, vLLM's first, then by peer and machine, with `old`: whether it is of more than MAX_AGE
    commits ago; where the history is not there, whether README says so. Raises ValueError for a file that is none."""
    order = list(ROWS)
    readme = root / "README.md"
    page = " ".join(readme.read_text("utf-8").split()) if readme.exists() else ""
    found = {}
    for file in (root / RESULTS).glob("headline-*.json"):
        found[file.name] = made = json.loads(file.read_text())
        if made.get("peer") not in ROWS or not set(ROWS[made["peer"]]) <= set(made.get("figures", ())):
            raise ValueError(f"{file.name} has no figures of {', '.join(ROWS)}: run `make bench-peers`")
        age = _age(root, made["commit"])
        made["old"] = f"commit `{made['commit'][:10]}`, {OLD}" in page if age is None else age > MAX_AGE
    return dict(sorted(found.items(), key=lambda item: (order.index(item[1]["peer"]), item[0])))


def problems(root: Path, files: Mapping[str, Headline]) -> Iterator[str]:
    """What makes a headline untrue, a line each. Age, which only warns, is printed."""
    for name, headline in files.items():
        yield from (f"{name}: {fault}" for fault in _contradictions(headline))
        age = _age(root, headline["commit"])
        if age is not None and age < 0:
            yield f"{name}: its commit {headline['commit'][:10]} is no ancestor of this one: run `make bench-peers`"
        elif age is not None and age > WARN_AGE:
            print(f"{name}: warning: {age} commits to {', '.join(MEASURED)} came since", file=sys.stderr)


def _age(root: Path, commit: str) -> int | None:
    """Commits to the code that is measured since `commit`, -1 if that is no ancestor; None without the history."""
    if not (root / ".git").exists() or _git(root, "rev-parse", "--is-shallow-repository")[1] == "true":
        return None
    if _git(root, "merge-base", "--is-ancestor", commit, "HEAD")[0] != 0:
        return -1
    return int(_git(root, "rev-list", "--count", f"{commit}..HEAD", "--", *MEASURED)[1])


def _git(root: Path, *words: str) -> tuple[int, str]:
    done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True)
    return done.returncode, done.stdout.strip()


def _contradictions(headline: Headline) -> Iterator[str]:
    """Where the file does not follow from its own rounds."""
    counted = [one for one in headline["conditions"] if one["trusted"]]
    if headline.get("headline") is not True or len(counted) < ROUNDS or headline["rounds"] != len(counted):
        yield f"not a headline of {ROUNDS} rounds that can be trusted"
    if {one["commit"] for one in headline["conditions"]} != {headline["commit"]}:
        yield "its rounds are of other commits"
    if any(one["changed"] for one in headline["conditions"]):
        yield "measured with changed files"
    for name, figure in headline["figures"].items():
        for what, value in (*figure["sides"].items(), ("ratio", figure["ratio"])):
            rounds = value["rounds"]
            middle = float(f"{statistics.median(rounds):.4g}")
            if len(rounds) != len(counted):
                yield f"{name}, {what}: {len(rounds)} rounds"
            elif (value["min"], value["max"]) != (min(rounds), max(rounds)) or value["median"] != middle:
                yield f"{name}, {what}: median, least or greatest are not those of the rounds"


def parts(files: Mapping[str, Headline]) -> dict[str, str]:
    """README's generated parts by their markers' names."""
    return {"bench-lead": lead(files), "bench": block(files)}


def lead(files: Mapping[str, Headline]) -> str:
    """The bullets at README's top, of the newest headline against vLLM."""
    against_vllm = [one for one in files.values() if one["peer"] == "vllm"]
    if not against_vllm:
        return "- Beside vLLM on CPUs: no measurement of this version that can be trusted yet ([how](#benchmarks))."
    newest = max(against_vllm, key=lambda one: str(one["date"]))
    figures = {name: [_side(newest, name, side) for side in newest["sides"]] for name in ROWS["vllm"]}
    single, wide, start = (figures[name] for name in ("single", "wide", "start"))
    table = f"[table](#benchmarks){f', {OLD}' if newest['old'] else ''}"
    speed = (
        f"- On {newest['machine']['words']}, with a 0.6B model in bf16, a single stream gets a token every {single[0]} ms "
        f"(vLLM: {single[1]} ms), and 32 streams together get {wide[0]} tokens/s (vLLM: {wide[1]}) ({table})."
    )
    ready = (
        f"- From the command to ready takes {start[0]} seconds with that model of 1.2 GB "
        f"(vLLM: {start[1]}; {table})."
    )
    return "\n".join((_wrapped(speed, "  "), _wrapped(ready, "  ")))


def _side(headline: Headline, name: str, side: str) -> str:
    return _number(headline["figures"][name]["sides"][side]["median"] * SCALE.get(name, 1.0))


def block(files: Mapping[str, Headline]) -> str:
    """The tables: one per machine against vLLM, then one per machine against what reads the same GGUF file."""
    if not files:
        return "No measurement of this version that can be trusted yet: `make bench-peers` writes one."
    made = []
    for name, headline in files.items():
        if headline["peer"] == "vllm":
            head = (
                f"Against vLLM {headline['version']}, a model of Qwen3-0.6B's dimensions in bf16 with random weights, "
                f"{_origin({name: headline})}:"
            )
            made.append("\n\n".join((_wrapped(head), _table({name: headline}))))
    for machine in dict.fromkeys(one["machine"]["name"] for one in files.values()):
        group = {
            name: one
            for name, one in files.items()
            if one["machine"]["name"] == machine and one["peer"] != "vllm"
        }
        if group:
            head = f"On one Q4_K_M file of that model, {_origin(group)}:"
            made.append("\n\n".join((_wrapped(head), _table(group))))
    return "\n\n".join(made)


def _origin(files: Mapping[str, Headline]) -> str:
    """Machine, date, commit and file; of several files the peers of each date and commit, where they differ."""
    machine = next(iter(files.values()))["machine"]["words"]
    by_run: dict[str, list[str]] = {}
    for one in files.values():
        read = [rate for of in one["conditions"] if of["trusted"] for rate in of["read_gb_per_s"]]
        when = f"commit `{one['commit'][:10]}`{f', {OLD}' if one['old'] else ''}"
        origin = f"{one['date']}, {when}, {one['rounds']} rounds"
        run_of = f"{origin}, memory read at {min(read):.0f} to {max(read):.0f} GB/s"
        by_run.setdefault(run_of, []).append(one["title"])
    runs = list(by_run) if len(by_run) == 1 else [f"{', '.join(of)}: {when}" for when, of in by_run.items()]
    links = ", ".join(f"[{one['title']}'s]({RESULTS}/{name})" for name, one in files.items())
    return f"{machine}, {'; '.join(runs)} (file: {links})"


def _table(files: Mapping[str, Headline]) -> str:
    """One row per figure: median (least to greatest) of both sides and of the rounds' ratios."""
    several = len(files) > 1 or next(iter(files.values()))["peer"] != "vllm"
    other = "the other" if several else "vLLM"
    columns = [*(["against"] if several else []), "workload", "Cohort", other, "better by a factor of"]
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for headline in files.values():
        against = f"{headline['title']} ({headline['version']}{NOTES.get(headline['peer'], '')})"
        for name in ROWS[headline["peer"]]:
            figure, scale = headline["figures"][name], SCALE.get(name, 1.0)
            sides = [_cell(figure["sides"][side], scale) for side in headline["sides"]]
            cells = [*([against] if several else []), LABELS[name], *sides, _cell(figure["ratio"], 1.0, 2)]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(value: Mapping[str, Any], scale: float, digits: int = 1) -> str:
    middle, least, most = (_number(value[name] * scale, digits) for name in ("median", "min", "max"))
    return f"{middle} ({least} to {most})"


def _number(value: float, digits: int = 1) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.{digits}f}"


def _wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(
        text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
