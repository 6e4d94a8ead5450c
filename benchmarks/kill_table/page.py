"""The tables of docs/kill-table.md, from the results: `python -m benchmarks.kill_table.page write|check`."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.kill_table.calls import kinds
from benchmarks.kill_table.faults import FAULTS
from benchmarks.kill_table.judge import MEANINGS, Sight, Verdict, worst
from tools.generated_page import run, with_parts

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/kill-table.md"
RESULTS = ROOT / "benchmarks/results"
SERVERS = ("cohort", "vllm", "llamacpp")
NOT_APPLIED = "not applied"
_PROCESS = re.compile(r"process \d+")


def main(argv: Sequence[str]) -> int:
    """Write the tables into the page, or say that they are stale (exit code 1)."""
    return run("benchmarks.kill_table.page", argv, PAGE, lambda page: with_parts(page, parts(results())))


def results() -> list[dict[str, Any]]:
    """What has been recorded, in the page's order."""
    files = (RESULTS / f"kill-table-{server}.json" for server in SERVERS)
    return [json.loads(file.read_text("utf-8")) for file in files if file.exists()]


def parts(found: Sequence[dict[str, Any]]) -> dict[str, str]:
    """The generated parts of the page."""
    return {
        "summary": summary(found),
        "words": "\n".join(f"- **{sight}**: {meaning}." for sight, meaning in MEANINGS.items()),
        "faults": "\n".join(f"- **{fault.title}**: {fault.text}" for fault in FAULTS),
        "tables": "\n\n".join("\n".join(section(result)) for result in found),
    }


def summary(found: Sequence[dict[str, Any]]) -> str:
    """A row for each fault, a column for each server."""
    lines = [_row(["fault", *(result["title"] for result in found)]), _row(["---"] * (len(found) + 1))]
    lines += [_row([fault.title, *(_in_short(result, fault.name) for result in found)]) for fault in FAULTS]
    return "\n".join(lines)


def _in_short(result: dict[str, Any], fault: str) -> str:
    verdicts = _verdicts(result, fault)
    if not verdicts:
        return NOT_APPLIED
    words = [_word(verdict.sight, _varies(result, name)) for name, verdict in verdicts.items()]
    shown = ", ".join(f"{words.count(word)} {word}" for word in dict.fromkeys(words))
    pause = max(verdict.pause_s for verdict in verdicts.values())
    return f"{shown}; {pause:.1f} s"


def _varies(result: dict[str, Any], name: str) -> bool:
    """Whether a call has been answered differently without a fault too."""
    return bool(result["without_a_fault"][name]["answers"] > 1)


def section(result: dict[str, Any]) -> Iterator[str]:
    """Heading, circumstances, table and what was said, of one server."""
    yield f"### {result['title']} {result['version']}"
    yield ""
    yield (
        f"{result['model']}; {result['options']}. {result['processes']} {result['date']}, commit `{result['commit']}` of this "
        f"repository, {result['cpu']}, {result['cores']} cores, {result['threads']} of them for computing, load average "
        f"{result['load_average']}, {result['system']}. {_rounds(result['rounds'])}; the server started in "
        f"{min(result['start_s']):.1f} to {max(result['start_s']):.1f} s."
    )
    yield ""
    yield _row(["call", *(fault.title for fault in FAULTS)])
    yield _row(["---"] * (len(FAULTS) + 1))
    columns = [_verdicts(result, fault.name) for fault in FAULTS]
    rounds = [result["faults"].get(fault.name, []) for fault in FAULTS]
    for call in kinds():
        cells = (
            _cell(
                column.get(call.name),
                [one["calls"].get(call.name) for one in observed],
                _varies(result, call.name),
            )
            for column, observed in zip(columns, rounds, strict=True)
        )
        yield _row([call.name, *cells])
    yield _row(["a call that comes 0.5 s later", *(_extra(observed, "newcomer") for observed in rounds)])
    yield _row(["the poisoned request", *(_extra(observed, "poisoned") for observed in rounds)])
    yield _row(["new calls are answered", *(map(_again, FAULTS, rounds))])
    yield ""
    yield from _details(result)
    yield _noise(result)


def _rounds(count: int) -> str:
    return "One round" if count == 1 else f"The worst of {count} rounds"


def _verdicts(result: dict[str, Any], fault: str) -> dict[str, Verdict]:
    """By the kinds of calls, the worst of all rounds."""
    observed = result["faults"].get(fault, [])
    names = observed[0]["calls"] if observed else ()
    return {name: worst([_verdict(one["calls"][name]) for one in observed]) for name in names}


def _verdict(entry: dict[str, Any]) -> Verdict:
    first, last = entry["events"]
    return Verdict(Sight(entry["sight"]), entry["detail"], entry["pause_s"], (first, last), entry["comments"])


def _cell(verdict: Verdict | None, rounds: Sequence[dict[str, Any] | None], varies: bool) -> str:
    if verdict is None:
        return NOT_APPLIED
    times = sum(one is not None and one["sight"] == verdict.sight for one in rounds)
    often = "" if times == len(rounds) else f" ({times} of {len(rounds)})"
    return f"{_word(verdict.sight, varies)}{often}, {verdict.pause_s:.1f} s"


def _word(sight: Sight, varies: bool) -> str:
    if sight is Sight.SAME:
        return sight.value
    return f"{sight}, as without a fault" if sight is Sight.DIFFERENT and varies else f"**{sight}**"


def _extra(observed: Sequence[dict[str, Any]], which: str) -> str:
    verdicts = [_verdict(one[which]) for one in observed if one[which]]
    if not verdicts:
        return ""
    chosen = worst(verdicts)
    return f"{chosen.sight}, {chosen.pause_s:.1f} s"


def _again(fault: Any, observed: Sequence[dict[str, Any]]) -> str:
    if not observed:
        return ""
    if fault.drains:
        return "the server has ended" if all(one["ended"] for one in observed) else "it still runs"
    times = [one["serves_again_s"] for one in observed]
    if None not in times:
        return f"if they come after {max(times):.1f} s"
    return next((one["ended"] for one in observed if one["ended"]), "not within 60 s")


def _details(result: dict[str, Any]) -> Iterator[str]:
    """What a client is told or finds, once for all faults and calls that have it in common."""
    faults_by_finding: dict[tuple[str, str], list[str]] = {}
    for fault in FAULTS:
        for one in result["faults"].get(fault.name, []):
            entries = {
                **one["calls"],
                "the later call": one["newcomer"],
                "the poisoned request": one["poisoned"],
            }
            for name, entry in entries.items():
                if entry and entry["detail"]:
                    text = f"{entry['sight']}: {_code(_PROCESS.sub('process N', entry['detail']))}"
                    titles = faults_by_finding.setdefault((text, name), [])
                    titles += [] if fault.title in titles else [fault.title]
    names_by_text: dict[tuple[str, str], list[str]] = {}
    for (text, name), titles in faults_by_finding.items():
        names_by_text.setdefault((", ".join(titles), text), []).append(name)
    lines = [f"- {titles}; {', '.join(names)}: {text}" for (titles, text), names in names_by_text.items()]
    if result["poison"]:
        lines.append(f"- Poisoned request: {result['poison']}")
    lines += [f"- Not filled: {_code(failure.splitlines()[0])}" for failure in result["failures"]]
    yield from lines
    if lines:
        yield ""


def _noise(result: dict[str, Any]) -> str:
    """How far answers differ without a fault."""
    kinds_ = result["without_a_fault"]
    varied = [f"{name} {one['answers']}" for name, one in kinds_.items() if one["answers"] > 1]
    runs = max(one["runs"] for one in kinds_.values())
    apart = max(one["logprobs_apart"] for one in kinds_.values())
    pause = max(one["longest_pause_s"] for name, one in kinds_.items() if name not in ("chat", "schema"))
    answers = f"different answers of {', '.join(varied)}" if varied else "one answer of each kind"
    return (
        f"Without a fault: {answers} in {runs} runs, log probabilities at most {apart:g} apart, no pause of a stream above "
        f"{pause:.1f} s."
    )


def _code(text: str) -> str:
    return f"`{text.replace('`', chr(39)).replace('|', '/')}`"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
