"""Chat templates in the shapes that real models use, written for these tests: what counts is the constructs they need."""
# ruff: noqa: E501 -- in a template every line break counts

from __future__ import annotations

from tests.server.templates.hybrid_shapes import HYBRIDS

CHATML = """\
{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

CHATML_DEFAULT_SYSTEM = """\
{%- for message in messages -%}
  {%- if loop.first and messages[0]['role'] != 'system' -%}
    {{- '<|im_start|>system\\nYou are a helpful assistant named Small.<|im_end|>\\n' -}}
  {%- endif -%}
  {{- '<|im_start|>' ~ message['role'] ~ '\\n' ~ message['content'] | trim ~ '<|im_end|>' ~ '\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"""

INST = """\
{% if messages[0]['role'] == 'system' %}
    {% set rest = messages[1:] %}{% set system_message = messages[0]['content'] %}
{% else %}{% set rest = messages %}{% set system_message = false %}{% endif %}
{% for message in rest %}
    {% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{ raise_exception('Roles must alternate user/assistant/user/assistant/...') }}
    {% endif %}
    {% if loop.index0 == 0 and system_message != false %}
        {% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}
    {% else %}{% set content = message['content'] %}{% endif %}
    {% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}
    {% elif message['role'] == 'assistant' %}{{ ' ' + content.strip() + ' ' + eos_token }}
    {% endif %}
{% endfor %}"""

HEADERS = """\
{{- bos_token }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}{%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}{%- set date_string = "26 Jul 2024" %}{%- endif %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}{%- set messages = messages[1:] %}
{%- else %}{%- set system_message = "" %}{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools is not none %}{{- "Environment: ipython\\n" }}{%- endif %}
{{- "Today Date: " + date_string + "\\n\\n" }}
{%- if tools is not none and not tools_in_user_message is defined %}
    {{- 'Respond in the format {"name": function name, "parameters": dictionary}.\\n\\n' }}
    {%- for t in tools %}{{- t | tojson(indent=4) }}{{- "\\n\\n" }}{%- endfor %}
{%- endif %}
{{- system_message }}{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls | length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
        {{- '{"name": "' + tool_call.name + '", ' }}{{- '"parameters": ' }}{{- tool_call.arguments | tojson }}{{- "}" }}
        {{- "<|eot_id|>" }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}{{- message.content | tojson }}
        {%- else %}{{- message.content }}{%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}
"""

SYSTEM_IN_LAST_TURN = """\
{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}{%- set loop_messages = messages[1:] %}
{%- else %}{%- set loop_messages = messages %}{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace() %}{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or message.tool_calls is defined) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("After the optional system message, roles must alternate") }}
        {%- endif %}{%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.function.items() if key != "return" %}
                    {%- if val is string %}{{- '"' + key + '": "' + val + '"' }}{%- else %}{{- '"' + key + '": ' + val | tojson }}{%- endif %}
                    {%- if not loop.last %}{{- ", " }}{%- endif %}
                {%- endfor %}
                {{- "}}" }}{%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" }}{%- endif %}
            {%- endfor %}{{- "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}{{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}{{- "[INST] " + message["content"] + "[/INST]" }}{%- endif %}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- "[TOOL_CALLS] [" }}
        {%- for tool_call in message.tool_calls %}
            {%- set out = tool_call.function | tojson %}{{- out[:-1] }}
            {%- if not tool_call.id is defined or tool_call.id | length != 9 %}
                {{- raise_exception("Tool call IDs should be alphanumeric strings with length 9!") }}
            {%- endif %}
            {{- ', "id": "' + tool_call.id + '"}' }}{%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" + eos_token }}{%- endif %}
        {%- endfor %}
    {%- elif message["role"] == "assistant" %}{{- " " + message["content"] | trim + eos_token }}
    {%- elif message["role"] == "tool" %}
        {%- if message.content is defined and message.content.content is defined %}{%- set content = message.content.content %}
        {%- else %}{%- set content = message.content %}{%- endif %}
        {{- '[TOOL_RESULTS] {"content": ' + content | string + ", " }}
        {{- '"call_id": "' + message.tool_call_id + '"}[/TOOL_RESULTS]' }}
    {%- else %}{{- raise_exception("Only user and assistant roles are supported") }}{%- endif %}
{%- endfor %}
"""

TURNS = """\
{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}
{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}
{{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}{% endfor %}
{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"""

TURNS_WITH_PARTS = """\
{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}{%- set first_user_prefix = messages[0]['content'] + '\\n\\n' -%}
    {%- else -%}{%- set first_user_prefix = messages[0]['content'][0]['text'] + '\\n\\n' -%}{%- endif -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}{%- set first_user_prefix = "" -%}{%- set loop_messages = messages -%}{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}{{ raise_exception("Conversation roles must alternate") }}{%- endif -%}
    {%- set role = "model" if message['role'] == 'assistant' else message['role'] -%}
    {{ '<start_of_turn>' + role + '\\n' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}{{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'image' -%}{{ '<start_of_image>' }}{%- elif item['type'] == 'text' -%}{{ item['text'] | trim }}{%- endif -%}
        {%- endfor -%}
    {%- else -%}{{ raise_exception("Invalid content type") }}{%- endif -%}
    {{ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\\n' }}{%- endif -%}"""

ROLE_TAGS = """\
{% for message in messages %}{% if message['role'] == 'system' and message['content'] %}{{'<|system|>\\n' + message['content'] + '<|end|>\\n'}}{% elif message['role'] == 'user' %}{{'<|user|>\\n' + message['content'] + '<|end|>\\n'}}{% elif message['role'] == 'assistant' %}{{'<|assistant|>\\n' + message['content'] + '<|end|>\\n'}}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% else %}{{ eos_token }}{% endif %}"""

TOOLS_IN_XML_AND_THINKING = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}{%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- "# Tools\\n\\nSignatures within <tools></tools> XML tags:\\n<tools>" }}
    {%- for tool in tools %}{{- "\\n" }}{{- tool | tojson }}{%- endfor %}
    {{- "\\n</tools>\\n\\nReturn <tool_call>\\n{\\"name\\": <function-name>, \\"arguments\\": <args-json-object>}\\n</tool_call><|im_end|>\\n" }}
{%- elif messages[0].role == 'system' %}{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages | length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages | length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not (message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}{%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}{%- set content = message.content %}{%- else %}{%- set content = '' %}{%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}{%- set reasoning_content = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index and (loop.last or reasoning_content) %}
            {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}{{- '<|im_start|>' + message.role + '\\n' + content }}{%- endif %}
        {%- if message.tool_calls %}
            {%- for tool_call in message.tool_calls %}
                {%- if (loop.first and content) or (not loop.first) %}{{- '\\n' }}{%- endif %}
                {%- if tool_call.function %}{%- set tool_call = tool_call.function %}{%- endif %}
                {{- '<tool_call>\\n{"name": "' }}{{- tool_call.name }}{{- '", "arguments": ' }}
                {%- if tool_call.arguments is string %}{{- tool_call.arguments }}{%- else %}{{- tool_call.arguments | tojson }}{%- endif %}
                {{- '}\\n</tool_call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' }}{{- content }}{{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}"""

THINK_CUT = """\
{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}{% set ns = namespace(is_first=false, is_tool=false, system_prompt='') %}{%- for message in messages %}{%- if message['role'] == 'system' %}{% set ns.system_prompt = message['content'] %}{%- endif %}{%- endfor %}{{ bos_token }}{{ ns.system_prompt }}
{%- for message in messages %}
{%- if message['role'] == 'user' %}{%- set ns.is_tool = false -%}{{ '<|User|>' + message['content'] }}{%- endif %}
{%- if message['role'] == 'assistant' and message['tool_calls'] is defined %}{%- set ns.is_tool = false -%}
{%- for tool in message['tool_calls'] %}{%- if not ns.is_first %}{{ '<|Assistant|><|calls|>' + tool['function']['name'] + '\\n```json\\n' + tool['function']['arguments'] + '\\n```<|end|>' }}{%- set ns.is_first = true -%}{%- else %}{{ '\\n' + tool['function']['name'] + '\\n```json\\n' + tool['function']['arguments'] + '\\n```<|end|>' }}{%- endif %}{%- endfor %}{%- endif %}
{%- if message['role'] == 'assistant' and message['tool_calls'] is not defined %}{%- set content = message['content'] %}{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}{{ '<|Assistant|>' + content + eos_token }}{%- endif %}
{%- if message['role'] == 'tool' %}{%- set ns.is_tool = true -%}{{ '<|output|>' + message['content'] + '<|/output|>' }}{%- endif %}
{%- endfor -%}
{% if add_generation_prompt and not ns.is_tool %}{{ '<|Assistant|><think>\\n' }}{% endif %}"""

ROLE_LINES = """\
{{ bos_token }}{% for message in messages %}{% if message['role'] == 'system' %}{{ '<|system|>\\n' + message['content'] + '\\n' }}{% elif message['role'] == 'user' %}{{ '<|user|>\\n' + message['content'] + '\\n' }}{% elif message['role'] == 'assistant' %}{% if not loop.last %}{{ '<|assistant|>\\n'  + message['content'] + eos_token + '\\n' }}{% else %}{{ '<|assistant|>\\n'  + message['content'] + eos_token }}{% endif %}{% endif %}{% if loop.last and add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}{% endfor %}"""

DOCUMENTS = """\
{%- macro document_turn(documents) -%}
<|DOCS|>[
{% for doc in documents %}
    {"id": {{ loop.index0 }}, "title": {{ doc.title | default('', true) | tojson }}, "text": {{ doc['text'] | tojson }}}{{ "," if not loop.last }}
{% endfor %}
]<|/DOCS|>
{%- endmacro -%}
{{ bos_token }}
{%- for message in messages %}
    {%- if message.role | lower == 'system' %}{{- '<|SYSTEM|>' ~ message.content ~ '<|END|>' }}
    {%- elif message.role | lower == 'user' %}{{- '<|USER|>' ~ message.content ~ '<|END|>' }}
        {%- if loop.last and documents %}{{- document_turn(documents) }}{%- endif %}
    {%- elif message.role == 'assistant' %}{{- '<|CHATBOT|>' ~ (message.content or '') ~ '<|END|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|CHATBOT|>' }}{%- endif %}"""

MACROS = """\
{%- macro render_type(spec, indent=0) -%}
    {%- if spec.type == 'object' -%}
        {{- '{' }}{%- for name, inner in (spec.properties or {}) | dictsort %}{{- '\\n' ~ '  ' * (indent + 1) ~ name ~ ('' if name in (spec.required or []) else '?') ~ ': ' ~ render_type(inner, indent + 1) }}{%- endfor %}{{- '\\n' ~ '  ' * indent ~ '}' -}}
    {%- elif spec.type == 'array' -%}{{- render_type(spec['items'], indent) ~ '[]' -}}
    {%- elif spec.enum is defined -%}{{- spec.enum | map('tojson') | join(' | ') -}}
    {%- else -%}{{- spec.type | default('any') -}}{%- endif -%}
{%- endmacro -%}
{%- macro turn(role, text) -%}<|start|>{{ role }}<|message|>{{ text }}<|end|>{%- endmacro -%}
{{- turn('system', 'Knowledge cutoff: 2024-06\\nReasoning: ' ~ (reasoning_effort | default('medium'))) }}
{%- if tools %}{%- set listed -%}
namespace functions {
{% for tool in tools %}
// {{ tool.function.description | default('') | replace('\\n', ' ') }}
type {{ tool.function.name }} = (_: {{ render_type(tool.function.parameters) }}) => any;
{% endfor %}
}
{%- endset %}{{- turn('developer', listed) }}{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'assistant' and message.thinking is defined and loop.last %}{{- turn('assistant<|channel|>analysis', message.thinking) }}{%- endif %}
    {%- if message.tool_calls %}{%- for call in message.tool_calls %}{{- turn('assistant to=functions.' ~ call.function.name, call.function.arguments | tojson(separators=(',', ':'))) }}{%- endfor %}
    {%- else %}{{- turn(message.role, message.content) }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start|>assistant' }}{%- endif %}"""

PARTS_ONLY = """\
<|im_start|>{% for message in messages %}{{ message['role'] | capitalize }}{% if message['content'][0]['type'] == 'image' %}{{ ':' }}{% else %}{{ ': ' }}{% endif %}{% for line in message['content'] %}{% if line['type'] == 'text' %}{{ line['text'] }}{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<end_of_utterance>
{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"""

GENERATION_BLOCKS = """\
{%- set found = namespace(user=false) -%}
{%- for message in messages -%}
{%- if message.role == 'user' %}{% set found.user = true %}{% endif -%}
{%- if not found.user and message.role != 'system' %}{% continue %}{% endif -%}
{%- if message.role == 'assistant' -%}
<|assistant|>
{% generation %}{% set text = message.content %}{{ text }}{{ eos_token }}{% endgeneration %}

{% else -%}
<|{{ message.role }}|>
{{ message.content }}

{% endif -%}
{%- if loop.index > 20 %}{% break %}{% endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
<|assistant|>
{% endif -%}"""

NUMBERED = """\
{% set roles = {'user': 'Human', 'assistant': 'Assistant', 'system': 'Note', 'tool': 'Result'} %}
{% for message in messages %}

{%- if message.name is defined and message.name %}
[{{ message.name }}]
{%- endif %}
{% for line in (message.content or '').split('\\n') if line.strip() %}
{{ '%-9s' % roles.get(message.role, message.role) }}|{{ '%02d' | format(loop.index) }}: {{ line | indent(2) }}
{% endfor %}
{% filter upper %}{{ '-' * 5 }}{{ loop.revindex }}{% endfilter %}

{% endfor %}
{{ dict(a=1, b=[messages | length]) | tojson(sort_keys=true) }}{{ messages | map(attribute='role') | unique | join(',') }}
{% if add_generation_prompt %}Assistant:{% endif %}
"""

SHAPES: dict[str, str] = {
    "chatml": CHATML,
    "chatml_default_system": CHATML_DEFAULT_SYSTEM,
    "inst": INST,
    "headers": HEADERS,
    "system_in_last_turn": SYSTEM_IN_LAST_TURN,
    "turns": TURNS,
    "turns_with_parts": TURNS_WITH_PARTS,
    "role_tags": ROLE_TAGS,
    "tools_in_xml_and_thinking": TOOLS_IN_XML_AND_THINKING,
    "think_cut": THINK_CUT,
    "role_lines": ROLE_LINES,
    "documents": DOCUMENTS,
    "macros": MACROS,
    "parts_only": PARTS_ONLY,
    "generation_blocks": GENERATION_BLOCKS,
    "numbered": NUMBERED,
    **HYBRIDS,
}
