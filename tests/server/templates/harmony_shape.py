"""A chat template in the form of gpt-oss', for which no package of templates has the original."""
# ruff: noqa: E501 -- in a template every line break counts

HARMONY = """\
{{- "<|start|>system<|message|>You are a model.\\n\\n# Valid channels: analysis, commentary, final." }}
{%- if tools %}{{- "\\nCalls to these tools must go to the commentary channel: 'functions'." }}{%- endif %}
{{- "<|end|>" }}
{%- if messages[0].role in ['system', 'developer'] %}{%- set instructions = messages[0].content %}{%- set rest = messages[1:] %}
{%- else %}{%- set instructions = '' %}{%- set rest = messages %}{%- endif %}
{%- if instructions or tools %}
    {{- "<|start|>developer<|message|>" }}
    {%- if instructions %}{{- "# Instructions\\n\\n" + instructions + "\\n\\n" }}{%- endif %}
    {%- if tools %}
        {{- "# Tools\\n\\n## functions\\n\\nnamespace functions {\\n\\n" }}
        {%- for tool in tools %}{{- "// " + (tool.function.description or '') + "\\ntype " + tool.function.name + " = (_: " + (tool.function.parameters | tojson) + ") => any;\\n\\n" }}{%- endfor %}
        {{- "} // namespace functions" }}
    {%- endif %}
    {{- "<|end|>" }}
{%- endif %}
{%- set last = namespace(name=none) %}
{%- for message in rest %}
    {%- if message.role == 'assistant' and 'tool_calls' in message %}
        {%- set call = message.tool_calls[0].function %}
        {%- if message.thinking %}{{- "<|start|>assistant<|channel|>analysis<|message|>" + message.thinking + "<|end|>" }}{%- endif %}
        {{- "<|start|>assistant to=functions." + call.name + "<|channel|>commentary json<|message|>" + (call.arguments | tojson) + "<|call|>" }}
        {%- set last.name = call.name %}
    {%- elif message.role == 'assistant' %}
        {{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|end|>" }}
    {%- elif message.role == 'tool' %}
        {%- if last.name is none %}{{- raise_exception("a result without a call") }}{%- endif %}
        {{- "<|start|>functions." + last.name + " to=assistant<|channel|>commentary<|message|>" + (message.content | tojson) + "<|end|>" }}
    {%- else %}
        {{- "<|start|>user<|message|>" + message.content + "<|end|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- "<|start|>assistant" }}{%- endif %}"""
