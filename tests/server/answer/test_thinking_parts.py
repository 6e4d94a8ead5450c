"""Reasoning in the parts of an assistant's history: the template has it where it reads any, and no request fails of it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.fakes import House, error_of
from tests.server.prepare.test_called_history import called, prompt

READS_NONE = "{% for m in messages %}{{ m.role + '=' + m.content + ';' }}{% endfor %}"
READS_CONTENT = (
    "{% for m in messages %}{{ m.role }}="
    "{% if m.reasoning_content is defined %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }};{% endfor %}"
)
READS_THINKING = READS_CONTENT.replace("reasoning_content", "thinking")
READS_PARTS = (
    "{% for m in messages %}{{ m.role }}={% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
    "{% if p['type'] == 'text' %}{{ p['text'] }}{% elif p['type'] == 'thinking' %}<think>{{ p['thinking'] }}</think>"
    "{% endif %}{% endfor %}{% endif %};{% endfor %}"
)
"""Magistral's way."""
THOUGHT = "user=q;assistant=<think>Hm.</think>a;user=r;"
PLAIN = "user=q;assistant=a;user=r;"
TEXT = {"type": "text", "text": "a"}
PARTS: dict[str, dict[str, Any]] = {
    "anthropic": {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"},
    "mistral": {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}], "closed": True},
    "reasoning": {"type": "reasoning", "reasoning": "Hm."},
    "text": {"type": "reasoning", "text": "Hm.", "providerOptions": {}},
    "summary": {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Hm."}]},
    "reasoning_text": {"type": "reasoning_text", "text": "Hm."},
}
UNREADABLE: list[dict[str, Any]] = [
    {"type": "redacted_thinking", "data": "x"},
    {"type": "redacted_thinking", "data": "x", "text": "Hm."},
    {"type": "thinking"},
    {"type": "thinking", "thinking": None},
    {"type": "thinking", "thinking": ""},
    {"type": "thinking", "thinking": 7},
    {"type": "thinking", "thinking": [None, {"text": None}, {"no": "text"}]},
    {"type": "reasoning", "encrypted_content": "x", "summary": []},
]


def history(*parts: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
    return [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": list(parts), **more},
        {"role": "user", "content": "r"},
    ]


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize(
    ("template", "expected"),
    [(READS_NONE, PLAIN), (READS_CONTENT, THOUGHT), (READS_THINKING, THOUGHT), (READS_PARTS, THOUGHT)],
    ids=["reads none", "reasoning_content", "thinking", "parts"],
)
async def test_the_template_has_it_where_it_reads_any(template: str, expected: str, part: str) -> None:
    assert await prompt(template, history(PARTS[part], TEXT)) == expected


@pytest.mark.parametrize("part", UNREADABLE, ids=str)
@pytest.mark.parametrize("template", [READS_NONE, READS_CONTENT, READS_PARTS])
async def test_what_cannot_be_read_is_skipped(template: str, part: dict[str, Any]) -> None:
    assert await prompt(template, history(part, TEXT)) == PLAIN


async def test_several_parts_and_the_message_s_own_reasoning() -> None:
    parts = [PARTS["anthropic"], UNREADABLE[0], PARTS["text"] | {"text": "So."}, TEXT]
    assert await prompt(READS_CONTENT, history(*parts)) == THOUGHT.replace("Hm.", "Hm.\nSo.")
    assert await prompt(READS_CONTENT, history(*parts, reasoning="Mine.")) == THOUGHT.replace("Hm.", "Mine.")


@pytest.mark.parametrize("template", [READS_NONE, READS_CONTENT, READS_PARTS])
async def test_nothing_but_reasoning(template: str) -> None:
    text = await prompt(template, history(PARTS["anthropic"]))
    assert text in ("user=q;assistant=;user=r;", "user=q;assistant=<think>Hm.</think>;user=r;")


async def test_reasoning_before_a_call() -> None:
    template = (
        "{% for m in messages %}{% if m.role == 'assistant' and m.content is none %}<think>{{ m.reasoning_content }}</think>"
        "{% for c in m.tool_calls %}CALL {{ c.function.name }} {{ c.function.arguments + '' }};{% endfor %}"
        "{% elif m.content is not none %}{{ m.role }}={{ m.content }};{% endif %}{% endfor %}"
    )
    messages = called({"content": [PARTS["anthropic"]]})
    assert await prompt(template, messages) == 'user=q;<think>Hm.</think>CALL look {"n": 1};tool=42;'


async def test_only_an_assistant_thinks() -> None:
    house = House()
    for role in ("user", "system"):
        response = await house.chat(messages=[{"role": role, "content": [PARTS["anthropic"], TEXT]}])
        assert (response.status_code, error_of(response)["param"]) == (400, "messages.0.content.0.type")


async def test_the_answer_goes_on_with_the_text_behind_it() -> None:
    messages = history(PARTS["anthropic"], TEXT)[:2]
    assert await prompt(READS_NONE, messages, continue_final_message=True) == "user=q;assistant=a"
