"""What llama.cpp's judgement rests on: a wrong logprob and a wrong id are seen, a near tie is let pass."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from executors.llm.model.families import FAMILIES
from tests.executors.llm.models import SHAPES
from tests.llamacpp import page
from tests.llamacpp.agreement import differences, equal_ids, logprobs
from tests.llamacpp.rows import LONG, ROWS, judged, row

LOGITS = np.array([[3.0, 1.0, 2.99, 0.0], [0.0, 4.0, 1.0, 3.0]], np.float32)


def test_logprobs_are_a_distribution_whatever_is_added_to_the_logits() -> None:
    assert np.exp(logprobs(LOGITS)).sum(-1) == pytest.approx([1.0, 1.0])
    assert differences(LOGITS, LOGITS + 5).max() < 1e-6


def test_one_wrong_logit_is_seen_at_its_position() -> None:
    wrong = LOGITS.copy()
    wrong[1, 0] += 0.5
    first, second = differences(LOGITS, wrong)
    assert first == 0 and 0.4 < second < 0.5
    # Among the two most likely ids only its share of the sum is seen.
    assert 0 < differences(LOGITS, wrong, most=2)[1] < 0.01


def test_ids_part_at_near_ties_alone() -> None:
    assert equal_ids([0, 1], [0, 1], LOGITS, 0.0) == 2
    assert equal_ids([0, 1], [2, 3], LOGITS, 0.01) == 0  # 0.01 apart; what follows has other beginnings
    with pytest.raises(AssertionError, match=r"id 0 is 0 here and 2 there, 0\.01 apart"):
        equal_ids([0, 1], [2, 1], LOGITS, 0.004)
    with pytest.raises(AssertionError, match="id 1 is 1 here and 3 there, 1 apart"):
        equal_ids([0, 1], [0, 3], LOGITS, 0.01)


def test_rows_are_of_shapes_and_every_family_is_compared_as_a_whole_or_unknown() -> None:
    assert set(ROWS) | set(LONG) <= set(SHAPES)
    for family in FAMILIES:
        names = [name for name in SHAPES if page.family_of(name) is family]
        assert any(not row(name).lost for name in names if name in judged()) or all(
            row(name).unknown for name in names
        ), family.name


def test_the_page_tells_every_family_and_its_limits() -> None:
    figures = {name: page.Reached("x", 1e-5, 1e-2, 0.999) for name in judged()}
    made = f"<!-- llamacpp:begin -->\n{page.table(figures, {})}\n<!-- llamacpp:end -->\n"
    assert page.problems(made) == []
    lines = made.splitlines(keepends=True)
    (last,) = [line for line in lines if line.startswith("| smollm3 |")]
    for stale in (made.replace(last, ""), made.replace("each fourth layer", "no layer")):
        (problem,) = page.problems(stale)
        assert problem.startswith("smollm3: ")
    assert page.problems(made.replace(last, last + last.replace("smollm3", "smollm4"))) == [
        "smollm4: is no family"
    ]


def test_a_report_without_a_shape_makes_no_table(tmp_path: Path) -> None:
    names = judged()
    report = tmp_path / "junit.xml"
    entries = "".join(
        f'<property name="llamacpp" value="{name} llama 1e-05 0.01 1.0"/>' for name in names[:-1]
    )
    report.write_text(f"<testsuite><properties>{entries}</properties></testsuite>")
    with pytest.raises(ValueError, match=names[-1]):
        page.table(page.reached(report), {})
