"""Measure `cohort-tiny` on held-out prompts, offline or over HTTP.

`python -m executors.tiny.evaluate --offline [--n 200]` runs the training model on the exported weights;
`python -m executors.tiny.evaluate --url http://127.0.0.1:8000` asks a server, sending no sampling parameters.
Exits with 1 if a row is below `--min`.
"""

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from executors.tiny import weights_dir
from executors.tiny.data import SKILL_NAMES, Sample, held_out_samples
from executors.tiny.data.graders import grade

THIRD_TURNS = "third turns"

Judge = Callable[[Sample, str, bool, Sequence[Mapping[str, Any]]], bool]
"""Tells whether an answer is right: the sample, its text, whether it ended by itself, and its parsed calls."""


@dataclass(frozen=True)
class Outcome:
    """What was answered to one sample, and whether it was right."""

    sample: Sample
    text: str
    correct: bool


@dataclass(frozen=True)
class Row:
    """One line of the report."""

    skill: str
    n: int
    correct: int

    @property
    def share(self) -> float:
        """Return the share of correct answers."""
        return self.correct / self.n if self.n else 0.0


def questions(
    n: int, skills: Sequence[str] = SKILL_NAMES, seed: int = 0, seen: bool = False
) -> dict[str, list[Sample]]:
    """Return `n` prompts per row of the report: each skill alone, and all skills mixed as a third turn."""
    rows = {skill: held_out_samples(skill, n, seed, seen=seen) for skill in skills}
    per_skill = -(-n // len(skills))
    third = [held_out_samples(skill, per_skill, seed + 1, turns=3, seen=seen) for skill in skills]
    rows[THIRD_TURNS] = [sample for group in zip(*third, strict=True) for sample in group][:n]
    return rows


def ask_offline(folder: Path, samples: Sequence[Sample], seed: int = 0) -> list[Outcome]:
    """Answer `samples` with the exported weights in `folder`, in fp32 at the model's own temperature."""
    from executors.tiny.generate import answer_all, load
    from executors.tiny.tokenizer import render

    model, tokenizer = load(folder)
    answers = answer_all(
        model, tokenizer, [render(sample, with_answer=False) for sample in samples], seed=seed
    )
    return [
        Outcome(sample, answer.text, grade(sample, answer.text, answer.finished))
        for sample, answer in zip(samples, answers, strict=True)
    ]


def ask_server(
    url: str, samples: Sequence[Sample], concurrency: int = 24, api_key: str = "", judge: Judge = grade
) -> list[Outcome]:
    """Answer `samples` with the server at `url`, sending only messages and tools."""
    model = _request(url, "GET", "/v1/models", None, api_key)["data"][0]["id"]

    def ask(sample: Sample) -> Outcome:
        body: dict[str, Any] = {"model": model, "messages": list(sample.messages)}
        if sample.tools:
            body["tools"] = list(sample.tools)
        choice = _request(url, "POST", "/v1/chat/completions", body, api_key)["choices"][0]
        text, calls = choice["message"].get("content") or "", choice["message"].get("tool_calls") or []
        finished = choice["finish_reason"] in ("stop", "tool_calls")
        shown = text if not calls else json.dumps(calls)
        return Outcome(sample, shown, judge(sample, text, finished, calls))

    with ThreadPoolExecutor(concurrency) as pool:
        return list(pool.map(ask, samples))


def _request(url: str, method: str, path: str, body: dict[str, Any] | None, api_key: str) -> Any:
    """Make one HTTP request and return the JSON of its answer; raises RuntimeError on an error status."""
    parts = urlsplit(url)
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    connection = kind(parts.hostname or "127.0.0.1", parts.port, timeout=300)
    headers = {"Content-Type": "application/json"} | (
        {"Authorization": f"Bearer {api_key}"} if api_key else {}
    )
    try:
        payload = None if body is None else json.dumps(body)
        connection.request(method, parts.path.rstrip("/").removesuffix("/v1") + path, payload, headers)
        response = connection.getresponse()
        text = response.read().decode("utf-8")
    finally:
        connection.close()
    if response.status != 200:
        raise RuntimeError(f"{method} {path}: {response.status} {text[:300]}")
    return json.loads(text)


def table(rows: Sequence[Row]) -> str:
    """Return the report as a markdown table."""
    lines = ["| skill | n | correct | % |", "|---|---|---|---|"]
    lines += [f"| {row.skill} | {row.n} | {row.correct} | {100 * row.share:.1f} |" for row in rows]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the measurement and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--offline",
        action="store_true",
        help="use PyTorch on the exported weights (the default without --url)",
    )
    parser.add_argument("--url", help="base URL of a server")
    parser.add_argument("--api-key", default="")
    parser.add_argument("--weights", type=Path, default=weights_dir())
    parser.add_argument("--n", type=int, default=200, help="prompts per row")
    parser.add_argument("--skills", default=",".join(SKILL_NAMES), help="comma-separated")
    parser.add_argument("--concurrency", type=int, default=24)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--seen", action="store_true", help="draw from the training side of the split instead"
    )
    parser.add_argument("--min", type=float, default=0.95, help="least share of correct answers per row")
    parser.add_argument("--failures", type=int, default=0, help="wrong answers to show per row")
    parser.add_argument("--json", type=Path, help="write the rows there too")
    arguments = parser.parse_args(argv)
    if arguments.url and arguments.offline:
        parser.error("use either --url or --offline")
    prompts = questions(arguments.n, arguments.skills.split(","), arguments.seed, arguments.seen)
    samples = [sample for group in prompts.values() for sample in group]
    if arguments.url:
        outcomes = ask_server(arguments.url, samples, arguments.concurrency, arguments.api_key)
    else:
        outcomes = ask_offline(arguments.weights, samples, arguments.seed)
    rows, begin = [], 0
    for name, group in prompts.items():
        part = outcomes[begin : begin + len(group)]
        begin += len(group)
        rows.append(Row(name, len(part), sum(outcome.correct for outcome in part)))
        for outcome in [outcome for outcome in part if not outcome.correct][: arguments.failures]:
            print(
                f"{name}: {outcome.sample.messages[-1]['content']!r}\n  wanted {outcome.sample.answer!r}\n  got    {outcome.text!r}"
            )
    print(table(rows))
    if arguments.json:
        report = [asdict(row) | {"share": row.share} for row in rows]
        arguments.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0 if all(row.share >= arguments.min for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
