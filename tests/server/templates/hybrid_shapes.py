"""Chat templates that write what those of Qwen3.5, Qwen3.6, Qwen3-Next and LFM2 write, in code and prose of these tests."""
# ruff: noqa: E501 -- in a template every line break counts

from __future__ import annotations

_TEXT = """\
{%- macro text(content) %}
    {%- if content is string %}{{- content }}
    {%- elif content is not none and content is defined %}{%- for part in content %}{{- part.text }}{%- endfor %}{%- endif %}
{%- endmacro %}
"""
_TURN = "{%- macro turn(role, body) %}{{- '<|im_start|>' + role + '\\n' + body + '<|im_end|>\\n' }}{%- endmacro %}\n"
_ASKED_LAST = """\
{%- set last = namespace(asked=-1) %}
{%- for message in messages %}
    {%- if message.role == 'user' and not text(message.content).startswith('<tool_response>') %}{%- set last.asked = loop.index0 %}{%- endif %}
{%- endfor %}
"""
_XML_TOOLS = """\
{%- set head = text(messages[0].content) | trim if messages[0].role == 'system' else '' %}
{%- if tools %}
    {{- '<|im_start|>system\\n# Tools\\n\\nThese functions can be called:\\n\\n<tools>' }}
    {%- for tool in tools %}{{- '\\n' + tool | tojson }}{%- endfor %}
    {{- '\\n</tools>\\n\\nA call has this form:\\n\\n<tool_call>\\n<function=name_of_function>\\n<parameter=name_of_parameter>\\nits value\\n</parameter>\\n</function>\\n</tool_call>' }}
    {{- ('\\n\\n' + head if head else '') + '<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}{{- turn('system', head) }}{%- endif %}
"""
_JSON_TOOLS = """\
{%- set head = text(messages[0].content) if messages[0].role == 'system' else '' %}
{%- if tools %}
    {{- '<|im_start|>system\\n' + (head + '\\n\\n' if head else '') + '# Tools\\n\\nThese functions can be called:\\n<tools>' }}
    {%- for tool in tools %}{{- '\\n' + tool | tojson }}{%- endfor %}
    {{- '\\n</tools>\\n\\nA call has this form:\\n<tool_call>\\n{"name": <name-of-function>, "arguments": <object-of-arguments>}\\n</tool_call><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}{{- turn('system', head) }}{%- endif %}
"""
_XML_CALL = """\
{{- '<tool_call>\\n<function=' + call.function.name + '>\\n' }}
{%- for name, value in call.function.arguments | items %}
    {{- '<parameter=' + name + '>\\n' + (value if value is string else value | tojson) + '\\n</parameter>\\n' }}
{%- endfor %}
{{- '</function>\\n</tool_call>' }}"""
_JSON_CALL = """\
{{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- call.function.arguments if call.function.arguments is string else call.function.arguments | tojson }}
{{- '}\\n</tool_call>' }}"""
_QWEN = """\
{%- for message in messages %}
    {%- set content = text(message.content) SHORTENED %}
    {%- if message.role == 'system' %}
        {%- if not loop.first %}LATER_SYSTEM{%- endif %}
    {%- elif message.role == 'user' %}{{- turn('user', content) }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' }}THOUGHTS{{- content }}
        {%- for call in message.tool_calls or [] %}
            {{- '' if loop.first and not content.strip() else 'BETWEEN' if loop.first else '\\n' }}
            CALL
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + content + '\\n</tool_response>' }}
        {%- if loop.last or loop.nextitem.role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}BEGIN{%- endif %}"""
_THOUGHTS = """
        {%- set thought = message.reasoning_content if message.reasoning_content is string else '' %}
        {%- if not thought and '</think>' in content %}
            {%- set thought = content.split('</think>')[0].split('<think>')[-1] %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if THINKS %}{{- '<think>\\n' + thought.strip() + '\\n</think>\\n\\n' }}{%- endif %}"""
_OPENED = "{{- '<think>\\n' }}"
_CLOSED = "{{- '<think>\\n\\n</think>\\n\\n' }}"


def _qwen(head: str, **parts: str) -> str:
    source = _TEXT + _TURN + head + _ASKED_LAST + _QWEN
    for name, part in parts.items():
        assert name in source
        source = source.replace(name, part)
    return source


def _xml(thinks: str, begin: str) -> str:
    refusal = "{{- raise_exception('Only the first message may be of the system.') }}"
    return _qwen(
        _XML_TOOLS, SHORTENED="| trim", LATER_SYSTEM=refusal, THOUGHTS=_THOUGHTS.replace("THINKS", thinks),
        BETWEEN="\\n\\n", CALL=_XML_CALL, BEGIN=begin,
    )  # fmt: skip


_LATEST = "loop.index0 > last.asked"
QWEN_3_5 = _xml(
    _LATEST,
    "{%- if enable_thinking is defined and enable_thinking is false %}"
    + _CLOSED
    + "{%- else %}"
    + _OPENED
    + "{%- endif %}",
)
"""Qwen3.5 from 4B on: it reasons unless `enable_thinking` is false, and earlier turns lose their reasoning."""
QWEN_3_5_SMALL = _xml(
    _LATEST,
    "{%- if enable_thinking is defined and enable_thinking is true %}"
    + _OPENED
    + "{%- else %}"
    + _CLOSED
    + "{%- endif %}",
)
"""Qwen3.5 of 0.8B and 2B: it reasons only if `enable_thinking` is true."""
QWEN_3_6 = QWEN_3_5.replace(
    f"{{%- if {_LATEST} %}}",
    f"{{%- if (preserve_thinking is defined and preserve_thinking is true) or {_LATEST} %}}",
)
"""Qwen3.6: with `preserve_thinking` earlier turns keep their reasoning."""
QWEN_3_NEXT = _qwen(
    _JSON_TOOLS, SHORTENED="", LATER_SYSTEM="{{- turn('system', content) }}", THOUGHTS="", BETWEEN="\\n",
    CALL=_JSON_CALL, BEGIN="",
)  # fmt: skip
"""Qwen3-Next-Instruct: Hermes' calls, no reasoning."""
QWEN_3_NEXT_THINKING = _qwen(
    _JSON_TOOLS, SHORTENED="", LATER_SYSTEM="{{- turn('system', content) }}", BETWEEN="\\n", CALL=_JSON_CALL,
    THOUGHTS=_THOUGHTS.replace("THINKS", f"{_LATEST} and (loop.last or thought)"), BEGIN=_OPENED,
)  # fmt: skip
"""Qwen3-Next-Thinking: every answer begins within a block of reasoning, and no variable closes it."""

_LFM_HEAD = """\
{{- bos_token }}
{%- set whole = namespace(head='', asked=-1) %}
{%- if messages[0].role == 'system' %}{%- set whole.head = text(messages[0].content) %}{%- endif %}
{%- if tools %}{%- set whole.head = whole.head + ('\\n' if whole.head else '') + 'List of tools: BEFORE' + (TOOLS) + 'BEHIND' %}{%- endif %}
{%- if whole.head %}{{- turn('system', whole.head) }}{%- endif %}
{%- set rest = messages[1:] if messages[0].role == 'system' else messages %}
{%- for message in rest %}{%- if message.role == 'user' %}{%- set whole.asked = loop.index0 %}{%- endif %}{%- endfor %}
"""
_LFM_CUT = "content.split('</think>')[-1].strip() if '</think>' in content and not (KEPT) else content"
_LFM = """\
{%- for message in rest %}
    {%- set content = text(message.content) %}
    {%- if message.role == 'assistant' %}{%- set content = CUT %}{%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.role == 'tool' %}{{- 'RESULT' + content + 'ENDED' }}{%- else %}{{- THOUGHT + content }}{%- endif %}
    CALLS
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""
_PYTHON_CALLS = """\
{%- for call in message.tool_calls or [] %}
    {{- '<|tool_call_start|>[' if loop.first else ', ' }}{{- call.function.name + '(' }}
    {%- for name, value in call.function.arguments | items %}
        {{- ('' if loop.first else ', ') + name + '=' }}
        {{- "'" + value + "'" if value is string else value | tojson if value is mapping else value | string }}
    {%- endfor %}
    {{- ')' + (']<|tool_call_end|>' if loop.last else '') }}
{%- endfor %}"""
_OBJECT_CALLS = """\
{%- for call in message.tool_calls or [] %}
    {{- '<|tool_call_start|>[' if loop.first else ', ' }}{{- '{"name": "' + call.function.name + '", "arguments": ' }}
    {{- call.function.arguments | tojson }}{{- '}' + (']<|tool_call_end|>' if loop.last else '') }}
{%- endfor %}"""


def _lfm(tools: str, results: tuple[str, str], kept: str, thought: str, calls: str, lists: str = "") -> str:
    source = _TEXT + _TURN + _LFM_HEAD + _LFM
    parts = {
        "TOOLS": tools, "RESULT": results[0], "ENDED": results[1], "CUT": _LFM_CUT.replace("KEPT", kept) if kept else "content",
        "THOUGHT": thought, "CALLS": calls, "BEFORE": lists and f"<|{lists}_start|>",
        "BEHIND": lists and f"<|{lists}_end|>",
    }  # fmt: skip
    for name, part in parts.items():
        source = source.replace(name, part)
    return source


_RESULT = ("<|tool_response_start|>", "<|tool_response_end|>")
LFM_2 = _lfm("tools | tojson", _RESULT, "", "''", "", "tool_list")
"""LFM2: tools between tokens of their own, and no calls of earlier messages."""
LFM_2_JSON = _lfm("tools | tojson", _RESULT, "", "''", _OBJECT_CALLS, "tool_list")
"""LFM2 asked for JSON, as its model card allows: objects within the tags of its calls."""
LFM_2_THINKING = _lfm(
    "tools | tojson", ("", ""), "keep_past_thinking is defined and keep_past_thinking or loop.last", "''", ""
)
"""LFM2.5-Thinking: reasoning of earlier turns is cut out of their text unless `keep_past_thinking` is true."""
LFM_2_5 = _lfm(
    "tools | tojson",
    ("", ""),
    "preserve_thinking | default(false) or loop.index0 > whole.asked",
    "('<think>' + message.thinking + '</think>' if message.role == 'assistant' and message.thinking is defined"
    " and (preserve_thinking | default(false) or loop.index0 > whole.asked) else '')",
    _PYTHON_CALLS,
)
"""LFM2.5-8B-A1B: calls as Python writes them, strings in single quotes, reasoning between the calls of a turn."""

HYBRIDS: dict[str, str] = {
    "qwen_3_5": QWEN_3_5,
    "qwen_3_5_small": QWEN_3_5_SMALL,
    "qwen_3_6": QWEN_3_6,
    "qwen_3_next": QWEN_3_NEXT,
    "qwen_3_next_thinking": QWEN_3_NEXT_THINKING,
    "lfm_2": LFM_2,
    "lfm_2_json": LFM_2_JSON,
    "lfm_2_thinking": LFM_2_THINKING,
    "lfm_2_5": LFM_2_5,
}
