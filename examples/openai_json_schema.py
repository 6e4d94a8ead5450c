"""Hold an answer to a JSON schema: python examples/openai_json_schema.py [http://127.0.0.1:8000/v1]

Needs `pip install openai` and a running server. The server masks every token that would break the schema, so the answer
parses with any model; whether it makes sense is up to the model.
"""

import json
import sys

from openai import OpenAI

url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000/v1"
client = OpenAI(base_url=url, api_key="unused")
model = client.models.list().data[0].id

city = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "population": {"type": "integer", "minimum": 0, "maximum": 40_000_000},
        "coastal": {"type": "boolean"},
    },
    "required": ["name", "population", "coastal"],
    "additionalProperties": False,
}
answer = client.chat.completions.create(
    model=model,
    messages=[{"role": "user", "content": "Describe Lima as JSON."}],
    response_format={"type": "json_schema", "json_schema": {"name": "city", "schema": city}},
    temperature=0,
)
print(json.loads(answer.choices[0].message.content or ""))
