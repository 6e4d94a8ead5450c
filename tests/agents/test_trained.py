"""`make test-external ONLY=agents ARGS="-k trained"`: each client with a trained model.

A small model answers nonsense; each answer has to be one that the client takes.
"""

from __future__ import annotations

import json

import pytest

from tests.agents.clients import AGENTS
from tests.agents.trained import CONTEXT, RECORD, play

ENDS = {"stop", "length", "tool_calls"}


@pytest.mark.external
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", AGENTS)
async def test_a_session_with_a_trained_model(name: str) -> None:
    session = await play(name)
    check(session)


def check(session: dict[str, object]) -> None:
    requests = session["requests"]
    assert session["exit_code"] == 0 and isinstance(requests, list) and requests
    for one in requests:
        assert one["status"] == 200 and one["finish"] in ENDS
        assert one["output_tokens"] > 0 and one["prompt_tokens"] + one["output_tokens"] <= CONTEXT
    assert session["printed_characters"]


def test_the_record_is_of_the_pinned_versions() -> None:
    sessions = json.loads(RECORD.read_text("utf-8"))["sessions"]
    assert set(sessions) == set(AGENTS)
    for name, session in sessions.items():
        assert session["version"] == AGENTS[name].version
        check(session)
