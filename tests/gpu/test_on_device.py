"""What engine and executor give on a real GPU: checks that are parts of `make gpu-check`, too."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from benchmarks.gpu.part import Found, Options
from tests.gpu import agreement, agreement_bf16, draft_agreement


@pytest.mark.gpu
@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    "check", [agreement.run, agreement_bf16.run, draft_agreement.run], ids=["float32", "bf16", "drafts"]
)
def test_tokens_are_those_of_the_plain_way(check: Callable[[Options, Found], None]) -> None:
    check(Options(), lambda figures: None)
