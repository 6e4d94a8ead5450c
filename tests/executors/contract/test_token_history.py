"""The history against a list of tokens that is counted anew each time."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from executors.contract.errors import InvalidInput
from executors.contract.token_history import TokenHistory


def counted(history: TokenHistory) -> dict[int, tuple[int, bool]]:
    table = zip(history.ids.tolist(), history.counts.tolist(), history.in_prompt.tolist(), strict=True)
    return {token: (count, in_prompt) for token, count, in_prompt in table if count or in_prompt}


def expected(prompt: list[int], output: list[int]) -> dict[int, tuple[int, bool]]:
    return {token: (output.count(token), token in prompt) for token in {*prompt, *output}}


TOKENS = st.lists(st.integers(0, 9), max_size=12)


@given(TOKENS, TOKENS, st.lists(st.tuples(st.integers(0, 20), TOKENS), max_size=6))
def test_it_ends_with_the_inputs_whatever_was_there(
    prompt: list[int], output: list[int], steps: list[tuple[int, list[int]]]
) -> None:
    history, tokens = TokenHistory(prompt, output), [*prompt, *output]
    for position, inputs in steps:
        position = min(position, len(tokens))
        # Inputs inside of the prompt are the prompt's.
        given_ids = [*prompt[position : position + len(inputs)], *inputs[max(0, len(prompt) - position) :]]
        history.sync(position, given_ids)
        tokens = tokens[: max(position, len(prompt))] + given_ids[max(0, len(prompt) - position) :]
        assert len(history) == len(tokens)
        assert history.output == tokens[len(prompt) :]
        assert counted(history) == expected(prompt, tokens[len(prompt) :])


def test_pending_inputs_are_the_recorded_ones() -> None:
    history = TokenHistory([1, 2], [3, 4])
    history.sync(3, [-1], [True])
    assert history.output == [3, 4]
    with pytest.raises(InvalidInput, match="cannot be pending"):
        history.sync(4, [-1], [True])
    with pytest.raises(InvalidInput, match="knows 4 tokens"):
        history.sync(9, [5])


def test_many_tokens_and_ends() -> None:
    history = TokenHistory(np.arange(100), np.arange(50, 500))
    assert counted(history) == expected(list(range(100)), list(range(50, 500)))
    assert history.ends_with([]) and history.ends_with((498, 499)) and not history.ends_with([499, 498])
    history.truncate(102)
    assert history.output == [50, 51] and counted(history)[51] == (1, True) and 300 not in counted(history)
    assert not TokenHistory([1, 2], [3]).ends_with([2, 3]), "the prompt does not count"
