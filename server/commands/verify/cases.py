"""What `cohort verify` compares text by: conversations for the chat template, and texts for the tokenizer."""

from __future__ import annotations

from typing import Any

EQUAL, DIFFERENT, NOT_THERE = "equal", "different", "not there"
"""Outcomes of a comparison. NOT_THERE: the model has nothing to compare."""

_WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tell the weather of a place.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Name of the city, as \"Łódź\" or <Bonn>."},
                "days": {"type": "integer"},
            },
            "required": ["city"],
        },
    },
}  # fmt: skip
_CLOCK = {
    "type": "function",
    "function": {"name": "now", "description": "", "parameters": {"type": "object", "properties": {}}},
}


def _said(role: str, content: str, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


_ONE = [_said("user", "Hello! What can you do?")]
_SYSTEM = _said("system", "You are brief. Answer in <b>one</b> line & no more.")
_TURNS = [
    _said("user", "Count from 1 to 3."),
    _said("assistant", "1, 2, 3"),
    _said("user", "  And now\nbackwards, 'please'  "),
]
_CALLED = [
    _said("user", "Weather in Łódź?"),
    _said(
        "assistant", "",
        tool_calls=[{
            "id": "call00001", "type": "function",
            "function": {"name": "get_weather", "arguments": {"city": "Łódź", "days": 2}},
        }],
    ),
    _said("tool", '{"sky": "grey", "°C": 7}', name="get_weather", tool_call_id="call00001"),
]  # fmt: skip


def conversations() -> list[dict[str, Any]]:
    """Name, messages, tools (or None) and generation_prompt of each."""
    shapes: list[tuple[str, list[dict[str, Any]], list[dict[str, Any]] | None]] = [
        ("one question", _ONE, None),
        ("system prompt", [_SYSTEM, *_ONE], None),
        ("three turns", _TURNS, None),
        ("system prompt, three turns", [_SYSTEM, *_TURNS], None),
        ("tools offered", _ONE, [_WEATHER, _CLOCK]),
        ("system prompt, tools offered", [_SYSTEM, *_ONE], [_WEATHER]),
        ("tool called", _CALLED, [_WEATHER]),
    ]
    return [
        {
            "name": f"{name}{', to be answered' if prompt else ''}",
            "messages": messages,
            "tools": tools,
            "generation_prompt": prompt,
        }
        for name, messages, tools in shapes
        for prompt in (True, False)
    ]


PROMPTS = (
    "The quick brown fox jumps over the lazy dog.",
    "Once upon a time, in a town by the sea, there lived a watchmaker who",
    "def fibonacci(n: int) -> int:\n    if n < 2:\n        return n\n",
)
"""Prompts for logits and greedy text, where none are given."""

TEXTS = (
    *PROMPTS,
    "Blåbærsyltetøy, żółć, naïve café, Straße",
    "Съешь же ещё этих мягких французских булок",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία",
    "敏捷的棕色狐狸跳过了懒狗。",
    "いろはにほへと ちりぬるを、カタカナ",
    "키스의 고유조건은 입술끼리 만나야 한다",
    "نص حكيم له سر قاطع وذو شأن عظيم",
    "דג סקרן שט בים מאוכזב",
    "ऋषियों को सताने वाले दुष्ट राक्षसों",
    "เป็นมนุษย์สุดประเสริฐเลิศคุณค่า",
    "👩‍👩‍👧‍👦 🏳️‍🌈 🇳🇴 e\u0301 \u200b ﬁ",
    "  leading, double  inside and trailing  ",
    "\t\n\r\n  \n\n tabs\tand\nlines\n",
    "3.14159 1,000,000 0x1F 2⁸ ½ IV 12:34",
    "https://example.org/a?b=c&d=%20#e {\"k\": [1, null]} <|x|> </s>",
    "a",
)  # fmt: skip
"""Texts for token ids: scripts, blanks, digits, marks."""
