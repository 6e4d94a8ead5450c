"""Conformance: drafts of the executor's own draft model. They may be wrong, and change no token."""

from __future__ import annotations

from executors.testing.conformance_kit import Kit, NotApplicable, case, require
from executors.testing.driver import DrivenSequence, Feed

NOT_DECLARED = "the executor does not declare drafts"


def _needs_drafts(kit: Kit) -> None:
    if not kit.capabilities.drafts:
        raise NotApplicable(NOT_DECLARED)


def _drafts(seq: DrivenSequence) -> list[int]:
    last = seq.outputs[-1]
    return [] if last is None else list(last.drafts)


@case
async def drafts_come_as_asked(kit: Kit) -> None:
    """At most as many as were wanted, ids of the vocabulary, for those that wanted some, and none for an intermediate chunk."""
    _needs_drafts(kit)
    driver = await kit.driver()
    prompt = kit.prompt(2 * kit.block_size + 3, 71)
    some, none = driver.add(prompt, kit.greedy), driver.add(prompt[:5], kit.greedy)
    await driver.step(Feed(some, kit.block_size, num_drafts=2), Feed(none))
    require(not _drafts(some), "drafts came for an intermediate chunk")
    total = 0
    for count in (1, 4, 2, 3):
        await driver.step(Feed(some, num_drafts=count), Feed(none))
        drafts = _drafts(some)
        total += len(drafts)
        require(len(drafts) <= count, f"{len(drafts)} drafts, {count} were wanted")
        require(all(0 <= token < kit.info.logits_width for token in drafts), f"drafts {drafts}")
        require(not _drafts(none), "drafts came for a sequence that wanted none")
    require(total > 0, "no draft ever came")


@case
async def own_drafts_change_no_token(kit: Kit) -> None:
    """Sequences that verify the drafts they got say what they say without; neighbours too."""
    _needs_drafts(kit)
    prompts = [
        kit.prompt(length, 72 + i) for i, length in enumerate((3, kit.block_size + 2, 2 * kit.block_size))
    ]
    settings = [kit.greedy, kit.drawn(5), kit.greedy]
    plain = [await kit.alone(prompt, 24, params) for prompt, params in zip(prompts, settings, strict=True)]
    driver = await kit.driver()
    seqs = [driver.add(prompt, params) for prompt, params in zip(prompts, settings, strict=True)]
    await driver.step(*(Feed(seq, num_drafts=3) for seq in seqs[:2]), Feed(seqs[2]))
    verified = 0
    while running := [seq for seq in seqs if len(seq.output) < 20]:
        feeds = []
        for seq in running:
            drafts = _drafts(seq) if seq is not seqs[2] else []
            verified += len(drafts)
            feeds.append(
                Feed(seq, drafts=drafts, num_drafts=0 if seq is seqs[2] else 1 + len(seq.output) % 4)
            )
        await driver.step(*feeds)
    for i, seq in enumerate(seqs):
        del seq.samples[20:]
        kit.same(plain[i], seq, f"sequence {i} with its own drafts")
    require(verified > 0, "no draft ever came")
