"""Notations of tool calls are told apart by what templates write, and one that no parser reads is unknown."""
# ruff: noqa: E501 -- in a template every line break counts

from __future__ import annotations

from typing import Any

import pytest
import structlog.testing

from executors.process import connect
from server.answer.notation import JSON, ModelNotation, model_notation
from server.answer.tools.detect import detected
from server.system.worker_threads import DeadlineExceeded, FencedThreads
from server.templates.template import ChatTemplate
from tests.server.answer.tools.test_notation import Tokens
from tests.server.apis.operation.test_executors import PAGED, register
from tests.server.fakes import House, error_of, spells

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
OBJECT = "{{ f.arguments | tojson }}"
NAMED = '{"name": "{{ f.name }}", "arguments": ' + OBJECT + "}"
LLAMA = '{"name": "{{ f.name }}", "parameters": ' + OBJECT + "}"
ITEMS = "{% for k, v in f.arguments.items() %}"
XML = (
    "<tool_call>\n<function={{ f.name }}>\n"
    + ITEMS
    + "<parameter={{ k }}>\n{{ v }}\n</parameter>\n{% endfor %}</function>\n</tool_call>"
)


def template(call: str, prose: str = "", before: str = "", after: str = "", start: str = "assistant:") -> str:
    """Each call written as `call`, all of them between `before` and `after`."""
    return (
        "{{ bos_token }}{% if tools %}system:{% for t in tools %}{{ t | tojson }}{% endfor %}"
        + prose
        + "<|end|>{% endif %}"
        "{% for m in messages %}{% if m.role == 'assistant' %}" + start + "{{ m.content or '' }}"
        "{% if m.tool_calls %}"
        + before
        + "{% for c in m.tool_calls %}{% set f = c.function %}"
        + call
        + "{% endfor %}"
        + after
        + "{% endif %}"
        "{% else %}{{ m.role }}:{{ m.content }}{% endif %}<|end|>{% endfor %}{% if add_generation_prompt %}"
        + start
        + "{% endif %}"
    )


def only_prose(prose: str) -> str:
    return template("", prose).replace("{% if m.tool_calls %}", "{% if false %}")


HERMES = f"<tool_call>\n{NAMED}\n</tool_call>"
HERMES_PROSE = 'Return <tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
GLM_PROSE = "Write <tool_call>{function-name}\n<arg_key>{arg-key-1}</arg_key>\n<arg_value>{arg-value-1}</arg_value>\n</tool_call>"
XML_PROSE = "Return <tool_call>\n<function=example>\n<parameter=a>\nx\n</parameter>\n</function>\n</tool_call> in XML."
PYTHONIC = "{{ f.name }}(" + ITEMS + "{{ k }}={{ v | tojson }}{% endfor %})"
KNOWN = {
    "qwen2.5": (template(HERMES, HERMES_PROSE, before="\n"), "hermes"),
    "qwen3": (template(HERMES, HERMES_PROSE, start="assistant:<think>\n\n</think>\n\n"), "hermes"),
    "hermes 2": (template('\n<tool_call>\n{ "arguments": ' + OBJECT + ', "name": "{{ f.name }}"}\n</tool_call> '), "hermes"),
    "granite 4": (template(HERMES), "hermes"),
    "thinking before text only": (
        template(HERMES).replace("{{ m.content or '' }}", "{% if m.content %}<think>\n</think>{{ m.content }}{% endif %}"), "hermes",
    ),
    "thinking before calls only": (template(HERMES, before="<think>\n\n</think>\n\n"), "hermes"),
    "smollm3, in prose": (only_prose(HERMES_PROSE), "hermes"),
    "hermes 2, in prose of Python's": (only_prose("<tool_call>\n{'arguments': <args-dict>, 'name': <function-name>}\n</tool_call>"), "hermes"),
    "llama 3.1": (template(LLAMA, 'Respond in the format {"name": function name, "parameters": dictionary of argument name and its value}.'), "llama3_json"),
    "llama 3.1, in prose": (only_prose('Respond in the format {"name": function name, "parameters": dictionary of argument name and its value}.'), "llama3_json"),
    "llama with its tag": (template("<|python_tag|>" + NAMED), "llama3_json"),
    "mistral v3": (template("{{ f | tojson }}", before="[TOOL_CALLS] [", after="]"), "mistral"),
    "mistral v11": (template("[TOOL_CALLS]{{ f.name }}[ARGS]" + OBJECT), "mistral"),
    "mistral v13": (template("[TOOL_CALLS]{{ f.name }}[CALL_ID]{{ c.id }}[ARGS]" + OBJECT), "mistral"),
    "mistral, in prose": (only_prose('Answer [TOOL_CALLS][{"name": ..., "arguments": ...}]'), "mistral"),
    "qwen3 coder": (template(XML, XML_PROSE), "qwen3_coder"),
    "qwen3 coder, in prose": (only_prose(XML_PROSE), "qwen3_coder"),
    "glm 4.5": (template(
        "\n<tool_call>{{ f.name }}\n" + ITEMS + "<arg_key>{{ k }}</arg_key>\n<arg_value>{{ v }}</arg_value>\n{% endfor %}</tool_call>", GLM_PROSE
    ), "glm45"),
    "glm 4.5, in prose": (only_prose(GLM_PROSE), "glm45"),
    "granite 3": (template(NAMED, before="<|tool_call|>[", after="]"), "granite"),
    "granite 3, in prose": (only_prose('Write <|tool_call|>[{"name": ..., "arguments": ...}]'), "granite"),
    "phi 4 mini": (template(NAMED, "functools[...]", before="<|tool_call|>[", after="]<|/tool_call|>"), "phi4_mini_json"),
    "deepseek v3": (template(
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{{ f.name }}\n```json\n{{ f.arguments + '' }}\n```<｜tool▁call▁end｜>",
        before="<｜tool▁calls▁begin｜>", after="<｜tool▁calls▁end｜>",
    ), "deepseek_v3"),
    "deepseek v3.1": (template("<｜tool▁call▁begin｜>{{ f.name }}<｜tool▁sep｜>{{ f.arguments + '' }}<｜tool▁call▁end｜>", before="<｜tool▁calls▁begin｜>"), "deepseek_v31"),
    "kimi k2": (template(
        "<|tool_call_begin|>functions.{{ f.name }}:0<|tool_call_argument_begin|>" + OBJECT + "<|tool_call_end|>",
        before="<|tool_calls_section_begin|>", after="<|tool_calls_section_end|>",
    ), "kimi_k2"),
    "gpt-oss": (template("<|channel|>commentary to=functions.{{ f.name }} <|constrain|>json<|message|>" + OBJECT + "<|call|>"), "openai"),
    "minimax m2": (template('<invoke name="{{ f.name }}">' + ITEMS + '<parameter name="{{ k }}">{{ v }}</parameter>{% endfor %}</invoke>', before="<minimax:tool_call>"), "minimax_m2"),
    "llama 4": (template(PYTHONIC, before="<|python_start|>[", after="]<|python_end|>"), "llama4_pythonic"),
    "llama 3.2, pythonic": (template(PYTHONIC, before="[", after="]"), "pythonic"),
    "lfm 2": (template(PYTHONIC, before="<|tool_call_start|>[", after="]<|tool_call_end|>"), "lfm2"),
    "olmo 3": (template(PYTHONIC, before="<function_calls>", after="</function_calls>"), "olmo3"),
    "jamba": (template("\n  " + NAMED, before="<tool_calls>[", after="\n]</tool_calls>"), "jamba"),
    "seed": (template("<seed:tool_call>\n<function={{ f.name }}>" + ITEMS + "<parameter={{ k }}>{{ v }}</parameter>{% endfor %}</function>\n</seed:tool_call>"), "seed_oss"),
    "nemotron": (template(NAMED, before="<TOOLCALL>[", after="]</TOOLCALL>"), "nemotron_json"),
    "another notation than the prose": (template(XML, HERMES_PROSE), "qwen3_coder"),
    "deepseek v3.2": (template(
        '<｜DSML｜invoke name="{{ f.name }}">\n' + ITEMS + '<｜DSML｜parameter name="{{ k }}" string="true">{{ v }}</｜DSML｜parameter>\n{% endfor %}</｜DSML｜invoke>\n',
        before="<｜DSML｜function_calls>\n", after="</｜DSML｜function_calls>",
    ), "deepseek_v32"),
    "glm 4.7": (template("<tool_call>{{ f.name }}" + ITEMS + "<arg_key>{{ k }}</arg_key><arg_value>{{ v }}</arg_value>{% endfor %}</tool_call>"), "glm45"),
    "gpt-oss, as its template writes it": (template(" to=functions.{{ f.name }}<|channel|>commentary json<|message|>" + OBJECT + "<|call|>", start="<|start|>assistant"), "openai"),
    "gemma 4": (template("<|tool_call>call:{{ f.name }}{{ '{' }}" + ITEMS + '{{ k }}:<|"|>{{ v }}<|"|>{% endfor %}{{ "}" }}<tool_call|>'), "gemma4"),
    "functiongemma": (template("<start_function_call>call:{{ f.name }}{{ '{' }}" + ITEMS + "{{ k }}:<escape>{{ v }}<escape>{% endfor %}{{ '}' }}<end_function_call>"), "functiongemma"),
    "an id that names the function": (template("<|tool_call_begin|>{{ c.id }}<|tool_call_argument_begin|>" + OBJECT + "<|tool_call_end|>", before="<|tool_calls_section_begin|>"), "kimi_k2"),
    "llama 4, in prose": (only_prose("Answer [func_name1(params_name1=params_value1, params_name2=params_value2...), func_name2(params)]"), "pythonic"),
    "olmo 3, in prose": (only_prose("Output any function calls within <function_calls></function_calls> XML tags."), "olmo3"),
    "seed, in prose": (only_prose("<seed:tool_call>\n<function=example>\n<parameter=a>b</parameter>\n</function>\n</seed:tool_call>"), "seed_oss"),
}  # fmt: skip
UNKNOWN = {
    "phi 4 mini, vllm's": template('{"name": "{{ f.name }}", "arguments": {{ f.arguments }}}', 'functools[{"name": [function name], "arguments": [JSON]}]'),
    "functionary": template(">>>{{ f.name }}\n" + OBJECT),
    "functionary 3.1": template("<function={{ f.name }}>" + OBJECT + "</function>"),
    "xlam": template("{{ f | tojson }}", 'in one array: [{"name": "tool", "arguments": {"arg1": "value1"}}]', before="[", after="]"),
    "minimax m1": template("\n" + NAMED + "\n", before="<tool_calls>", after="</tool_calls>"),
    "hunyuan": template("<tool_call>{{ f.name }}\n```json\n" + OBJECT + "\n```\n</tool_call>", before="<tool_calls>\n", after="\n</tool_calls>"),
    "hermes between other tags": template(HERMES, before="<tool_calls>\n", after="\n</tool_calls>"),
    "hermes with lists": template(NAMED, before="<tool_call>[", after="]</tool_call>"),
    "internlm": template("<|action_start|><|plugin|>\n" + LLAMA + "<|action_end|>"),
    "command r": template('{"tool_name": "{{ f.name }}", "parameters": ' + OBJECT + "}", before="Action: ```json\n[", after="]```"),
    "command r7b": template('{"tool_call_id": "0", "tool_name": "{{ f.name }}", "parameters": ' + OBJECT + "}", before="<|START_ACTION|>[", after="]<|END_ACTION|>"),
    "the tag in prose only": only_prose("Put your calls between <tool_call></tool_call> tags."),
    "two notations in prose": only_prose(HERMES_PROSE + ' or [TOOL_CALLS][{"name": 1}]'),
    "nothing": template("").replace("{% if m.tool_calls %}", "{% if false %}"),
    "an error": template("{{ raise_exception('no calls') }}"),
    "half a call": template('<tool_call>\n{"name": "{{ f.name }}", "arguments": [1'),
    "no arguments": template('<tool_call>\n{"name": "{{ f.name }}"}\n</tool_call>'),
    "one object behind a list's tag": template("\n" + NAMED + "\n", before="<TOOLCALL>", after="</TOOLCALL>"),
    "two formats in prose": only_prose(HERMES_PROSE + XML_PROSE),
}  # fmt: skip


@pytest.mark.parametrize("model", KNOWN)
def test_known(model: str) -> None:
    source, name = KNOWN[model]
    assert detected(ChatTemplate(source, TOKENS), ()) == name
    assert detected(ChatTemplate(source, {}), {"<tool_call>": 1, "[TOOL_CALLS]": 2}) == name
    found = model_notation(Tokens(), ChatTemplate(source, TOKENS), None, None)
    assert found.tools is not None and (found.tools.name, found.unknown) == (name, False)


def test_llama_4_is_told_apart_by_its_tokens() -> None:
    for model in ("llama 3.2, pythonic", "llama 4, in prose"):
        template = ChatTemplate(KNOWN[model][0], TOKENS)
        assert detected(template, {"<|python_start|>": 1}) == "llama4_pythonic"
        assert detected(template, ()) == "pythonic"


@pytest.mark.parametrize("model", UNKNOWN)
def test_unknown(model: str) -> None:
    """Also with a token that several notations have."""
    found = ChatTemplate(UNKNOWN[model], TOKENS)
    assert detected(found, {"<tool_call>": 1, "<|python_tag|>": 2}) is None
    notation = model_notation(Tokens({"<tool_call>": 1}), found, None, None)
    assert (notation.tools, notation.unknown) == (None, True)


@pytest.mark.parametrize("model", ["hunyuan", "functionary", "command r7b"])
def test_the_operator_names_it_all_the_same(model: str) -> None:
    template = ChatTemplate(UNKNOWN[model], TOKENS)
    named = model_notation(Tokens(), template, "hermes", None)
    assert named.tools is not None and (named.tools.name, named.unknown) == ("hermes", False)
    off = model_notation(Tokens(), template, "none", None)
    assert (off.tools, off.unknown, off.for_calls(forced=True).tools) == (None, False, None)


def test_the_log_says_that_calls_stay_text() -> None:
    with structlog.testing.capture_logs() as logs:
        model_notation(Tokens(), ChatTemplate(UNKNOWN["hunyuan"], TOKENS), None, None)
        model_notation(Tokens(), ChatTemplate(KNOWN["qwen3"][0], TOKENS), None, None)
        model_notation(Tokens(), None, None, None)
    unknown, warning, known, none = logs
    assert (unknown["tool_calls"], unknown["tool_calls_stay_text"]) == ("none", True)
    assert warning["log_level"] == "warning" and "calls stay text" in warning["event"]
    assert warning["flag"] == "--tool-call-parser"
    assert (known["tool_calls"], known["tool_calls_stay_text"], none["tool_calls"]) == (
        "hermes",
        False,
        "none",
    )


@pytest.mark.parametrize(("model", "name", "text"), [("hunyuan", "none", True), ("qwen2.5", "hermes", False)])
async def test_executors_say_so(model: str, name: str, text: bool) -> None:
    source = UNKNOWN.get(model) or KNOWN[model][0]
    house = House(notation=model_notation(Tokens(), ChatTemplate(source, TOKENS), None, None))
    executor = connect(PAGED, "inline")
    await executor.warmup()
    register(house, paged_fake=executor)
    try:
        [card] = (await house.get("/v1/executors")).json()["data"]
    finally:
        await executor.shutdown()
    assert card["notation"] == {"tool_calls": name, "tool_calls_stay_text": text, "reasoning": "none"}


LOOK: dict[str, Any] = {
    "type": "function",
    "function": {"name": "look", "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}}},
}
WRITTEN = {
    "hunyuan": '<tool_calls>\n<tool_call>look\n```json\n{"n": 1}\n```\n</tool_call>\n</tool_calls>',
    "functionary": '>>>look\n{"n": 1}',
    "command r7b": '<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "look", "parameters": {"n": 1}}]<|END_ACTION|>',
}


def unknown_house(model: str) -> House:
    notation = model_notation(Tokens(), ChatTemplate(UNKNOWN[model], TOKENS), None, None)
    return House(template=UNKNOWN[model], notation=notation)


@pytest.mark.parametrize("model", WRITTEN)
async def test_calls_stay_text_and_tools_reach_the_template(model: str) -> None:
    house = unknown_house(model)
    house.engine.script = spells(WRITTEN[model])
    [choice] = (await house.chat(tools=[LOOK])).json()["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == (WRITTEN[model], "stop")
    assert "tool_calls" not in choice["message"]
    assert '"name": "look"' in bytes(house.asked().prompts[0]).decode()


@pytest.mark.parametrize(
    "asked", ["required", {"type": "function", "function": {"name": "look"}}], ids=["required", "named"]
)
async def test_a_forced_call_is_plain_json(asked: object) -> None:
    """The grammar writes it, not the model's habit."""
    house = unknown_house("hunyuan")
    house.engine.script = spells('{"name": "look", "parameters": {"n": 1}}')
    [choice] = (await house.chat(tools=[LOOK], tool_choice=asked)).json()["choices"]
    [call] = choice["message"]["tool_calls"]
    assert call["function"] == {"name": "look", "arguments": '{"n": 1}'}
    assert choice["message"]["content"] is None
    assert choice["finish_reason"] == ("tool_calls" if asked == "required" else "stop")
    grammar = house.asked().grammar
    assert grammar is not None and "parameters" in grammar and "tool_call" not in grammar


async def test_what_cannot_be_promised_is_refused() -> None:
    strict = {**LOOK, "function": {**LOOK["function"], "strict": True}}
    cannot: dict[str, dict[str, Any]] = {
        "parallel_tool_calls": {"tools": [LOOK], "parallel_tool_calls": False},
        "tools.0.function.strict": {"tools": [strict]},
    }
    for param, body in cannot.items():
        error = error_of(await unknown_house("hunyuan").chat(**body))
        assert error["param"] == param and "--tool-call-parser can name it" in error["message"]


async def test_a_template_without_end_is_stopped() -> None:
    """As at the start of the server: on a thread, with a deadline."""
    endless = template("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}")
    threads = FencedThreads(1)
    with pytest.raises(DeadlineExceeded):
        await threads.run(lambda: model_notation(Tokens(), ChatTemplate(endless, TOKENS), None, None), 0.1)
    threads.close()
    found = model_notation(Tokens(), ChatTemplate(endless, TOKENS), None, None, asks=False)
    assert (found.tools, found.unknown, found.for_calls(forced=True).tools.name) == (None, True, JSON)  # type: ignore[union-attr]
    assert ModelNotation().for_calls(forced=True) == ModelNotation()
