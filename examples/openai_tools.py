"""Let the model call a function: python examples/openai_tools.py [http://127.0.0.1:8000/v1]

Needs `pip install openai` and a running server whose model has a chat template with tools: `cohort serve cohort-tiny` or
`cohort serve Qwen/Qwen3-0.6B`. That of the default model has none.
"""

import json
import sys

from openai import OpenAI

url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000/v1"
client = OpenAI(base_url=url, api_key="unused")
model = client.models.list().data[0].id


def get_weather(city: str) -> str:
    """Stands for a call of some weather service."""
    return {"Paris": "sunny, 21 degrees"}.get(city, "unknown")


tools = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Get the weather of a city",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    }
]
messages = [{"role": "user", "content": "What is the weather in Paris?"}]
first = client.chat.completions.create(model=model, messages=messages, tools=tools, temperature=0)
asked = first.choices[0].message
messages.append(asked.model_dump(exclude_none=True))
for call in asked.tool_calls or ():
    result = get_weather(**json.loads(call.function.arguments))
    print(f"{call.function.name}({call.function.arguments}) -> {result}")
    messages.append({"role": "tool", "tool_call_id": call.id, "content": result})

second = client.chat.completions.create(model=model, messages=messages, tools=tools, temperature=0)
print(second.choices[0].message.content)
