"""Time to the first token of an agent's long prompt, cold and in the second turn, of Cohort and of llama.cpp on the same file.

    python -m benchmarks.long_prompts [--gguf qwen3.5-0.8b-q4_k_m,lfm2-350m-q4_k_m] [--tokens 8900,21000] [--rounds 2]
                                      [--json FILE]

In each round one server is started, asked and stopped, and then the other. A prompt is drawn token ids, sent as they are; its
first answer has 32 tokens. The second turn is the prompt, the answer's ids and 300 more: what a server kept of the first shows
in its time. Prompts differ from their first ids on, so that they share nothing. A figure is the median over rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.attention import cpu_name
from benchmarks.peers import gguf_files, servers
from tools.neutral_paths import neutral

ANSWER, MORE = 32, 300
"""Tokens of the first turn's answer, and of what the user adds."""
_IDS = (1000, 30_000)
"""Ids that prompts are drawn from: words of all the files' vocabularies."""
PROMPTS = "qwen3.5-0.8b-q4_k_m,lfm2-350m-q4_k_m"


def ask(side: str, url: str, prompt: Sequence[int], tokens: int) -> tuple[float, list[int]]:
    """Seconds from the call to the first token, and the answer's ids. Raises URLError, and ValueError for no token at all."""
    theirs = side == servers.LLAMA
    shared = {"prompt": list(prompt), "temperature": 0, "stream": True, "ignore_eos": True}
    if theirs:
        path, body = (
            "/completion",
            {**shared, "n_predict": tokens, "return_tokens": True, "cache_prompt": True},
        )
    else:
        own = {"model": servers.MODEL_NAME, "max_tokens": tokens, "return_token_ids": True}
        path, body = "/v1/completions", {**shared, **own}
    request = urllib.request.Request(
        url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    began, first, ids = time.perf_counter(), 0.0, list[int]()
    with urllib.request.urlopen(request, timeout=1800) as answer:
        for line in answer:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line.removeprefix(b"data: "))
            new = (
                event.get("tokens") if theirs else next((c.get("token_ids") for c in event["choices"]), None)
            )
            if new:
                first = first or time.perf_counter() - began
                ids += new
    if not ids:
        raise ValueError(f"{side}: an answer without tokens")
    return first, ids


def turns(side: str, url: str, tokens: int, seed: int) -> dict[str, float]:
    """Seconds to the first token of a cold prompt and of the turn after it."""
    drawn = random.Random(seed)
    prompt = [drawn.randint(*_IDS) for _ in range(tokens)]
    cold, answer = ask(side, url, prompt, ANSWER)
    more = [drawn.randint(*_IDS) for _ in range(MORE)]
    return {"cold": cold, "second": ask(side, url, prompt + answer + more, 1)[0]}


def measure(path: Path, tokens: Sequence[int], rounds: int) -> list[dict[str, Any]]:
    """Rows of one file: each length of a prompt on each side."""
    room = servers.Room(1, max(tokens) + 2048)
    found: dict[tuple[str, int], list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds):
            for side in (servers.cohort(), servers.llama()):
                with servers.serving(side, path, Path(folder) / "log", room) as (url, _):
                    ask(side.name, url, list(range(*_IDS, 200)), 4)
                    for length in tokens:
                        found.setdefault((side.name, length), []).append(
                            turns(side.name, url, length, number)
                        )
    rows = []
    for (name, length), taken in found.items():
        medians = {turn: statistics.median(one[turn] for one in taken) for turn in taken[0]}
        rows.append({"file": path.name, "side": name, "tokens": length, **medians, "rounds": taken})
        print(
            f"{path.name} {name} {length}: " + ", ".join(f"{t} {s:.2f} s" for t, s in medians.items()),
            flush=True,
        )
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """See the module."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gguf", default=PROMPTS)
    parser.add_argument("--tokens", default="8900,21000")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    load = os.getloadavg()[0]
    tokens = [int(one) for one in given.tokens.split(",")]
    rows = [
        row
        for name in given.gguf.split(",")
        for row in measure(gguf_files.ensure(name), tokens, given.rounds)
    ]
    if given.json:
        about = {"cpu": cpu_name(), "cores": len(os.sched_getaffinity(0)), "load_before": load}
        given.json.write_text(json.dumps(neutral({**about, "rows": rows}), indent=1) + "\n")


if __name__ == "__main__":
    main()
