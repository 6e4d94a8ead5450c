"""Computation for `cohort verify`: the executor beside transformers, on the same checkpoint.

It compares whole prompts, prompts in chunks, and greedy tokens, for which all prompts run in one batch.

Logits are judged by their distance from those in float64: the largest difference of any logit of any prompt. The limit is
twice the distance of transformers' own logits in the executor's dtype, because no rounding is the only correct one, and never
less than FLOOR of the largest logit; or a given tolerance. Greedy tokens are compared with transformers in float32.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import numpy as np
import torch

from executors.contract import KvCacheHandle, LogitsMode, LoraExecutor, ModelExecutor, PrefillInput, Tensor
from executors.contract.config import ExecutorAttentionConfig, ExecutorConfig, OptimizationConfig
from executors.contract.errors import ConfigError
from executors.llm.checkpoint.weights import settle_config
from executors.llm.encoder.reading import family_in
from executors.llm.factory import LlmFactory
from executors.llm.model.config import read_config
from executors.llm.model.gguf_source import is_gguf
from executors.llm.tools import compare_encoder
from executors.llm.tools.peft_copy import write_peft_copy
from executors.llm.tools.reference import Greedy, ReferenceModel, ReferenceText, peft_version, version
from executors.llm.tools.usual_names import write_usual_names
from executors.llm.tools.wide_copy import write_wide_copy
from executors.lora import PackedLora, pack
from executors.testing.driver import Driver, Feed

CHUNK = 7
"""Chunk length in tokens; odd, so that chunks end within blocks."""
FLOOR = 5e-6
"""Smallest limit as a share of the largest logit: small models lose little, and by chance very little."""
_HIGHEST_RANK = 256
_RANDOM_PROMPTS = (1, 12, 40)
"""Lengths in tokens of the prompts for a model without tokenizer."""

Stage = Callable[[str], None]
Logits = list[np.ndarray]
"""Logits of each prompt: float32 [len, V]. Those computed in float64 are rounded once, as every float32 logit is."""


@dataclass(frozen=True, slots=True)
class _Ours:
    """The executor's results: per prompt, logits whole and in chunks [len, V], and greedy tokens. In chunks, a model whose layers
    have states has the last row alone, [1, V]."""

    whole: Logits
    chunked: Logits
    greedy: list[list[int]]


@dataclass(frozen=True, slots=True)
class Bound:
    """Limit of a logit's difference from float64, with its reason.

    `own`: the distance of transformers in the executor's dtype, None if a tolerance was given. `float32`: that of
    transformers in float32. `largest`: the largest logit.
    """

    tolerance: float
    own: float | None
    float32: float
    largest: float

    @classmethod
    def of(cls, limit: float | None, own: float | None, float32: float, largest: float) -> Bound:
        """Return the limit: `limit`, or if it is None, the one defined in the module's docstring."""
        return cls(max(2 * (own or 0.0), FLOOR * largest) if limit is None else limit, own, float32, largest)

    def tie(self) -> float:
        """Largest difference in transformers' float32 at which two tokens may swap: each of the four logits has an error."""
        return 2 * (self.tolerance + self.float32)


def run(job: dict[str, Any], stage: Stage) -> dict[str, Any]:
    """`job`: `model` and `reference` (directories), `dtype`, `device`, `tolerance` (None: see the module), `tokens` to generate,
    `num_threads` (None: all), `lora` (folder or GGUF file of an adapter for both sides, or None), `has_tokenizer`,
    `conversations`, `texts`, and `prompts` as lists of ids (None: random ones).

    A GGUF file is widened to float32 first, for both sides; see wide_copy.py. A checkpoint in whole numbers is widened as it is
    loaded. transformers gets weights by the names that it
    knows; see usual_names.py. Raises ConfigError when either side cannot load the
    checkpoint. An encoder is compared by compare_encoder.py.
    """
    if family_in(Path(job["model"])) is not None:
        return compare_encoder.run(job, stage)
    with TemporaryDirectory(prefix="cohort-verify-") as scratch:
        wide = dict(job)
        for number, name in enumerate(dict.fromkeys((job["model"], job["reference"]))):
            if is_gguf(Path(name)):
                stage("dequantizing")
                write_wide_copy(Path(name), copy := Path(scratch, str(number)))
                wide |= {side: str(copy) for side in ("model", "reference") if job[side] == name}
        usual = Path(scratch, "usual")
        if wide["reference"] == job["reference"] and write_usual_names(Path(job["reference"]), usual):
            wide["reference"] = str(usual)
        return _compare(wide, stage)


def _compare(job: dict[str, Any], stage: Stage) -> dict[str, Any]:
    directory = Path(job["reference"])
    _check_head(directory)
    stage("transformers")
    answer: dict[str, Any] = {"transformers": version(), "torch": torch.__version__}
    text = None
    if job["has_tokenizer"]:
        try:
            text = ReferenceText(directory)
        except ConfigError as error:
            if (directory / "tokenizer.json").is_file():
                raise
            # It reads other vocabulary files with libraries that need not be here (sentencepiece).
            answer["text_problem"] = str(error)
    if text is not None:
        answer["templates"] = [text.render(conversation) for conversation in job["conversations"]]
        answer["ids"] = [text.encode(one) for one in job["texts"]]
    prompts = _prompts(job)
    count = job["tokens"]
    stage("reference model")
    lora = Path(job["lora"]) if job.get("lora") is not None else None
    with TemporaryDirectory(prefix="cohort-verify-") as scratch:
        packed = None
        if lora is not None:
            answer["peft"] = peft_version()
            if lora.is_file():
                lora = write_peft_copy(lora, directory, Path(scratch, "peft"), _HIGHEST_RANK)
            packed = pack(lora, Path(scratch), _HIGHEST_RANK, base=directory)
        exact, greedy, bound = _reference(
            _Source(directory, lora, job["dtype"]), job["tolerance"], prompts, count, stage
        )
        ours = asyncio.run(_executor_answers(_config(job, len(prompts)), packed, prompts, count, stage))
    answer |= {"tolerance": bound.tolerance, "own_rounding": bound.own, "largest": bound.largest}
    answer["prompts"] = [
        _judged(prompts[i], exact[i], greedy[i], ours, i, bound, text) for i in range(len(prompts))
    ]
    return answer


def _check_head(directory: Path) -> None:
    """Raise ConfigError for a checkpoint without a head: transformers would create a random one."""
    try:
        headless = settle_config(read_config(directory), directory).headless
    except ConfigError:
        return  # reported where it is loaded
    if headless:
        raise ConfigError(f"{directory}: the checkpoint has no lm_head, so there are no logits to compare")


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
                f"the tokenizer produces id {highest}, but the model's vocabulary has {shape.vocab_size} tokens"
            )
        return prompts
    rng = np.random.default_rng(1)
    return [rng.integers(0, shape.vocab_size, min(length, room)).tolist() for length in _RANDOM_PROMPTS]


@dataclass(frozen=True, slots=True)
class _Source:
    """The checkpoint and the adapter that both sides load, and the executor's dtype."""

    directory: Path
    lora: Path | None
    dtype: str

    def model(self, dtype: str) -> ReferenceModel:
        return ReferenceModel(self.directory, getattr(torch, dtype), self.lora)


def _reference(
    source: _Source, limit: float | None, prompts: Sequence[list[int]], count: int, stage: Stage
) -> tuple[Logits, list[Greedy], Bound]:
    """Return logits in float64 and greedy tokens in float32. One model is in memory at a time, and none afterwards."""
    model = source.model("float32")
    stage("reference logits in float64")
    exact = [model.exact_logits(ids) for ids in prompts]
    largest = max((float(np.abs(one).max()) for one in exact), default=0.0)
    stage("reference logits in float32")
    float32 = _rounding(model, prompts, exact)
    stage("reference text")
    greedy = [model.greedy(ids, count) for ids in prompts]
    own = None if limit is not None else float32
    if own is not None and source.dtype != "float32":
        del model
        gc.collect()
        stage(f"reference logits in {source.dtype}")
        model = source.model(source.dtype)
        own = _rounding(model, prompts, exact)
    del model
    gc.collect()
    return exact, greedy, Bound.of(limit, own, float32, largest)


def _rounding(model: ReferenceModel, prompts: Sequence[list[int]], exact: Logits) -> float:
    """Return the distance of the model's logits from `exact`. Prompts whose distance is not a number do not raise the limit."""
    return max(
        (_distance(model.logits(ids), one) or 0.0 for ids, one in zip(prompts, exact, strict=True)),
        default=0.0,
    )


def _config(job: dict[str, Any], num_prompts: int) -> ExecutorConfig:
    # transformers widens what a checkpoint has in whole numbers, as torch does here; the kernels round activations to 8 bits.
    narrow = read_config(Path(job["model"])).integers is not None
    backend = "torch" if narrow else "auto"
    return ExecutorConfig(
        "llm", job["model"], dtype=job["dtype"], device=job["device"], max_num_seqs=num_prompts,
        attention=ExecutorAttentionConfig(backend=backend),
        optimization=OptimizationConfig(num_threads=job["num_threads"], max_loras=int(job.get("lora") is not None)),
    )  # fmt: skip


async def _executor_answers(
    config: ExecutorConfig,
    packed: PackedLora | None,
    prompts: Sequence[list[int]],
    count: int,
    stage: Stage,
) -> _Ours:
    executor = LlmFactory().create_executor(config)
    stage("executor")
    driver = await Driver.start(executor)
    try:
        adapter = None
        if packed is not None:
            adapter = packed.digest
            await cast(LoraExecutor, executor).load_adapter(adapter, str(packed.path), packed.digest)
        stage("logits, whole and in chunks")
        if executor.kv_layout().state is None:
            whole = [await _prefill(executor, ids, len(ids), adapter) for ids in prompts]
            chunked = [await _prefill(executor, ids, CHUNK, adapter) for ids in prompts]
        else:
            whole = [await _prefill_alone(executor, ids, adapter) for ids in prompts]
            chunked = [await _last_row_in_steps(driver, ids, adapter) for ids in prompts]
        stage("greedy tokens")
        return _Ours(whole, chunked, await _generate(driver, prompts, count, adapter))
    finally:
        await executor.shutdown()


async def _prefill(executor: ModelExecutor, ids: list[int], chunk: int, adapter: str | None) -> np.ndarray:
    """Return float32 [len(ids), V], computed over blocks in descending order, so that a wrong use of the block table shows."""
    layout = executor.kv_layout()
    count, size = -(-len(ids) // layout.block_size), layout.block_size
    # A window group may have fewer blocks than that: those behind the window serve again, in the next chunk.
    room = [
        (group.num_blocks - 1) * size - group.window for group in layout.groups if group.window is not None
    ]
    chunk = min(chunk, *room, len(ids))
    tables = tuple(
        ((group.num_blocks - 1 - np.arange(count)) % group.num_blocks).astype(np.int32)
        for group in layout.groups
    )
    rows = []
    for begin in range(0, len(ids), chunk):
        part = Tensor.of([ids[begin : begin + chunk]], "int32")
        handle = KvCacheHandle(0, tables, begin)
        request = PrefillInput(
            part, kv_cache=handle, pos_offset=begin, logits=LogitsMode.ALL, adapter=adapter
        )
        output = await executor.prefill(request)
        assert output.logits is not None  # asked for
        rows.append(output.logits.numpy()[0].astype(np.float32))
    return np.concatenate(rows)


async def _prefill_alone(executor: ModelExecutor, ids: list[int], adapter: str | None) -> np.ndarray:
    """Return float32 [len(ids), V], computed in one call that keeps nothing."""
    request = PrefillInput(Tensor.of([ids], "int32"), logits=LogitsMode.ALL, adapter=adapter)
    output = await executor.prefill(request)
    assert output.logits is not None  # asked for
    return output.logits.numpy()[0].astype(np.float32)


async def _last_row_in_steps(driver: Driver, ids: list[int], adapter: str | None) -> np.ndarray:
    """Return float32 [1, V] behind the last token, computed in chunks: only steps keep states of sequences."""
    every = tuple(range(driver.executor.info().vocab_size))
    sequence = driver.add(ids, None, adapter=adapter, pooling="logits", label_ids=every)
    while sequence.num_computed < len(ids):
        await driver.step(Feed(sequence, min(CHUNK, len(ids) - sequence.num_computed)))
    last = sequence.outputs[-1]
    assert last is not None and last.pooled is not None  # asked for
    driver.release(sequence)
    return last.pooled[None]


async def _generate(
    driver: Driver, prompts: Sequence[list[int]], count: int, adapter: str | None
) -> list[list[int]]:
    """Generate `count` tokens for every prompt, all in the same steps, with the prompts in chunks."""
    sequences = [driver.add(ids, adapter=adapter) for ids in prompts]
    while waiting := [seq for seq in sequences if len(seq.output) < count]:
        await driver.step(
            *(Feed(seq, min(CHUNK, rest) if (rest := len(seq.tokens) - seq.num_computed) > 1 else None) for seq in waiting)
        )  # fmt: skip
    return [seq.output for seq in sequences]


def _judged(
    ids: list[int], exact: np.ndarray, greedy: Greedy, ours: _Ours, i: int, bound: Bound, text: ReferenceText | None,
) -> dict[str, Any]:  # fmt: skip
    """Return one prompt's report. A difference of None: not a number, or a different shape."""
    agreed = 0
    for mine, theirs in zip(ours.greedy[i], greedy.tokens, strict=True):
        if mine != theirs:
            break
        agreed += 1
    # Where two tokens are as good as equally likely, either may follow, and after it all differs.
    gap = greedy.gaps[agreed] if agreed < len(greedy.tokens) else None
    whole = _distance(ours.whole[i], exact)
    chunked = _distance(ours.chunked[i], exact[len(exact) - len(ours.chunked[i]) :])
    close = gap is None or gap <= bound.tie()
    fine = all(one is not None and one <= bound.tolerance for one in (whole, chunked))
    return {
        "length": len(ids), "whole": whole, "chunked": chunked, "chunked_positions": len(ours.chunked[i]),
        "largest": float(np.abs(exact).max()),
        "logits_equal": fine, "greedy_equal": close, "agreed": agreed, "of": len(greedy.tokens), "gap": gap,
        "ours": ours.greedy[i], "theirs": greedy.tokens,
        "theirs_text": text.decode(greedy.tokens) if text is not None else None,
    }  # fmt: skip


def _distance(a: np.ndarray, b: np.ndarray) -> float | None:
    if a.shape != b.shape:
        return None
    largest = float(np.abs(a - b).max())
    return largest if np.isfinite(largest) else None
