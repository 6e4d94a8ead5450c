"""Conformance cases on pairs of texts: the tokens of the second text have a type of their own, or the pair is refused."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from executors.contract import Unsupported
from executors.testing.conformance_kit import Driver, Feed, Kit, NotApplicable, case, refused, require


async def _vectors(kit: Kit, driver: Driver, begins: list[int | None]) -> list[NDArray[np.float32]]:
    """The vectors of one prompt, whose second text begins in each of these places, computed in one step."""
    pooling = kit.info.poolings[0]
    seqs = [driver.add(kit.prompt(11), None, pooling=pooling, second_segment=begin) for begin in begins]
    vectors = []
    for begin, out in zip(begins, await driver.step(*map(Feed, seqs)), strict=True):
        require(out is not None and out.pooled is not None, f"second_segment {begin} gave {out}")
        assert out is not None and out.pooled is not None
        vectors.append(out.pooled)
    for seq in seqs:
        driver.release(seq)
    return vectors


@case
async def a_second_text_counts_or_is_refused(kit: Kit) -> None:
    """Where a model has token types, a prompt's vector depends on where its second text begins, and on no neighbour's. An
    executor whose model has none refuses the position, and all refuse one outside of the prompt; a refusal leaves nothing."""
    driver = await kit.driver()
    counts = kit.info.token_types >= 2
    try:
        [plain] = await _vectors(kit, driver, [None])
    except Unsupported as error:
        raise NotApplicable(str(error)) from error
    for begin in (0, 11, -1) if counts else (4, 0):
        seq = driver.add(kit.prompt(11), None, pooling=kit.info.poolings[0], second_segment=begin)
        await refused(driver.step(Feed(seq)), f"second_segment {begin} of 11 tokens")
        driver.release(seq)
    [again] = await _vectors(kit, driver, [None])
    _same(kit, plain, again, "after a refusal")
    if not counts:
        return
    places: list[int | None] = [4, None, 7][: kit.capabilities.max_batch_size]
    together = await _vectors(kit, driver, places)
    for place, vector in zip(places, together, strict=True):
        [alone] = await _vectors(kit, await kit.driver(), [place])
        _same(kit, alone, vector, f"second_segment {place} in a mixed step")
    for i, vector in enumerate(together):
        for other in together[i + 1 :]:
            far = float(abs(vector - other).max())
            require(far > kit.tolerance, f"second texts that begin elsewhere differ by {far}")


def _same(kit: Kit, expected: NDArray[np.float32], actual: NDArray[np.float32], what: str) -> None:
    worst = float(abs(expected - actual).max())
    require(worst <= max(kit.tolerance, 1e-5), f"{what}: a vector differs by {worst}")
