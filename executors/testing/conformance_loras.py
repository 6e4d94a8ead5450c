"""Conformance cases on LoRA adapters, for executors that load them. Standard library and NumPy only.

The adapters are the caller's: an executor reads files of its own kind. Each must change what the model says.
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from executors.contract import LoraExecutor
from executors.testing.conformance_kit import (
    GREEDY,
    DrivenSequence,
    Driver,
    Feed,
    Kit,
    LoraSource,
    NotApplicable,
    case,
    refused,
    require,
)

_NUM = 5  # tokens that each comparison samples
NO_ADAPTERS = "the executor loads no adapters, or none were given"


def _executor(kit: Kit) -> LoraExecutor:
    return cast(LoraExecutor, kit.executor)


async def loaded(kit: Kit, num: int = 2) -> list[LoraSource]:
    """The first `num` adapters of the caller, loaded. Raises NotApplicable."""
    executor = kit.executor
    loads = getattr(executor, "supports_adapters", isinstance(executor, LoraExecutor))
    if not loads or len(kit.adapters) < num:
        raise NotApplicable(NO_ADAPTERS)
    for one in kit.adapters[:num]:
        await _executor(kit).load_adapter(*one)
    return list(kit.adapters[:num])


async def _alone(
    kit: Kit, prompt: list[int], num: int, adapter: LoraSource | None, seed: int
) -> DrivenSequence:
    return await kit.alone(prompt, num, kit.drawn(seed), adapter=adapter and adapter.name)


@case
async def adapters_share_a_batch(kit: Kit) -> None:
    """Sequences of two adapters and of the model alone, mixed in every step, give what each gives alone."""
    kit.need_slots(4)
    a, b = await loaded(kit)
    prompt = kit.long(200)
    adapters = [a, None, b, a]
    alone = [await _alone(kit, prompt, _NUM + 2, one, i) for i, one in enumerate(adapters)]
    # Greedy, because two draws may fall alike by chance.
    greedy = [
        (await kit.alone(prompt, 2 * _NUM, kit.greedy, adapter=one and one.name)).output
        for one in (a, b, None)
    ]
    require(greedy[0] != greedy[2] != greedy[1], "an adapter does not change what the model says")
    driver = await kit.driver()
    seqs = [driver.add(prompt, kit.drawn(i), adapter=one and one.name) for i, one in enumerate(adapters)]
    await driver.step(Feed(seqs[0], 2), Feed(seqs[2]), Feed(seqs[1], kit.block_size))
    await driver.step(Feed(seqs[3]), Feed(seqs[2]), Feed(seqs[1]), Feed(seqs[0]))
    await driver.decode(_NUM, *reversed(seqs))
    for i, (want, actual) in enumerate(zip(alone, seqs, strict=True)):
        kit.same(want, actual, f"sequence {i}, adapter {adapters[i] and adapters[i].name}")  # type: ignore[union-attr]


@case
async def an_adapter_stays_with_its_sequence(kit: Kit) -> None:
    """In chunks, preempted and recomputed, rolled back, and resumed with its output: as if nothing had been."""
    a, _ = await loaded(kit)
    prompt = kit.long(201)
    whole = await _alone(kit, prompt, 2 * _NUM, a, 1)
    driver = await kit.driver()
    seq = driver.add(prompt, kit.drawn(1), adapter=a.name)
    for size in (1, kit.block_size, 2):
        await driver.step(Feed(seq, size))
    await driver.step(Feed(seq))
    await driver.decode(_NUM - 1, seq)
    driver.truncate(seq, 0)
    await driver.step(Feed(seq, kit.block_size))
    await driver.step(Feed(seq))
    await driver.decode(_NUM - 1, seq)
    kit.same(whole, seq, "in chunks, then preempted")
    driver = await kit.driver()
    await loaded(kit)
    seq = driver.add(prompt, kit.drawn(1), output=whole.output[:_NUM], adapter=a.name)
    await driver.prefill(seq)
    await driver.decode(_NUM - 1, seq)
    kit.same(whole, seq, "resumed", offset=_NUM)


@case
async def a_slot_forgets_its_adapter(kit: Kit) -> None:
    """A sequence in the slot of one that had another adapter, or none, has its own."""
    a, b = await loaded(kit)
    prompt = kit.long(202)
    order = [a, None, b, a, None]
    alone = [await _alone(kit, prompt, _NUM, one, 2) for one in order]
    driver = await kit.driver()
    for want, one in zip(alone, order, strict=True):
        seq = driver.add(prompt, kit.drawn(2), slot=0, adapter=one and one.name)
        await driver.prefill(seq)
        await driver.decode(_NUM - 1, seq)
        kit.same(want, seq, f"adapter {one and one.name} in a used slot")
        driver.release(seq)


@case
async def forks_keep_their_adapter(kit: Kit) -> None:
    """A sequence that begins with the full blocks of another one of the same adapter equals a cold one."""
    kit.need_paged()
    kit.need_no_states()
    kit.need_slots(3)
    a, b = await loaded(kit)
    shared = kit.prompt(2 * kit.block_size, 203)
    tails = [kit.prompt(2, 204), kit.prompt(kit.block_size, 205)]
    cold = [await _alone(kit, shared + tail, _NUM, a, i) for i, tail in enumerate(tails)]
    driver = await kit.driver()
    beside = driver.add(kit.long(206), kit.drawn(9), adapter=b.name)
    first = driver.add(shared + tails[0], kit.drawn(0), adapter=a.name)
    await driver.step(Feed(beside, 3), Feed(first))
    blocks = [group[:2] for group in first.blocks]
    second = driver.add(
        shared + tails[1], kit.drawn(1), shared_blocks=blocks, num_computed=len(shared), adapter=a.name
    )
    await driver.step(Feed(beside), Feed(second), Feed(first))
    await driver.decode(_NUM - 1, second, beside, first)
    kit.same(cold[0], first, "the first of two")
    kit.same(cold[1], second, "a prefix hit of the same adapter")


@case
async def prompt_logprobs_are_of_the_adapter(kit: Kit) -> None:
    """Logprobs of a prompt's tokens are the adapter's, whole and in chunks."""
    a, _ = await loaded(kit)
    prompt = kit.long(207)
    driver = await kit.driver()
    seq = driver.add(prompt, kit.greedy, prompt_logprobs=1, adapter=a.name)
    await driver.step(Feed(seq, kit.block_size))
    await driver.step(Feed(seq))
    require(len(seq.prompt_logprobs) == len(prompt) - 1, f"{len(seq.prompt_logprobs)} prompt logprobs")
    for at in range(0, len(prompt) - 1, 3):
        described = driver.add(prompt[: at + 1], replace(GREEDY, logprobs=1), adapter=a.name)
        await driver.prefill(described)
        best = described.samples[0].top_logprobs[0]
        # The same ids and the same adapter: the best token of the next position has the same logprob, whoever is asked.
        there = seq.prompt_logprobs[at].top_logprobs[0]
        require(
            kit.near(there[1], best[1]) and (not kit.exact or there[0] == best[0]),
            f"token {at + 1}: the best one is {there} in the prompt and {best} when it is sampled",
        )
        driver.release(described)


@case
async def adapters_come_and_go(kit: Kit) -> None:
    """One in use is not unloaded; one that is not loaded is refused; a name may come to stand for other content."""
    a, b = await loaded(kit)
    prompt = kit.long(208)
    executor = _executor(kit)
    of_a, of_b = [await _alone(kit, prompt, _NUM, one, 3) for one in (a, b)]
    driver = await kit.driver()
    await loaded(kit)
    seq = driver.add(prompt, kit.drawn(3), adapter=a.name)
    await driver.prefill(seq)
    await refused(executor.unload_adapter(a.name), "unloading an adapter in use")
    await executor.load_adapter(*a)  # again: it stays
    await driver.decode(_NUM - 1, seq)
    kit.same(of_a, seq, "after the refusal")
    driver.release(seq)
    await executor.unload_adapter(a.name)
    await executor.unload_adapter(a.name)  # an unknown name is harmless
    gone = driver.add(prompt, kit.drawn(3), adapter=a.name)
    await refused(driver.step(Feed(gone)), "a sequence with an adapter that is not loaded")
    driver.release(gone)
    await executor.load_adapter(a.name, b.path, b.digest)
    seq = driver.add(prompt, kit.drawn(3), adapter=a.name)
    await driver.prefill(seq)
    await driver.decode(_NUM - 1, seq)
    kit.same(of_b, seq, "a used name with other content")
    driver.release(seq)
    await executor.unload_adapter(a.name)
    await executor.load_adapter(*a)


@case
async def an_adapter_outlives_its_executor(kit: Kit) -> None:
    """A new executor that loads the same file goes on with a sequence of the old one."""
    a, _ = await loaded(kit)
    prompt = kit.long(209)
    whole = await _alone(kit, prompt, 2 * _NUM, a, 4)
    other = kit.make()
    try:
        driver = await Driver.start(other, 1)
        await cast(LoraExecutor, other).load_adapter(*a)
        seq = driver.add(prompt, kit.drawn(4), output=whole.output[:_NUM], adapter=a.name)
        await driver.prefill(seq)
        await driver.decode(_NUM - 1, seq)
        kit.same(whole, seq, "resumed by another executor", offset=_NUM)
    finally:
        await other.shutdown()
