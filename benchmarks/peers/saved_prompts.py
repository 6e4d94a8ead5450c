"""First tokens of a chat's first and second turn, and of the second turn after a restart of the server: Cohort with a prompt
cache on disk, llama.cpp with its slots saved.

    python -m benchmarks.peers.saved_prompts [--tokens 16000,60000] [--model qwen3-2-layers-q4_k_m] [--turn 100]

Prompts are random tokens. The first turn's prompt has the given number; the second's is it and `--turn` tokens more. Before a
restart the files with the KV cache leave the page cache. llama.cpp saves and restores a slot by calls of their own, whose seconds
are printed apart: a client has to make them. A line of JSON for each server and length.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import first_token, page_cache
from benchmarks.peers import gguf_files
from benchmarks.peers.servers import MODEL_NAME, Room, Side, cohort, llama, serving

_TOKENS = range(1000, 100_000)
"""That prompts are drawn from."""


def main() -> None:
    """Measure, and print lines of JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", default="16000,60000")
    parser.add_argument("--model", default="qwen3-2-layers-q4_k_m")
    parser.add_argument("--turn", type=int, default=100)
    parser.add_argument("--servers", default="cohort,llama.cpp")
    arguments = parser.parse_args()
    model = gguf_files.ensure(arguments.model)
    for length in map(int, arguments.tokens.split(",")):
        for name in arguments.servers.split(","):
            with tempfile.TemporaryDirectory(prefix="saved-prompts-") as folder:
                measured = _measure(name, model, length, arguments.turn, Path(folder))
            print(json.dumps({"server": name, "tokens": length} | measured), flush=True)


def _measure(name: str, model: Path, length: int, turn: int, folder: Path) -> dict[str, Any]:
    ours = name == "cohort"
    room = Room(seqs=1, context=length + 2 * turn + 1000)
    saved, log = folder / "saved", folder / "log"
    saved.mkdir()
    side = _cohort(saved) if ours else _llama(saved)
    rng = random.Random(length)
    first, more = _tokens(rng, length), _tokens(rng, turn)
    with serving(side, model, log, room) as (url, _):
        _first_token(url, _tokens(rng, 20))
        result: dict[str, Any] = {}
        result["first_turn_s"] = _first_token(url, first)
        result["second_turn_s"] = _first_token(url, [*first, *more])
        if not ours:
            result["save_s"] = _slot(url, "save")
    result["saved_bytes"] = page_cache.drop(path for path in saved.rglob("*") if path.is_file())
    third = [*first, *_tokens(rng, turn)]
    with serving(side, model, log, room) as (url, _):
        _first_token(url, _tokens(rng, 20))
        if not ours:
            result["restore_s"] = _slot(url, "restore")
        result["restarted_s"] = _first_token(url, third)
    return {key: round(value, 2) for key, value in result.items()}


def _cohort(saved: Path) -> Side:
    return cohort("cohort", "--kv-cache-dir", str(saved))


def _llama(saved: Path) -> Side:
    side = llama()
    return Side(side.name, [*side.command, "--slot-save-path", str(saved)], side.ready, side.env)


def _tokens(rng: random.Random, count: int) -> list[int]:
    return rng.choices(_TOKENS, k=count)


def _slot(url: str, action: str) -> float:
    began = time.monotonic()
    first_token.post(f"{url}/slots/0?action={action}", {"filename": "prompt.bin"}).read()
    return time.monotonic() - began


def _first_token(url: str, prompt: list[int]) -> float:
    """Return seconds until the first of four tokens."""
    return first_token.first_token(f"{url}/v1/completions", {"model": MODEL_NAME, "prompt": prompt}, 4)


if __name__ == "__main__":
    main()
