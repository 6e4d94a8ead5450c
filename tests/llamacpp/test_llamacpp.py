"""llama.cpp judges: from GGUF files in its own form it computes the logprobs that are computed here, and the same greedy ids.

Each shape is written twice by llama.cpp's converter, from weights that float16 holds exactly: in float32, which llama.cpp
computes as exactly as it can, and in float16, as people have it, with its server's defaults. The first shows that both mean the
same, and transformers that it is what the checkpoint means. The second is bound by how llama.cpp rounds activations and KV.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch

from benchmarks.peers.servers import Room, llama, serving
from executors.contract import LogitsMode, PrefillInput, Tensor
from executors.gguf.file import read_gguf
from executors.llm.model.config import read_config
from tests.executors.gguf_files import prepared
from tests.executors.llm.driver import Driver, start
from tests.executors.llm.models import SHAPES, Reference, write
from tests.llamacpp.agreement import differences, equal_ids, logprobs
from tests.llamacpp.judge import Computed, Converter, compute, converter, need_programs
from tests.llamacpp.rows import LONG, ROWS, Row, judged, row

pytestmark = [pytest.mark.external, pytest.mark.timeout(300)]

CONTEXT, FOLLOWING = 256, 64
LENGTHS = (5, 61, 150)
"""Most prompts are longer than the windows of the shapes."""
HALF = 2e-2
"""Bound of a logprob where llama.cpp computes with weights, activations and KV in float16: at `Row.share` of the positions."""
SHARE_OF_EXPERTS = 0.8
"""Experts whose scores are a near tie in float16 are other ones there, and a text goes on from what they said: `Row.cap` is not
for them, and their ids are compared in float32 alone."""
LIKELY = 20
"""So many ids a position are compared in float16: as many as the API shows."""
LONG_CONTEXT, LONG_PROMPT = 4352, 4200
FAR = 1e-3
"""Bound of a logprob there: an angle of 4,200 has an error of 2e-4 in float32, and each side multiplies in its own order."""


@pytest.fixture(scope="session")
def convert(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Converter]:
    need_programs()
    with converter(tmp_path_factory.mktemp("converter")) as one:
        yield one


def checkpoint(folder: Path, name: str, instead: dict[str, Any]) -> Reference:
    """The checkpoint of a shape with other fields, of its text part where it has several."""
    kind, fields = SHAPES[name]
    if text := fields.get("text_config"):
        instead = {"text_config": {**text, **instead}}
    ref = write(kind, {**fields, **instead}, folder, len(name))
    with torch.no_grad():
        for parameter in ref.model.parameters():
            parameter.copy_(parameter.half())
    ref.model.save_pretrained(folder)
    return ref


@dataclass(frozen=True)
class Ours:
    """What is computed here: `greedy`, the ids after the prompt, and `logits`, float32 [T + n, V], at all positions of both."""

    prompt: list[int]
    greedy: list[int]
    logits: np.ndarray

    @property
    def text(self) -> list[int]:
        return self.prompt + self.greedy

    def equal_ids(self, theirs: Computed, bound: float) -> int:
        return equal_ids(self.greedy, theirs.greedy, self.logits[len(self.prompt) - 1 :], bound)


async def computed_here(
    file: Path, prompts: list[list[int]], following: int, folder: Path, context: int, dtype: str = "float32"
) -> list[Ours]:
    executor = await start(prepared(folder, file), dtype=dtype, max_model_len=context, kv_bytes=64 << 20)
    driver = Driver(executor)
    greedy = await driver.generate([driver.add(one) for one in prompts], following, chunk=128)
    found = []
    for prompt, ids in zip(prompts, greedy, strict=True):
        output = await executor.prefill(
            PrefillInput(Tensor.of([prompt + ids], "int32"), logits=LogitsMode.ALL)
        )
        found.append(Ours(prompt, ids, output.logits.numpy()[0]))
    await executor.shutdown()
    return found


def computed_there(
    file: Path, mine: list[Ours], wide: bool, folder: Path, context: int
) -> tuple[list[Computed], list[Computed]]:
    """Texts as they were continued here, and the prompts as llama.cpp continues them."""
    texts, prompts = [one.text for one in mine], [one.prompt for one in mine]
    following = [0] * len(texts) + [len(one.greedy) for one in mine]
    found = compute(file, texts + prompts, following, context, wide, folder)
    return found[: len(texts)], found[len(texts) :]


def apart(mine: list[Ours], theirs: list[Computed], most: int = 0) -> np.ndarray:
    """The largest difference of a logprob at each position of all texts, float64 [positions]."""
    pairs = zip(mine, theirs, strict=True)
    return np.concatenate([differences(one.logits, other.logits, most) for one, other in pairs])


def step_by_step(mine: list[Ours], continued: list[Computed], bound: float) -> float:
    """The largest difference of a logprob after the prompts, where llama.cpp computes a token at a time, up to the near tie that
    parts the ids. Raises AssertionError if they part elsewhere."""
    largest = 0.0
    for one, other in zip(mine, continued, strict=True):
        same = one.equal_ids(other, bound)
        steps = differences(one.logits[len(one.prompt) - 1 :][:same], other.steps[:same])
        largest = max([largest, *steps])
    return largest


async def compare_exactly(
    ref: Reference, wide: Path, prompts: list[list[int]], following: int, name: str, context: int
) -> tuple[list[Ours], float]:
    """Compare a file in float32, here, there and with transformers; what was computed here, and the largest difference."""
    judge, near = row(name), context == CONTEXT
    bound = judge.exact if near else max(judge.exact, FAR)
    mine = await computed_here(wide, prompts, following, wide.with_suffix(".served"), context)
    texts, continued = computed_there(wide, mine, True, wide.parent, context)
    every = apart(mine, texts)
    largest = float(every.max())
    if judge.flips:
        assert (every <= HALF).mean() >= SHARE_OF_EXPERTS
    else:
        assert largest <= bound
        largest = max(largest, step_by_step(mine, continued, bound))
        assert largest <= bound
    original = max(differences(ref.logits(one.text), one.logits).max() for one in mine)
    if judge.lost:
        assert original > 0.1, "llama.cpp's file means what the checkpoint means: the row says something else"
    else:
        assert original <= (1e-4 if near else FAR)
    return mine, largest


def compare_halves(
    half: Path, mine: list[Ours], folder: Path, routed: bool, judge: Row
) -> tuple[np.ndarray, float]:
    """Compare a file in float16, as llama.cpp computes it by itself; the largest difference at each position, and the share of
    positions within HALF."""
    texts, continued = computed_there(half, mine, False, folder, CONTEXT)
    rounded = apart(mine, texts, LIKELY)
    share = float((rounded <= HALF).mean())
    assert share >= (min(SHARE_OF_EXPERTS, judge.share) if routed else judge.share)
    if not routed:
        assert rounded.max() <= judge.cap
        for one, other in zip(mine, continued, strict=True):
            one.equal_ids(other, judge.cap)
    return rounded, share


@pytest.mark.long(every=4)
@pytest.mark.parametrize("name", judged())
async def test_llama_cpp_computes_the_same(
    tmp_path: Path, record_property: Callable[[str, object], None], convert: Converter, name: str
) -> None:
    judge, ref = row(name), checkpoint(tmp_path / "checkpoint", name, row(name).instead)
    wide = convert.convert(ref.path, tmp_path / "wide.gguf", "f32")
    half = convert.convert(ref.path, tmp_path / "half.gguf", "f16")
    lengths = [n for n in LENGTHS if n >= judge.least]
    prompts = [np.random.default_rng(n).integers(0, ref.vocab_size, n).tolist() for n in lengths]

    mine, exact = await compare_exactly(ref, wide, prompts, FOLLOWING, name, CONTEXT)
    narrow = await computed_here(half, prompts, FOLLOWING, tmp_path / "half", CONTEXT)
    for one, other in zip(narrow, mine, strict=True):
        assert one.greedy == other.greedy and np.array_equal(one.logits, other.logits)
    routed = read_config(ref.path).moe is not None
    rounded, share = compare_halves(half, mine, tmp_path, routed, judge)
    # And with the defaults of both.
    usual = await computed_here(half, prompts, FOLLOWING, tmp_path / "usual", CONTEXT, "auto")
    compare_halves(half, usual, tmp_path, routed, judge)
    arch = read_gguf(half).metadata["general.architecture"]
    record_property("llamacpp", f"{name} {arch} {exact:.3g} {rounded.max():.3g} {share:.4f}")


@pytest.mark.timeout(600)
@pytest.mark.long(every=4)
@pytest.mark.parametrize("name", LONG)
async def test_prompts_of_4200_tokens_are_computed_the_same(
    tmp_path: Path, convert: Converter, name: str
) -> None:
    """In eight batches there, in chunks of 128 here; windows are passed two hundred times."""
    ref = checkpoint(tmp_path / "checkpoint", name, row(name).instead | LONG[name])
    file = convert.convert(ref.path, tmp_path / "wide.gguf", "f32")
    prompt = np.random.default_rng(1).integers(0, ref.vocab_size, LONG_PROMPT).tolist()
    await compare_exactly(ref, file, [prompt], 16, name, LONG_CONTEXT)


@pytest.mark.parametrize("name", [name for name in ROWS if row(name).unknown])
def test_what_a_row_calls_unknown_is_refused(tmp_path: Path, convert: Converter, name: str) -> None:
    ref = checkpoint(tmp_path / "checkpoint", name, {})
    with pytest.raises(RuntimeError, match=r"llama\.cpp"):
        file = convert.convert(ref.path, tmp_path / "wide.gguf", "f32")
        compute(file, [[1, 2, 3]], [0], CONTEXT, True, tmp_path)


def test_its_server_answers_as_its_library_does(tmp_path: Path, convert: Converter) -> None:
    name = "qwen3-tied-gqa"
    ref = checkpoint(tmp_path / "checkpoint", name, {})
    file = convert.convert(ref.path, tmp_path / "half.gguf", "f16")
    prompt = np.random.default_rng(5).integers(0, ref.vocab_size, 150).tolist()
    (there,) = compute(file, [prompt], [FOLLOWING], CONTEXT, False, tmp_path)
    request = {
        "prompt": prompt,
        "n_predict": FOLLOWING,
        "temperature": 0,
        "n_probs": LIKELY,
        "ignore_eos": True,
    }
    with serving(llama(), file, tmp_path / "server.log", Room(1, CONTEXT)) as (address, _):
        answer = httpx.post(f"{address}/completion", json=request, timeout=60).raise_for_status().json()
    steps = answer["completion_probabilities"]
    assert [step["id"] for step in steps] == there.greedy
    for step, expected in zip(steps, logprobs(there.steps), strict=True):
        for likely in step["top_logprobs"]:
            assert likely["logprob"] == pytest.approx(expected[likely["id"]], abs=1e-3)
