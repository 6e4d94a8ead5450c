"""The calls of the table: eight kinds, their neighbours, and the request that crashes what computes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

MODEL = "bench"
LENGTH = 64
"""Output tokens of a call. Those under a grammar end by themselves, a little earlier or later."""
COLOURS = {"type": "string", "enum": ["red", "green", "blue", "black"]}
PAINTING = {
    "type": "object",
    "properties": {"colours": {"type": "array", "items": COLOURS, "minItems": 16, "maxItems": 16}},
    "required": ["colours"],
    "additionalProperties": False,
}
TOOL = {
    "type": "function",
    "function": {"name": "paint", "description": "Paint the fields in this order.", "parameters": PAINTING},
}


@dataclass(frozen=True, slots=True)
class Call:
    """A request. `dialect` names what reads its answer: chat, completions, responses, messages."""

    name: str
    path: str
    dialect: str
    body: dict[str, Any]

    @property
    def streamed(self) -> bool:
        return bool(self.body.get("stream"))


def _chat(name: str, text: str, **settings: Any) -> Call:
    body = {"max_tokens": LENGTH, "temperature": 0, **settings}
    return Call(
        name, "/v1/chat/completions", "chat",
        {"model": MODEL, "messages": [{"role": "user", "content": text}], **body},
    )  # fmt: skip


def kinds() -> list[Call]:
    """The eight, in the table's order."""
    formatted = {
        "type": "json_schema",
        "json_schema": {"name": "painting", "schema": PAINTING, "strict": True},
    }
    return [
        _chat("chat", "Tell me a long story about a fox in the snow."),
        _chat("stream", "Tell me a long story about a river and a mill.", stream=True),
        _chat(
            "tools", "Paint the fields.", stream=True, tools=[TOOL], tool_choice="required", parallel_tool_calls=False,
            max_tokens=4 * LENGTH,
        ),
        _chat(
            "schema", "Choose 16 colours. Answer in JSON.", response_format=formatted, max_tokens=4 * LENGTH
        ),
        _chat("n=2", "Tell me a long story about a king.", stream=True, n=2, temperature=1.0, seed=7),
        Call(
            "Responses", "/v1/responses", "responses",
            {
                "model": MODEL, "input": "Tell me a long story about a ship.", "stream": True, "temperature": 0,
                "max_output_tokens": LENGTH,
            },
        ),
        Call(
            "Messages", "/v1/messages", "messages",
            {
                "model": MODEL, "messages": [{"role": "user", "content": "Tell me a long story about a dog."}],
                "stream": True, "temperature": 0, "max_tokens": LENGTH,
            },
        ),
        Call(
            "completion", "/v1/completions", "completions",
            {
                "model": MODEL, "prompt": "Once upon a time there was a girl who", "stream": True, "temperature": 0,
                "max_tokens": LENGTH, "logprobs": 2,
            },
        ),
    ]  # fmt: skip


def neighbours() -> list[Call]:
    """Two streams beside the eight. The first is the one that is cancelled."""
    return [
        _chat(f"neighbour {number}", f"Tell me a long story about number {number}.", stream=True)
        for number in (1, 2)
    ]


def newcomer() -> Call:
    """A short call that comes when the fault is there."""
    return _chat("newcomer", "What is the capital of France?", max_tokens=16)


def poisoned(mark: dict[str, Any]) -> Call:
    """A stream with what makes this server's executor crash in `mark`, fields of its body."""
    return _chat("poisoned", "Tell me a story.", stream=True, **mark)
