"""What is served, number by number: logprobs of bf16 kernels in replayed, padded graphs against eager forwards over torch's
attention.

The shape of Qwen3-0.6B with four layers and random weights. 48 texts are forced through the executor's contract, prompts in
chunks beside decode steps and then decode steps alone, with the same steps for both executors. The tokens that an executor
chooses are not used: after a first difference nothing could be compared.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import math
import random
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu import serving, shapes
from benchmarks.gpu.part import Failed, Found, NotRun, Options
from benchmarks.gpu.serving import Setup
from executors.contract import ExecutorConfig, SampledToken, SamplingParams
from executors.llm.assembly.parts import Assembly
from executors.llm.executor import LlmExecutor
from executors.llm.memory.kv_plan import KvPlan
from executors.llm.runtime import ExecutorRuntime
from executors.llm.step.launched.graphs import StepFacts, StepGraph, StepGraphs
from executors.llm.step.launched.inputs import StepShape
from executors.llm.step.launched.steps import LaunchedSteps
from executors.testing.driver import DrivenSequence, Driver, Feed

GAP, MOST, MEAN = 0.1, 0.15, 0.05
"""Nats. The most likely token must be the same where it leads the next one by more than GAP; no logprob may be off by more than
MOST, nor those of a row by more than MEAN on average. Two ways to compute this shape in bf16 were 0.03 and 0.01 apart on a CPU;
leaving one of 16 splits out of the attention of a text of 1,023 tokens makes it 0.52 and 0.13, one of 47 in 3,000 tokens 0.17."""
TOP = 20
"""Logprobs of a row that are compared: of the most likely tokens of either executor."""
TEXTS, LEAST, LONGEST = 48, 8, 3_000
FORCED = 40
"""Tokens of a text, at most, that come one a step; those before them are its prompt."""
MAX_MODEL_LEN = 16_384
"""Far above the longest text: a graph splits keys for sequences as long as they may be, and one row's gets 49 splits here."""
_BORDERS = (64, 128, 512, 1024)
"""Tokens at, before and behind which some texts end: where pages and tiles of keys do."""
_BUDGETS = (16, 33, 64, 100, 512, 600, 128, 1_000, 256, 700, 500, 1_400, 1_200, 2_000, 24, 3_000)
"""Tokens of the steps that have chunks, in turn. None of more than 2,048 has a graph."""
_MOST_TOKENS = 4_096
_ROWS = (1, 48, 2, 33, 3, 25, 1, 4, 17, 7, 47, 9, 1, 40, 12, 24, 2, 31, 16, 8)
"""Sequences of the steps without chunks, in turn."""
_KV_BYTES = 1 << 30
_FEWEST = 4
"""Sequences of a step without chunks up to which the longest are taken, whose keys are split most."""

Step = list[tuple[int, int]]
"""(text, how many of its tokens) of each item."""


@dataclass(frozen=True, slots=True)
class Text:
    """Token ids; those from `prompt` on are forced one by one."""

    tokens: list[int]
    prompt: int


@dataclass(frozen=True, slots=True)
class Row:
    """What an executor says of the token behind `place` tokens of a text: its most likely ones with logprobs, best first."""

    text: int
    place: int
    top: tuple[tuple[int, float], ...]


# -- what is computed ----------------------------------------------------------------------------------------------------


def texts(count: int, least: int, longest: int, forced: int, vocabulary: int) -> list[Text]:
    """Random tokens, the same in every call. Lengths grow by a constant factor; some are moved to borders of pages and tiles."""
    draw = random.Random(0)
    factor = (longest / least) ** (1 / (count - 1))
    lengths = [round(least * factor**i) for i in range(count)]
    for border in _BORDERS:
        if border < longest / 2:
            nearest = sorted(range(1, count - 1), key=lambda i: abs(lengths[i] - border))[:3]
            for i, off in zip(sorted(nearest), (-1, 0, 1), strict=False):
                lengths[i] = border + off
    draw.shuffle(lengths)
    return [
        Text([draw.randrange(vocabulary) for _ in range(length)], max(1, length - forced))
        for length in lengths
    ]


def schedule(given: Sequence[Text]) -> list[Step]:
    """Steps that compute every token of every text once: chunks, most of them beside decode steps, then decode steps alone."""
    draw = random.Random(0)
    done = [0] * len(given)
    steps: list[Step] = []

    def left(i: int) -> int:
        return len(given[i].tokens) - done[i]

    def take(step: Step) -> None:
        for i, count in step:
            done[i] += count
        steps.append(step)

    budgets = itertools.cycle(_BUDGETS)
    while waiting := [i for i, text in enumerate(given) if done[i] < text.prompt]:
        room = next(budgets)
        decoding = [i for i in range(len(given)) if i not in waiting and left(i) > FORCED // 2]
        beside = draw.sample(decoding, draw.randint(0, min(len(decoding), room // 2)))
        room -= len(beside)
        step = [(i, 1) for i in beside]
        for i in waiting:
            count = min(room, given[i].prompt - done[i])
            if count:
                step.append((i, count))
            room -= count
        draw.shuffle(step)
        take(step)
    rows = itertools.cycle(_ROWS)
    while decoding := [i for i in range(len(given)) if left(i)]:
        count = next(rows)
        # The longest alone, or those that have most left, so that there are many to the end.
        decoding.sort(key=(lambda i: len(given[i].tokens)) if count <= _FEWEST else left, reverse=True)
        step = [(i, 1) for i in decoding[:count]]
        draw.shuffle(step)
        take(step)
    return steps


class WatchedExecutor(LlmExecutor):
    """`LlmExecutor` that counts how often which graph was replayed."""

    name = "llm"
    replayed: Counter[StepShape]
    graphs: StepGraphs | None = None

    def _assemble(self, assembly: Assembly, plan: KvPlan) -> ExecutorRuntime:
        loaded = super()._assemble(assembly, plan)
        self.replayed, self.graphs = Counter(), None
        launched = loaded.unified.launched
        if isinstance(launched, LaunchedSteps) and launched.graphs is not None:
            self.graphs = launched.graphs
            _watch(self.graphs, self.replayed)
        return loaded


def _watch(graphs: StepGraphs, replayed: Counter[StepShape]) -> None:
    find = graphs.find

    def watched(facts: StepFacts) -> tuple[StepShape, StepGraph] | None:
        found = find(facts)
        return None if found is None else (found[0], _Counted(found[1], found[0], replayed))

    graphs.find = watched  # type: ignore[method-assign]


class _Counted(StepGraph):
    """Counts its replays under its shape."""

    def __init__(self, graph: StepGraph, shape: StepShape, replayed: Counter[StepShape]) -> None:
        super().__init__(graph._forward, graph._sampler)
        self._shape = shape
        self._replayed = replayed

    def sample(self, words: torch.Tensor) -> None:
        """See `StepWork`."""
        super().sample(words)
        self._replayed[self._shape] += 1


def title(shape: StepShape) -> str:
    """As figures name it."""
    return f"{shape.tokens} mixed tokens" if shape.listed else f"{shape.items} sequences"


async def computed(executor: LlmExecutor, given: Sequence[Text], steps: Sequence[Step]) -> list[Row]:
    """What a started executor says behind each item that ends where its text is known to: of the same steps the same rows."""
    driver = Driver(executor)
    greedy = SamplingParams(temperature=0.0, logprobs=TOP)
    sequences: dict[int, DrivenSequence] = {}
    rows = []
    for step in steps:
        for i, _ in step:
            if i not in sequences:
                sequences[i] = driver.add(given[i].tokens[: given[i].prompt], greedy)
        items = await driver.step(*(Feed(sequences[i], count) for i, count in step))
        for (i, _), item in zip(step, items, strict=True):
            seq, tokens = sequences[i], given[i].tokens
            if item is None or not item.tokens:
                if seq.num_computed >= given[i].prompt:
                    raise Failed(f"text {i} has no token behind {seq.num_computed} of its own: {item}")
                continue
            rows.append(Row(i, seq.num_computed, _top(item.tokens[0])))
            # What was chosen is put aside.
            seq.tokens[seq.num_computed :] = tokens[seq.num_computed : seq.num_computed + 1]
            if seq.num_computed == len(tokens):
                driver.release(seq)
    return rows


def _top(token: SampledToken) -> tuple[tuple[int, float], ...]:
    return tuple((int(one), float(value)) for one, value in token.top_logprobs)


# -- how it compares -----------------------------------------------------------------------------------------------------


def difference(found: Row, expected: Row) -> tuple[float, float, int]:
    """Nats by which logprobs are off: the most, the sum, and of how many. A token that only one of the two names is, in the
    other, at most as likely as the last one named there. Infinity where a logprob is no number."""
    ours, theirs = dict(found.top), dict(expected.top)
    if not ours or not theirs:
        return math.inf, math.inf, 1
    floors = min(ours.values()), min(theirs.values())
    most = total = 0.0
    for token in ours.keys() | theirs.keys():
        a, b = ours.get(token), theirs.get(token)
        if a is not None and b is not None:
            off = abs(a - b)
        else:
            off = max(0.0, (b - floors[0]) if b is not None else ((a or 0.0) - floors[1]))
        off = off if math.isfinite(off) else math.inf
        most, total = max(most, off), total + off
    return most, total, len(ours.keys() | theirs.keys())


def compare(found: Sequence[Row], expected: Sequence[Row]) -> dict[str, Any]:
    """Figures of rows in the same order; `worst` says where the largest difference is, `wrong` what is not within the limits."""
    places = [[(row.text, row.place) for row in rows] for rows in (found, expected)]
    if places[0] != places[1] or not found:
        return {"rows_compared": 0, "wrong": [f"{len(found)} rows are there, {len(expected)} are expected"]}
    largest = summed = row_mean = 0.0
    count = off_by = same = 0
    others, clear = Counter[str](), 0
    worst, wrong = "", []
    for ours, theirs in zip(found, expected, strict=True):
        where = f"text {ours.text} behind {ours.place} tokens"
        most, total, of = difference(ours, theirs)
        if most > largest or not worst:
            worst, largest = where, most
        summed, count = summed + total, count + of
        row_mean = max(row_mean, total / of)
        if most > MOST or total / of > MEAN:
            off_by += 1
            wrong.append(f"{where}: logprobs are off by {most:.3f}, on average by {total / of:.3f}")
        gap = theirs.top[0][1] - theirs.top[1][1] if len(theirs.top) > 1 else math.inf
        clear += gap > GAP
        if ours.top and theirs.top and ours.top[0][0] == theirs.top[0][0]:
            same += 1
            continue
        others[_bin(gap)] += 1
        if not gap <= GAP:
            wrong.append(f"{where}: another token is the most likely, by a gap of {gap:.3f}")
    return {
        "rows_compared": len(found),
        "largest_logprob_difference": largest,
        "mean_logprob_difference": summed / count,
        "largest_mean_of_a_row": row_mean,
        "worst": worst,
        "rows_off": off_by,
        "argmax_equal": same,
        "argmax_differs_by_gap": dict(others),
        "rows_with_a_clear_gap": clear,
        "wrong": wrong[:10],
    }  # fmt: skip


def _bin(gap: float) -> str:
    return next((f"up to {most}" for most in (0.01, 0.03, GAP) if gap <= most), f"above {GAP}")


def judge(figures: dict[str, Any], seen: dict[str, Any], as_served: bool) -> None:
    """Raises Failed for what is wrong; with `as_served` also where a graph, or any, was not replayed. `seen`: see `replays`."""
    if figures["wrong"]:
        rows = f"{figures.get('rows_off', 0)} of {figures['rows_compared']} rows are off"
        raise Failed(f"{figures['wrong'][0]}; {rows} by more than {MOST}, or {MEAN} on average")
    if as_served and seen["never_replayed"]:
        raise Failed(f"graphs that were never replayed: {', '.join(seen['never_replayed'])}")
    if as_served and not seen["steps_replayed"]:
        raise Failed("no graph was replayed: what is served was not compared")


def replays(graphs: StepGraphs | None, replayed: Counter[StepShape], steps: int) -> dict[str, Any]:
    """Figures: which graphs were really replayed, and how often; which never; and steps that were launched one by one."""
    known = [] if graphs is None else graphs.shapes
    return {
        "graphs_replayed": {title(shape): replayed[shape] for shape in known if replayed[shape]},
        "never_replayed": [title(shape) for shape in known if not replayed[shape]],
        "steps_replayed": replayed.total(),
        "steps_launched": steps - replayed.total(),
    }


# -- the part ------------------------------------------------------------------------------------------------------------


def work(tiny: bool) -> tuple[str, list[Text]]:
    """The shape, and its texts."""
    if tiny:
        return shapes.TINY, texts(6, 4, 90, 5, 250)
    return shapes.SHALLOW, texts(TEXTS, LEAST, LONGEST, FORCED, 100_000)


def config_of(options: Options, shape: str, model: Path, sequences: int, plain: bool) -> ExecutorConfig:
    """What is served to so many at once, or with `plain` eager forwards over torch's attention. Both have the same weights."""
    on_gpu = options.device != "cpu"
    sized = Options(
        options.device, options.tiny, "llm", "inline", options.block_size, options.kv_cache_memory_bytes or _KV_BYTES
    )  # fmt: skip
    served = "triton" if on_gpu else "auto"
    setup = Setup(
        shape, max_num_seqs=sequences, max_num_batched_tokens=_MOST_TOKENS, max_model_len=MAX_MODEL_LEN if on_gpu else 256,
        enforce_eager=plain, backend="torch" if plain else served,
    )  # fmt: skip
    return serving.executor_config(sized, setup, model)


async def rows_of(
    executor: LlmExecutor, given: Sequence[Text], steps: Sequence[Step]
) -> tuple[list[Row], dict[str, Any]]:
    """The rows of an executor that is started and shut down here, and figures of what it is."""
    await executor.warmup()
    try:
        await executor.begin_epoch(1)
        await serving.captured(executor)
        if isinstance(executor, WatchedExecutor):
            executor.replayed.clear()
        rows = await computed(executor, given, steps)
        return rows, {"executor_notes": list(executor.status().notes)}
    finally:
        await executor.shutdown()


def run(options: Options, found: Found) -> None:
    """Raises Failed where logprobs differ."""
    asyncio.run(_run(options, found))


async def _run(options: Options, found: Found) -> None:
    on_gpu = options.device != "cpu"
    if on_gpu and not torch.cuda.is_bf16_supported():
        raise NotRun("the device has no bf16")
    shape, given = work(options.tiny)
    steps = schedule(given)
    with tempfile.TemporaryDirectory() as folder:
        model = shapes.write(shape, Path(folder))
        served = WatchedExecutor.from_config(config_of(options, shape, model, len(given), plain=False))
        ours, about = await rows_of(served, given, steps)
        seen = replays(served.graphs, served.replayed, len(steps))
        found(about | {"texts": len(given), "steps": len(steps)} | seen)
        if slow := serving.fell_back(about["executor_notes"]) if on_gpu else "":
            raise Failed(f"this is not what is to be served: {slow}")
        gc.collect()
        if on_gpu:
            torch.cuda.empty_cache()
        plain = LlmExecutor.from_config(config_of(options, shape, model, len(given), plain=True))
        theirs, about = await rows_of(plain, given, steps)
    figures = compare(ours, theirs)
    found(figures | {"compared_with": about["executor_notes"]})
    judge(figures, seen, on_gpu and not options.tiny)
