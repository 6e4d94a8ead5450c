"""Which notation a model speaks: by its chat template, its tokens, and what the operator says."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from server.answer.notation import ModelNotation
from server.answer.notation import model_notation as notation_of
from server.answer.reasoning import REASONING
from server.answer.tools.mistral import Mistral
from server.answer.tools.registry import TOOL_PARSERS
from server.settings.load import SettingsError, load
from server.settings.table import Settings
from server.templates.template import ChatTemplate
from tests.server.templates import template_shapes

LISTS = """\
{{- bos_token }}{%- for message in messages %}
    {%- if message.role == 'user' %}
        {%- if tools is not none and loop.last %}{{- '[AVAILABLE_TOOLS] ' + (tools | tojson) + '[/AVAILABLE_TOOLS]' }}{%- endif %}
        {{- '[INST] ' + message.content + '[/INST]' }}
    {%- elif message.tool_calls is defined %}
        {{- '[TOOL_CALLS] [' }}{%- for call in message.tool_calls %}{{- call.function | tojson }}{%- endfor %}{{- ']' }}
    {%- endif %}
{%- endfor %}"""
NAMES = LISTS.replace(
    "'[TOOL_CALLS] [' }}{%- for call in message.tool_calls %}{{- call.function | tojson }}{%- endfor %}{{- ']' }}",
    "'' }}{%- for call in message.tool_calls %}{{- '[TOOL_CALLS]' + call.function.name + '[ARGS]' + "
    "(call.function.arguments | tojson) }}{%- endfor %}",
)
NAMES_AND_IDS = NAMES.replace("'[ARGS]'", "'[CALL_ID]' + call.id + '[ARGS]'")
assert len({LISTS, NAMES, NAMES_AND_IDS}) == 3


@dataclass
class Tokens:
    """A vocabulary's added tokens; those from 100 on are special."""

    added_tokens: dict[str, int] = field(default_factory=dict)
    byte_level: bool = True

    def is_special(self, token_id: int) -> bool:
        return token_id >= 100


def model_notation(tokens: Tokens, source: str, tools: str | None, reasoning: str | None) -> ModelNotation:
    return notation_of(
        tokens, ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"}), tools, reasoning
    )


@pytest.mark.parametrize(
    ("template", "tools", "reasoning"),
    [
        (template_shapes.HEADERS, "llama3_json", None),
        (template_shapes.HEADERS + "<|python_tag|>", "llama3_json", None),
        (template_shapes.TOOLS_IN_XML_AND_THINKING, "hermes", "qwen3"),
        (LISTS, "mistral", None),
        (NAMES, "mistral", None),
        (LISTS + "[THINK][/THINK]", "mistral", "mistral"),
        (template_shapes.CHATML, None, None),
        (template_shapes.ROLE_LINES, None, None),
    ],
)
def test_a_template_shows_it(template: str, tools: str | None, reasoning: str | None) -> None:
    found = model_notation(Tokens(), template, None, None)
    assert (found.tools.name if found.tools else None) == tools
    assert (found.reasoning.name if found.reasoning else None) == reasoning


def test_a_token_tells_where_the_template_does_not() -> None:
    """One that no other notation has."""
    token = "[TOOL_CALLS]"
    found = model_notation(Tokens({token: 5}), template_shapes.CHATML, None, None)
    assert found.tools is not None
    assert found.tools.name == "mistral"
    assert found.tokens == {token: 5}
    assert found.special == frozenset()
    assert found.special_ids([token]) == frozenset()
    special = model_notation(Tokens({token: 105}), template_shapes.CHATML, None, None)
    assert special.special_ids([token, "other"]) == {105}
    for shared in ("<tool_call>", "<|python_tag|>"):
        assert model_notation(Tokens({shared: 5}), template_shapes.CHATML, None, None).tools is None


def test_the_operator_has_the_last_word() -> None:
    found = model_notation(Tokens(), template_shapes.TOOLS_IN_XML_AND_THINKING, "mistral", "deepseek_r1")
    assert found.tools == Mistral("mistral")
    assert found.reasoning is REASONING["deepseek_r1"]
    off = model_notation(Tokens(), template_shapes.TOOLS_IN_XML_AND_THINKING, "none", "none")
    assert (off.tools, off.reasoning, off.tokens) == (None, None, {})


@pytest.mark.parametrize(
    ("template", "named", "with_ids"),
    [(LISTS, False, False), (NAMES, True, False), (NAMES_AND_IDS, True, True)],
)
def test_mistral_has_three_forms(template: str, named: bool, with_ids: bool) -> None:
    assert model_notation(Tokens(), template, None, None).tools == Mistral("mistral", named, with_ids)


def test_templates_that_refuse_two_calls() -> None:
    assert model_notation(Tokens(), template_shapes.HEADERS, None, None).single_calls
    assert not model_notation(Tokens(), LISTS, None, None).single_calls


@pytest.mark.parametrize("flag", ["tool_call_parser", "reasoning_parser", "reasoning_field"])
def test_unknown_names_are_answered_with_the_known(flag: str) -> None:
    with pytest.raises(SettingsError) as error:
        load({flag: "guess"}, {})
    assert str(error.value).startswith(f"--{flag.replace('_', '-')}: it should be '")
    assert "\n" not in str(error.value)
    known = {"tool_call_parser": TOOL_PARSERS, "reasoning_parser": tuple(REASONING)}.get(flag, ("both",))
    assert all(f"'{name}'" in str(error.value) for name in known)
    for name in known:
        settings: Settings = load({flag: name}, {})[0]
        assert getattr(settings, flag) == name


@pytest.mark.parametrize(
    ("template", "reads"),
    [
        (LISTS, True),
        (template_shapes.HEADERS, True),
        (template_shapes.CHATML, False),
        (template_shapes.INST, False),
    ],
)
def test_whether_a_template_shows_tools(template: str, reads: bool) -> None:
    assert ChatTemplate(template, {}).reads_tools == reads
