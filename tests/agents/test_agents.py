"""The clients themselves against a scripted model: each finishes a task of two turns with its own tools.

`make test-external ONLY=agents` runs this.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.agents.clients import AGENTS
from tests.agents.scripted import ANSWER, NOTES, shared_prefix
from tests.agents.sessions import Session, play

pytestmark = [pytest.mark.external, pytest.mark.timeout(600)]
NOTE, OTHER = (text.strip() for text in NOTES.values())


@pytest.fixture(params=AGENTS)
def name(request: pytest.FixtureRequest) -> str:
    parameter: str = request.param
    return parameter


async def finished(name: str, script: str, folder: Path, turns: int) -> Session:
    """A session that came to its answer, in so many requests, none of which was refused."""
    session = await play(AGENTS[name], script, folder)
    assert session.code == 0 and ANSWER in session.output, session.output
    assert [one.status for one in session.asked] == [200] * turns, session.output
    assert {one.status for one in session.exchanges} == {200}
    return session


async def test_a_text(name: str, tmp_path: Path) -> None:
    await finished(name, "text", tmp_path, turns=1)


@pytest.mark.parametrize("script", ["call", "parallel calls", "reasoning"])
async def test_two_turns(name: str, script: str, tmp_path: Path) -> None:
    session = await finished(name, script, tmp_path, turns=2)
    first, second = (one.prompt or "" for one in session.asked)
    assert NOTE not in first and NOTE in second
    assert (OTHER in second) == (script == "parallel calls")
    assert shared_prefix(first, second) >= 0.95 * len(first)


async def test_an_error_within_a_stream_is_asked_again(name: str, tmp_path: Path) -> None:
    """With what had come of the failed answer, or without."""
    session = await finished(name, "error", tmp_path, turns=3)
    _, failed, again = (one.prompt or "" for one in session.asked)
    assert shared_prefix(failed, again) >= len(failed) - len("[assistant]<think></think>")


async def test_a_prompt_that_does_not_fit_ends_the_session(name: str, tmp_path: Path) -> None:
    session = await play(AGENTS[name], "overlong", tmp_path)
    assert ANSWER not in session.output
    assert {one.status for one in session.asked} == {400}
    assert len(session.asked) <= 2, "a prompt does not fit better the next time"
    assert AGENTS[name].overlong in session.output, session.output
