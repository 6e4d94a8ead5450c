"""What a decode step of a GPU costs the host: pack it and launch it, then read its result, at 1, 32 and 256 sequences.

    python -m benchmarks.host_step [--rows 1 32 256] [--rounds 5] [--settings plain|shaped|grammar|drafts] [--json FILE]

No GPU is needed: the device is a fake whose graphs do nothing and whose events are always past. What is left is the host's
own work. A row has a sequence of its own, all inputs are pending, blocks have 16 tokens and sequences cross their borders in
turn, as under an engine with two steps out. With `grammar` the first row follows one that allows every text; its masks are made
on another thread, which is not counted. With `drafts` each row verifies three, or as many as the step has room for, all of
which are wrong, in graphs of mixed steps. Times are CPU microseconds of the thread, per step: the median over all steps of
all rounds, and the median of the fastest round, which says most where the machine is shared.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections import deque
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.shapes import write_shape
from executors.contract import (
    ExecutorAttentionConfig,
    ExecutorConfig,
    ExecutorMemoryConfig,
    OptimizationConfig,
)
from executors.contract.batch import SamplingParams, SequenceStart, TableUpdates, UnifiedBatch
from executors.llm.attention.key_pieces import PieceRule
from executors.llm.attention.tile_pieces import TileRule
from executors.llm.executor import LlmExecutor
from executors.llm.kernel_support.kernel_choice import MAKERS
from executors.llm.step.pending_steps import PendingStep
from executors.llm.step.pipeline import StepPipeline
from tests.executors.grammar_tokenizers import write_tokenizer
from tests.gpu.device_fakes import IdleDevice, PagedTorch

ROWS = (1, 32, 256)
SETTINGS = {
    "plain": SamplingParams(temperature=0.75, top_p=0.9, seed=1),
    "shaped": SamplingParams(temperature=0.75, seed=1, repetition_penalty=1.2),
    "grammar": SamplingParams(temperature=0.75, top_p=0.9, seed=1),
    "drafts": SamplingParams(temperature=0.75, top_p=0.9, seed=1),
}
_ANY_TEXT = "start: /(.|\\n)*/"
_BLOCK, _PROMPT, _STEPS, _WARMUP = 16, 33, 192, 32
_MOST_TOKENS = 512
_DRAFTS = 3


class ServedPieces(PagedTorch):
    """Cuts keys as an H200 does for the 0.6B shape in bf16: 49 programs at once for each key head, tiles of 64 keys."""

    rule = PieceRule(programs=49, tile=64)
    tile_rule = TileRule(programs=16, tile=64)


MAKERS["served pieces"] = lambda wish: ServedPieces()


class IdleExecutor(LlmExecutor):
    """`LlmExecutor` over an `IdleDevice`."""

    def make_device(self) -> IdleDevice:
        """Make the device that steps are launched on."""
        return IdleDevice()

    async def warmup(self) -> None:
        """See the contract."""
        self.device = self.make_device()
        self.device.attention_order = ("served pieces",)  # type: ignore[misc]
        await super().warmup()

    @property
    def runner(self) -> StepPipeline:
        """What takes in and launches steps."""
        return self._ready().unified


async def executor(rows: int, max_drafts: int = 0) -> IdleExecutor:
    """A warmed executor with all graphs, in epoch 1."""
    with tempfile.TemporaryDirectory() as folder:
        made = IdleExecutor.from_config(
            ExecutorConfig(
                "llm", str(_model(Path(folder))), load_format="dummy", device="cpu",
                max_num_seqs=rows, max_num_batched_tokens=512, max_model_len=2 * _MOST_TOKENS,
                attention=ExecutorAttentionConfig(block_size=_BLOCK),
                memory=ExecutorMemoryConfig(kv_cache_memory_bytes=1 << 29),
                optimization=OptimizationConfig(max_drafts=max_drafts),
            )
        )  # fmt: skip
        await made.warmup()
    await made.begin_epoch(1)
    while made.runner.capture_next():
        pass
    return made


def _model(folder: Path) -> Path:
    """A model's directory, with a tokenizer that grammars can be compiled for."""
    path = write_shape("qwen3-tiny", folder)
    return write_tokenizer(path, json.loads((path / "config.json").read_text())["vocab_size"])


def drafts_of(rows: int) -> int:
    """Drafts of each row for which a step of so many has room."""
    return max(1, min(_DRAFTS, _MOST_TOKENS // rows - 1))


def batches(
    rows: int, settings: SamplingParams, grammar: str | None = None, drafts: int = 0, chunk: int = 1
) -> list[UnifiedBatch]:
    """A step that computes all prompts but for their last tokens, then decode steps: row i is i tokens ahead of row 0, up to a
    block, so that a sixteenth of the rows gets a block with each step. `grammar`: that of the first row. `drafts` of each row in
    a step, none of which is accepted. `chunk`: if several, tokens of the first row's long prompt in each step, in place of one
    and of its drafts."""
    slots, seq_ids = np.arange(rows, dtype=np.int32)[::-1].copy(), np.arange(rows, dtype=np.int64) + 7
    ahead = (_PROMPT + np.arange(rows) % _BLOCK).astype(np.int32)
    gained, blocks = np.ones(rows, np.int32), np.zeros(rows, np.int64)
    gained[0] = chunk
    final, lengths = gained == 1, ahead + 1
    if chunk > 1:
        lengths[0] += chunk * (_STEPS + _WARMUP)
    fresh, made = 0, []
    for number in range(_STEPS + _WARMUP):
        guessed = (gained == 1) * np.int32(drafts if number else 0)
        lens = gained + guessed
        token = np.repeat(np.arange(rows), lens)
        offsets = (ahead + number * gained).astype(np.int32)
        needed = (offsets + lens - 1) // _BLOCK + 1
        grown = np.flatnonzero(needed > blocks)
        counts = (needed - blocks)[grown]
        total = int(counts.sum())
        tables = TableUpdates(
            slots[grown], np.zeros(len(grown), np.int32), blocks[grown].astype(np.int32),
            counts.astype(np.int32), np.arange(fresh, fresh + total, dtype=np.int32),
        )  # fmt: skip
        blocks[grown], fresh = needed[grown], fresh + total
        starts = () if number else tuple(
            SequenceStart(
                seq, slot, np.full(length, 5, np.int32), np.empty(0, np.int32), replace(settings, seed=seq),
                grammar=grammar if seq == seq_ids[0] else None,
            )
            for seq, slot, length in zip(seq_ids.tolist(), slots.tolist(), lengths.tolist(), strict=True)
        )  # fmt: skip
        known = number == 0 or drafts > 0
        made.append(
            UnifiedBatch(
                1, number + 1, seq_ids.copy(), slots.copy(), lens, offsets, final.copy(), guessed,
                np.where(final[token] & (not known), -1, 5).astype(np.int32), None if known else final[token], starts,
                tables,
            )
        )  # fmt: skip
    return made


async def measure(
    rows: int,
    settings: SamplingParams,
    rounds: int,
    grammar: str | None = None,
    drafts: int = 0,
    chunk: int = 1,
) -> dict[str, float]:
    """CPU microseconds a step of `launch` and `result`, and of the fastest round."""
    made = await executor(rows, drafts)
    runner, taken = made.runner, []
    for _ in range(rounds):
        runner.states.clear()
        taken.append(_round(runner, batches(rows, settings, grammar, drafts, chunk)))
    await made.shutdown()
    row = {}
    for name, column in (("launch", 0), ("result", 1)):
        each = [[1e6 * one[column] for one in times] for times in taken]
        row[name] = statistics.median(one for times in each for one in times)
        row[f"{name}_best"] = min(statistics.median(times) for times in each)
    return row


def _round(runner: StepPipeline, steps: list[UnifiedBatch]) -> list[tuple[float, float]]:
    """Seconds of each step's launch, and of reading the result of the one before it, which is out meanwhile."""
    out: deque[PendingStep] = deque()
    times = []
    for batch in steps:
        began = time.thread_time()
        out.append(runner.launch(batch))
        launched = time.thread_time()
        if len(out) == 2:
            out.popleft().result()
        times.append((launched - began, time.thread_time() - launched))
    out.popleft().result()
    return times[_WARMUP:]


def main() -> None:
    """Measure, print a table, and write it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="*", default=ROWS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--settings", choices=SETTINGS, default="plain")
    parser.add_argument(
        "--chunk", type=int, default=1, choices=range(1, 5),
        help="tokens of a long prompt's chunk in each step, in place of the first row's token",
    )  # fmt: skip
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    if asked.settings == "drafts" and asked.chunk > 1:
        parser.error(
            f"256 rows with drafts leave no room for a chunk in {_MOST_TOKENS} tokens: --chunk is without drafts"
        )
    names = ("launch", "launch_best", "result", "result_best")
    print(f"{'rows':>6} " + " ".join(f"{name:>12}" for name in names), "us")
    found = {}
    for rows in asked.rows:
        grammar = _ANY_TEXT if asked.settings == "grammar" else None
        drafts = drafts_of(rows) if asked.settings == "drafts" else 0
        measured = measure(rows, SETTINGS[asked.settings], asked.rounds, grammar, drafts, asked.chunk)
        found[rows] = row = asyncio.run(measured)
        print(f"{rows:>6} " + " ".join(f"{row[name]:>12.0f}" for name in names), flush=True)
    if asked.json:
        asked.json.write_text(
            json.dumps({"settings": asked.settings, "chunk": asked.chunk, "microseconds": found}, indent=2)
            + "\n"
        )


if __name__ == "__main__":
    main()
