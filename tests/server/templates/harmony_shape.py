"""A chat template in the form of gpt-oss', for which no package of templates has the original.

It has the original's limits: one call a message, one system message, no text beside reasoning and a call, a description for
every tool, defaults of enums that are text. Reasoning before a call is shown until a later answer without a call.
"""
# ruff: noqa: E501 -- in a template every line break counts

HARMONY = """\
{{- "<|start|>system<|message|>You are a model.\\n\\nReasoning: " + (reasoning_effort or 'medium') + "\\n\\n# Valid channels: analysis, commentary, final." }}
{%- if tools %}{{- "\\nCalls to these tools must go to the commentary channel: 'functions'." }}{%- endif %}
{{- "<|end|>" }}
{%- if messages[0].role in ['system', 'developer'] %}{%- set instructions = messages[0].content %}{%- set rest = messages[1:] %}
{%- else %}{%- set instructions = '' %}{%- set rest = messages %}{%- endif %}
{%- if instructions or tools %}
    {{- "<|start|>developer<|message|>" }}
    {%- if instructions %}{{- "# Instructions\\n\\n" + instructions + "\\n\\n" }}{%- endif %}
    {%- if tools %}
        {{- "# Tools\\n\\n## functions\\n\\nnamespace functions {\\n\\n" }}
        {%- for tool in tools %}{{- "// " + tool.function.description + "\\ntype " + tool.function.name + " = (_: {" }}
            {%- for name, schema in ((tool.function.parameters or {}).properties or {}).items() %}
                {{- name + ": " + (schema.type | string) }}
                {%- if schema.default is defined and schema.enum %}{{- ", // default: " + schema.default }}{%- endif %}{{- "," }}
            {%- endfor %}
            {{- "}) => any;\\n\\n" }}
        {%- endfor %}
        {{- "} // namespace functions" }}
    {%- endif %}
    {{- "<|end|>" }}
{%- endif %}
{%- set last = namespace(name=none) %}
{%- for message in rest %}
    {%- if message.role == 'assistant' and 'tool_calls' in message %}
        {%- set call = message.tool_calls[0].function %}
        {%- set later = namespace(answer=false) %}
        {%- for other in rest[loop.index:] %}{%- if other.role == 'assistant' and 'tool_calls' not in other %}{%- set later.answer = true %}{%- endif %}{%- endfor %}
        {%- if message.content and message.thinking %}{{- raise_exception("content or thinking, not both") }}{%- endif %}
        {%- if (message.content or message.thinking) and not later.answer %}{{- "<|start|>assistant<|channel|>analysis<|message|>" + (message.content or message.thinking) + "<|end|>" }}{%- endif %}
        {{- "<|start|>assistant to=functions." + call.name + "<|channel|>commentary json<|message|>" + (call.arguments | tojson) + "<|call|>" }}
        {%- set last.name = call.name %}
    {%- elif message.role == 'assistant' %}
        {%- if "<|channel|>analysis" in message.content %}{{- raise_exception("notation in a text") }}{%- endif %}
        {{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|end|>" }}
    {%- elif message.role == 'tool' %}
        {%- if last.name is none %}{{- raise_exception("a result without a call") }}{%- endif %}
        {{- "<|start|>functions." + last.name + " to=assistant<|channel|>commentary<|message|>" + (message.content | tojson) + "<|end|>" }}
    {%- elif message.role == 'user' %}
        {{- "<|start|>user<|message|>" + message.content + "<|end|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- "<|start|>assistant" }}{%- endif %}"""
