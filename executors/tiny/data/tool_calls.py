"""Tool use: choose one of the offered tools and fill its arguments from the user's message."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from executors.tiny.data.lexicon import CITIES, NAMES, TEMPLATE_WORDS, WORDS, pseudo_word
from executors.tiny.data.phrasing import Draw, dress, expand, fill
from executors.tiny.data.sample import Tool, Turn
from executors.tiny.data.tool_catalogue import CATALOGUE, ToolKind

_VERBS = (
    "create", "delete", "update", "start", "stop", "find", "check", "open", "close", "send", "show", "run", "load", "save", "move",
    "copy", "share", "print", "scan", "lock", "get", "set", "list", "add", "remove", "track", "rate", "test", "build", "sync",
)  # fmt: skip
_NOUNS = WORDS + TEMPLATE_WORDS
_PARAMETER_NOTES = (
    "The {p}",
    "{p}",
    "Name of the {p}",
    "The {p} to use",
    "{p} value",
    "which {p}",
    "the {p}, e.g. {w}",
)


@dataclass(frozen=True)
class Offer:
    """A tool as offered in one conversation: its definition, and how to make a request for it."""

    tool: Tool
    kind: ToolKind
    keys: tuple[str, ...]

    @property
    def name(self) -> str:
        """Return the function's name."""
        return str(self.tool["function"]["name"])


def call_text(name: str, arguments: Mapping[str, object]) -> str:
    """Return a call as the model writes it, in the Hermes form that Qwen models use."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments, ensure_ascii=False)}}}\n</tool_call>'


def _synthetic(draw: Draw) -> ToolKind:
    """Return a made-up tool, so that choosing and copying do not lean on the catalogue."""
    rng = draw.rng
    verb = rng.choice(_VERBS)
    noun = rng.choice(_NOUNS) if rng.random() < 0.6 else pseudo_word(rng)
    first, second = rng.sample(_NOUNS, 2)
    kinds = ("word", "number", "name", "city")
    parameters = [(first, rng.choice(kinds))]
    if rng.random() < 0.5:
        parameters.append((second, rng.choice(kinds)))
    holes = [f"{{{index}}}" for index in range(len(parameters))]
    named = " and ".join(f"{key} {hole}" for (key, _), hole in zip(parameters, holes, strict=True))
    separator = rng.choice(("_", "_", "_", "-", "."))
    return ToolKind(
        names=(f"{verb}{separator}{noun}", f"{verb}_{noun}", f"{noun}_{verb}"),
        descriptions=(
            f"{verb.capitalize()} [a|the|one] {noun}[.|]",
            f"[Use this to|Tool to] {verb} a {noun}",
        ),
        parameters=tuple(parameters),
        asks=(
            f"{verb} [the|a|my|one] {noun} [with|using|for] {named}",
            f"[use|call] the {noun} tool with {named}",
            f"I need to {verb} [a|the] {noun}, {named}",
        ),
    )


def _define(draw: Draw, kind: ToolKind, name: str) -> Offer:
    """Return `kind` as an OpenAI tool definition in one of the shapes that clients send."""
    rng = draw.rng
    keys = tuple(rng.choice(names.split("/")) for names, _ in kind.parameters)
    noted = rng.random() < 0.4
    properties: dict[str, dict[str, str]] = {}
    for key, (_, value_kind) in zip(keys, kind.parameters, strict=True):
        properties[key] = {"type": "integer" if value_kind == "number" else "string"}
        if noted:
            note = rng.choice(_PARAMETER_NOTES).format(p=key.replace("_", " "), w=_value(draw, value_kind))
            properties[key]["description"] = note
    schema: dict[str, object] = {"type": "object", "properties": properties}
    if rng.random() < 0.75:
        schema["required"] = list(keys)
    if rng.random() < 0.08:
        schema["additionalProperties"] = False
    function: dict[str, object] = {"name": name}
    if rng.random() < 0.93:
        function["description"] = expand(rng, rng.choice(kind.descriptions))
    function["parameters"] = schema
    if rng.random() < 0.05:
        function["strict"] = True
    tool: Tool = {"type": "function", "function": function}
    return Offer(_sorted(tool) if rng.random() < 0.12 else tool, kind, keys)


def _sorted(tool: Tool) -> Tool:
    """Return `tool` with its keys in alphabetical order, as some servers hand it to the template."""
    return dict(json.loads(json.dumps(tool, sort_keys=True)))


def offers(draw: Draw) -> list[Offer]:
    """Return the tools of a conversation: three, now and then one, two or four, with different names and purposes."""
    count = draw.rng.choice((3, 3, 3, 3, 3, 3, 1, 2, 2, 4))
    chosen: list[Offer] = []
    while len(chosen) < count:
        kind = _synthetic(draw) if draw.chance(0.1 if draw.held_out else 0.25) else draw.rng.choice(CATALOGUE)
        name = draw.rng.choice(kind.names)
        if kind in [offer.kind for offer in chosen] or name in [offer.name for offer in chosen]:
            continue
        if kind.group and kind.group in [offer.kind.group for offer in chosen]:
            continue
        chosen.append(_define(draw, kind, name))
    return chosen


def _value(draw: Draw, kind: str) -> str | int:
    """Return an argument value of `kind`."""
    rng = draw.rng
    if kind == "number":
        return rng.randint(1, 99) if rng.random() < 0.8 else rng.randint(100, 5000)
    if kind == "city":
        return rng.choice(CITIES) if rng.random() < 0.7 else pseudo_word(rng).capitalize()
    if kind == "name":
        return rng.choice(NAMES) if rng.random() < 0.7 else pseudo_word(rng).capitalize()
    if kind == "language":
        return rng.choice(
            "French Spanish German Italian Dutch Polish Greek Turkish Swedish Latin Korean Danish Czech".split()
        )
    if kind == "day":
        return rng.choice(
            "Monday Tuesday Wednesday Thursday Friday Saturday Sunday today tomorrow tonight".split()
        )
    if kind == "currency":
        return rng.choice("USD EUR GBP JPY CHF CAD AUD SEK dollars euros yen pounds".split())
    if kind == "symbol":
        return "".join(rng.choice("ABCDEFGHIJKLMNOPQRSTUVWXYZ") for _ in range(rng.randint(2, 5)))
    if kind == "expression":
        return f"{rng.randint(1, 999)} {rng.choice('+-*/')} {rng.randint(1, 999)}"
    if kind == "email":
        return f"{rng.choice(NAMES).lower()}@{rng.choice(('mail', 'example', pseudo_word(rng)))}.{rng.choice(('com', 'org'))}"
    if kind == "phrase":
        return " ".join(rng.choice(WORDS) for _ in range(rng.randint(2, 4)))
    return rng.choice(WORDS) if rng.random() < 0.65 else pseudo_word(rng)


def tool_call(draw: Draw, offered: list[Offer]) -> Turn:
    """Ask for something one of the `offered` tools does; the answer is the call."""
    offer = draw.rng.choice(offered)
    while True:
        values = [_value(draw, value_kind) for _, value_kind in offer.kind.parameters]
        if draw.mine("tool", *values):
            break
    synthetic = offer.kind not in CATALOGUE
    text = expand(draw.rng, draw.rng.choice(offer.kind.asks)) if synthetic else draw.phrase(offer.kind.asks)
    text = dress_request(draw, text)
    quote = draw.rng.choice(('"', "'")) if draw.chance(0.08) else ""
    text = fill(text, {str(index): f"{quote}{value}{quote}" for index, value in enumerate(values)})
    arguments = dict(zip(offer.keys, values, strict=True))
    return Turn("tools", text, call_text(offer.name, arguments), {"name": offer.name, "arguments": arguments})


def dress_request(draw: Draw, text: str) -> str:
    """Dress a request politely; what starts as a question is not asked with "can you"."""
    question = text.startswith(
        ("what", "who", "how", "is", "will", "do ", "when", "where", "which", "are", "does")
    )
    return dress(draw.rng, text, question)
