"""What sampling costs beside greedy: one batch with mixed settings, at the width of a large vocabulary.

    python benchmarks/sampling.py [--rows 64] [--vocab 151936] [--dtype float32] [--rounds 15] [--json FILE]

Greedy and mixed batches are measured in turn (A B A B ...), the medians are compared. The logits have the shape that
language models give: a broad bulk and a steep head (`--flat` leaves the head out: the worst case for candidates).
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from executors.contract.batch import SamplingParams, SequenceStart
from executors.llm.sampling.edits import EditsBuilder, SlotShapers
from executors.llm.sampling.sampler import SamplingTable, sample

KINDS: dict[str, dict[str, object]] = {
    "greedy": {"temperature": 0.0},
    "temperature": {"temperature": 0.8},
    "top-k": {"top_k": 50},
    "top-p": {"temperature": 0.7, "top_p": 0.9},
    "top-k and top-p": {"temperature": 0.6, "top_k": 20, "top_p": 0.95},
    "min-p": {"temperature": 1.2, "min_p": 0.05},
    "typical-p": {"typical_p": 0.9},
    "penalties": {"temperature": 0.7, "top_k": 20, "top_p": 0.8, "repetition_penalty": 1.05, "presence_penalty": 0.5},
    "greedy, frequency penalty": {"temperature": 0.0, "frequency_penalty": 0.4},
    "bias and bad words": {"top_k": 40, "logit_bias": ((17, 2.0), (900, -100.0)), "bad_words": ((5,), (6, 7))},
}  # fmt: skip


def make_logits(rows: int, vocab: int, dtype: torch.dtype, flat: bool) -> torch.Tensor:
    """[rows, vocab]: normal numbers, and unless `flat` 300 tokens a row whose logits fall off like a power law."""
    rng = np.random.default_rng(0)
    logits = rng.normal(0.0, 2.2, (rows, vocab)).astype(np.float32)
    if not flat:
        head = min(300, vocab // 2)
        for row in logits:
            where = rng.choice(vocab, head, replace=False)
            row[where] = 22.0 - 1.6 * np.log(np.arange(1, head + 1)) - rng.exponential(0.5, head)
    return torch.from_numpy(logits).to(dtype)


def step(logits: torch.Tensor, params: list[SamplingParams], history: int) -> Callable[[], object]:
    """One step's sampling as the executor does it, edits of rows included; `history` tokens stand before each row."""
    rng, table, shapers = np.random.default_rng(1), SamplingTable.of(params), SlotShapers()
    slots = np.arange(len(params))
    for slot, one in enumerate(params):
        ids = rng.integers(0, logits.shape[1], history).astype(np.int32)
        shapers.begin(SequenceStart(slot, slot, ids[: history // 2], ids[history // 2 :], one))
    last = {slot: [int(rng.integers(0, logits.shape[1]))] for slot in range(len(params))}

    def run() -> object:
        builder = EditsBuilder()
        for i in shapers.items(slots, np.ones(len(slots), np.int64)):
            shapers.add_rows(builder, i, i, (history, last[i], None), 0)
        return sample(logits, table.rows(slots, np.full(len(slots), history + 1)), builder.build())

    return run


def compare(args: argparse.Namespace) -> dict[str, object]:
    """Medians in ms and their ratio."""
    logits = make_logits(args.rows, args.vocab, getattr(torch, args.dtype), args.flat)
    chosen = [args.only] if args.only else list(KINDS)
    mixed = [SamplingParams(seed=i, **KINDS[chosen[i % len(chosen)]]) for i in range(args.rows)]  # type: ignore[arg-type]
    runs = {
        "greedy": step(logits, [SamplingParams(temperature=0.0)] * args.rows, args.history),
        "mixed": step(logits, mixed, args.history),
    }
    times: dict[str, list[float]] = {name: [] for name in runs}
    for round_ in range(args.rounds + 2):
        for name, run in runs.items():
            began = time.perf_counter()
            run()
            if round_ >= 2:  # the first rounds warm up
                times[name].append(1e3 * (time.perf_counter() - began))
    medians = {name: statistics.median(values) for name, values in times.items()}
    return {
        "rows": args.rows, "vocab": args.vocab, "dtype": args.dtype, "flat": args.flat, "kinds": chosen,
        "history": args.history, "threads": torch.get_num_threads(), "rounds": args.rounds,
        "greedy_ms": round(medians["greedy"], 3), "mixed_ms": round(medians["mixed"], 3),
        "ratio": round(medians["mixed"] / medians["greedy"], 3),
    }  # fmt: skip


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--vocab", type=int, default=151_936)
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32")
    parser.add_argument("--history", type=int, default=500, help="tokens before each row, for penalties")
    parser.add_argument("--flat", action="store_true", help="logits without a head")
    parser.add_argument("--only", choices=tuple(KINDS), help="all rows of one kind instead of mixed")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", help="write the result there, too")
    args = parser.parse_args(argv)
    if args.vocab < 1000:
        parser.error("--vocab: at least 1000, the settings name ids up to 900")
    return args


def main() -> None:
    """Measure and print."""
    args = parse()
    torch.set_num_threads(args.threads)
    result = compare(args)
    print(json.dumps(result))
    if args.json:
        Path(args.json).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
