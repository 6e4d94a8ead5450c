"""Rendered text equals what transformers renders, for templates in the shapes that real models use."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from engine.errors import InvalidRequest
from server.templates.template import ChatTemplate
from tests.server.templates.template_shapes import SHAPES
from tests.tiers import sweep

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather\nof a city <é> & 'q' \"w\"",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "array", "items": {"type": "integer"}},
                "unit": {"enum": ["°C", "°F"]},
            },
            "required": ["city"],
        },
    },
}
CLOCK = {
    "type": "function",
    "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}},
}


def _user(text: str = "Hi") -> dict[str, Any]:
    return {"role": "user", "content": text}


def _assistant(text: str | None = "Hello!", **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **fields}


def _call(name: str, id_: str = "call12345", **arguments: Any) -> dict[str, Any]:
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}


def _result(text: str, id_: str = "call12345") -> dict[str, Any]:
    return {"role": "tool", "content": text, "tool_call_id": id_, "name": "weather"}


SYSTEM = {"role": "system", "content": " Be brief.\nAlways. "}
ASKED = [_user("Weather in 東京?"), _assistant("", tool_calls=[_call("weather", city="東京", days=[1, 2])])]
CONVERSATIONS: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]] | None]] = {
    "one": ([_user()], None),
    "system": ([SYSTEM, _user(" What?\n\n ")], None),
    "turns": ([_user("a"), _assistant(" b "), _user("c")], None),
    "system_turns": ([SYSTEM, _user("a"), _assistant("b"), _user("c"), _assistant("d\n"), _user("e")], None),
    "unicode": ([_user("שלום <|im_end|> 👩‍👩‍👧 {{ x }} {% y %} \\n \u2028"), _assistant("é\u0301"), _user("&lt;")], None),
    "ends_with_assistant": ([_user("a"), _assistant("so far ")], None),
    "thinking": ([_user("a"), _assistant("<think>\nhm\n</think>\n\nyes"), _user("b")], None),
    "reasoning": ([_user("a"), _assistant("yes", reasoning_content="hm"), _user("b"), _assistant("c", reasoning="d")], None),
    "tools": ([_user("Weather?")], [WEATHER, CLOCK]),
    "system_tools": ([SYSTEM, _user("Weather?")], [WEATHER]),
    "called": ([*ASKED, _result('{"sky": "clear"}'), _assistant("Clear."), _user("Thanks")], [WEATHER]),
    "answering": ([*ASKED, _result("clear")], [WEATHER]),
    "two_calls": (
        [_user("Both?"), _assistant(None, tool_calls=[_call("weather", city="a"), _call("clock", "call67890")]),
         _result("x"), _result("y", "call67890")],
        [WEATHER, CLOCK],
    ),
    "wrong_order": ([_assistant("a"), _assistant("b")], None),
    "parts": ([{"role": "user", "content": [{"type": "text", "text": " x "}, {"type": "text", "text": "y"}]}], None),
    "nulls": ([{"role": "user", "content": "a", "name": None, "tool_calls": None}], None),
    "nothing": ([_user("")], None),
}  # fmt: skip


@cache
def transformers_tokenizer() -> Any:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({"a": 0}, unk_token="a")), **TOKENS
    )


def outcome(render: Any) -> tuple[str, str]:
    """What came out, or what went wrong: the error's own words are compared too."""
    import jinja2

    try:
        return "text", render()
    except InvalidRequest as error:
        return "error", error.message.removeprefix("The chat template refused these messages: ")
    except (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError) as error:
        return "error", " ".join(str(error).split())


@sweep(every=8)
@pytest.mark.parametrize("generation_prompt", [True, False])
@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("shape", SHAPES)
def test_equal_to_transformers(shape: str, conversation: str, generation_prompt: bool) -> None:
    messages, tools = CONVERSATIONS[conversation]
    kind, expected = outcome(
        lambda: transformers_tokenizer().apply_chat_template(
            messages, tools=tools, chat_template=SHAPES[shape],
            add_generation_prompt=generation_prompt, tokenize=False,
        )
    )  # fmt: skip
    template = ChatTemplate(SHAPES[shape], TOKENS)
    ours = outcome(lambda: template.render(messages, tools, generation_prompt))
    if kind == "error" and expected.startswith("can only concatenate"):
        assert ours[0] == "error"
    else:
        assert ours == (kind, expected)


def test_most_of_it_is_text() -> None:
    """The comparison above would also pass if every conversation were refused."""
    for source in SHAPES.values():
        template = ChatTemplate(source, TOKENS)
        texts = [
            outcome(lambda template=template, messages=messages, tools=tools: template.render(messages, tools))
            for messages, tools in CONVERSATIONS.values()
        ]  # fmt: skip
        assert sum(kind == "text" for kind, _ in texts) >= 5


@sweep(every=3)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    "extra",
    [
        {"enable_thinking": False},
        {"date_string": "1 May 2025", "reasoning_effort": "high"},
        {"documents": [{"title": "T <é>", "text": "x\ny"}, {"text": 'q"'}]},
        {"bos_token": "<B>"},
    ],
)
def test_variables_of_the_request(shape: str, extra: dict[str, Any]) -> None:
    messages, tools = CONVERSATIONS["called"]
    kind, expected = outcome(
        lambda: transformers_tokenizer().apply_chat_template(
            messages, tools=tools, chat_template=SHAPES[shape], add_generation_prompt=True, tokenize=False, **extra
        )
    )  # fmt: skip
    ours = outcome(lambda: ChatTemplate(SHAPES[shape], TOKENS).render(messages, tools, True, extra))
    assert ours[0] == kind and (kind == "error" or ours[1] == expected)


@sweep(every=3)
@pytest.mark.parametrize(
    "last", ["so far ", "so far", " The\n", "<think>a</think>b", "", [{"type": "text", "text": "x "}]]
)
@pytest.mark.parametrize("shape", SHAPES)
def test_going_on_with_the_last_message(shape: str, last: Any) -> None:
    messages = [_user("a"), {"role": "assistant", "content": last}]
    kind, expected = outcome(
        lambda: transformers_tokenizer().apply_chat_template(
            messages, chat_template=SHAPES[shape], continue_final_message=True, tokenize=False
        )
    )
    template = ChatTemplate(SHAPES[shape], TOKENS)
    ours = outcome(lambda: template.render(messages, None, False, continue_final_message=True))
    assert ours[0] == kind and (kind == "error" or ours[1] == expected)
    assert "END-OF" not in ours[1]


def shown(shape: str, messages: list[dict[str, Any]]) -> str:
    return ChatTemplate(SHAPES[shape], TOKENS).prompt(messages, None, True)


@pytest.mark.parametrize("shape", SHAPES)
def test_contents_reach_every_template_in_every_form(shape: str) -> None:
    plain = [_user("first words"), _assistant("second words"), _user("third words")]
    parts = [m | {"content": [{"type": "text", "text": m["content"]}]} for m in plain]
    for messages in (plain, parts, [plain[0], parts[1], plain[2]]):
        text = shown(shape, messages)
        assert all(words in text for words in ("first words", "second words", "third words"))
        assert "'type'" not in text and '"type"' not in text


def test_several_parts_become_lines_for_templates_that_know_text_only() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert "user\na\nb<|im_end|>" in shown("chatml", [{"role": "user", "content": parts}])
    assert "User: ab<end" in shown("parts_only", [{"role": "user", "content": parts}])
    assert "user\nab<end" in shown("turns_with_parts", [{"role": "user", "content": parts}])


def test_arguments_are_json_for_templates_that_add_strings() -> None:
    messages = [*ASKED, _result("clear")]
    assert '```json\n{"city": "東京", "days": [1, 2]}\n```' in shown("think_cut", messages)
    assert '"arguments": {"city": "東京", "days": [1, 2]}' in shown("tools_in_xml_and_thinking", messages)
    printed = (
        "{% for m in messages %}{{ m.content }}"
        "{% for c in m.tool_calls or [] %}{{ c.function.arguments }}{% endfor %}{% endfor %}"
    )
    assert '{"city": "東京", "days": [1, 2]}' in ChatTemplate(printed, {}).prompt(messages)


def test_a_refusal_is_in_the_templates_own_words() -> None:
    with pytest.raises(InvalidRequest, match=r"refused these messages: System role not supported$") as caught:
        shown("turns", [SYSTEM, _user()])
    assert caught.value.status == 400


def test_named_templates() -> None:
    named = ChatTemplate({"default": "plain", "tool_use": "with {{ tools | length }}", "rag": "r"}, {})
    assert named.render([_user()]) == "plain" and named.render([_user()], []) == "plain"
    assert named.render([_user()], [WEATHER]) == "with 1"
    assert named.prompt([_user()], [WEATHER]) == "with 1"
    with pytest.raises(InvalidRequest, match="no default chat template, only rag, tool_use"):
        ChatTemplate({"tool_use": "x", "rag": "y"}, {}).render([_user()])
    only = ChatTemplate({"default": "no tools here"}, {})
    assert only.render([_user()], [WEATHER]) == "no tools here"
