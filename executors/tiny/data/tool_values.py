"""Argument values of tool calls: free text, names, places, times, codes and numbers, mostly made at random."""

import random
import re
from collections.abc import Callable

from executors.tiny.data.lexicon import (
    CAPITALS,
    CITIES,
    FUNCTION_WORDS,
    NAMES,
    SURNAMES,
    TEMPLATE_WORDS,
    UNKNOWN_PLACES,
    WORDS,
    pseudo_word,
)
from executors.tiny.data.tool_words import (
    ARTISTS,
    CODES,
    CUISINES,
    DEVICES,
    DISHES,
    EXTENSIONS,
    FIXED_TOPICS,
    LANDMARKS,
    LANGUAGES,
    LINES,
    MONEY,
    MONTHS,
    PEOPLE,
    PLACE_NOUNS,
    ROOMS,
    TICKERS,
    TITLES,
    TWO_WORD_CITIES,
    UNITS,
    VERBS,
    WEEKDAYS,
    WHENCE,
)

Value = str | int | float

LIKE_TEXT = frozenset(
    {"task", "thing", "topic", "query", "message", "title", "text", "song", "product", "dish"}
)
"""Kinds of several words, which users now and then put in quotes."""

OPEN_ENDED = frozenset({"task", "thing", "query", "message", "text"})
"""Kinds that could swallow a "for me" or "now" after them, so nothing but punctuation may follow."""

RELATIVE_DAYS = ("today", "tomorrow", "tonight", "next", "this")
"""First words of the days that do not go with "on"."""

ENUMS: dict[str, tuple[str, ...]] = {
    "switch": ("on", "off"),
    "priority": ("low", "medium", "high"),
    "size": ("small", "medium", "large"),
}
"""Kinds with few values, which a definition may list."""

_NOUNS = WORDS + TEMPLATE_WORDS
_STRAY = frozenset({"please", "thanks", "thank", "now", "ok", "okay", "shortly", "quickly", "wants"})


def _noun(rng: random.Random) -> str:
    """Return a content word, now and then a made-up one."""
    roll = rng.random()
    if roll < 0.17:
        return pseudo_word(rng)
    word = rng.choice(WORDS if roll < 0.7 else _NOUNS)
    return word if word not in _STRAY else rng.choice(WORDS[:120])


def _object(rng: random.Random) -> str:
    """Return what something is done to: "the red door", "milk", "my tax form"."""
    article = rng.choice(("the ", "the ", "a ", "my ", "", "", "", "some ", "two ", "our "))
    return article + (f"{_noun(rng)} " if rng.random() < 0.35 else "") + _noun(rng)


def _task(rng: random.Random) -> str:
    """Return something to do: "buy milk", "call grandma", "take the car to the garage"."""
    roll = rng.random()
    if roll < 0.12:
        person = rng.choice(PEOPLE[:4] + PEOPLE[4:]).replace("_", " ")
        verb = rng.choice(("call", "email", "visit", "ask", "help", "thank", "text", "pay", "meet"))
        return f"{verb} {person}" if person != "my" else f"{verb} {rng.choice(NAMES)}"
    verb = rng.choice(VERBS) if rng.random() < 0.85 else _noun(rng)
    text = f"{verb} {_object(rng)}"
    if rng.random() < 0.22:
        text += f" {rng.choice(WHENCE[:7])} {_object(rng)}"
    return text


def _salad(rng: random.Random, low: int = 2, high: int = 5) -> str:
    """Return words of all sorts in no order, so that copying does not lean on sense."""
    words = [_noun(rng)]
    for _ in range(rng.randint(low, high) - 2):
        words.append(rng.choice(FUNCTION_WORDS) if rng.random() < 0.45 else _noun(rng))
    return " ".join([*words, _noun(rng)])


def _query(rng: random.Random) -> str:
    """Return what people type into a search box."""
    roll = rng.random()
    if roll < 0.22:
        return f"how to {_task(rng)}"
    if roll < 0.34:
        wh = rng.choice(
            ("where is the", "what is a", "who made the", "when is the", "why is the", "how old is the")
        )
        return f"{wh} {_noun(rng)}"
    if roll < 0.46:
        best = rng.choice(("best", "cheap", "new", "used", "nearest", "free", "famous", "good", "top"))
        tail = f" {rng.choice(('in', 'for', 'near', 'of'))} {rng.choice((_noun(rng), rng.choice(CITIES)))}"
        return f"{best} {_noun(rng)} {_noun(rng)}" + (tail if rng.random() < 0.4 else "")
    if roll < 0.58:
        return rng.choice(FIXED_TOPICS)
    return _salad(rng, 2, 6)


def _topic(rng: random.Random) -> str:
    """Return a subject people talk or read about."""
    roll = rng.random()
    if roll < 0.2:
        return rng.choice(FIXED_TOPICS)
    if roll < 0.45:
        return _noun(rng)
    if roll < 0.55:
        return rng.choice((rng.choice(NAMES), rng.choice(CITIES), rng.choice(UNKNOWN_PLACES)))
    if roll < 0.7:
        return f"the {_noun(rng)} {rng.choice(('of', 'in', 'for'))} {rng.choice((_noun(rng), rng.choice(CITIES)))}"
    return f"{_noun(rng)} {_noun(rng)}"


def _thing(rng: random.Random) -> str:
    """Return an entry of a list: a task, or just the thing."""
    roll = rng.random()
    if roll < 0.55:
        return _task(rng)
    return _object(rng) if roll < 0.8 else _salad(rng, 2, 4)


def _message(rng: random.Random) -> str:
    """Return what is said to somebody."""
    roll = rng.random()
    if roll < 0.3:
        return rng.choice(LINES)
    if roll < 0.5:
        head = rng.choice(("I will", "we have to", "do not forget to", "I need to", "can you", "you can"))
        return f"{head} {_task(rng)}"
    if roll < 0.7:
        state = rng.choice(("ready", "late", "here", "gone", "broken", "open", "over", "done", _noun(rng)))
        return f"{rng.choice(('the', 'my', 'your', 'our'))} {_noun(rng)} is {state}"
    return _salad(rng, 2, 6)


def _text(rng: random.Random) -> str:
    """Return a word or a short text to be processed."""
    return _noun(rng) if rng.random() < 0.35 else _message(rng)


def _title(rng: random.Random) -> str:
    """Return a heading in one of the usual spellings."""
    if rng.random() < 0.22:
        return rng.choice(TITLES)
    words = [_noun(rng) for _ in range(rng.choice((1, 2, 2, 2, 3)))]
    if len(words) > 1 and rng.random() < 0.2:
        words.insert(1, rng.choice(("with", "and", "for", "of")))
    text = " ".join(words)
    roll = rng.random()
    if roll < 0.5:
        return text[0].upper() + text[1:]
    if roll < 0.75:
        return text.title()
    return text


def _person(rng: random.Random) -> str:
    """Return a given name, often with a surname."""
    name = rng.choice(NAMES) if rng.random() < 0.75 else pseudo_word(rng).capitalize()
    if rng.random() < 0.35:
        name += f" {rng.choice(SURNAMES) if rng.random() < 0.7 else pseudo_word(rng).capitalize()}"
    return name


def _city(rng: random.Random) -> str:
    """Return a city of one or two words, now and then a made-up one."""
    roll = rng.random()
    if roll < 0.55:
        return rng.choice(CITIES)
    if roll < 0.75:
        return rng.choice(TWO_WORD_CITIES)
    if roll < 0.8:
        return (
            f"{rng.choice(('New', 'San', 'Port', 'Fort', 'North', 'Saint'))} {pseudo_word(rng).capitalize()}"
        )
    return pseudo_word(rng).capitalize()


def _place(rng: random.Random) -> str:
    """Return the end of a route: a city, a landmark or an address."""
    roll = rng.random()
    if roll < 0.4:
        return _city(rng)
    if roll < 0.6:
        return rng.choice(LANDMARKS)
    name = f"{_noun(rng).capitalize()} {rng.choice(PLACE_NOUNS)}"
    return f"{rng.randint(1, 199)} {name}" if roll < 0.72 else name


def _artist(rng: random.Random) -> str:
    """Return a musician or a band."""
    roll = rng.random()
    if roll < 0.3:
        return rng.choice(ARTISTS)
    if roll < 0.5:
        return f"{rng.choice(NAMES)} {rng.choice(SURNAMES)}"
    name = " ".join(_noun(rng).capitalize() for _ in range(rng.choice((1, 2, 2))))
    return f"The {name}" if rng.random() < 0.2 else name


def _time(rng: random.Random) -> str:
    """Return a time of day as people write it."""
    hour = rng.randint(1, 12)
    half = rng.choice(("am", "pm"))
    forms = (
        f"{hour}{half}",
        f"{hour} {half}",
        f"{hour}:{rng.choice(('00', '15', '30', '45'))}",
        f"{hour}:{rng.randint(0, 59):02}{rng.choice((half, ' ' + half, ' ' + half.upper()))}",
        f"{rng.randint(0, 23):02}:{rng.randint(0, 59):02}",
        rng.choice(("noon", "midnight", "half past six", "5 o'clock", "7 o'clock")),
    )
    return rng.choice(forms)


def _date(rng: random.Random) -> str:
    """Return a day as people write it, absolute or relative."""
    month, day = rng.choice(MONTHS), rng.randint(1, 28)
    roll = rng.random()
    if roll < 0.3:
        return rng.choice(WEEKDAYS)
    if roll < 0.45:
        return rng.choice(
            ("today", "tomorrow", "next week", "this weekend", "next month", "tomorrow morning")
        )
    if roll < 0.53:
        return f"{rng.choice(('next', 'this'))} {rng.choice(WEEKDAYS)}"
    forms = (
        f"{month} {day}",
        f"{day} {month}",
        f"{month[:3]} {day}",
        f"20{rng.randint(23, 29)}-{rng.randint(1, 12):02}-{day:02}",
        f"{rng.randint(1, 12)}/{day}",
    )
    return rng.choice(forms)


def _email(rng: random.Random) -> str:
    """Return an address, with dots, digits and various domains."""
    name = rng.choice(NAMES).lower()
    surname = rng.choice(SURNAMES).lower()
    user = rng.choice(
        (name, name, f"{name}.{surname}", f"{name[0]}.{surname}", f"{name}{rng.randint(1, 99)}", surname)
    )
    if rng.random() < 0.12:
        user = rng.choice(("info", "support", "team", "office", "hr", "sales", _noun(rng)))
    host = rng.choice(("example", "mail", "work", "gmail", "company", pseudo_word(rng), pseudo_word(rng)))
    return f"{user}@{host}.{rng.choice(('com', 'com', 'org', 'net', 'io', 'co.uk', 'de', 'edu'))}"


def _code(rng: random.Random) -> str:
    """Return an identifier of letters and digits, or of digits alone."""
    letters = "".join(rng.choice("ABCDEFGHJKLMNPQRSTUVWXYZ") for _ in range(rng.randint(1, 3)))
    digits = str(rng.randint(10, 99999))
    forms = (
        letters + digits,
        f"{letters}-{digits}",
        f"ORD-{digits}",
        f"{digits}{letters}",
    )
    # Digits alone are the hard case: only the parameter's type says that they are text.
    return digits if rng.random() < 0.4 else rng.choice(forms)


def _expression(rng: random.Random) -> str:
    """Return an arithmetic expression."""
    a, b, c = rng.randint(1, 999), rng.randint(1, 999), rng.randint(1, 99)
    x, y = rng.choice("+-*/"), rng.choice("+-*/")
    forms = (
        f"{a} {x} {b}",
        f"{c} {x} {a}",
        f"{a}{x}{b}",
        f"{a} {x} {b} {y} {c}",
        f"({a} {x} {b}) {y} {c}",
        f"{c}^{rng.randint(2, 9)}",
        f"{a / 10} {x} {c}",
        f"{a} {x} {c} {y} {b}",
        f"{a} {x} ({c} {y} {b})",
        f"sqrt({a})",
    )
    return rng.choice(forms[:4] if rng.random() < 0.6 else forms)


def _file(rng: random.Random) -> str:
    """Return a file name or a path."""
    stem = rng.choice((_noun(rng), f"{_noun(rng)}_{_noun(rng)}", f"{_noun(rng)}{rng.randint(1, 9)}"))
    name = f"{stem}.{rng.choice(EXTENSIONS)}"
    roll = rng.random()
    if roll < 0.1:
        return f"/{rng.choice(('home', 'tmp', 'data', _noun(rng)))}/{name}"
    return f"{_noun(rng)}/{name}" if roll < 0.2 else name


def _url(rng: random.Random) -> str:
    """Return a web address, often without its scheme."""
    host = f"{rng.choice((_noun(rng), pseudo_word(rng)))}.{rng.choice(('com', 'org', 'io', 'net', 'dev'))}"
    roll = rng.random()
    if roll < 0.35:
        return host
    if roll < 0.5:
        return f"www.{host}"
    return f"https://{host}" + (f"/{_noun(rng)}" if roll < 0.75 else "")


def _integer(rng: random.Random) -> int:
    """Return a whole number, mostly small."""
    return rng.randint(1, 99) if rng.random() < 0.75 else rng.randint(100, 9999)


def _decimal(rng: random.Random) -> float:
    """Return a number with one or two digits after the point that is written as it was made."""
    return rng.randint(1, 999) + rng.choice((0.5, 0.25, 0.1, 0.75, 0.99, 0.2))


def _either(words: tuple[str, ...] | list[str], other: float) -> Callable[[random.Random], str]:
    """Return a maker that picks one of `words`, and with probability `other` a word of any kind."""

    def make(rng: random.Random) -> str:
        return rng.choice(words).replace("_", " ") if rng.random() >= other else _noun(rng)

    return make


_MAKERS: dict[str, Callable[[random.Random], Value]] = {
    "number": _integer,
    "small": lambda rng: rng.randint(1, 12) if rng.random() < 0.8 else rng.randint(13, 60),
    "percent": lambda rng: rng.randint(0, 100),
    "long_id": lambda rng: rng.randint(10, 99999),
    "decimal": lambda rng: _decimal(rng) if rng.random() < 0.5 else _integer(rng),
    "city": _city,
    "country": lambda rng: rng.choice((*CAPITALS, *UNKNOWN_PLACES)) if rng.random() < 0.8 else _city(rng),
    "place": _place,
    "person": _person,
    "artist": _artist,
    "language": _either(LANGUAGES, 0.0),
    "cuisine": _either(CUISINES, 0.1),
    "currency": lambda rng: rng.choice(CODES) if rng.random() < 0.75 else rng.choice(MONEY),
    "unit": _either(UNITS, 0.0),
    "symbol": lambda rng: (
        rng.choice(TICKERS)
        if rng.random() < 0.4
        else "".join(rng.choice("ABCDEFGHIJKLMNOPQRSTUVWXYZ") for _ in range(rng.randint(2, 5)))
    ),
    "room": _either(ROOMS, 0.25),
    "device": _either(DEVICES, 0.25),
    "dish": _either(DISHES, 0.75),
    "product": lambda rng: _noun(rng) if rng.random() < 0.6 else f"{_noun(rng)} {_noun(rng)}",
    "song": lambda rng: _title(rng) if rng.random() < 0.8 else _salad(rng, 2, 4),
    "switch": lambda rng: rng.choice(ENUMS["switch"]),
    "priority": lambda rng: rng.choice(ENUMS["priority"]),
    "size": lambda rng: rng.choice(ENUMS["size"]),
    "expression": _expression,
    "email": _email,
    "code": _code,
    "file": _file,
    "url": _url,
    "time": _time,
    "date": _date,
    "task": _task,
    "thing": _thing,
    "topic": _topic,
    "query": _query,
    "message": _message,
    "title": _title,
    "text": _text,
    "word": _noun,
    "phone": lambda rng: (
        f"{rng.randint(100, 999)}{rng.choice('- ')}{rng.randint(1000, 9999)}"
        if rng.random() < 0.5
        else str(rng.randint(10**6, 10**9))
    ),
}
_TYPES = {
    "number": "integer",
    "small": "integer",
    "percent": "integer",
    "long_id": "integer",
    "decimal": "number",
}


def settle(rng: random.Random, kind: str) -> str:
    """Return the kind of value a definition asks for where a catalogue entry leaves it open."""
    if kind == "id":
        return "code" if rng.random() < 0.6 else "long_id"
    if kind == "amount":
        return "number" if rng.random() < 0.65 else "decimal"
    return kind


def json_type(kind: str) -> str:
    """Return the JSON Schema type of values of `kind`."""
    return _TYPES.get(kind, "string")


def make_value(rng: random.Random, kind: str) -> Value:
    """Return an argument value of `kind`, which must be settled."""
    value = _MAKERS[kind](rng)
    while isinstance(value, str) and re.search(r"[{}\[\]|]|^(?:for|to|about) ", value):
        value = _MAKERS[kind](rng)
    return value


def without_on(text: str, hole: str, value: Value) -> str:
    """Drop the "on" before `hole` in `text` if `value` is a day like "tomorrow"."""
    if str(value).split()[0] in RELATIVE_DAYS:
        return re.sub(r"\bon " + re.escape(hole), lambda _: hole, text, flags=re.IGNORECASE)
    return text
