"""The graders reject answers that only look right."""

from typing import Any

import pytest

from executors.tiny.data.graders import grade
from executors.tiny.data.sample import Sample


def _sample(skill: str, **check: Any) -> Sample:
    return Sample(skill, ({"role": "user", "content": "?"},), (), "", check)


_STORY = "Once upon a time there was a red fox. One day the fox sat on a hill. Then it started to rain. The fox laughed. The end."
_CALL = '<tool_call>\n{"name": "timer", "arguments": {"minutes": 5}}\n</tool_call>'


@pytest.mark.parametrize(
    ("sample", "right", "wrong"),
    [
        (
            _sample("counting", numbers=[3, 4, 5]),
            ["3, 4, 5", "3 4 5", "3, 4, 5."],
            ["3, 5, 4", "3, 4", "Sure: 3, 4, 5", "3, 4, 5, 6", ""],
        ),
        (_sample("sums", sum=42), ["42", "The sum is 42."], ["17 + 25 = 42", "43", "442", "forty-two", ""]),
        (_sample("reversal", text="b a"), ["b a"], ["a b", "b a.", "B a", ""]),
        (_sample("repetition", text="Cha"), ["Cha"], ["cha", "Cha Cha", '"Cha"']),
        (_sample("upper_casing", text="CHA"), ["CHA"], ["Cha", "CHA!"]),
        (
            _sample("capitals", capital="Paris"),
            ["The capital of France is Paris."],
            ["Paris", "The capital of France is Parisa.", "The capital of France is Rome."],
        ),
        (
            _sample("extraction", object={"a": 1, "b": "x"}),
            ['{"a": 1, "b": "x"}', '{"b":"x","a":1}'],
            ['{"a": "1", "b": "x"}', '{"a": 1}', 'JSON: {"a": 1, "b": "x"}', "[]", '{"a": true, "b": "x"}'],
        ),
        (
            _sample("stories", hero="fox"),
            [_STORY],
            [
                _STORY.replace("fox", "cat"),
                _STORY.removesuffix(" The end."),
                _STORY + " " + _STORY,
                "The end.",
            ],
        ),
        (_sample("off_topic", text="I am"), ["I am"], ["I am not", ""]),
        (_sample("greetings", kind="hello", text="Hello!"), ["Hello!"], ["Goodbye!"]),
        (
            _sample("tools", name="timer", arguments={"minutes": 5}),
            [_CALL],
            [
                _CALL.replace("timer", "alarm"),
                _CALL.replace("5", "6"),
                _CALL.replace("5", '"5"'),
                "timer",
                _CALL + _CALL,
                "<tool_call>\n{}\n</tool_call>",
            ],
        ),
    ],
    ids=lambda value: value.skill if isinstance(value, Sample) else "",
)
def test_right_and_wrong(sample: Sample, right: list[str], wrong: list[str]) -> None:
    assert all(grade(sample, text, finished=True) for text in right)
    assert not any(grade(sample, text, finished=True) for text in wrong)
    assert not any(grade(sample, text, finished=False) for text in right)


def test_parsed_tool_calls() -> None:
    sample = _sample("tools", name="timer", arguments={"minutes": 5})
    call = {"type": "function", "function": {"name": "timer", "arguments": '{"minutes": 5}'}}
    broken = {"type": "function", "function": {"name": "timer", "arguments": '{"minutes": 5'}}
    assert grade(sample, "", True, [call])
    assert not grade(sample, "", True, [call, call])
    assert not grade(sample, "", True, [broken])
    assert not grade(_sample("sums", sum=42), "42", True, [call])
