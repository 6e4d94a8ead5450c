"""The split path: what goes through which forward, and what happens when a part fails. Results are the kit's business."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from executors.contract import (
    DecodeInput,
    ExecutorConfig,
    InvalidInput,
    LogitsMode,
    PrefillInput,
    SamplingParams,
    Skipped,
    StepFailed,
    Unsupported,
)
from executors.contract.sampling_wrapper import SamplingWrapper
from executors.testing.driver import GREEDY, Driver, Feed
from executors.testing.fakes.echo import EchoExecutor
from executors.testing.fakes.oracle import expected_logits, expected_tokens
from executors.testing.fakes.paged import PagedFakeExecutor

CONFIG = ExecutorConfig("fake", max_num_seqs=8, max_model_len=128, options={"native": False})


class Recording(EchoExecutor):
    """Notes each forward as (kind, tokens per item)."""

    def __init__(self) -> None:
        super().__init__(CONFIG)
        self.forwards: list[tuple[str, list[int]]] = []
        self.inputs: list[PrefillInput | DecodeInput] = []

    async def batch_prefill(self, inputs: Sequence[PrefillInput]) -> list:
        self.forwards.append(("prefill", [one.sequence_length() for one in inputs]))
        self.inputs += inputs
        return await super().batch_prefill(inputs)

    async def batch_decode(self, inputs: Sequence[DecodeInput]) -> list:
        self.forwards.append(("decode", [1 for _ in inputs]))
        self.inputs += inputs
        return await super().batch_decode(inputs)

    def taken(self) -> list[tuple[str, list[int]]]:
        forwards, self.forwards = self.forwards, []
        self.inputs = []
        return forwards


async def test_one_prefill_and_one_decode() -> None:
    executor = Recording()
    driver = await Driver.start(executor)
    a, b, c, d = (driver.add([i] * 9) for i in range(4))
    await driver.step(Feed(a), Feed(b, 3))
    assert executor.taken() == [("prefill", [9, 3])]
    await driver.step(Feed(a), Feed(b, 1), Feed(c), Feed(d, 8))
    assert executor.taken() == [("prefill", [1, 9, 8]), ("decode", [1])], "one token of a prompt is a prefill"
    await driver.step(Feed(d), Feed(a))
    assert executor.taken() == [("decode", [1, 1])], "the last token of a prompt is a decode step"
    await driver.step(Feed(driver.add([5])))
    assert executor.taken() == [("prefill", [1])], "a prompt of one token is a prefill"


async def test_drafts_take_a_decode_per_place_while_they_are_right() -> None:
    executor = Recording()
    driver = await Driver.start(executor)
    prompt = [1, 2, 3, 4]
    truth = expected_tokens(prompt, 5)
    right, wrong = driver.add(prompt), driver.add(prompt)
    await driver.prefill(wrong)
    executor.taken()
    await driver.step(Feed(right, drafts=truth[:2]), Feed(wrong, drafts=[truth[1], 0, truth[3]]))
    assert executor.taken() == [("prefill", [3]), ("decode", [1, 1]), ("decode", [1, 1]), ("decode", [1])]
    assert right.output == truth[:3] and wrong.output == truth[:3]
    await driver.decode(1, right, wrong)
    assert right.output == truth[:4] == wrong.output


async def test_logits_are_asked_for_only_where_needed() -> None:
    executor = Recording()
    driver = await Driver.start(executor)
    plain, scored, raw = (
        driver.add([1, 2]),
        driver.add([3, 4, 5], prompt_logprobs=1),
        driver.add([6, 7], None),
    )
    outputs = await driver.step(Feed(plain), Feed(scored), Feed(raw))
    assert [one.logits for one in executor.inputs] == [LogitsMode.NONE, LogitsMode.ALL, LogitsMode.LAST]
    assert outputs[2] is not None and outputs[2].logits is not None and not outputs[2].tokens
    np.testing.assert_array_equal(outputs[2].logits.numpy()[0], expected_logits([6, 7]))
    assert len(scored.prompt_logprobs) == 2


async def test_a_refusal_after_a_part_was_computed_is_a_failed_step() -> None:
    class LateRefusal(EchoExecutor):
        async def batch_decode(self, inputs: Sequence[DecodeInput]) -> list:
            raise InvalidInput("too late")

    driver = await Driver.start(LateRefusal(CONFIG))
    a, b = driver.add([1, 2]), driver.add([3, 4])
    await driver.prefill(a)
    with pytest.raises(InvalidInput, match="too late"):
        await driver.step(Feed(a))
    with pytest.raises(StepFailed, match="after a part of the step was computed: too late"):
        await driver.step(Feed(a), Feed(b))
    with pytest.raises(Skipped):
        await driver.step(Feed(b))


async def test_the_default_unified_decode_skips_after_a_failure_without_the_executors_help() -> None:
    inner = EchoExecutor(CONFIG)
    driver = await Driver.start(SamplingWrapper(inner))
    seq = driver.add([1, 2])
    inner.batch_prefill = lambda inputs: _fail()  # type: ignore[method-assign]
    with pytest.raises(StepFailed):
        await driver.prefill(seq)
    del inner.batch_prefill
    with pytest.raises(Skipped):
        await driver.prefill(seq)
    driver = await Driver.start(driver.executor, epoch=2)
    seq = driver.add([1, 2])
    await driver.prefill(seq)
    assert seq.output == expected_tokens([1, 2], 1)


async def _fail() -> list:
    raise StepFailed("on purpose")


async def test_block_copies_need_a_copier() -> None:
    class Plain(SamplingWrapper):
        copy_blocks = None  # type: ignore[assignment]

    driver = await Driver.start(Plain(PagedFakeExecutor(CONFIG)))
    seq = driver.add([1, 2])
    driver.block_copies = [(0, 5, 6)]
    with pytest.raises(Unsupported, match="copy_blocks"):
        await driver.prefill(seq)


async def test_an_executor_without_a_sampler_is_told_to_take_the_adapter() -> None:
    class LogitsOnly(EchoExecutor):
        def _sampled(self, *_: object) -> None:
            return None

    driver = await Driver.start(LogitsOnly(CONFIG))
    with pytest.raises(Unsupported, match="SamplingWrapper"):
        await driver.prefill(driver.add([1, 2]))
    driver = await Driver.start(SamplingWrapper(LogitsOnly(CONFIG)))
    seq = driver.add([1, 2], SamplingParams(seed=8))
    await driver.prefill(seq)
    await driver.decode(3, seq)
    assert seq.output == expected_tokens([1, 2], 4, SamplingParams(seed=8))


@pytest.mark.parametrize("native", [True, False])
async def test_the_adapter_asks_for_logits_and_returns_tokens_only(native: bool) -> None:
    config = ExecutorConfig("fake", max_num_seqs=8, max_model_len=128, options={"native": native})
    driver = await Driver.start(SamplingWrapper(PagedFakeExecutor(config)))
    seq = driver.add([1, 2, 3], GREEDY)
    outputs = await driver.step(Feed(seq))
    assert outputs[0] is not None and outputs[0].logits is None
    await driver.step(Feed(seq, drafts=[0, 0]))
    await driver.decode(2, seq)
    assert seq.output == expected_tokens([1, 2, 3], 4)
    metrics = driver.executor.metrics()
    assert (metrics.total_steps, metrics.total_sampled_tokens) == (4, 4)
    driver.release(seq)
    assert not driver.executor._sequences and not driver.executor._sampled  # type: ignore[attr-defined]


class Stateless(EchoExecutor):
    """Returns no hidden states, as executors may."""

    async def batch_prefill(self, inputs: Sequence[PrefillInput]) -> list:
        return [replace(one, hidden_states=None) for one in await super().batch_prefill(inputs)]


async def test_without_hidden_states_only_the_embedding_fails() -> None:
    driver = await Driver.start(Stateless(CONFIG))
    text, vector = driver.add([1, 2, 3]), driver.add([4, 5, 6], pooling="mean")
    first, second = await driver.step(Feed(text), Feed(vector, 2))
    assert [token.token_id for token in first.tokens] == expected_tokens([1, 2, 3], 1)
    assert "hidden states" in second.error
