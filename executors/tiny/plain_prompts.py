"""Measure `cohort-tiny` on prompts that were written by hand, without knowing the generator.

`python -m executors.tiny.plain_prompts FILE --url http://127.0.0.1:8000` asks a server each prompt of FILE, sending only
messages and tools. FILE has one JSON object a line: `skill`, `messages`, `tools` if any, and `check`, whose `kind` names a
judge of this module. Exits with 1 if a row is below `--min`.
"""

import argparse
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from executors.tiny.data.chat import GREETING_ANSWERS, HONEST
from executors.tiny.data.graders import counts_to, is_call, is_json, is_story, sums_to
from executors.tiny.data.sample import Sample
from executors.tiny.evaluate import Outcome, Row, ask_server, table

Judge = Callable[[Mapping[str, Any], str, Sequence[Mapping[str, Any]]], bool]

_JUDGES: dict[str, Judge] = {
    "greeting": lambda check, text, calls: text in GREETING_ANSWERS,
    "numbers": lambda check, text, calls: counts_to(check["numbers"], text),
    "sum": lambda check, text, calls: sums_to(check["sum"], text),
    "exact": lambda check, text, calls: text == check["text"],
    "contains": lambda check, text, calls: check["text"] in text and text.count(".") <= 1,
    "json": lambda check, text, calls: is_json(check["object"], text),
    "story": lambda check, text, calls: is_story(check["hero"], text),
    "off_topic": lambda check, text, calls: text == HONEST,
    "call": lambda check, text, calls: is_call(check, text, calls),
}


def load(path: Path) -> list[Sample]:
    """Return the prompts of `path`; raises ValueError for a judge that does not exist."""
    samples = []
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if row["check"]["kind"] not in _JUDGES:
            raise ValueError(f"{path}: no judge {row['check']['kind']!r}")
        samples.append(
            Sample(row["skill"], tuple(row["messages"]), tuple(row.get("tools") or ()), "", row["check"])
        )
    return samples


def judge(sample: Sample, text: str, finished: bool, calls: Sequence[Mapping[str, Any]]) -> bool:
    """Tell whether `text` and `calls` are right for `sample`; an answer cut off is wrong, an uncalled-for call too."""
    kind = sample.check["kind"]
    if not finished or (calls and kind != "call"):
        return False
    # Accents of capitals do not count.
    plain = re.sub("í", "i", text.strip()) if kind == "contains" else text.strip()
    check = {**sample.check, "text": re.sub("í", "i", str(sample.check.get("text", "")))}
    return _JUDGES[kind](check if kind == "contains" else sample.check, plain, calls)


def report(outcomes: Sequence[Outcome]) -> list[Row]:
    """Return one row per skill, in the order of the file."""
    skills = list(dict.fromkeys(outcome.sample.skill for outcome in outcomes))
    groups = {skill: [outcome for outcome in outcomes if outcome.sample.skill == skill] for skill in skills}
    return [Row(skill, len(group), sum(one.correct for one in group)) for skill, group in groups.items()]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the measurement and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--url", required=True, help="base URL of a server")
    parser.add_argument("--api-key", default="")
    parser.add_argument("--failures", type=int, default=0, help="wrong answers to show")
    parser.add_argument("--min", type=float, default=0.95, help="least share of correct answers per row")
    arguments = parser.parse_args(argv)
    outcomes = ask_server(arguments.url, load(arguments.file), api_key=arguments.api_key, judge=judge)
    for outcome in [outcome for outcome in outcomes if not outcome.correct][: arguments.failures]:
        print(
            f"{outcome.sample.skill}: {outcome.sample.messages[-1]['content']!r}\n  {dict(outcome.sample.check)}\n  {outcome.text!r}"
        )
    rows = report(outcomes)
    print(table(rows))
    return 0 if all(row.share >= arguments.min for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
