"""Stop strings across token borders, against the plain definition on whole text."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from engine.text.stop_strings import StopStrings


def test_a_stop_string_split_over_pushes_is_never_shown() -> None:
    watch = StopStrings(["END", "\n\n"])
    assert [watch.push(t) for t in ("so far E", "N", "Dless")] == ["so far ", "", ""]
    assert watch.matched == "END" and watch.push("more") == "" and watch.flush() == ""


def test_text_held_back_in_vain_is_given_back() -> None:
    watch = StopStrings(["END"])
    assert [watch.push("aE"), watch.push("Nx"), watch.push("EN"), watch.flush()] == ["a", "ENx", "", "EN"]


def test_the_stop_string_is_kept_when_asked_for() -> None:
    watch = StopStrings(["bc"], include=True)
    assert watch.push("ab") + watch.push("cd") == "abc"


@given(
    st.lists(st.text("ab", max_size=4), max_size=12),
    st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3),
)
def test_equals_the_definition_on_whole_text(pieces: list[str], stops: list[str]) -> None:
    watch = StopStrings(stops)
    shown = ""
    for piece in pieces:
        shown += watch.push(piece)
        if watch.matched:
            break
    shown += watch.flush()
    text, first = "".join(pieces), None
    for end in range(len(text) + 1):  # character by character: the first moment a stop string is complete
        hits = [stop for stop in stops if text[:end].endswith(stop)]
        if hits:
            first = text[: end - len(max(hits, key=len))]
            break
    assert shown == (text if first is None else first)
    assert (watch.matched is None) == (first is None)


def test_a_stop_string_may_begin_in_ignored_text_but_not_end_there() -> None:
    watch = StopStrings(["4, 5", "3"])
    shown = [watch.push("3, ", ignored=True), watch.push("4", ignored=True), watch.push(", 5")]
    assert (shown, watch.matched) == (["3, ", "", ""], "4, 5")
    watch = StopStrings(["4, 5"])
    shown = [watch.push("4, 5, 4, ", ignored=True), watch.push("6"), watch.push("4"), watch.flush()]
    assert (shown, watch.matched) == (["4, 5, ", "4, 6", "", "4"], None)
    # An ignored match can be the beginning of one that counts.
    watch = StopStrings(["aba"])
    assert (watch.push("aba", ignored=True), watch.push("ba"), watch.matched) == ("ab", "", "aba")


@given(
    st.lists(st.text("ab", max_size=4), max_size=12),
    st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3),
    st.integers(0, 12),
)
def test_ignored_text_by_the_definition(pieces: list[str], stops: list[str], least: int) -> None:
    watch = StopStrings(stops)
    shown = ""
    for i, piece in enumerate(pieces):
        shown += watch.push(piece, ignored=i < least)
        if watch.matched:
            break
    shown += watch.flush()
    text, ignored = "".join(pieces), len("".join(pieces[:least]))
    for end in range(ignored + 1, len(text) + 1):
        hits = [stop for stop in stops if text[:end].endswith(stop)]
        if hits:
            text = text[: end - len(max(hits, key=len))]
            break
    assert shown == text


def test_hostile_stop_strings_cost_little() -> None:
    watch = StopStrings(["ab" * 511 + "x", *("b" * (1024 - i) for i in range(15))])
    began = time.process_time()
    for _ in range(1000):
        watch.push("abab")
    assert time.process_time() - began < 0.5  # it was more than a second with a search per push
    assert watch.matched is None


def test_text_in_which_no_stop_string_counts() -> None:
    """It is shown, it completes none, and none extends over it."""
    stops = StopStrings(["abc"])
    assert stops.push("xab") == "x"
    assert stops.skip("c") == "abc" and stops.matched is None
    assert stops.push("c") == "c" and stops.matched is None
    assert stops.skip("abc") == "abc" and stops.matched is None
    assert stops.push("abcd") == "" and stops.matched == "abc"
    assert stops.skip("more") == ""
