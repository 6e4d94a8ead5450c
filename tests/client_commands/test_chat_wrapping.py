"""Lines of answers that break at words: whatever the pieces, the width and the script."""

from __future__ import annotations

import random

import pytest

from clients.chat.wrapping import WordWrap, cells

TEXT = (
    "A lighthouse stands on a rock, far from the coast; its keeper counts the ships.\n\n"
    "1. First, a list whose item takes more than a line of forty columns.\n"
    "   - An item within it, also longer than such a line of the terminal.\n"
    "> A quotation that goes on for some time, so that it has to break as well.\n"
    "A long address: https://example.org/a/very/long/path/that/no/line/of/forty/columns/can/hold and more.\n"
)


class Output:
    """What a terminal of `columns` columns is sent."""

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self.text = ""
        self.wrap = WordWrap(self._write, lambda: self.columns)

    def _write(self, text: str) -> None:
        self.text += text


def wrapped(text: str, columns: int, seed: int = 0) -> str:
    """`text` fed in pieces of up to seven characters."""
    output, pieces = Output(columns), random.Random(seed)
    while text:
        size = pieces.randint(1, 7)
        output.wrap.feed(text[:size])
        text = text[size:]
    output.wrap.end()
    return output.text


@pytest.mark.parametrize("columns", [1, 7, 20, 40, 79, 200])
def test_no_line_is_too_long_and_no_word_is_lost(columns: int) -> None:
    lines = {wrapped(TEXT, columns, seed) for seed in range(5)}
    [text] = lines
    assert max(map(cells, text.splitlines())) <= columns
    if columns >= 200:
        assert text == TEXT
    assert "".join(text.split()) == "".join(TEXT.split())
    if columns >= 20:
        address = TEXT[TEXT.index("https") :].split()[0]
        words = [word for word in TEXT.split() if word != address]
        assert all(word in text.split() for word in words), "only what fits no line is broken"


def test_spaces_where_a_line_breaks_are_dropped() -> None:
    assert wrapped("aaaa bbbb   cccc d\n", 9) == "aaaa bbbb\ncccc d\n"
    assert wrapped("aaaa bbbb\ncc", 9) == "aaaa bbbb\ncc\n", "a full line ends once"


def test_lines_of_an_item_begin_below_its_text() -> None:
    assert wrapped("- one two three four", 12) == "- one two\n  three four\n"
    assert wrapped("12. one two three four", 14) == "12. one two\n    three four\n"
    assert wrapped("  one two three", 9) == "  one two\n  three\n"


@pytest.mark.parametrize("seed", range(5))
def test_wide_characters_take_two_columns(seed: int) -> None:
    text = "日本の灯台は、岩の上に立っています。守り人は船を数える。"
    lines = wrapped(text, 11, seed).splitlines()
    assert "".join(lines) == text and max(map(cells, lines)) <= 11
    assert all(cells(line) >= 8 for line in lines[:-1]), "lines are filled"
    assert not any(line[0] in "、。" for line in lines), "punctuation stays with its text"
    assert wrapped("Tokyo is 東京都.", 12, seed) == "Tokyo is 東\n京都.\n"


def test_pictures_of_several_characters_stay_whole() -> None:
    for picture in ("👩\u200d🚀", "👍🏽", "🇵🇪", "e\u0301"):
        for column in range(1, 12):
            assert picture in wrapped("x" * column + " " + picture * 2, 12)


@pytest.mark.parametrize("fence", ["```", "~~~~"])
def test_code_between_fences_is_as_it_came(fence: str) -> None:
    code = (
        f"{fence}python\nif x:  # a comment that is far longer than the line\n\treturn  1   \n``\n{fence}\n"
    )
    text = f"See here:\n{code}and then it goes on as before\n"
    assert wrapped(text, 16) == f"See here:\n{code}and then it goes\non as before\n"
    listed = f"- {code.replace(chr(10), chr(10) + '  ').rstrip(' ')}one two three four five\n"
    assert wrapped(listed, 16).endswith("one two three\nfour five\n")


def test_what_is_no_fence() -> None:
    assert wrapped("a ``` b c d e f\n```x``` b c d e\n", 8) == "a ``` b\nc d e f\n```x```\nb c d e\n"


def test_the_width_counts_as_it_is_at_each_word() -> None:
    output = Output(20)
    output.wrap.feed("one two three four five six ")
    output.columns = 9
    output.wrap.feed("seven eight nine ten")
    output.wrap.end()
    assert output.text == "one two three four\nfive six\nseven\neight\nnine ten\n"


def test_no_width_no_breaks_and_no_waiting() -> None:
    output = Output(0)
    for piece in ("a wor", "d ", "\n", "x" * 300):
        output.wrap.feed(piece)
        assert output.text.endswith(piece)
    output.wrap.end()
    assert output.text == "a word \n" + "x" * 300 + "\n"


def test_a_word_is_written_once_it_is_complete() -> None:
    output = Output(40)
    output.wrap.feed("one tw")
    assert output.text == "one"
    output.wrap.feed("o ")
    assert output.text == "one two"
    output.wrap.feed("字字")
    assert output.text == "one two 字"
