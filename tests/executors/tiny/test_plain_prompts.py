"""The blind set is read and judged as it should be."""

import json
from pathlib import Path

import pytest

from executors.tiny.data.chat import HONEST
from executors.tiny.plain_prompts import judge, load

FILE = Path(__file__).parents[2] / "e2e" / "data" / "plain_prompts.jsonl"

CASES = [
    ({"kind": "greeting"}, "You are welcome!", "Here you are."),
    ({"kind": "numbers", "numbers": [3, 4, 5]}, "3, 4, 5", "3, 4, 5, 6"),
    ({"kind": "sum", "sum": 12}, "12", "5 + 7 = 12"),
    ({"kind": "exact", "text": "b a"}, "b a", "b a."),
    ({"kind": "contains", "text": "Bras\u00edlia"}, "The capital of Brazil is Brasilia.", "I do not know."),
    ({"kind": "json", "object": {"a": 1}}, '{"a": 1}', '{"a": "1"}'),
    ({"kind": "off_topic"}, HONEST, "42"),
    ({"kind": "story", "hero": "fox"}, "", "Once upon a time there was a bear."),
]


@pytest.mark.parametrize(("check", "right", "wrong"), CASES)
def test_judges(tmp_path: Path, check: dict[str, object], right: str, wrong: str) -> None:
    line = {"skill": "s", "messages": [{"role": "user", "content": "?"}], "check": check}
    (tmp_path / "prompts.jsonl").write_text(json.dumps(line))
    [sample] = load(tmp_path / "prompts.jsonl")
    if right:
        assert judge(sample, right, True, [])
        assert not judge(sample, right, False, []), "cut off"
    assert not judge(sample, wrong, True, [])


def test_an_unknown_judge_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "prompts.jsonl").write_text('{"skill": "s", "messages": [], "check": {"kind": "vibes"}}')
    with pytest.raises(ValueError, match="vibes"):
        load(tmp_path / "prompts.jsonl")


def test_the_blind_set_has_40_prompts_a_row() -> None:
    samples = load(FILE)
    counts = {skill: sum(s.skill == skill for s in samples) for skill in {s.skill for s in samples}}
    assert len(counts) == 12
    assert set(counts.values()) == {40}
