"""The MTP head of a checkpoint: its guesses are those of the published formula, whatever happens between, and change no token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from executors.contract import ExecutorConfig, OptimizationConfig, SamplingParams
from executors.llm.executor import LlmExecutor
from executors.testing.driver import DrivenSequence, Driver, Feed
from tests.executors.llm.models import Reference
from tests.executors.llm.spec.mtp_heads import HeadReference, with_head

GREEDY = SamplingParams(temperature=0.0)
SHAPES = [
    "qwen3.5",
    "qwen3-next",
    "qwen3.5-moe-beside-images",
    "qwen3.5-beside-images",
    "qwen3.5-attention-alone",
]


def config(model: Path, mtp: bool = True, **changes: object) -> ExecutorConfig:
    optimization = OptimizationConfig(deterministic=True, mtp=mtp, num_threads=1)
    return replace(
        ExecutorConfig(
            "llm", str(model), dtype="float32", max_num_seqs=8, max_num_batched_tokens=256, max_model_len=256
        ),
        optimization=optimization,
        **changes,  # type: ignore[arg-type]
    )


async def driver_of(model: Path, mtp: bool = True) -> Driver:
    return await Driver.start(LlmExecutor.from_config(config(model, mtp)))


def prompt_of(length: int, seed: int) -> list[int]:
    return [int(one) for one in np.random.default_rng(seed).integers(3, 90, length)]


def drafts_of(seq: DrivenSequence) -> list[int]:
    last = seq.outputs[-1]
    return [] if last is None else list(last.drafts)


@pytest.fixture(scope="module")
def head(
    reference: Callable[[str], Reference], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, float | None], HeadReference]:
    """The checkpoint of a shape with a head, see `with_head`."""
    made: dict[tuple[str, float | None], HeadReference] = {}

    def get(name: str, right: float | None = None) -> HeadReference:
        if (name, right) not in made:
            folder = tmp_path_factory.mktemp("heads") / f"{name}-{right}"
            made[name, right] = with_head(reference(name), folder, right=right, apart=name == "qwen3-next")
        return made[name, right]

    return get


@pytest.mark.parametrize("name", SHAPES)
async def test_drafts_are_those_of_the_published_formula(
    name: str, head: Callable[[str, float | None], HeadReference]
) -> None:
    """After a prompt in chunks, with drafts that are wrong and hence states that are fed again, beside another sequence."""
    one = head(name, None)
    driver = await driver_of(one.path)
    assert driver.executor.capabilities().drafts
    seqs = [driver.add(prompt_of(37, 1)), driver.add(prompt_of(11, 2))]
    truths = [one.ref.greedy(seq.prompt, 16) for seq in seqs]
    await driver.step(Feed(seqs[0], 20, num_drafts=1), Feed(seqs[1], num_drafts=3))
    await driver.step(Feed(seqs[0], num_drafts=3), Feed(seqs[1], num_drafts=3))
    while min(len(seq.output) for seq in seqs) < 12:
        for seq in seqs:
            assert drafts_of(seq) == one.drafts(seq.tokens, 3)
        await driver.step(*(Feed(seq, drafts=drafts_of(seq), num_drafts=3) for seq in seqs))
    for seq, truth in zip(seqs, truths, strict=True):
        assert seq.output[:12] == truth[:12]
