"""What real clients sent, sent again: each session comes to its end, and each prompt begins with the one before it."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest

from tests.agents.clients import AGENTS
from tests.agents.recording import PLACE, RECORDED, SCRIPTS, TOOLS
from tests.agents.scripted import ANSWER, CONTEXT, NOTES, Exchange, Recorder, scripted_house, shared_prefix
from tests.server.fakes import House

NOTE, OTHER = (text.strip() for text in NOTES.values())
_FIXED = 200
"""Characters at the end of a prompt that may not come again: the beginning of an answer and what a client tells of its state."""


@pytest.fixture(params=AGENTS)
def name(request: pytest.FixtureRequest) -> str:
    parameter: str = request.param
    return parameter


def recorded(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RECORDED / f"{name}.json").read_text("utf-8"))
    return found


def replayed(name: str, context: int = CONTEXT) -> tuple[House, list[Exchange]]:
    """A server that plays this client's scripts, and what it is sent."""
    house = scripted_house(lambda file: AGENTS[name].reads(f"{PLACE}/project/{file}"), context)
    exchanges: list[Exchange] = []
    house.app.add_middleware(Recorder, exchanges=exchanges)
    return house, exchanges


async def test_every_session_is_answered(name: str) -> None:
    found = recorded(name)
    assert (found["version"], set(found["sessions"])) == (AGENTS[name].version, set(SCRIPTS))
    for script, requests in found["sessions"].items():
        house, exchanges = replayed(name)
        said = []
        async with house.client() as client:
            for one in requests:
                body = one["body"]
                if body.get("tools") == TOOLS:
                    body["tools"] = found["tools"]
                response = await client.post(one["path"], json=body, headers=one["headers"])
                assert response.status_code == 200, response.text
                unread = set(response.headers.get("x-cohort-ignored", "").split(", "))
                assert unread <= set(one["ignored"].split(", ")) | {""}, (
                    "more is ignored than when it was recorded"
                )
                if body.get("tools") is found["tools"]:
                    said.append(told(response.text))
        house.state.threads.close()
        prompts = [one.prompt or "" for one in exchanges if one.body.get("tools") == found["tools"]]
        check(script, prompts, said)


def check(script: str, prompts: list[str], said: list[str]) -> None:
    """`prompts`: of the session's requests, `said`: the answers' texts and arguments of calls."""
    assert ANSWER in said[-1]
    assert len(prompts) == {"text": 1, "error": 3}.get(script, 2)
    for earlier, later in pairwise(prompts):
        assert shared_prefix(earlier, later) >= len(earlier) - _FIXED
        assert NOTE not in prompts[0] and NOTE in later
        assert (OTHER in later) == (script == "parallel calls")
        assert ("The note will tell." in later) == (script == "reasoning")
    assert "x-anthropic-billing-header" not in prompts[0]
    if len(said) > 1:
        assert said[0].count("note.txt") == 1 and said[0].count("other.txt") == (script == "parallel calls")


def told(stream: str) -> str:
    """Texts and arguments that a stream of any of the three APIs tells, in their order; the texts of a whole message, for which
    Claude Code asks after a stream that failed."""
    if stream.startswith("{"):
        return "".join(block.get("text", "") for block in json.loads(stream)["content"])
    pieces = []
    for line in stream.splitlines():
        if not line.startswith("data: {"):
            continue
        event = json.loads(line.removeprefix("data: "))
        if event.get("type", "").endswith(("output_text.delta", "function_call_arguments.delta")):
            pieces.append(event["delta"])
        delta = event["delta"] if event.get("type") == "content_block_delta" else {}
        pieces += [delta.get("text", ""), delta.get("partial_json", "")]
        for choice in event.get("choices", ()):
            pieces.append(choice["delta"].get("content") or "")
            pieces += [
                call["function"].get("arguments", "") for call in choice["delta"].get("tool_calls") or ()
            ]
    return "".join(pieces)


@pytest.mark.parametrize("context", [1_000, 8_000])
async def test_a_prompt_that_does_not_fit_is_refused_in_known_words(name: str, context: int) -> None:
    """By which the clients tell it from other refusals: a text that is too long to be tokenized, and one with too many tokens."""
    found = recorded(name)
    [one] = [one for one in found["sessions"]["text"] if one["body"].get("tools") == TOOLS]
    house, _ = replayed(name, context)
    async with house.client() as client:
        body = {**one["body"], "tools": found["tools"]}
        response = await client.post(one["path"], json=body, headers=one["headers"])
    house.state.threads.close()
    assert response.status_code == 400
    error = response.json()["error"]
    if name == "claude":
        assert error["message"].startswith("prompt is too long: ")
    else:
        assert error["code"] == "context_length_exceeded"
        assert f"maximum context length is {context} tokens" in error["message"]


def test_recordings_tell_nothing_of_where_they_were_made() -> None:
    for path in RECORDED.glob("*.json"):
        text = path.read_text("utf-8")
        assert len(text) < 150_000
        for word in ("/tmp/", "/root/", "agent-", "Bearer", "authorization", "session-id"):
            assert word not in text, f"{path.name}: {word}"
