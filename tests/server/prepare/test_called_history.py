"""What templates make of an assistant that called tools, or said nothing: its calls are in the prompt, whatever the shape."""
# ruff: noqa: E501 -- in a template every line break counts

from __future__ import annotations

import json
from typing import Any

import pytest

from server.templates.template import ChatTemplate
from tests.server.fakes import House, error_of
from tests.server.templates.test_template_shapes import TOKENS, transformers_tokenizer

ONLY_WITHOUT_CONTENT = (
    "{% for m in messages %}{% if m.role == 'assistant' and m.content is none %}{% for c in m.tool_calls %}"
    "CALL {{ c.function.name }} {{ c.function.arguments + '' }};{% endfor %}"
    "{% elif m.content is not none %}{{ m.role }}={{ m.content }};{% endif %}{% endfor %}"
)
"""DeepSeek V3's way."""
ONLY_WITH_NO_KEY = ONLY_WITHOUT_CONTENT.replace("m.content is none", "'content' not in m").replace(
    "m.content is not none", "true"
)
ONLY_WITH_EMPTY_TEXT = ONLY_WITHOUT_CONTENT.replace("m.content is none", "m.content == ''").replace(
    "m.content is not none", "true"
)
FALSY = ONLY_WITHOUT_CONTENT.replace("m.content is none", "not m.content").replace(
    "m.content is not none", "true"
)
CALLS_AFTER_TEXT = (
    "{% for m in messages %}{% if m.role == 'assistant' and m.tool_calls is defined and m.tool_calls is not none %}"
    "{% for c in m.tool_calls %}{% if m.content is none %}{{ '<a>' }}{% else %}{{ '<a>' + m.content }}{% endif %}"
    "CALL {{ c['function']['name'] }} {{ '' + c['function']['arguments'] }};{% endfor %}"
    "{% else %}{{ m.role + '=' + m.content + ';' }}{% endif %}{% endfor %}"
)
"""DeepSeek V3.1's way."""
CALLS_IN_A_MACRO = (
    "{% macro text(c) %}{% if c is string %}{{ c }}{% elif c is iterable and c is not mapping %}"
    "{% for p in c %}{% if p.type == 'text' %}{{ p.text }}{% endif %}{% endfor %}{% else %}{{ c }}{% endif %}{% endmacro %}"
    "{% for m in messages %}{% if m.role == 'assistant' and m.tool_calls %}{{ text(m.content) }}{% for c in m.tool_calls %}"
    "{% set f = c.function or c %}CALL {{ f.name }} {% set args = f.arguments or {} %}"
    "{% for k, v in args.items() %}{{ k }}:{{ v | tojson if v is not string else v }}{% endfor %};{% endfor %}"
    "{% else %}{{ m.role }}={{ text(m.content) }};{% endif %}{% endfor %}"
)
"""GLM 4's way: content that is none is written as "None"."""
CALLS_AS_JSON = (
    "{% for m in messages %}{% if 'tool_calls' in m %}{% if m.tool_calls | length != 1 %}{{ raise_exception('one call') }}{% endif %}"
    "{% set c = m.tool_calls[0].function %}CALL {{ c.name }} {{ c.arguments | tojson }};"
    "{% else %}{{ m.role }}={{ m.content | trim }};{% endif %}{% endfor %}"
)
"""Llama 3's way: the key is enough."""
CALLS_BEHIND_CONTENT = (
    "{% for m in messages %}{% if m.tool_calls %}{{ m.content + '' }}{% for c in m.tool_calls %}"
    "CALL {{ c.function.name }} {% if c.function.arguments is string %}{{ c.function.arguments }}"
    "{% else %}{{ c.function.arguments | tojson }}{% endif %};{% endfor %}"
    "{% else %}{{ m.role + '=' + m.content + ';' }}{% endif %}{% endfor %}"
)
"""Qwen 3's way: contents are added."""
CALLS_PRINTED = (
    "{% for m in messages %}{% if m.content %}{{ m.role }}={{ m.content }};{% elif m.tool_calls %}"
    "{% for c in m.tool_calls %}CALL {{ c.function.name }} {{ c.function.arguments }};{% endfor %}{% endif %}{% endfor %}"
)
"""vLLM's for Phi-4-mini."""
CALLS_WITH_TOOLS_ONLY = (
    "{% if tools %}" + ONLY_WITHOUT_CONTENT + "{% else %}{{ messages[0].content }}{% endif %}"
)
CALLS_BEFORE_RESULTS_ONLY = (
    "{% for m in messages %}{% if m.role == 'assistant' and not loop.last and m.content is none %}{% for c in m.tool_calls %}"
    "CALL {{ c.function.name }} {{ c.function.arguments + '' }};{% endfor %}"
    "{% elif m.content is not none %}{{ m.role }}={{ m.content }};{% endif %}{% endfor %}"
)
CALLS_BEHIND_WHAT_IS_LEFT_OF_CONTENT = (
    "{% for m in messages %}{% set content = m.content %}{% if m.role == 'assistant' %}"
    "{% if not loop.last %}{% set content = m.content.split('</think>')[-1] %}{% endif %}"
    "{% if m.content %}{{ content }}{% endif %}"
    "{% for c in m.tool_calls %}CALL {{ c.function.name }} {{ c.function.arguments | tojson }};{% endfor %}"
    "{% else %}{{ m.role }}={{ content }};{% endif %}{% endfor %}"
)
"""QwQ's way: a content that is none is fine at the end of the conversation and nowhere else."""
TEMPLATES = {
    "only_without_content": ONLY_WITHOUT_CONTENT,
    "only_with_no_key": ONLY_WITH_NO_KEY,
    "only_with_empty_text": ONLY_WITH_EMPTY_TEXT,
    "falsy": FALSY,
    "calls_as_json": CALLS_AS_JSON,
    "calls_behind_content": CALLS_BEHIND_CONTENT,
    "calls_printed": CALLS_PRINTED,
    "calls_with_tools_only": CALLS_WITH_TOOLS_ONLY,
    "calls_before_results_only": CALLS_BEFORE_RESULTS_ONLY,
    "calls_behind_what_is_left_of_content": CALLS_BEHIND_WHAT_IS_LEFT_OF_CONTENT,
}
SENT: dict[str, dict[str, Any]] = {
    "null": {"content": None},
    "absent": {},
    "empty": {"content": ""},
    "no_parts": {"content": []},
    "empty_part": {"content": [{"type": "text", "text": ""}]},
}
LOOK = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
EXPECTED = 'user=q;CALL look {"n": 1};tool=42;'


def call(arguments: Any = '{"n": 1}') -> dict[str, Any]:
    return {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": arguments}}


def called(content: dict[str, Any], arguments: Any = '{"n": 1}') -> list[dict[str, Any]]:
    return [
        {"role": "user", "content": "q"},
        {"role": "assistant", **content, "tool_calls": [call(arguments)]},
        {"role": "tool", "tool_call_id": "call_1", "content": "42"},
    ]


async def prompt(template: str, messages: list[dict[str, Any]], **body: Any) -> str:
    house = House(template=template)
    response = await house.chat(messages=messages, **body)
    assert response.status_code == 200, response.text
    return bytes(house.asked().prompts[0]).decode()


@pytest.mark.parametrize("sent", SENT)
@pytest.mark.parametrize("template", TEMPLATES)
async def test_a_call_without_text_is_in_the_prompt(template: str, sent: str) -> None:
    tools = {"tools": LOOK} if "tools" in template else {}
    assert await prompt(TEMPLATES[template], called(SENT[sent]), **tools) == EXPECTED


@pytest.mark.parametrize("sent", SENT)
async def test_no_prompt_has_none_written_in_it(sent: str) -> None:
    assert await prompt(CALLS_IN_A_MACRO, called(SENT[sent])) == "user=q;CALL look n:1;tool=42;"
    assert await prompt(CALLS_AFTER_TEXT, called(SENT[sent])) == 'user=q;<a>CALL look {"n": 1};tool=42;'
    prose = (
        "{% if tools %}None of them may fail. {% endif %}{% for m in messages %}{{ m.content }};{% endfor %}"
    )
    assert await prompt(prose, called(SENT[sent]), tools=LOOK) == "None of them may fail. q;;42;"


@pytest.mark.parametrize("template", [ONLY_WITHOUT_CONTENT, CALLS_AFTER_TEXT, CALLS_PRINTED])
@pytest.mark.parametrize(
    "arguments", ['{"n":1}', '{ "n" : 1 }', '{"n": 1, "n": 2}', '{"n": 1', "[1]", '{"ü": "\\u00fc"}']
)
async def test_a_string_of_arguments_is_handed_over_to_the_letter(template: str, arguments: str) -> None:
    assert f"CALL look {arguments};" in await prompt(template, called({"content": None}, arguments))


@pytest.mark.parametrize(
    ("arguments", "text"), [({"n": [1, "ü"]}, '{"n": [1, "ü"]}'), (None, "{}"), ("", "{}")]
)
@pytest.mark.parametrize(
    "template", [ONLY_WITHOUT_CONTENT, CALLS_AS_JSON, CALLS_BEHIND_CONTENT, CALLS_PRINTED]
)
async def test_arguments_in_other_forms(template: str, arguments: Any, text: str) -> None:
    assert f"CALL look {text};" in await prompt(template, called({"content": None}, arguments))


@pytest.mark.parametrize("arguments", ['{"n": 1', "[1]", "1", "nothing"])
async def test_arguments_that_a_template_cannot_show_are_named(arguments: str) -> None:
    """A call that was cut off, say. Templates that go through the members of an object refuse it."""
    members = CALLS_AS_JSON.replace(
        "{{ c.arguments | tojson }}", "{% for k, v in c.arguments | items %}{{ k }}{% endfor %}"
    )
    house = House(template=members)
    error = error_of(await house.chat(messages=called({"content": None}, arguments)))
    assert error["param"] == "messages.1.tool_calls.0.function.arguments"
    assert error["code"] == "chat_template_error"
    assert "is no JSON object, which a template may need" in error["message"]
    whole = error_of(await House(template="{{ raise_exception('no') }}").chat(messages=called({})))
    assert whole["param"] == "messages" and whole["message"] == "The chat template refused these messages: no"


@pytest.mark.parametrize("form", ["text", "parts"])
async def test_text_beside_calls_stays(form: str) -> None:
    said = "I look." if form == "text" else [{"type": "text", "text": "I look."}]
    expected = 'user=q;I look.CALL look {"n": 1};tool=42;'
    assert await prompt(CALLS_BEHIND_CONTENT, called({"content": said})) == expected


@pytest.mark.parametrize("calls", [{"tool_calls": []}, {"tool_calls": None}, {}])
@pytest.mark.parametrize(
    "template", [ONLY_WITHOUT_CONTENT, CALLS_AS_JSON, CALLS_BEHIND_CONTENT, CALLS_AFTER_TEXT]
)
async def test_no_calls_are_no_key(template: str, calls: dict[str, Any]) -> None:
    messages = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "a", "name": None, "refusal": None, "audio": None, **calls},
        {"role": "user", "content": "r"},
    ]
    assert await prompt(template, messages) == "user=q;assistant=a;user=r;"


async def test_keys_that_were_left_out_are_not_there() -> None:
    keys = "{% for m in messages %}{{ m.keys() | sort | join(',') }};{% for c in m.tool_calls %}{{ c.keys() | sort | join(',') }};{% endfor %}{% endfor %}"
    messages = called({"content": None})
    assert await prompt(keys, messages) == (
        "content,role;content,role,tool_calls;function,id,type;content,role,tool_call_id;"
    )
    del messages[1]["tool_calls"][0]["id"]
    messages[1] |= {"reasoning_content": "Hm."}
    shown = "content,role;content,reasoning_content,role,thinking,tool_calls;function,type;content,role,tool_call_id;"
    assert await prompt(keys, messages) == shown


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ({"content": None}, "user=q;user=r;"),
        ({}, "user=q;assistant=;user=r;"),
        ({"content": ""}, "user=q;assistant=;user=r;"),
    ],
)
async def test_an_answer_of_nothing(sent: dict[str, Any], expected: str) -> None:
    """None stays none, and what is left out is undefined; neither breaks a template that adds or prints it."""
    messages = [
        {"role": "user", "content": "q"},
        {"role": "assistant", **sent},
        {"role": "user", "content": "r"},
    ]
    reads_none = "{% for m in messages %}{% if m.content is not none %}{{ m.role }}={{ m.content }};{% endif %}{% endfor %}"
    assert await prompt(reads_none, messages) == expected
    for other in (
        "{{ m.role }}={{ m.content }};",
        "{{ m.role + '=' + m.content + ';' }}",
        "{{ m.role }}={{ m.content | trim }};",
    ):
        assert (
            await prompt("{% for m in messages %}" + other + "{% endfor %}", messages)
            == "user=q;assistant=;user=r;"
        )


@pytest.mark.parametrize(
    ("template", "role"),
    [("{% for m in messages %}{{ m.role }};{% endfor %}", "system"),
     ("{% for m in messages %}{{ m.role if m.role in ['system', 'developer'] }};{% endfor %}", "developer"),
     ("{% for m in messages %}{% if m['role'] == 'developer' %}{{ 'developer' }};{% endif %}{% endfor %}", "developer")],
)  # fmt: skip
async def test_a_developer_is_the_system_unless_the_template_names_it(template: str, role: str) -> None:
    assert await prompt(template, [{"role": "developer", "content": "Be brief."}]) == f"{role};"


TOOL_RESULTS = {
    "text": "{% for m in messages %}{{ m.role }}={{ m.content or '' }};{% endfor %}",
    "added": "{% for m in messages %}{{ m.role + '=' + m.content + ';' }}{% endfor %}",
    "parts": "{% for m in messages %}{{ m.role }}={% for p in m.content or [] %}{{ p.text }}{% endfor %};{% endfor %}",
    "parts of tools": "{% for m in messages %}{{ m.role }}={% if m.role == 'tool' %}{% for p in m.content %}{{ p['text'] }}{% endfor %}{% else %}{{ m.content + '' }}{% endif %};{% endfor %}",
    "text of tools": "{% for m in messages %}{{ m.role }}={% if m.role == 'tool' %}{{ m.content + '' }}{% else %}{% for p in m.content or [] %}{{ p['text'] }}{% endfor %}{% endif %};{% endfor %}",
}


@pytest.mark.parametrize("template", TOOL_RESULTS)
@pytest.mark.parametrize("result", ["42", [{"type": "text", "text": "42"}]], ids=["text", "parts"])
async def test_results_of_tools_in_either_form(template: str, result: Any) -> None:
    messages = called({"content": None})
    messages[2]["content"] = result
    assert await prompt(TOOL_RESULTS[template], messages) == "user=q;assistant=;tool=42;"


@pytest.mark.parametrize(
    "template",
    [CALLS_AS_JSON, CALLS_BEHIND_CONTENT, CALLS_IN_A_MACRO, ONLY_WITHOUT_CONTENT, CALLS_AFTER_TEXT],
)
def test_equal_to_transformers_of_the_same_conversation(template: str) -> None:
    """Given what each template reads, arguments as an object or as JSON."""
    objects = template in (CALLS_AS_JSON, CALLS_BEHIND_CONTENT, CALLS_IN_A_MACRO)
    for content in ("Well.", "") if template != ONLY_WITHOUT_CONTENT else ("Well.",):
        messages = called({"content": content}, {"n": 1} if objects else '{"n": 1}')
        theirs = transformers_tokenizer().apply_chat_template(
            messages, chat_template=template, tokenize=False
        )
        sent = called({"content": content})
        assert ChatTemplate(template, TOKENS).prompt(sent, add_generation_prompt=False) == theirs


def test_the_forms_hold_for_every_template_by_its_name() -> None:
    named = ChatTemplate({"default": CALLS_BEHIND_CONTENT, "tool_use": ONLY_WITHOUT_CONTENT}, TOKENS)
    assert named.prompt(called({})) == named.prompt(called({}), LOOK) == EXPECTED
    assert json.dumps(called({}))  # nothing was changed


async def test_tools_reach_a_template_that_reads_them_from_the_system_message() -> None:
    """Phi-4-mini's way: functions as JSON, beside the content."""
    template = (
        "{% for m in messages %}{% if m['role'] == 'system' and 'tools' in m and m['tools'] is not none %}"
        "{{ '<|' + m['role'] + '|>' + m['content'] + '<|tool|>' + m['tools'] + '<|/tool|><|end|>' }}"
        "{% else %}{{ '<|' + m['role'] + '|>' + m['content'] + '<|end|>' }}{% endif %}{% endfor %}"
    )
    tools = '<|tool|>[{"name": "look", "parameters": {"type": "object"}}]<|/tool|><|end|>'
    user = {"role": "user", "content": "q"}
    assert await prompt(template, [user], tools=LOOK) == f"<|system|>{tools}<|user|>q<|end|>"
    system = {"role": "developer", "content": "Be brief."}
    assert await prompt(template, [system, user], tools=LOOK) == f"<|system|>Be brief.{tools}<|user|>q<|end|>"
    assert await prompt(template, [system, user]) == "<|system|>Be brief.<|end|><|user|>q<|end|>"
