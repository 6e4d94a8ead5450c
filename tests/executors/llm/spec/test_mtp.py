"""The MTP head of a checkpoint: its guesses are those of the published formula, whatever happens between, and change no token."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from executors.contract import (
    ConfigError,
    ExecutorConfig,
    ExecutorMemoryConfig,
    OptimizationConfig,
    ParallelConfig,
    SamplingParams,
)
from executors.llm.checkpoint.draft import load_mtp
from executors.llm.checkpoint.loader import load_model
from executors.llm.executor import LlmExecutor
from executors.llm.factory import LlmFactory
from executors.llm.model.decoder import Decoder
from executors.llm.model.fp8 import E4M3
from executors.llm.spec.mtp import MtpCompanion
from executors.llm.tools.describe import describe
from executors.testing.conformance import run_case
from executors.testing.driver import DrivenSequence, Driver, Feed
from tests.executors.llm.checkpoint.test_fp8_weights import write_fp8
from tests.executors.llm.models import Reference
from tests.executors.llm.spec.mtp_heads import HeadReference, Heads
from tests.tiers import sweep

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


@sweep(every=1)
@pytest.mark.parametrize("name", SHAPES)
async def test_drafts_are_those_of_the_published_formula(name: str, head: Heads) -> None:
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


SETTINGS = [
    GREEDY,
    SamplingParams(temperature=1.0, seed=5),
    SamplingParams(temperature=0.8, seed=9, top_k=20, top_p=0.9),
]


@pytest.mark.parametrize("sampling", SETTINGS)
async def test_drafts_are_chosen_as_the_tokens_that_come(sampling: SamplingParams, head: Heads) -> None:
    """Where the model's layers add nothing, every guess is right."""
    path, prompt = head("qwen3.5", 0.0).path, prompt_of(30, 3)
    alone = await driver_of(path, mtp=False)
    assert not alone.executor.capabilities().drafts
    truth = alone.add(prompt, sampling)
    await alone.decode(32, truth)
    driver = await driver_of(path)
    seq = driver.add(prompt, sampling)
    await driver.step(Feed(seq, num_drafts=3))
    while len(seq.output) < 28:
        drafts = drafts_of(seq)
        assert drafts == truth.output[len(seq.output) : len(seq.output) + 3]
        await driver.step(Feed(seq, drafts=drafts, num_drafts=3))
        assert len(seq.outputs[-1].tokens) == 4  # type: ignore[union-attr]
    assert seq.output == truth.output[: len(seq.output)]


async def share(one: HeadReference) -> None:
    """A sequence goes on in blocks of another one, the last of them copied, after steps that asked for no drafts; and one begins
    in blocks that a third left."""
    driver = await driver_of(one.path)
    size = driver.block_size
    prompt = prompt_of(5 * size + 7, 4)
    gone = driver.add(prompt_of(6 * size, 5))
    await driver.prefill(gone)
    driver.release(gone)
    first = driver.add(prompt)
    await driver.step(Feed(first, 2 * size + 3))
    await driver.step(Feed(first))
    await driver.decode(2, first)
    whole = 5
    copy = driver.free_blocks[0].pop(0)
    driver.block_copies.append((0, first.blocks[0][whole], copy))
    shared = [*first.blocks[0][:whole], copy]
    second = driver.add([*prompt, 9, 8, 7], shared_blocks=[shared], num_computed=len(prompt) - 1)
    for _ in range(4):
        await driver.step(Feed(first, num_drafts=3), Feed(second, num_drafts=2))
        assert drafts_of(first) == one.drafts(first.tokens, 3)
        assert drafts_of(second) == one.drafts(second.tokens, 2)
    driver.truncate(first, 0)  # preempted
    await driver.step(Feed(first, 3 * size), Feed(second, num_drafts=2))
    await driver.step(Feed(first, num_drafts=1), Feed(second))
    assert drafts_of(first) == one.drafts(first.tokens, 1)


async def test_shared_and_copied_blocks(head: Heads) -> None:
    await share(head("qwen3.5-attention-alone", None))


def _copies_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MtpCompanion, "note", lambda self, batch: None)


def _reads_the_token_itself(patch: pytest.MonkeyPatch) -> None:
    """The token at the position of the hidden state, not the one behind it."""
    forward = MtpCompanion._forward

    def early(self, tokens, lens, offsets, slots, hidden):  # type: ignore[no-untyped-def]
        return forward(self, np.concatenate((tokens[:1], tokens[:-1])), lens, offsets, slots, hidden)

    patch.setattr(MtpCompanion, "_forward", early)


def _computes_final_chunks_alone(patch: pytest.MonkeyPatch) -> None:
    counts = MtpCompanion._counts
    patch.setattr(
        MtpCompanion,
        "_counts",
        lambda self, batch, output: counts(self, batch, output) * batch.is_final_chunk,
    )


def _gives_the_second_round_nothing(patch: pytest.MonkeyPatch) -> None:
    forward = MtpCompanion._forward

    def without(self, tokens, lens, offsets, slots, hidden):  # type: ignore[no-untyped-def]
        return forward(self, tokens, lens, offsets, slots, hidden * 0 if lens.max() == 1 else hidden)

    patch.setattr(MtpCompanion, "_forward", without)


def _skips_unused_rows(patch: pytest.MonkeyPatch) -> None:
    """Hidden states of rows that are not sampled may be anything then."""
    finished = Decoder.unified_forward

    def spoiled(self, inputs):  # type: ignore[no-untyped-def]
        hidden = finished(self, inputs)
        if inputs.used_rows is not None:
            others = torch.ones(len(hidden), dtype=torch.bool)
            others[inputs.used_rows] = False
            hidden[others] = torch.nan
        return hidden

    patch.setattr(Decoder, "unified_forward", spoiled)
    patch.setattr(MtpCompanion, "reads_hidden", False)


@pytest.mark.parametrize(
    "mutate",
    [
        _copies_nothing, _reads_the_token_itself, _computes_final_chunks_alone, _gives_the_second_round_nothing,
        _skips_unused_rows,
    ],
)  # fmt: skip
async def test_mistakes_show(
    mutate: Callable[[pytest.MonkeyPatch], None], head: Heads,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    one = head("qwen3.5-attention-alone", None)
    mutate(monkeypatch)
    with pytest.raises(AssertionError):
        await share(one)


async def test_blocks_are_cleared_for_new_owners(head: Heads) -> None:
    """A prompt that is pooled makes no KV of the head; what another sequence had in its blocks is gone."""
    driver = await driver_of(head("qwen3.5", None).path)
    first = driver.add(prompt_of(40, 6))
    await driver.prefill(first)
    blocks = list(first.blocks[0])
    companion = driver.executor._runtime.companion  # type: ignore[attr-defined]
    cells = companion.runner.cache.layers[0]
    assert all(bool(cells[:, block].any()) for block in blocks)
    driver.release(first)
    pooled = driver.add(prompt_of(40, 7), None, pooling="mean")
    await driver.prefill(pooled)
    assert sorted(pooled.blocks[0]) == sorted(blocks) and not bool(cells[:, blocks].any())


@pytest.mark.parametrize(
    "case", ["drafts_come_as_asked", "own_drafts_change_no_token", "verify_in_a_mixed_batch"]
)
async def test_conformance(case: str, head: Heads) -> None:
    path = head("qwen3.5", 0.02).path
    assert await run_case(case, lambda: LlmExecutor.from_config(config(path))) is None


@pytest.mark.parametrize(
    ("form", "kv"), [(None, "auto"), ("int8", "auto"), ("int4", "auto"), (None, "int8"), (None, "fp8")]
)
async def test_a_head_in_few_bits_is_right_as_often(form: str | None, kv: str, head: Heads) -> None:
    """In bfloat16, and as `--quantization` says; beside KV in 8 bits the head's is, too."""
    path = head("qwen3.5-wide", 0.0).path
    settings = config(path, dtype="bfloat16", memory=ExecutorMemoryConfig(1 << 24, kv))
    settings = replace(settings, optimization=OptimizationConfig(mtp=True, num_threads=1, quantization=form))
    driver = await Driver.start(LlmExecutor.from_config(settings))
    companion = driver.executor._runtime.companion  # type: ignore[attr-defined]
    assert companion.runner.cache.spec.kv_dtype == {"auto": None, "int8": torch.int8, "fp8": E4M3}[kv]
    seq = driver.add(prompt_of(30, 3))
    await driver.step(Feed(seq, num_drafts=2))
    steps = 0
    while len(seq.output) < 60:
        await driver.step(Feed(seq, drafts=drafts_of(seq), num_drafts=2))
        steps += 1
    assert steps <= 30, "at least every second token is a guess that was right"


async def test_memory_of_the_head_counts(head: Heads) -> None:
    """A layer of KV beside two layers with attention, in the same blocks; and the head's weights."""
    path = head("qwen3.5-attention-alone", None).path
    sized = {"memory": ExecutorMemoryConfig(kv_cache_memory_bytes=8 << 20)}
    alone, both = (LlmExecutor.from_config(config(path, mtp, **sized)) for mtp in (False, True))
    await alone.warmup()
    await both.warmup()
    layers = [one.kv_layout().groups[0].bytes_per_block for one in (alone, both)]
    assert layers[0] < layers[1] <= layers[0] * 5 / 4 + 4096
    weights = [one.capabilities().memory.parameter_memory for one in (alone, both)]
    hidden = 48
    assert weights[1] - weights[0] > 4 * 2 * hidden * hidden
    pace = both.pace()
    assert pace is not None and [count for count, _ in pace.draft_steps] == [1, 8]
    assert any("is not used" in note and "mtp" in note for note in alone.status().notes)
    assert not any("mtp" in note for note in both.status().notes)


def changed(one: HeadReference, folder: Path, **tensors: torch.Tensor | None) -> Path:
    """The checkpoint with other tensors of the head; None takes one out."""
    shutil.copytree(one.path, folder)
    whole: dict[str, torch.Tensor | None] = {**load_file(folder / "model.safetensors"), **tensors}
    save_file({name: one for name, one in whole.items() if one is not None}, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize(
    ("tensors", "why"),
    [
        ({"mtp.fc.weight": None}, r"tensor mtp\.fc\.weight is missing"),
        ({"mtp.fc.weight": torch.ones(48, 48)}, r"mtp\.fc\.weight has shape \[48, 48\]"),
        ({"mtp.layers.1.input_layernorm.weight": torch.ones(48)}, "has 2 layers; heads of one layer"),
        ({"mtp.embed_tokens.weight": torch.ones(8, 48)}, "an embedding of its own is not supported"),
        ({"mtp.other.weight": torch.ones(8)}, r"tensor mtp\.other\.weight is not used"),
    ],
)
async def test_heads_of_another_form_are_refused(
    tensors: dict[str, torch.Tensor | None], why: str, tmp_path: Path,
    head: Heads,
) -> None:  # fmt: skip
    path = changed(head("qwen3.5", None), tmp_path / "changed", **tensors)
    with pytest.raises(ConfigError, match=why):
        await LlmExecutor.from_config(config(path)).warmup()


def if_usable(path: Path, **changes: object) -> ExecutorConfig:
    settings = config(path, mtp=False, **changes)
    return replace(settings, optimization=replace(settings.optimization, mtp_if_usable=True))


async def test_a_head_is_used_where_it_can_be(head: Heads) -> None:
    """Without being asked for: as the one that is."""
    path = head("qwen3.5", None).path
    asked, unasked = await driver_of(path), await Driver.start(LlmExecutor.from_config(if_usable(path)))
    said = []
    for driver in (asked, unasked):
        assert driver.executor.capabilities().drafts
        assert not any("mtp" in note for note in driver.executor.status().notes)
        seq = driver.add(prompt_of(20, 1))
        await driver.step(Feed(seq, num_drafts=2))
        said.append((seq.output, drafts_of(seq)))
    assert said[0] == said[1] and len(said[0][1]) == 2


def test_facts_of_a_model_say_whether_its_head_is_used(
    head: Heads, reference: Callable[[str], Reference]
) -> None:
    """`cohort info` says what a start says, and refuses what it refuses."""
    path = head("qwen3.5", None).path
    for settings, unused in (
        (config(path, mtp=False), True),
        (config(path), False),
        (if_usable(path), False),
    ):
        assert any("the MTP head" in one for one in describe(settings)["warnings"]) == unused
    with pytest.raises(ConfigError, match="the checkpoint was saved without its MTP head"):
        describe(config(reference("qwen3.5").path))
    assert describe(if_usable(reference("qwen3.5").path))["warnings"] == []


@pytest.mark.parametrize(
    "tensors",
    [
        {"mtp.fc.weight": torch.ones(48, 48)},
        {"mtp.layers.1.input_layernorm.weight": torch.ones(48)},
        {"mtp.embed_tokens.weight": torch.ones(8, 48)},
    ],
)
async def test_models_with_a_head_that_cannot_be_used_are_served(
    tensors: dict[str, torch.Tensor | None],
    tmp_path: Path,
    head: Heads,
) -> None:
    path = changed(head("qwen3.5", None), tmp_path / "changed", **tensors)
    driver = await Driver.start(LlmExecutor.from_config(if_usable(path)))
    assert not driver.executor.capabilities().drafts
    seq = driver.add(prompt_of(20, 1))
    await driver.prefill(seq)
    assert len(seq.output) == 1


async def test_models_without_a_head_are_served_where_none_is_needed(
    reference: Callable[[str], Reference], qwen3: Path, head: Heads
) -> None:
    whole = head("qwen3.5", None).path
    for path, changes in (
        (reference("qwen3.5").path, {}),
        (qwen3, {}),
        (whole, {"load_format": "dummy"}),
    ):
        driver = await Driver.start(LlmExecutor.from_config(if_usable(path, **changes)))
        assert not driver.executor.capabilities().drafts
    settings = if_usable(whole)
    loaded = load_model(settings, lambda *report: None)
    for name, value in (("device", "cuda:0"), ("generates", False)):
        other = replace(loaded, info=replace(loaded.info, **{name: value}))
        assert load_mtp(settings, other, lambda *report: None) is None
    assert load_mtp(settings, loaded, lambda *report: None) is not None


async def test_models_without_a_head_are_refused(
    reference: Callable[[str], Reference], qwen3: Path, head: Heads
) -> None:
    for path, why in (
        (
            reference("qwen3.5").path,
            r"there are no tensors mtp\.\*: the checkpoint was saved without its MTP head",
        ),
        (qwen3, "no MTP head is known of qwen3 models; supported: qwen3_next, qwen3_5"),
    ):
        with pytest.raises(ConfigError, match=why):
            await LlmExecutor.from_config(config(path)).warmup()
    settings = config(head("qwen3.5", None).path)
    loaded = load_model(settings, lambda *report: None)
    elsewhere = replace(loaded, info=replace(loaded.info, device="cuda:0"))
    with pytest.raises(
        ConfigError, match="mtp: MTP heads are computed on a CPU only, and this model is on cuda:0"
    ):
        load_mtp(settings, elsewhere, lambda *report: None)
    mute = replace(loaded, info=replace(loaded.info, generates=False))
    with pytest.raises(ConfigError, match="mtp: the model generates nothing"):
        load_mtp(settings, mute, lambda *report: None)


def test_settings_that_exclude_each_other_are_refused(qwen3: Path) -> None:
    settings = config(qwen3)
    both = replace(settings, optimization=replace(settings.optimization, draft_model=str(qwen3)))
    with pytest.raises(ConfigError, match="mtp, draft_model: one of them drafts"):
        LlmFactory().validate_config(both)
    for parallel in (ParallelConfig(tensor_parallel_size=2), ParallelConfig(pipeline_parallel_size=2)):
        ranks = replace(
            settings, parallel=parallel, executor_type=parallel.executor_type,
            optimization=replace(settings.optimization, deterministic=False),
        )  # fmt: skip
        with pytest.raises(ConfigError, match="not with mtp"):
            LlmFactory().validate_config(ranks)


async def test_dummy_weights_have_a_head(head: Heads) -> None:
    driver = await Driver.start(
        LlmExecutor.from_config(config(head("qwen3.5-moe-beside-images", None).path, load_format="dummy"))
    )
    seq = driver.add(prompt_of(9, 1))
    await driver.step(Feed(seq, num_drafts=3))
    assert len(drafts_of(seq)) == 3


@pytest.mark.parametrize("form", ["blocks", "rows"])
async def test_a_head_in_fp8_is_widened(form: str, tmp_path: Path, head: Heads) -> None:
    """Its drafts are those of the same numbers in float32."""
    found = []
    for path in write_fp8(head("qwen3.5", None).path, tmp_path, form):
        driver = await driver_of(path)
        seq = driver.add(prompt_of(30, 3))
        await driver.step(Feed(seq, num_drafts=3))
        drafts = []
        for _ in range(8):
            drafts.append(drafts_of(seq))
            await driver.step(Feed(seq, drafts=drafts[-1], num_drafts=3))
        found.append((seq.output, drafts))
    assert found[0] == found[1]
