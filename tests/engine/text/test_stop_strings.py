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


def test_hostile_stop_strings_cost_little() -> None:
    watch = StopStrings(["ab" * 511 + "x", *("b" * (1024 - i) for i in range(15))])
    began = time.process_time()
    for _ in range(1000):
        watch.push("abab")
    assert time.process_time() - began < 0.5  # it was more than a second with a search per push
    assert watch.matched is None
