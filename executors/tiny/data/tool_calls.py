"""Tool use: choose one of the offered tools and fill its arguments from the user's message."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from executors.tiny.data.lexicon import TEMPLATE_WORDS, WORDS, pseudo_word
from executors.tiny.data.phrasing import Draw, dress, expand, fill
from executors.tiny.data.sample import Tool, Turn
from executors.tiny.data.tool_catalogue import CATALOGUE, ToolKind
from executors.tiny.data.tool_kind import holes
from executors.tiny.data.tool_values import (
    ENUMS,
    LIKE_TEXT,
    OPEN_ENDED,
    Value,
    json_type,
    make_value,
    settle,
    without_on,
)

_VERBS = tuple(
    """create delete update start stop find check open close send show run load save move copy share print scan lock get
    set list add remove track rate test build sync fetch submit approve reject archive export import publish verify
    rename reset enable disable merge split sort filter upload download validate assign measure compare invite convert
    inspect reserve activate register schedule notify log query search adjust""".split()
)
_NOUNS = WORDS + TEMPLATE_WORDS
_PLAIN_KINDS = (
    "word",
    "word",
    "number",
    "person",
    "city",
    "title",
    "text",
    "code",
    "date",
    "time",
    "topic",
    "email",
)
_SUFFIX_KINDS = {
    "id": "id",
    "name": "title",
    "count": "small",
    "code": "code",
    "date": "date",
    "time": "time",
    "city": "city",
    "owner": "person",
    "amount": "amount",
    "text": "message",
    "type": "word",
    "level": "percent",
    "file": "file",
    "email": "email",
}
_PARAMETER_NOTES = (
    "The {p}",
    "{p}",
    "Name of the {p}",
    "The {p} to use",
    "{p} value",
    "which {p}",
    "the {p}, e.g. {w}",
)
_EXTRAS = (
    ("unit", "string"),
    ("limit", "integer"),
    ("format", "string"),
    ("lang", "string"),
    ("units", "string"),
    ("max_results", "integer"),
    ("page", "integer"),
    ("verbose", "boolean"),
    ("notes", "string"),
    ("timeout", "integer"),
    ("sort_by", "string"),
    ("details", "boolean"),
)
"""Optional parameters that no request mentions."""

_LOOSE_QUESTIONS = ("can ", "any ")
"""Beginnings of questions that do not go with "tell me"."""
_QUESTION_WORDS = frozenset(
    """what what's who who's how how's is will do when where where's which are does did has have should am why
    whose would was were""".split()
)
_STATEMENT_STARTS = ("~", "I ", "I'm ", "I'd ", "{", *_LOOSE_QUESTIONS)
_OPENINGS = ("hi, ", "hey, ", "ok, ", "hello, ", "so, ", "well, ", "thanks. ", "alright, ", "Hi! ", "Hello. ")
_STATEMENT_SUFFIXES = (" please", ", please", ", thanks", " thanks", ", thank you")
_AFTER_SLOT = re.compile(
    r"\}(?: for me| now| right now| quickly| if you can|, ok| for me please)\W*$", re.IGNORECASE
)
_AFTER_OPEN = re.compile(r"\}\W*$")


@dataclass(frozen=True)
class Offer:
    """A tool as offered in one conversation: its definition, and how to make a request for it.

    `keys` and `value_kinds` go with the kind's parameters; the key of an optional parameter that this definition does
    not have is empty.
    """

    tool: Tool
    kind: ToolKind
    keys: tuple[str, ...]
    value_kinds: tuple[str, ...]

    @property
    def name(self) -> str:
        """Return the function's name."""
        return str(self.tool["function"]["name"])

    def asks(self) -> list[str]:
        """Return the wordings that mention only parameters of this definition."""
        known = {at for at, key in enumerate(self.keys) if key}
        return [ask for ask in self.kind.asks if holes(ask) <= known]


def call_text(name: str, arguments: Mapping[str, object]) -> str:
    """Return a call as the model writes it, in the Hermes form that Qwen models use."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments, ensure_ascii=False)}}}\n</tool_call>'


def _synthetic(draw: Draw) -> ToolKind:
    """Return a made-up tool, so that choosing and copying do not lean on the catalogue."""
    rng = draw.rng
    verb = rng.choice(_VERBS)
    noun = rng.choice(_NOUNS) if rng.random() < 0.6 else pseudo_word(rng)
    parameters: dict[str, str] = {}
    for key in rng.sample(_NOUNS, rng.choice((1, 1, 2, 2, 2, 3))):
        if rng.random() < 0.4:
            suffix = rng.choice(tuple(_SUFFIX_KINDS))
            parameters[f"{key}_{suffix}"] = _SUFFIX_KINDS[suffix]
        else:
            parameters[key] = rng.choice(_PLAIN_KINDS)
    spoken = [key.replace("_", " ") for key in parameters]
    slots = [f"{{{at}}}" for at in range(len(spoken))]
    plain = [f"{key} {slot}" for key, slot in zip(spoken, slots, strict=True)]
    listed = ", ".join(f"{key}: {slot}" for key, slot in zip(spoken, slots, strict=True))
    equal = ", ".join(f"{key} = {slot}" for key, slot in zip(spoken, slots, strict=True))
    named = " and ".join(plain) if len(plain) < 3 else f"{plain[0]}, {plain[1]} and {plain[2]}"
    asks = [
        f"{verb} [the|a|my|one] {noun} [with|using|for] {named}",
        f"[use|call] the {noun} tool to {verb} with {named}",
        f"~I need to {verb} [a|the] {noun}, {named}",
        f"{verb} [the|a|this] {noun}, {listed}",
        f"{verb} {noun}: {equal}",
        f"~I'd like to {verb} [the|a|my] {noun} with {named}",
        f"~[the {noun} with |{noun}, ]{named}, {verb} it",
    ]
    if len(slots) == 1:
        asks += [f"{verb} the {noun} {slots[0]}", f"{verb} {slots[0]} as {spoken[0]} of the {noun}"]
    separator = rng.choice(("_", "_", "_", "-", "."))
    return ToolKind(
        names=(f"{verb}{separator}{noun}", f"{verb}_{noun}", f"{noun}_{verb}", f"{verb}_{noun}"),
        descriptions=(
            f"{verb.capitalize()} [a|the|one] {noun}[.|]",
            f"[Use this to|Tool to] {verb} a {noun}",
        ),
        parameters=tuple(parameters.items()),
        asks=tuple(asks),
    )


def _define(draw: Draw, kind: ToolKind, name: str) -> Offer:
    """Return `kind` as an OpenAI tool definition in one of the shapes that clients send."""
    rng = draw.rng
    keys = tuple(
        "" if at in kind.optional and rng.random() < 0.5 else key for at, key in enumerate(_keys(draw, kind))
    )
    value_kinds = tuple(settle(rng, value_kind) for _, value_kind in kind.parameters)
    noted = rng.random() < 0.22
    properties: dict[str, dict[str, object]] = {}
    for key, value_kind in zip(keys, value_kinds, strict=True):
        if not key:
            continue
        properties[key] = {"type": json_type(value_kind)}
        if value_kind in ENUMS and rng.random() < 0.5:
            properties[key]["enum"] = list(ENUMS[value_kind])
        if noted:
            note = rng.choice(_PARAMETER_NOTES).format(p=key.replace("_", " "), w=make_value(rng, value_kind))
            properties[key]["description"] = note
    required = [key for at, key in enumerate(keys) if key and at not in kind.optional]
    if rng.random() < 0.08:
        extra, json_kind = rng.choice(_EXTRAS)
        if not any(extra[:4] in key or key in extra for key in properties):
            properties[extra] = {"type": json_kind}
    schema: dict[str, object] = {"type": "object", "properties": properties}
    if len(required) < len(properties) or (required and rng.random() < 0.75):
        schema["required"] = required
    if rng.random() < 0.08:
        schema["additionalProperties"] = False
    function: dict[str, object] = {"name": name}
    if rng.random() < 0.93:
        function["description"] = expand(rng, rng.choice(kind.descriptions))
    function["parameters"] = schema
    if rng.random() < 0.05:
        function["strict"] = True
    tool: Tool = {"type": "function", "function": function}
    return Offer(_sorted(tool) if rng.random() < 0.12 else tool, kind, keys, value_kinds)


def _keys(draw: Draw, kind: ToolKind) -> list[str]:
    """Return one name for each parameter, mostly names that go together, such as "origin" and "destination"."""
    names = [line.split("/") for line, _ in kind.parameters]
    while True:
        place = draw.rng.randrange(12)
        together = draw.chance(0.7)
        keys = [each[place % len(each)] if together else draw.rng.choice(each) for each in names]
        if len(set(keys)) == len(keys):
            return keys


def _sorted(tool: Tool) -> Tool:
    """Return `tool` with its keys in alphabetical order, as some servers hand it to the template."""
    return dict(json.loads(json.dumps(tool, sort_keys=True)))


def _styled(draw: Draw, name: str) -> str:
    """Return `name`, now and then in camel case."""
    if "_" not in name or not draw.chance(0.05):
        return name
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def offers(draw: Draw) -> list[Offer]:
    """Return the tools of a conversation: three, now and then one, two or four, with different names and purposes."""
    count = draw.rng.choice((3, 3, 3, 3, 3, 3, 1, 2, 2, 4))
    chosen: list[Offer] = []
    while len(chosen) < count:
        kind = _synthetic(draw) if draw.chance(0.1 if draw.held_out else 0.25) else draw.rng.choice(CATALOGUE)
        name = _styled(draw, draw.rng.choice(kind.names))
        if kind in [offer.kind for offer in chosen] or name in [offer.name for offer in chosen]:
            continue
        if kind.group and kind.group in [offer.kind.group for offer in chosen]:
            continue
        chosen.append(_define(draw, kind, name))
    return chosen


def _values(draw: Draw, value_kinds: list[str]) -> list[Value]:
    """Return values of `value_kinds` on this side of the split, all different from each other."""
    values: list[Value] = []
    for _ in range(500):
        values = [make_value(draw.rng, value_kind) for value_kind in value_kinds]
        if len(set(map(str, values))) == len(values) and draw.mine("tool", *values):
            break
    return values


def tool_call(draw: Draw, offered: list[Offer]) -> Turn:
    """Ask for something one of the `offered` tools does; the answer is the call."""
    offer = draw.rng.choice(offered)
    asks = offer.asks()
    synthetic = offer.kind not in CATALOGUE
    text = expand(draw.rng, draw.rng.choice(asks)) if synthetic else draw.phrase(asks)
    mentioned = sorted(holes(text))
    value_kinds = [offer.value_kinds[at] for at in mentioned]
    values = _values(draw, value_kinds) if mentioned else []
    last = re.search(r"\{(\d+)\}[^{}]*$", text)
    open_end = last is not None and offer.value_kinds[int(last.group(1))] in OPEN_ENDED
    text = dress_request(draw, text, open_end)
    slots: dict[str, str] = {}
    for at, value, value_kind in zip(mentioned, values, value_kinds, strict=True):
        slots[str(at)] = _quoted(draw, value, value_kind)
        if value_kind == "date":
            text = without_on(text, f"{{{at}}}", value)
    arguments = {offer.keys[at]: value for at, value in zip(mentioned, values, strict=True)}
    return Turn(
        "tools",
        fill(text, slots),
        call_text(offer.name, arguments),
        {"name": offer.name, "arguments": arguments},
    )


def _quoted(draw: Draw, value: Value, value_kind: str) -> str:
    """Return `value` as it stands in a request: text now and then in quotes."""
    share = 0.2 if value_kind in LIKE_TEXT else 0.0 if json_type(value_kind) != "string" else 0.03
    if not draw.chance(share):
        return str(value)
    opening, closing = draw.rng.choice(('""', '""', '""', "''", "''", "“”"))
    return f"{opening}{value}{closing}"


def dress_request(draw: Draw, text: str, open_end: bool = False) -> str:
    """Dress a request politely, as far as its form allows: a question takes no "can you", a statement neither.

    With `open_end` nothing but punctuation may follow a closing slot, whose text it could be taken for.
    """
    statement = text.startswith(_STATEMENT_STARTS)
    text = text.removeprefix("~")
    question = text.split(" ")[0].lower() in _QUESTION_WORDS
    closes = text.endswith("}")
    while True:
        dressed = _dress_statement(draw, text) if statement else dress(draw.rng, text, question)
        if closes and open_end and not _AFTER_OPEN.search(dressed):
            continue
        if closes and _AFTER_SLOT.search(dressed):
            continue
        return dressed


def _dress_statement(draw: Draw, text: str) -> str:
    """Vary a wording that is neither a question nor a command."""
    ends = "???." if text.startswith(_LOOSE_QUESTIONS) else "......!?"
    if draw.chance(0.12):
        text = draw.rng.choice(_OPENINGS) + text
    if text[-1:] not in ".!?" and draw.chance(0.1):
        text += draw.rng.choice(_STATEMENT_SUFFIXES)
    if draw.chance(0.62):
        text = text[:1].upper() + text[1:]
    if text[-1:] not in ".!?" and draw.chance(0.8 if "??" in ends else 0.35):
        text += draw.rng.choice(ends)
    return text
