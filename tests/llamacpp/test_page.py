"""The table of docs/models.md from a report of some families: their rows are new, and those of others stay."""

from __future__ import annotations

import pytest

from tests.llamacpp import page
from tests.llamacpp.page import Reached, standing, table

LFM2 = ("lfm2-short-convolutions", "lfm2-biases-kernel-of-5-untied")
FIGURES = {name: Reached("lfm2", 1e-6, 2e-3, 0.987) for name in LFM2}


def test_rows_of_other_families_stay() -> None:
    before = page.PAGE.read_text("utf-8")
    rows = standing(before)
    lines = table(FIGURES, rows).splitlines()
    assert "| lfm2 | yes, `lfm2` | 2 | 1e-06 | 2e-03 | 98% | no biases of convolutions |" in lines
    assert rows["llama"] in lines and rows["gpt2"] in lines
    assert len(lines) == len(rows) + 1  # below the names of columns


def test_a_part_of_a_family_or_another_version_is_no_row() -> None:
    rows = standing(page.PAGE.read_text("utf-8"))
    with pytest.raises(ValueError, match="lacks lfm2-biases-kernel-of-5-untied"):
        table({LFM2[0]: FIGURES[LFM2[0]]}, rows)
    other = page.PAGE.read_text("utf-8").replace(f"({page.llamacpp.VERSION})", "(0.0.1)")
    assert standing(other) == {}
    with pytest.raises(ValueError, match="lacks llama-biases"):
        table(FIGURES, standing(other))
