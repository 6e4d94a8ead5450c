"""Flat JSON extraction: at most three fields, strings or integers, from a sentence; the answer is a bare object."""

import json
import re

from executors.tiny.data.extraction_notices import NOTICES
from executors.tiny.data.extraction_people import PEOPLE
from executors.tiny.data.extraction_records import CLASSIC, PAIRS
from executors.tiny.data.extraction_requests import ASKS, NOTES, PLAIN_ASKS
from executors.tiny.data.extraction_rides import RIDES
from executors.tiny.data.extraction_sentences import EVERYDAY
from executors.tiny.data.extraction_talk import TALK
from executors.tiny.data.extraction_things import THINGS
from executors.tiny.data.extraction_values import FIELDS, value
from executors.tiny.data.lexicon import TEMPLATE_WORDS, WORDS, pseudo_word
from executors.tiny.data.phrasing import Draw, dress, expand, fill
from executors.tiny.data.sample import Turn

_Found = dict[str, str | int]

_ARTICLE = re.compile(r"\b([Aa]) \{(\w+)\}")
_UNDERSCORE = re.compile(r"_(\w)")
_VOWEL_SOUND = re.compile(r"8|11\b|18\b|[aeioAEIO]|u(?!k|n[ia]|s[ei])|[FHLMNRSX]\b")
_NUMBERED = tuple(
    line
    for line in (*CLASSIC, *EVERYDAY, *TALK)
    if any(f"{{{slot}}}" in line for slot in ("phone", "userid", "code", "order", "invoice", "room"))
)
"""Their numbers are integers if they are digits alone and text otherwise, which takes many examples to learn."""
_WIDER = (*PEOPLE, *THINGS, *NOTICES)
_SHARES = ((0.11, _NUMBERED), (0.23, CLASSIC), (0.35, TALK), (0.57, EVERYDAY), (0.66, RIDES), (1.0, _WIDER))
"""Where each kind of text ends in a draw from 0 to 1; below them all are arbitrary pairs."""
# One of these says what sort of value is meant but not which: no second value of the sort may be in the sentence.
_VAGUE_NUMBERS = frozenset("number count amount value total size id result how_many length".split())
_VAGUE_TEXTS = frozenset("name title what thing type kind object item".split())
_NO_THINGS = frozenset(
    """person first last doctor city country day date month time color size fit material company shop email phone order
    address street code brand""".split()
)
"""Kinds of texts beside which "item" is clear."""
_GENERIC = frozenset("name person who first_name full_name person_name".split())
"""These say that a person is meant, not which."""
_NOUNS = tuple(
    """level status priority width height depth size weight speed color shape brand model mode theme language region zone
    channel source target volume limit rate score points rank grade stock price cost total tax discount count amount index
    page line row column version port host user owner author editor team group type category title label tag name id code
    key token day month week hour color font style engine fuel range battery screen memory power voltage temperature
    pressure humidity wind flavor material fabric season genre length duration delay step age floor room seat table""".split()
)


def _facts(draw: Draw) -> tuple[str, _Found, list[str]]:
    """Return a sentence, the fields in it in the order in which they appear, and those that are arbitrary keys."""
    # Sentences are not split: their values and the wording of the request are.
    roll = draw.rng.random()
    if roll < 0.05:
        return _pairs(draw)
    lines = next(lines for below, lines in _SHARES if roll < below)
    template = expand(draw.rng, draw.rng.choice(lines))
    fields = [part.split("}")[0] for part in template.split("{")[1:]]
    if len(set(fields)) < len(fields):
        return _facts(draw)
    values = {field: value(draw.rng, field) for field in fields}
    texts = [str(found).lower() for found in values.values()]
    if len(set(texts)) < len(texts):
        return _facts(draw)
    if draw.chance(0.05):
        template = template.lower()
        values = {
            field: str(found).lower() if isinstance(found, str) else found for field, found in values.items()
        }
    elif template[0].isupper() and not template.startswith("I") and draw.chance(0.07):
        template = template[0].lower() + template[1:]

    def article(match: re.Match[str]) -> str:
        sounded = _VOWEL_SOUND.match(str(values[match.group(2)]))
        return f"{match.group(1)}{'n' if sounded else ''} {{{match.group(2)}}}"

    return fill(_ARTICLE.sub(article, template), values), values, []


def _pairs(draw: Draw) -> tuple[str, _Found, list[str]]:
    """Return a sentence of two or three arbitrary keys with arbitrary values."""
    template = expand(draw.rng, draw.rng.choice(PAIRS))
    count = template.count("{v")
    pairs: _Found = {}
    slots: dict[str, object] = {}
    while len(pairs) < count:
        keys = draw.rng.choices((_NOUNS, WORDS, TEMPLATE_WORDS), (6, 3, 2))[0]
        key = draw.rng.choice(keys) if draw.chance(0.94) else pseudo_word(draw.rng)
        if key not in pairs:
            pairs[key] = draw.rng.randint(0, 999) if draw.chance(0.5) else value(draw.rng, "value")
            slots |= {f"k{len(pairs)}": key, f"v{len(pairs)}": pairs[key]}
    return fill(template, slots), pairs, list(pairs)


def _clear(key: str, kind: str, beside: set[str]) -> bool:
    """Tell whether a vague `key` can mean only a text of this `kind`, given the kinds of the other texts."""
    if key == "name":
        return kind in ("person", "first") or (kind == "petname" and not beside & {"person", "first", "last"})
    return key == "item" and beside <= _NO_THINGS


def _key(draw: Draw, slot: str, values: _Found) -> str | None:
    """Return a name for `slot` that could mean no other field of the sentence; None if there is none."""
    rivals = [other for other in values if other != slot]
    others = {key for other in rivals for key in (other, *FIELDS[other].keys)}
    texts = [other for other in rivals if isinstance(values[other], str)]
    numbered = [other for other in rivals if any(char.isdigit() for char in str(values[other]))]
    kind = FIELDS[slot].kind
    people = [other for other in rivals if FIELDS[other].kind in ("person", "first", "last", "doctor")]
    keys = [
        key
        for key in FIELDS[slot].keys
        if key not in others
        and not (key in _VAGUE_NUMBERS and numbered)
        and not (
            key in _VAGUE_TEXTS and texts and not _clear(key, kind, {FIELDS[other].kind for other in texts})
        )
        and not (key in _GENERIC and kind == "person" and people)
        and (not key.startswith(("first", "given")) or " " not in str(values[slot]))
        and (key != "full_name" or " " in str(values[slot]))
    ]
    if not keys:
        return None
    return keys[0] if draw.chance(0.4) else draw.rng.choice(keys)


def _styled(draw: Draw, names: list[str]) -> list[str]:
    """Write the keys in another style now and then."""
    roll = draw.rng.random()
    if roll < 0.06:
        return [_UNDERSCORE.sub(lambda match: match.group(1).upper(), name) for name in names]
    if roll < 0.09:
        return [name.capitalize() for name in names]
    return names


def _field_list(draw: Draw, keys: list[str], owner: str = "") -> str:
    """Return the names of the fields as users list them."""
    quote = draw.rng.choice(("", "", "", "", '"', '"', "'", "`"))
    names = [f"{quote}{key}{quote}" for key in keys]
    the = owner or ("the " if not quote and draw.chance(0.45) else "")
    if len(names) == 1:
        return the + names[0]
    joint = draw.rng.choice((" and ", " and ", ", ", ", and " if len(names) > 2 else " and "))
    if the and draw.chance(0.25):
        return the + f", {the}".join(names[:-1]) + joint + the + names[-1]
    return the + ", ".join(names[:-1]) + joint + names[-1]


def _commas(draw: Draw, keys: list[str]) -> str:
    """Return the keys as a bare list: in commas or with "and", quoted now and then."""
    quote = draw.rng.choice(("", "", "", "", '"', "'", "`"))
    names = [f"{quote}{key}{quote}" for key in keys]
    if draw.chance(0.3):
        return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
    text = draw.rng.choice((", ", ", ", ", ", "," if not quote else ", ", " / ")).join(names)
    return f"[{text}]" if draw.chance(0.08) else text


def _braces(draw: Draw, keys: list[str]) -> str:
    """Return the keys in braces, brackets or parentheses."""
    quote = draw.rng.choice(("", "", "", '"'))
    opening, closing = draw.rng.choice(("{}", "{}", "{}", "[]", "()"))
    return opening + ", ".join(f"{quote}{key}{quote}" for key in keys) + closing


def _bullets(draw: Draw, keys: list[str]) -> str:
    """Return the keys a line each."""
    mark = draw.rng.choice(("- ", "- ", "* ", ""))
    return "".join(f"\n{mark}{key}" for key in keys)


def _typed(draw: Draw, found: _Found) -> str:
    """Return the names of the fields with their types, as in "name (string) and age (integer)"."""
    text, number = draw.rng.choice(
        (("string", "integer"), ("string", "integer"), ("string", "number"), ("text", "number"))
    )
    opening, closing = draw.rng.choice(((" (", ")"), (" (", ")"), (": ", "")))
    quote = draw.rng.choice(("", "", '"'))
    names = [
        f"{quote}{key}{quote}{opening}{number if isinstance(value, int) else text}{closing}"
        for key, value in found.items()
    ]
    joint = " and " if draw.chance(0.5) else ", "
    return joint.join(filter(None, (", ".join(names[:-1]), names[-1])))


def _schema(draw: Draw, found: _Found) -> str:
    """Return the wanted object with something in place of values, in one of the ways users write it."""
    integer = draw.rng.choice(("integer", "integer", "integer", "int", "number"))
    types = {key: integer if isinstance(value, int) else "string" for key, value in found.items()}
    shape = draw.rng.choice(("types", "blank", "bare", "dots", "dots", "empty"))
    if shape == "types":
        return json.dumps(types)
    if shape == "blank":
        return json.dumps({key: 0 if kind == integer else "" for key, kind in types.items()})
    if shape == "empty":
        return json.dumps(dict.fromkeys(types, draw.rng.choice(("", None, "?", "..."))))
    dots = draw.rng.choice(("...", "...", "?", "_", "<value>"))
    return (
        "{" + ", ".join(f'"{key}": {dots if shape == "dots" else kind}' for key, kind in types.items()) + "}"
    )


def extraction(draw: Draw) -> Turn:
    """Extract one to three named fields of a sentence as a JSON object."""
    while True:
        sentence, values, arbitrary = _facts(draw)
        if values and draw.mine("extract", *values.values()):
            break
    keys = list(values)
    if len(keys) > 1 and draw.chance(0.3):
        keys = draw.rng.sample(keys, draw.rng.randint(1, len(keys)))
    elif draw.chance(0.25):
        draw.rng.shuffle(keys)
    keys = keys[:3]
    if keys == list(values) and draw.chance(0.4):
        found = _labelled(sentence, list(values.values()))
        if found:
            return _turn(draw, sentence, found, _request(draw, PLAIN_ASKS, dressed=True))
    named = [key if arbitrary else _key(draw, key, values) for key in keys]
    names = [name for name in named if name]
    if len(names) < len(keys) or len(set(names)) < len(names):
        return extraction(draw)
    if not arbitrary:
        names = _styled(draw, names)
    found = {name: values[key] for name, key in zip(names, keys, strict=True)}
    orders = draw.chance(len(ASKS) / (len(ASKS) + len(NOTES)))
    return _turn(draw, sentence, found, _request(draw, ASKS if orders else NOTES, dressed=orders))


def _labelled(sentence: str, values: list[str | int]) -> _Found:
    """Return the fields of a record whose keys are in its text, as in "age: 7, city: Rome"; nothing for any other."""
    separator = next((mark for mark in (": ", " = ", "=") if mark in sentence), ": ")
    parts = [part.split(separator) for part in sentence.replace("\n", ", ").split(", ")]
    if len(parts) != len(values) or any(len(part) != 2 or " " in part[0] for part in parts):
        return {}
    if any(part[1] != str(wanted) for part, wanted in zip(parts, values, strict=True)):
        return {}
    return {part[0]: wanted for part, wanted in zip(parts, values, strict=True)}


def _request(draw: Draw, lines: tuple[str, ...], dressed: bool) -> str:
    """Return a wording of the request; nothing follows a sentence at its end, which has its own punctuation."""
    text = draw.phrase(lines)
    _, slot, tail = text.rpartition("{s}")
    if dressed:
        ends = text[-1] == "}"
        text = dress(draw.rng, text)
        if ends:
            # A word after the last key or value could be meant as a part of it.
            text, _, tail_mark = text.rpartition("}")
            text += "}" + (tail_mark if tail_mark in (".", "?", "!") else "")
    elif draw.chance(0.75):
        text = text[:1].upper() + text[1:]
    if slot and not tail:
        text = text[: text.lower().rindex("{s}") + 3]
    elif not dressed and text[-1] in ".?" and draw.chance(0.2):
        text = text[:-1]
    return text


def _turn(draw: Draw, sentence: str, found: _Found, template: str) -> Turn:
    """Put the sentence and the fields into the request."""
    ends = template.endswith("{s}") or "{s}\n" in template or "{q}" in template
    if "\n" in sentence and not ends:
        sentence = sentence.replace("\n", ", ")
    if sentence.endswith(".") and ends and draw.chance(0.3):
        sentence = sentence[:-1]
    elif not sentence.endswith((".", "?", "!")) and not ends:
        sentence += "."
    mark = "'" if '"' in sentence else draw.rng.choice('"""' if "'" in sentence else '""\'')
    quoted = f"{mark}{sentence}{mark}"
    keys = list(found)
    slots = {
        "f": _field_list(draw, keys),
        "h": _field_list(draw, keys, draw.rng.choice(("the ", "the ", "his ", "her ", "their "))),
        "c": _commas(draw, keys),
        "b": _braces(draw, keys),
        "l": _bullets(draw, keys),
        "t": _typed(draw, found),
        "j": _schema(draw, found),
        "q": quoted,
        "s": quoted if draw.chance(0.15) else sentence,
    }
    return Turn("extraction", fill(template, slots), json.dumps(found), {"object": found})
