"""What `cohort verify` computes: the executor beside transformers, on the same checkpoint.

Whole prompts, prompts in chunks, and greedy tokens, for which all prompts run in one batch. What is compared with is in
float32 always. An executor in float32 may differ by a tolerance that was given; for a narrower dtype, twice what
transformers itself loses by that dtype is allowed, for no rounding is the right one.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from executors.contract import KvCacheHandle, LogitsMode, ModelExecutor, PrefillInput, Tensor
from executors.driver import Driver, Feed
from executors.errors import ConfigError
from executors.facts import ExecutorConfig, OptimizationConfig
from executors.llm.factory import LlmFactory
from executors.llm.models.config import read_config
from executors.llm.tools.reference import Greedy, ReferenceModel, ReferenceText, version
from executors.llm.weights import settle_head

CHUNK = 7
"""Tokens: odd, so that chunks end within blocks."""
TOLERANCE = 1e-4
_RANDOM_PROMPTS = (1, 12, 40)
"""Lengths of the prompts for a model without tokenizer."""

Stage = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class _Ours:
    """The executor's answers: per prompt, logits whole and in chunks [len, V], and greedy tokens."""

    whole: list[np.ndarray]
    chunked: list[np.ndarray]
    greedy: list[list[int]]


def run(job: dict[str, Any], stage: Stage) -> dict[str, Any]:
    """`job`: `model` and `reference` (directories), `dtype`, `device`, `tolerance` (None: see the module), `tokens` to generate,
    `num_threads` (None: all), `has_tokenizer`, `conversations`, `texts`, and `prompts` as lists of ids (None: random ones).

    Raises ConfigError when either side cannot load the checkpoint.
    """
    directory = Path(job["reference"])
    _check_head(directory)
    stage("transformers")
    answer: dict[str, Any] = {"transformers": version(), "torch": torch.__version__}
    text = None
    if job["has_tokenizer"]:
        text = ReferenceText(directory)
        answer["templates"] = [text.render(conversation) for conversation in job["conversations"]]
        answer["ids"] = [text.encode(one) for one in job["texts"]]
    prompts = _prompts(job)
    count = job["tokens"]
    stage("reference model")
    logits, greedy = _reference(directory, torch.float32, prompts, count, stage)
    tolerance = job["tolerance"]
    answer["own_rounding"] = None
    if job["dtype"] != "float32" and tolerance is None:
        rounded, _ = _reference(directory, getattr(torch, job["dtype"]), prompts, 0, stage)
        answer["own_rounding"] = max(_distance(a, b) or 0.0 for a, b in zip(rounded, logits, strict=True))
        tolerance = 2 * answer["own_rounding"]
    tolerance = TOLERANCE if tolerance is None else tolerance
    ours = asyncio.run(_executor_answers(_config(job, len(prompts)), prompts, count, stage))
    answer["tolerance"] = tolerance
    answer["prompts"] = [
        _judged(prompts[i], logits[i], greedy[i], ours, i, tolerance, text) for i in range(len(prompts))
    ]
    return answer


def _check_head(directory: Path) -> None:
    """Raises ConfigError for a checkpoint without a head: transformers would make a random one."""
    try:
        headless = settle_head(read_config(directory), directory).headless
    except ConfigError:
        return  # told where it is loaded
    if headless:
        raise ConfigError(f"{directory}: there is no lm_head, and so there are no logits to compare")


def _prompts(job: dict[str, Any]) -> list[list[int]]:
    shape = read_config(Path(job["model"]))
    room = shape.context_length - job["tokens"]
    if room < 1:
        raise ConfigError(
            f"--tokens {job['tokens']} leaves no room in the model's context of {shape.context_length}"
        )
    if job["prompts"] is not None:
        prompts = [ids[:room] for ids in job["prompts"] if ids]
        highest = max((max(ids) for ids in prompts), default=0)
        if highest >= shape.vocab_size:
            raise ConfigError(
                f"the tokenizer makes id {highest}, and the model has {shape.vocab_size} of them"
            )
        return prompts
    rng = np.random.default_rng(1)
    return [rng.integers(0, shape.vocab_size, min(length, room)).tolist() for length in _RANDOM_PROMPTS]


def _reference(
    directory: Path, dtype: torch.dtype, prompts: Sequence[list[int]], count: int, stage: Stage
) -> tuple[list[np.ndarray], list[Greedy]]:
    """Logits of each prompt, and greedy tokens unless `count` is 0. The model is gone afterwards: two take memory twice."""
    model = ReferenceModel(directory, dtype)
    stage(f"reference logits in {str(dtype).removeprefix('torch.')}")
    logits = [model.logits(ids) for ids in prompts]
    greedy = [model.greedy(ids, count) for ids in prompts] if count else []
    del model
    gc.collect()
    return logits, greedy


def _config(job: dict[str, Any], num_prompts: int) -> ExecutorConfig:
    return ExecutorConfig(
        "llm", job["model"], dtype=job["dtype"], device=job["device"], max_num_seqs=num_prompts,
        optimization=OptimizationConfig(num_threads=job["num_threads"]),
    )  # fmt: skip


async def _executor_answers(
    config: ExecutorConfig, prompts: Sequence[list[int]], count: int, stage: Stage
) -> _Ours:
    executor = LlmFactory().create_executor(config)
    stage("executor")
    driver = await Driver.start(executor)
    try:
        stage("logits, whole and in chunks")
        whole = [await _prefill(executor, ids, len(ids)) for ids in prompts]
        chunked = [await _prefill(executor, ids, CHUNK) for ids in prompts]
        stage("greedy tokens")
        return _Ours(whole, chunked, await _generate(driver, prompts, count))
    finally:
        await executor.shutdown()


async def _prefill(executor: ModelExecutor, ids: list[int], chunk: int) -> np.ndarray:
    """float32 [len(ids), V], over blocks in descending order: a table that is not counted through shows."""
    layout = executor.kv_layout()
    blocks = np.arange(layout.num_blocks, dtype=np.int32)[::-1][: -(-len(ids) // layout.block_size)].copy()
    rows = []
    for begin in range(0, len(ids), chunk):
        part = Tensor.of([ids[begin : begin + chunk]], "int32")
        handle = KvCacheHandle(0, (blocks,), begin)
        request = PrefillInput(part, kv_cache=handle, pos_offset=begin, logits=LogitsMode.ALL)
        output = await executor.prefill(request)
        assert output.logits is not None  # asked for
        rows.append(output.logits.numpy()[0].astype(np.float32))
    return np.concatenate(rows)


async def _generate(driver: Driver, prompts: Sequence[list[int]], count: int) -> list[list[int]]:
    """`count` tokens for every prompt, all in the same steps, the prompts in chunks."""
    sequences = [driver.add(ids) for ids in prompts]
    while waiting := [seq for seq in sequences if len(seq.output) < count]:
        await driver.step(
            *(Feed(seq, min(CHUNK, left) if (left := len(seq.tokens) - seq.num_computed) > 1 else None) for seq in waiting)
        )  # fmt: skip
    return [seq.output for seq in sequences]


def _judged(
    ids: list[int], logits: np.ndarray, greedy: Greedy, ours: _Ours, i: int, tolerance: float,
    text: ReferenceText | None,
) -> dict[str, Any]:  # fmt: skip
    """One prompt's report. A difference of None: not a number, or not of the same shape."""
    agreed = 0
    for mine, theirs in zip(ours.greedy[i], greedy.tokens, strict=True):
        if mine != theirs:
            break
        agreed += 1
    # Where two tokens are as good as equally likely, either may follow, and after it all differs.
    gap = greedy.gaps[agreed] if agreed < len(greedy.tokens) else None
    whole, chunked = _distance(ours.whole[i], logits), _distance(ours.chunked[i], logits)
    close = gap is None or gap <= 2 * tolerance
    fine = all(one is not None and one <= tolerance for one in (whole, chunked))
    return {
        "length": len(ids), "whole": whole, "chunked": chunked, "largest": float(np.abs(logits).max()),
        "logits_equal": fine, "greedy_equal": close, "agreed": agreed, "of": len(greedy.tokens), "gap": gap,
        "ours": ours.greedy[i], "theirs": greedy.tokens,
        "theirs_text": text.decode(greedy.tokens) if text is not None else None,
    }  # fmt: skip


def _distance(a: np.ndarray, b: np.ndarray) -> float | None:
    if a.shape != b.shape:
        return None
    largest = float(np.abs(a - b).max())
    return largest if np.isfinite(largest) else None
