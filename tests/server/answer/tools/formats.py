"""How models write the same calls in every format, as their chat templates and model cards show it."""
# ruff: noqa: E501 -- in a format every line break counts

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

ARGUMENTS: dict[str, Any] = {
    "city": 'São "Tomé" <é>\n{x}',
    "days": 3,
    "exact": -1.5,
    "fast": True,
    "tags": ["a", "5"],
    "more": {"k": None, "n": [1, False]},
}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "exact": {"type": "number"},
        "fast": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "more": {"type": "object", "properties": {"k": {"type": "null"}, "n": {"type": "array"}}},
    },
    "required": ["city", "days", "exact", "fast", "tags", "more"],
}
FUNCTIONS: dict[str, dict[str, Any] | None] = {"get_weather": SCHEMA, "ping": None}
_JSON = json.dumps(ARGUMENTS, ensure_ascii=False)
_CITY = ARGUMENTS["city"]
_TAGS, _MORE = '["a", "5"]', '{"k": null, "n": [1, false]}'
_PYTHON = (
    """get_weather(city='São "Tomé" <é>\\n{x}', days=3, exact=-1.5, fast=True, tags=["a", '5'], """
    """more={"k": None, 'n': [1, False]})"""
)


def _marked(quote: str) -> str:
    tags, more = f"[{quote}a{quote},{quote}5{quote}]", "{k:null,n:[1,false]}"
    return f"{{city:{quote}{_CITY}{quote},days:3,exact:-1.5,fast:true,tags:{tags},more:{more}}}"


def _tags(template: str) -> str:
    values = {"city": _CITY, "days": "3", "exact": "-1.5", "fast": "true", "tags": _TAGS, "more": _MORE}
    return "".join(template % (key, value) for key, value in values.items())


def _dsml(block: str) -> tuple[str, str]:
    def one(name: str, values: str) -> str:
        return f'<｜DSML｜invoke name="{name}">\n{values}</｜DSML｜invoke>\n'

    values = _tags('<｜DSML｜parameter name="%s" string="false">%s</｜DSML｜parameter>\n')
    values = values.replace('name="city" string="false"', 'name="city" string="true"')
    call = one("get_weather", values)
    begin, end = f"<｜DSML｜{block}>\n", f"</｜DSML｜{block}>"
    return begin + call + end, begin + call + one("ping", "") + end


@dataclass(frozen=True)
class Written:
    """A call of get_weather, and the same with a call of ping behind it."""

    one: str
    two: str


_XML = "<function=get_weather>\n" + _tags("<parameter=%s>\n%s\n</parameter>\n") + "</function>"
_SEED = "<function=get_weather>\n" + _tags("<parameter=%s>%s</parameter>\n") + "</function>"
_INVOKE = '<invoke name="get_weather">\n' + _tags('<parameter name="%s">%s</parameter>\n') + "</invoke>\n"
_GLM = (
    "<tool_call>get_weather\n" + _tags("<arg_key>%s</arg_key>\n<arg_value>%s</arg_value>\n") + "</tool_call>"
)
_GLM_FLASH = _GLM.replace("get_weather\n", "get_weather").replace("</arg_key>\n", "</arg_key>").replace("</arg_value>\n", "</arg_value>")  # fmt: skip
_OBJECT = '{"name": "get_weather", "arguments": ' + _JSON + "}"
_PING = '{"name": "ping", "arguments": {}}'
_V3 = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>%s\n```json\n%s\n```<｜tool▁call▁end｜>"
_V31 = "<｜tool▁call▁begin｜>%s<｜tool▁sep｜>%s<｜tool▁call▁end｜>"
_KIMI = "<|tool_call_begin|>functions.%s:%d<|tool_call_argument_begin|>%s<|tool_call_end|>"
_HARMONY = "<|channel|>commentary to=functions.%s <|constrain|>json<|message|>%s<|call|>"
_MARKED_F, _MARKED_4 = _marked("<escape>"), _marked('<|"|>')
_HERMES = "<tool_call>\n%s\n</tool_call>"
_LLAMA = '{"name": "%s", "parameters": %s}'

WRITTEN: dict[str, Written] = {
    "hermes": Written(_HERMES % _OBJECT, _HERMES % _OBJECT + "\n" + _HERMES % _PING),
    "llama3_json": Written(_LLAMA % ("get_weather", _JSON), "; ".join((_LLAMA % ("get_weather", _JSON), _LLAMA % ("ping", "{}")))),
    "mistral": Written("[TOOL_CALLS]get_weather[ARGS]" + _JSON, f"[TOOL_CALLS]get_weather[ARGS]{_JSON}[TOOL_CALLS]ping[ARGS]{{}}"),
    "qwen3_coder": Written(
        f"<tool_call>\n{_XML}\n</tool_call>",
        f"<tool_call>\n{_XML}\n</tool_call>\n<tool_call>\n<function=ping>\n</function>\n</tool_call>",
    ),
    "seed_oss": Written(
        f"<seed:tool_call>\n{_SEED}\n</seed:tool_call>",
        f"<seed:tool_call>\n{_SEED}\n</seed:tool_call>\n<seed:tool_call>\n<function=ping>\n</function>\n</seed:tool_call>",
    ),
    "minimax_m2": Written(
        f"<minimax:tool_call>\n{_INVOKE}</minimax:tool_call>",
        f'<minimax:tool_call>\n{_INVOKE}<invoke name="ping">\n</invoke>\n</minimax:tool_call>',
    ),
    "glm45": Written(_GLM, _GLM + "\n<tool_call>ping\n</tool_call>"),
    "granite": Written(f"<|tool_call|>[{_OBJECT}]", f"<|tool_call|>[{_OBJECT}, {_PING}]"),
    "phi4_mini_json": Written(f"<|tool_call|>[{_OBJECT}]<|/tool_call|>", f"<|tool_call|>[{_OBJECT}, {_PING}]<|/tool_call|>"),
    "jamba": Written(f"<tool_calls>[{_OBJECT}]</tool_calls>", f"<tool_calls>[{_OBJECT}, {_PING}]</tool_calls>"),
    "nemotron_json": Written(f"<TOOLCALL>[{_OBJECT}]</TOOLCALL>", f"<TOOLCALL>[{_OBJECT}, {_PING}]</TOOLCALL>"),
    "deepseek_v3": Written(
        f"<｜tool▁calls▁begin｜>{_V3 % ('get_weather', _JSON)}<｜tool▁calls▁end｜>",
        f"<｜tool▁calls▁begin｜>{_V3 % ('get_weather', _JSON)}\n{_V3 % ('ping', '{}')}<｜tool▁calls▁end｜>",
    ),
    "deepseek_v31": Written(
        f"<｜tool▁calls▁begin｜>{_V31 % ('get_weather', _JSON)}<｜tool▁calls▁end｜>",
        f"<｜tool▁calls▁begin｜>{_V31 % ('get_weather', _JSON)}{_V31 % ('ping', '{}')}<｜tool▁calls▁end｜>",
    ),
    "deepseek_v32": Written(*_dsml("function_calls")),
    "deepseek_v4": Written(*_dsml("tool_calls")),
    "kimi_k2": Written(
        f"<|tool_calls_section_begin|>{_KIMI % ('get_weather', 0, _JSON)}<|tool_calls_section_end|>",
        f"<|tool_calls_section_begin|>{_KIMI % ('get_weather', 0, _JSON)}{_KIMI % ('ping', 1, '{}')}<|tool_calls_section_end|>",
    ),
    "openai": Written(_HARMONY % ("get_weather", _JSON), _HARMONY[:-8] % ("get_weather", _JSON) + "<|end|><|start|>assistant" + _HARMONY % ("ping", "{}")),
    "pythonic": Written(f"[{_PYTHON}]", f"[{_PYTHON}, ping()]"),
    "llama4_pythonic": Written(f"<|python_start|>[{_PYTHON}]<|python_end|>", f"<|python_start|>[{_PYTHON}, ping()]<|python_end|>"),
    "lfm2": Written(f"<|tool_call_start|>[{_PYTHON}]<|tool_call_end|>", f"<|tool_call_start|>[{_PYTHON}, ping()]<|tool_call_end|>"),
    "olmo3": Written(f"<function_calls>{_PYTHON}</function_calls>", f"<function_calls>\n{_PYTHON}\nping()\n</function_calls>"),
    "functiongemma": Written(
        f"<start_function_call>call:get_weather{_MARKED_F}<end_function_call>",
        f"<start_function_call>call:get_weather{_MARKED_F}<end_function_call><start_function_call>call:ping{{}}<end_function_call>",
    ),
    "gemma4": Written(
        f"<|tool_call>call:get_weather{_MARKED_4}<tool_call|>",
        f"<|tool_call>call:get_weather{_MARKED_4}<tool_call|><|tool_call>call:ping{{}}<tool_call|>",
    ),
}  # fmt: skip
NEVER_SHOWN = "openai"
"""The format of which no notation is shown, even where it is broken: tests/server/answer/harmony/."""
GLM_WITHOUT_LINES = _GLM_FLASH
