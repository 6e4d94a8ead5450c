"""Sequences under a grammar through LlmExecutor: every position, every neighbour, drafts, restarts, preemption."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from tokenizers import Tokenizer

from executors.contract import InvalidInput, SamplingParams, Unsupported
from executors.contract.errors import ItemFault
from executors.llm.executor import LlmExecutor
from executors.testing.driver import DrivenSequence, Driver, Feed
from tests.executors.checkpoints import QWEN3, write_checkpoint
from tests.executors.llm.driver import config

TINY = Path(__file__).parents[4] / "executors" / "tiny" / "weights"
TOKENIZER = Tokenizer.from_file(str(TINY / "tokenizer.json"))
ENDS = tuple(TOKENIZER.token_to_id(text) for text in ("<|endoftext|>", "<|im_end|>"))
PROMPT = TOKENIZER.encode("<|im_start|>user\nAda is 36 years old.<|im_end|>\n<|im_start|>assistant\n").ids
PERSON = {
    "type": "object", "additionalProperties": False, "required": ["name", "age", "tags"],
    "properties": {
        "name": {"type": "string", "maxLength": 6}, "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "é\n", "<|im_end|>"]}, "maxItems": 2},
    },
}  # fmt: skip
SCHEMAS: list[dict[str, Any]] = [
    PERSON, {"type": "number"}, {"type": ["boolean", "null"]}, {"const": {"a": [1, "<|im_start|>"]}},
    {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{1,3}$"}, {"anyOf": [{"type": "integer"}, {"enum": ["x y"]}]},
    {"type": "array", "items": {"type": "string", "format": "date"}, "minItems": 1, "maxItems": 2},
]  # fmt: skip


def of_json(schema: dict[str, Any]) -> str:
    """Without white space, of which a small model does not tire."""
    return json.dumps(
        {"grammars": [{"json_schema": {**schema, "x-guidance": {"whitespace_flexible": False}}}]}
    )


def drawn(seed: int = 0, **changes: Any) -> SamplingParams:
    return SamplingParams(**{"temperature": 1.0, "seed": seed, "stop_token_ids": ENDS, **changes})


@pytest.fixture
async def executor() -> AsyncIterator[LlmExecutor]:
    made = LlmExecutor.from_config(config(TINY, block_size=16))
    await made.warmup()
    yield made
    await made.shutdown()


class Epochs:
    """Drivers of one executor, each in an epoch of its own."""

    def __init__(self, executor: LlmExecutor) -> None:
        self.executor, self._last = executor, 0

    async def next(self) -> Driver:
        self._last += 1
        return await Driver.start(self.executor, self._last)


@pytest.fixture
def epochs(executor: LlmExecutor) -> Epochs:
    return Epochs(executor)


def ended(seq: DrivenSequence, most: int) -> bool:
    return len(seq.output) >= most or (bool(seq.output) and seq.output[-1] in ENDS)


async def finish(driver: Driver, *seqs: DrivenSequence, most: int = 90) -> None:
    """Until each has ended, all that still run in one batch."""
    while live := [seq for seq in seqs if not ended(seq, most)]:
        await driver.step(*(Feed(seq) for seq in live))


async def alone(driver: Driver, grammar: str | None, params: SamplingParams, most: int = 90) -> list[int]:
    seq = driver.add(PROMPT, params, grammar=grammar)
    await finish(driver, seq, most=most)
    driver.release(seq)
    return seq.output


def text_of(output: list[int]) -> str:
    """Without the end token, special tokens shown."""
    ids = output[:-1] if output[-1] in ENDS else output
    text: str = TOKENIZER.decode(ids, skip_special_tokens=False)
    return text


async def test_what_ends_is_valid_and_the_seed_decides(epochs: Epochs) -> None:
    distinct, num_ended = set(), 0
    for schema in SCHEMAS:
        asked = [drawn(seed, temperature=[0.0, 0.7, 3.0][seed % 3]) for seed in range(6)]
        driver = await epochs.next()
        seqs = [driver.add(PROMPT, params, grammar=of_json(schema)) for params in asked]
        await finish(driver, *seqs, most=60)
        assert seqs[1].output == await alone(driver, of_json(schema), asked[1], most=60)
        for output in (seq.output for seq in seqs):
            assert max(output[:-1], default=0) < min(ENDS), "no special token inside JSON"
            if output[-1] in ENDS:
                jsonschema.validate(json.loads(text_of(output)), schema)
                num_ended += 1
                distinct.add(text_of(output))
    assert num_ended >= 30 and len(distinct) >= 15


async def test_a_batch_changes_nothing_for_anybody(epochs: Epochs) -> None:
    asked = [(of_json(schema), drawn(seed)) for seed, schema in enumerate(SCHEMAS)]
    asked[2:2] = [(None, drawn(3)), (None, drawn(4, temperature=0.0, repetition_penalty=1.2))]
    driver = await epochs.next()
    expected = [await alone(driver, grammar, params) for grammar, params in asked]
    driver = await epochs.next()
    seqs = [driver.add(PROMPT, params, grammar=grammar) for grammar, params in asked]
    await finish(driver, *seqs[:5])
    await finish(driver, *seqs[::-1])
    assert [seq.output for seq in seqs] == expected


async def test_choices_of_one_prompt_go_their_own_ways(epochs: Epochs) -> None:
    grammar = of_json(PERSON)
    driver = await epochs.next()
    expected = [await alone(driver, grammar, drawn(8, choice=choice)) for choice in range(3)]
    driver = await epochs.next()
    first = driver.add(PROMPT, drawn(8), grammar=grammar)
    await driver.step(Feed(first, 16))
    shared = [group[:1] for group in first.blocks]
    others = [
        driver.add(PROMPT, drawn(8, choice=choice), grammar=grammar, shared_blocks=shared, num_computed=16)
        for choice in (1, 2)
    ]
    await finish(driver, first, *others)
    assert [seq.output for seq in (first, *others)] == expected
    assert len({tuple(output) for output in expected}) > 1


async def test_a_restart_at_every_position_changes_no_token(epochs: Epochs) -> None:
    for params in (drawn(5), drawn(6, temperature=0.0)):
        driver = await epochs.next()
        whole = await alone(driver, of_json(PERSON), params)
        assert whole[-1] in ENDS
        for begin in range(0, len(whole), 12):
            driver = await epochs.next()
            seqs = [
                driver.add(PROMPT, params, output=whole[:known], grammar=of_json(PERSON))
                for known in range(begin, min(begin + 12, len(whole)))
            ]
            await finish(driver, *seqs)
            assert [seq.output for seq in seqs] == [whole] * len(seqs), begin


async def test_preemption_at_every_position_changes_no_token(epochs: Epochs) -> None:
    driver = await epochs.next()
    whole = await alone(driver, of_json(PERSON), drawn(5))
    seq = driver.add(PROMPT, drawn(5), grammar=of_json(PERSON))
    while not ended(seq, 90):
        await driver.step(Feed(seq))
        driver.truncate(seq, 0)
        await driver.step(Feed(seq, 7))
    assert seq.output == whole


async def test_drafts_change_no_token(epochs: Epochs) -> None:
    """Right, wrong, forbidden by the grammar, and past the end."""
    rng = random.Random(1)
    for params in (drawn(5), drawn(7, temperature=0.0), drawn(9, temperature=2.0)):
        driver = await epochs.next()
        whole = await alone(driver, of_json(PERSON), params)
        accepted = 0
        for _ in range(12):
            seq = driver.add(PROMPT, params, grammar=of_json(PERSON))
            while not ended(seq, 90):
                drafts = [*whole[len(seq.output) :], *ENDS, 5][: rng.randrange(5)]
                for i in range(len(drafts)):
                    if rng.random() < 0.3:
                        drafts[i] = rng.randrange(896)
                before = len(seq.output)
                await driver.step(Feed(seq, drafts=drafts))
                accepted += len(seq.output) - before - 1
                if any(token in ENDS for token in seq.output[before:-1]):
                    break  # the engine cuts what comes after the end
            assert seq.output[: len(whole)] == whole
            driver.release(seq)
        assert accepted > 20


async def test_pending_inputs_are_followed(epochs: Epochs) -> None:
    """As with steps in flight: the host does not know the last token yet; some results are thrown away at the end."""
    driver = await epochs.next()
    whole = await alone(driver, of_json(PERSON), drawn(5))
    seq, other = (driver.add(PROMPT, drawn(seed), grammar=of_json(PERSON)) for seed in (5, 6))
    await driver.step(Feed(seq), Feed(other))
    for _ in range(len(whole) + 3):
        await driver.step(Feed(other, pending=True), Feed(seq, pending=True))
    assert seq.output[: len(whole)] == whole
    assert set(seq.output[len(whole) :]) <= set(ENDS)


async def test_other_settings_act_within_the_grammar(epochs: Epochs) -> None:
    driver = await epochs.next()
    letters = "start: /[a-z]+/"
    ids = [TOKENIZER.token_to_id(letter) for letter in "abc"]
    # So hot that it does not matter what the model would rather say.
    settings = {"allowed_token_ids": (*ids, *ENDS), "temperature": 100.0}
    few = [id_ for seed in range(8) for id_ in await alone(driver, letters, drawn(seed, **settings), most=30)]
    assert {*ids} <= set(few) <= {*ids, *ENDS}
    late = await alone(
        driver, letters, drawn(3, min_tokens=20, logit_bias=tuple((end, 50.0) for end in ENDS))
    )
    assert len(late) == 21 and late[-1] in ENDS
    banned = await alone(
        driver, 'start: "ab" | "ac"', drawn(1, bad_words=((ids[0], ids[1]),), logit_bias=((ids[1], 90.0),))
    )
    assert text_of(banned) == "ac"
    penalized = await alone(
        driver, 'start: ("a" | "b") ("a" | "b")', drawn(temperature=0.0, frequency_penalty=99.0), 9
    )
    assert sorted(text_of(penalized)) == ["a", "b"]


async def test_a_setting_that_leaves_nothing_is_blamed_on_the_settings(epochs: Epochs) -> None:
    driver = await epochs.next()
    seq = driver.add(PROMPT, drawn(min_tokens=9), grammar='start: "a"')
    neighbour = driver.add(PROMPT, drawn(2))
    expected = await alone(await epochs.next(), None, drawn(2), most=3)
    driver = await epochs.next()
    seq = driver.add(PROMPT, drawn(min_tokens=9), grammar='start: "a"')
    neighbour = driver.add(PROMPT, drawn(2))
    await driver.step(Feed(seq), Feed(neighbour))
    outputs = await driver.step(Feed(seq), Feed(neighbour))
    assert outputs[0] is not None and outputs[0].fault is ItemFault.NOTHING_LEFT
    await driver.step(Feed(neighbour))
    assert neighbour.output == expected


async def test_logprobs_under_a_grammar_are_the_models_own(epochs: Epochs) -> None:
    driver = await epochs.next()
    held = driver.add(PROMPT, drawn(logprobs=2), grammar='start: "zz"')
    free = driver.add(PROMPT, drawn(logprobs=2, temperature=0.0))
    await driver.step(Feed(held), Feed(free))
    assert held.samples[0].top_logprobs == free.samples[0].top_logprobs
    assert held.samples[0].token_id not in [token for token, _ in held.samples[0].top_logprobs]
    assert held.samples[0].logprob is not None and held.samples[0].logprob < -2


async def test_two_executors_in_one_process(executor: LlmExecutor) -> None:
    other = LlmExecutor.from_config(config(TINY, block_size=32))
    drivers = [await Driver.start(one) for one in (executor, other)]
    expected = await alone(drivers[0], of_json(PERSON), drawn(5))
    seqs = [driver.add(PROMPT, drawn(5), grammar=of_json(PERSON)) for driver in drivers]
    while not all(ended(seq, 90) for seq in seqs):
        await asyncio.gather(*(driver.step(Feed(seq)) for driver, seq in zip(drivers, seqs, strict=True)))
    assert [seq.output for seq in seqs] == [expected] * 2
    await other.shutdown()


# -- compiling -------------------------------------------------------------------------------------------------------------


async def test_a_prepared_grammar_is_not_compiled_again(
    epochs: Epochs, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert epochs.executor.capabilities().grammars
    driver = await epochs.next()
    await epochs.executor.prepare_grammar(of_json(PERSON))
    monkeypatch.setattr(
        "executors.llm.sampling.grammar._compile", lambda *_: pytest.fail("compiled in a step")
    )
    assert (await alone(driver, of_json(PERSON), drawn(5)))[-1] in ENDS


async def test_steps_go_on_while_a_grammar_is_compiled(
    epochs: Epochs, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, compiling, go = await epochs.next(), threading.Event(), threading.Event()
    await epochs.executor.prepare_grammar('start: "a"')
    from executors.llm.sampling import grammar as module

    real = module._compile

    def slowly(tokenizer: Any, grammar: str) -> Any:
        compiling.set()
        assert go.wait(30)
        return real(tokenizer, grammar)

    monkeypatch.setattr(module, "_compile", slowly)
    prepared = asyncio.ensure_future(epochs.executor.prepare_grammar(of_json(PERSON)))
    await asyncio.to_thread(compiling.wait, 30)
    assert text_of(await alone(driver, 'start: "a"', drawn())) == "a"
    assert not prepared.done()
    go.set()
    await prepared
    assert (await alone(driver, of_json(PERSON), drawn(5)))[-1] in ENDS


async def test_without_a_tokenizer_there_are_no_grammars(tmp_path: Path) -> None:
    executor = LlmExecutor.from_config(config(write_checkpoint(tmp_path, QWEN3)))
    driver = await Driver.start(executor)
    assert not executor.capabilities().grammars
    assert any(note.startswith("grammars need a tokenizer.json") for note in executor.status().notes)
    with pytest.raises(Unsupported, match=r"tokenizer\.json"):
        await executor.prepare_grammar('start: "a"')
    with pytest.raises(InvalidInput, match=r"does not support grammars: .*tokenizer\.json"):
        await driver.step(Feed(driver.add([1, 2], drawn(stop_token_ids=(3,)), grammar='start: "a"')))
    await executor.shutdown()


async def test_a_tokenizer_that_cannot_be_read_fails_who_needs_it(tmp_path: Path) -> None:
    (write_checkpoint(tmp_path, QWEN3) / "tokenizer.json").write_text('{"model": 5}')
    executor = LlmExecutor.from_config(config(tmp_path))
    driver = await Driver.start(executor)
    with pytest.raises(Unsupported, match=r"tokenizer\.json: error loading"):
        await executor.prepare_grammar('start: "a"')
    for _ in range(2):
        held = driver.add([1, 2], drawn(stop_token_ids=(3,)), grammar='start: "a"')
        free = driver.add([1, 2], drawn(stop_token_ids=(3,)))
        outputs = await driver.step(Feed(held), Feed(free))
        assert outputs[0] is not None and "error loading" in str(outputs[0].error)
        assert len(free.output) == 1
    await executor.shutdown()


async def test_the_tokenizer_may_lie_elsewhere(tmp_path: Path) -> None:
    """Ids of 896 tokens, logits of 211: what cannot be sampled is not."""
    executor = LlmExecutor.from_config(config(write_checkpoint(tmp_path, QWEN3), tokenizer=str(TINY)))
    driver = await Driver.start(executor)
    assert executor.capabilities().grammars
    seq = driver.add([1, 2], drawn(stop_token_ids=(3,)), grammar='start: "a" /[0-9]{3}/')
    await driver.prefill(seq)
    await driver.decode(4, seq)
    assert text_of(seq.output[:4])[0] == "a" and text_of(seq.output[:4])[1:].isdigit()
    assert seq.output[4] == 3
    await executor.shutdown()


async def test_shutdown_ends_the_thread(epochs: Epochs) -> None:
    def running() -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread.name.startswith("grammar masks")]

    before = len(running())
    await alone(await epochs.next(), None, drawn(), most=2)
    assert len(running()) == before, "nobody needs it yet"
    await alone(await epochs.next(), 'start: "a"', drawn())
    assert len(running()) == before + 1
    await epochs.executor.shutdown()
    assert len(running()) == before
