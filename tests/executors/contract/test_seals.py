"""Seals and sealed blocks: what does not fit is refused, whichever side sends it."""

from dataclasses import replace

import numpy as np
import pytest

from executors.contract import InvalidInput, SealedBlocks, StepFailed, UnifiedBatch, UnifiedOutput, checks
from executors.contract.seals import check_adopted, check_sealed


def ids(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def sums(*values: int) -> np.ndarray:
    return np.array(values, np.uint64)


def batch(*seals: tuple[int, int]) -> UnifiedBatch:
    return UnifiedBatch(
        1, 1, np.array([7]), ids(0), ids(1), ids(0), np.array([True]), ids(0), ids(5),
        seals=np.array(seals, np.int32).reshape(-1, 2),
    )  # fmt: skip


SEALED = SealedBlocks("f", ids(0, 0, 1), ids(3, 1, 3), sums(1, 2, 3))


def test_sealed_blocks_that_fit() -> None:
    check_sealed(SEALED, (4, 4))
    check_sealed(SealedBlocks("", ids(), ids(), sums()), ())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"groups": ids(0, 1)}, "2 groups, 3 blocks"),
        ({"checksums": sums(1)}, "1 checksums"),
        ({"checksums": np.array([1, 2, 3])}, "not int32, int32, uint64"),
        ({"blocks": np.array([3, 1, 3])}, "not int32, int32, uint64"),
        ({"groups": ids(0, 0, 2)}, "group outside 0..1"),
        ({"groups": ids(0, 0, -1)}, "group outside"),
        ({"blocks": ids(3, 1, 4)}, "does not exist"),
        ({"blocks": ids(3, -1, 3)}, "does not exist"),
        ({"groups": ids(0, 0, 0)}, "occurs twice"),
    ],
)
def test_sealed_blocks_that_do_not_fit(changes: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        check_sealed(replace(SEALED, **changes), (4, 4))


def test_adopted_blocks_by_group() -> None:
    assert SEALED.blocks_of(0, ids(0, 1, 2)).tolist() == [3, 1]
    assert SEALED.blocks_of(0, ids(1, 2)).tolist() == [1] and SEALED.blocks_of(1, ids(1, 2)).tolist() == [3]
    none = SEALED.blocks_of(1, ids(0))
    assert none.dtype == np.int32 and not len(none)


def test_adopted_indices() -> None:
    assert check_adopted(ids(), 0) and check_adopted(ids(0, 2), 3)
    assert not check_adopted(ids(0), 0)
    for wrong in (ids(3), ids(1, 0), ids(0, 0), ids(-1), np.array([0]), ids(0).reshape(1, 1)):
        assert not check_adopted(wrong, 3)


def test_seals_name_blocks_that_exist() -> None:
    checks.check_seals(batch(), ())
    checks.check_seals(batch((0, 3), (1, 1)), (4, 2))
    for wrong in ((0, 4), (1, 2), (2, 0), (-1, 0), (0, -1)):
        with pytest.raises(InvalidInput, match="a block seal names"):
            checks.check_seals(batch(wrong), (4, 2))
    with pytest.raises(InvalidInput, match="seals is int64"):
        checks.check_seals(replace(batch(), seals=np.zeros((1, 2), np.int64)), (4, 2))


def test_an_answer_has_a_checksum_for_each_seal_or_none() -> None:
    def check(checksums: np.ndarray | None) -> None:
        checks.check_output(batch((0, 3), (1, 1)), UnifiedOutput(ids(1), ids(5), checksums=checksums))

    check(None)
    check(sums(1, 2**64 - 1))
    for wrong in (sums(1), sums(), sums(1, 2, 3), np.array([1, 2]), sums(1, 2).reshape(2, 1)):
        with pytest.raises(StepFailed, match="checksums"):
            check(wrong)
