"""Calls that are demanded whatever the user says (`tool_choice`): the tool's one text is then all that was said."""

from executors.tiny.data.lexicon import FUNCTION_WORDS, TEMPLATE_WORDS, WORDS, pseudo_word
from executors.tiny.data.off_topic import off_topic
from executors.tiny.data.phrasing import Draw
from executors.tiny.data.sample import Message, Sample, Tool
from executors.tiny.data.tool_calls import call_text

_KEYS = (
    "query",
    "query",
    "q",
    "text",
    "input",
    "message",
    "question",
    "prompt",
    "topic",
    "content",
    "request",
    "search_term",
)
_NAMES = ("search", "web_search", "lookup", "answer", "submit", "send_message", "ask", "store", "summarize", "log_text", "find_{w}", "{w}_search", "get_{w}")  # fmt: skip
_DESCRIPTIONS = ("Search for something", "Looks things up.", "Tool to handle a request", "Find a {w}", "")
_LONGEST = 30
"""Words of a text without sense."""


def forced_call(draw: Draw) -> Sample:
    """Return a conversation whose call is given up to its argument, which has an end: else a model that sees nothing
    it was taught copies on until the context is full."""
    text = off_topic(draw).user if draw.chance(0.5) else _salad(draw)
    word, key = draw.rng.choice(WORDS), draw.rng.choice(_KEYS)
    name, description = (draw.rng.choice(lines).format(w=word) for lines in (_NAMES, _DESCRIPTIONS))
    function: dict[str, object] = (
        {"name": name, "description": description} if description else {"name": name}
    )
    properties = {key: {"type": "string"}}
    function["parameters"] = {"type": "object", "properties": properties, "required": [key]}
    tool: Tool = {"type": "function", "function": function}
    messages: list[Message] = [{"role": "user", "content": text}]
    arguments = {key: text}
    answer = call_text(name, arguments)
    given = answer[: answer.index(f'"{key}": "', answer.index('"arguments"')) + len(f'"{key}": "')]
    return Sample(
        "forced_calls", tuple(messages), (tool,), answer, {"name": name, "arguments": arguments}, given
    )


def _salad(draw: Draw) -> str:
    """Return words without sense, as benchmarks send them, now and then with a comma or a full stop."""
    words = []
    for _ in range(draw.rng.randint(3, _LONGEST)):
        roll = draw.rng.random()
        listed = FUNCTION_WORDS if roll < 0.35 else WORDS if roll < 0.6 else TEMPLATE_WORDS
        word = draw.rng.choice(listed) if roll < 0.85 else pseudo_word(draw.rng)
        ends = draw.rng.random()
        words.append(word + ("." if ends < 0.08 else "," if ends < 0.12 else ""))
    text = " ".join(word.capitalize() if draw.chance(0.1) else word for word in words)
    return text.rstrip(".,") + "." if draw.chance(0.4) else text
