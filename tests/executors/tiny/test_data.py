"""The generator: deterministic, split into training and held-out, answers that its own graders accept."""

import json
import re
from itertools import islice, pairwise

import pytest

from executors.tiny.data import SKILL_NAMES, Sample, held_out_samples, training_samples
from executors.tiny.data.chat import HONEST
from executors.tiny.data.dialogs import SKILLS
from executors.tiny.data.forced_calls import forced_call
from executors.tiny.data.graders import grade
from executors.tiny.data.heroes import HEROES
from executors.tiny.data.lexicon import CAPITALS
from executors.tiny.data.number_steps import STEPS, spelled
from executors.tiny.data.phrasing import Draw, expand, fill
from executors.tiny.data.sample import Turn
from executors.tiny.evaluate import THIRD_TURNS, questions


def _training(count: int, seed: int = 0) -> list[Sample]:
    return list(islice(training_samples(seed), count))


def test_same_seed_same_conversations() -> None:
    assert _training(300) == _training(300)
    assert _training(50) != _training(50, seed=1)
    assert held_out_samples("tools", 20) == held_out_samples("tools", 20)


def test_every_skill_is_trained() -> None:
    skills = {sample.skill for sample in _training(1500)}
    assert skills == {*SKILL_NAMES, "tool_results", "forced_calls"}


@pytest.mark.parametrize("skill", SKILL_NAMES)
def test_the_generators_own_answer_is_right(skill: str) -> None:
    for seen in (False, True):
        for sample in held_out_samples(skill, 60, seen=seen):
            assert grade(sample, sample.answer, finished=True), sample
            assert not grade(sample, sample.answer, finished=False)


def test_what_a_forced_call_is_given_ends_before_all_that_was_said() -> None:
    draw = Draw(0)
    for sample in (forced_call(draw) for _ in range(200)):
        said = sample.messages[-1]["content"]
        assert grade(sample, sample.answer, finished=True)
        rest = sample.answer.removeprefix(sample.given)
        assert len(rest) < len(sample.answer)
        assert rest == json.dumps(said, ensure_ascii=False)[1:] + "}}\n</tool_call>"


def test_sums_and_counts_share_no_operands_with_training() -> None:
    train, held = Draw(0), Draw(0, held_out=True)
    trained = {_numbers(SKILLS["sums"](train).user) for _ in range(3000)}
    kept_back = {_numbers(SKILLS["sums"](held).user) for _ in range(300)}
    assert len(kept_back) > 150
    assert not trained & kept_back
    trained = {_ends(SKILLS["counting"](train)) for _ in range(3000)}
    kept_back = {_ends(SKILLS["counting"](held)) for _ in range(300)}
    assert len(kept_back) > 50
    assert not trained & kept_back


def _ends(turn: Turn) -> tuple[int, int, int]:
    numbers = turn.check["numbers"]
    return min(numbers), max(numbers), abs(numbers[1] - numbers[0])


def _numbers(text: str) -> tuple[int, ...]:
    for number in sorted(range(100), key=lambda number: -len(spelled(number))):
        text = re.sub(rf"\b{spelled(number).replace('-', '[- ]')}\b", str(number), text.lower())
    words = "".join(char if char.isdigit() else " " for char in text).split()
    return tuple(map(int, words))


@pytest.mark.parametrize(
    "skill", ["reversal", "repetition", "upper_casing", "capitals", "extraction", "stories", "off_topic"]
)
def test_held_out_prompts_are_not_in_training(skill: str) -> None:
    train = Draw(0)
    trained = {SKILLS[skill](train).user.lower() for _ in range(4000)}
    kept_back = [sample.messages[-1]["content"].lower() for sample in held_out_samples(skill, 100)]
    assert sum(text in trained for text in kept_back) <= 2


def test_held_out_wordings_differ_from_training() -> None:
    lines = (
        "[what is|what's|how much is] {a} [+|plus] {b}",
        "add {a} [and|to] {b}",
        "sum [of|up|] {a} and {b}",
    )
    train, held = Draw(1), Draw(2, held_out=True)
    trained = {train.phrase(lines) for _ in range(400)}
    kept_back = {held.phrase(lines) for _ in range(400)}
    assert trained and kept_back and not trained & kept_back


def test_expansion_is_nested_and_tidy() -> None:
    rng = Draw(3).rng
    assert {expand(rng, "a [b [c|d]|] {e}") for _ in range(60)} == {"a b c {e}", "a b d {e}", "a {e}"}
    assert fill("{a} {b}", {"a": "{b}"}) == "{b} {b}"


def test_sixty_capitals() -> None:
    assert len(CAPITALS) == 60
    assert CAPITALS["France"] == "Paris"


def test_conversations_keep_to_openai_form() -> None:
    for sample in _training(400):
        roles = [message["role"] for message in sample.messages]
        assert roles[-1] in ("user", "tool")
        assert "system" not in roles[1:]
        assert sample.apart or sum(role == "user" for role in roles) <= 6
        for message in sample.messages:
            for call in message.get("tool_calls", ()):
                assert isinstance(json.loads(call["function"]["arguments"]), dict)
        if sample.skill == "tools":
            offered = {tool["function"]["name"]: tool["function"]["parameters"] for tool in sample.tools}
            schema = offered[sample.check["name"]]
            given = set(sample.check["arguments"])
            assert set(schema.get("required", ())) <= given <= set(schema["properties"])


def test_questions_cover_every_skill_and_third_turns() -> None:
    rows = questions(22)
    assert list(rows) == [*SKILL_NAMES, THIRD_TURNS]
    assert all(len(group) == 22 for group in rows.values())
    third = rows[THIRD_TURNS]
    assert all(sum(m["role"] == "user" for m in sample.messages) >= 1 for sample in third)


def test_the_honest_answer_names_the_way_out() -> None:
    assert "cohort-tiny" in HONEST
    assert HONEST.endswith("For a real model: cohort serve Qwen/Qwen3-0.6B.")


def test_counts_in_steps_say_their_step_and_stay_within_the_limits() -> None:
    draw = Draw(4)
    turns = [turn for turn in (SKILLS["counting"](draw) for _ in range(3000)) if abs(_step(turn)) != 1]
    assert {abs(_step(turn)) for turn in turns} == set(STEPS)
    assert any(_step(turn) < 0 for turn in turns)
    for turn in turns:
        numbers = turn.check["numbers"]
        assert 3 <= len(numbers) <= 15
        assert all(0 <= number <= 99 for number in numbers)
        assert len({after - before for before, after in pairwise(numbers)}) == 1
        named = {str(abs(_step(turn))), spelled(abs(_step(turn))), *_STEP_NAMES[abs(_step(turn))]}
        parity = "odd" if numbers[0] % 2 else "even"
        text = turn.user.lower()
        assert any(name in text for name in named) or (abs(_step(turn)) == 2 and parity in text), turn.user


def _step(turn: Turn) -> int:
    numbers = turn.check["numbers"]
    return int(numbers[1] - numbers[0])


_STEP_NAMES = {
    2: ("second", "2s"), 3: ("third", "3s"), 4: ("fourth", "4s"), 5: ("five", "fifth", "5s"), 6: ("sixth", "6s"),
    10: ("tens", "tenth", "10s"), 20: ("twent", "20s"),
}  # fmt: skip


def test_numbers_as_words() -> None:
    assert [spelled(number) for number in (0, 7, 13, 20, 21, 99)] == [
        "zero",
        "seven",
        "thirteen",
        "twenty",
        "twenty-one",
        "ninety-nine",
    ]
    assert spelled(85, " ") == "eighty five"
    assert len({spelled(number) for number in range(100)}) == 100


@pytest.mark.parametrize(("skill", "asked", "learned"), [("sums", 0.04, 0.35), ("counting", 0.04, 0.13)])
def test_numbers_as_words_are_learned_more_often_than_they_are_asked(
    skill: str, asked: float, learned: float
) -> None:
    for held_out, expected in ((True, asked), (False, learned)):
        draw = Draw(8, held_out)
        texts = [SKILLS[skill](draw).user for _ in range(2000)]
        share = sum(not any(map(str.isdigit, text)) for text in texts) / len(texts)
        assert share == pytest.approx(expected, abs=0.035)


def test_a_country_has_its_capital_under_each_name() -> None:
    draw = Draw(6)
    answers = {SKILLS["capitals"](draw).answer for _ in range(4000)}
    assert {
        "The capital of the United States is Washington.",
        "The capital of the United Kingdom is London.",
        "The capital of England is London.",
        "The capital of Czechia is Prague.",
    } <= answers
    asked = [SKILLS["off_topic"](draw).user for _ in range(6000)]
    for text in (text for text in asked if "capital of" in text):
        assert not re.search(
            r"capital of (?:the )?(?:USA|UK|United States|Czech Republic|Britain|England)\b", text
        ), text


def test_a_story_without_a_hero_is_about_something_known() -> None:
    draw = Draw(7)
    for turn in (SKILLS["stories"](draw) for _ in range(600)):
        if not turn.check["hero"]:
            assert any(f" {hero}" in turn.answer for hero in HEROES), turn.answer
