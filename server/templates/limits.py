"""Limits on the sizes of a template's values, checked before the values are created.

An operation that runs in C blocks every other thread until it ends, and its memory cannot be limited. So each bound here is
checked in bytecode first, which a deadline can interrupt, and from numbers that are cheap to obtain.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

import jinja2
import jinja2.utils

MAX_OUTPUT = 16 * 1024 * 1024
"""Most characters of a text. A body may hold as many; a template that produces more is looping."""
MAX_ITEMS = 1_000_000
"""Most items of one list: about 60 MB if each is a text of its own."""
MAX_NODES = 100_000
"""Most lists, objects and their items, counted as often as they occur. To show or compare them takes some 50 ms."""
MAX_PROCESSED = 1_000_000
"""Most characters for a filter built on regular expressions."""
_MAX_BITS = 4096
"""Most bits of an integer that `**` may produce."""
_MAX_STRIPPED = 1000
"""Most characters to strip: each is tried at each position."""
_MAX_BACKWARDS = 2**28
"""Most pairs of characters compared by a search from the end, which takes the product of both lengths at worst."""
_DIGITS = re.compile(r"\d+")
"""Field widths and precisions, in format strings."""
_WIDTH_FROM_VALUES = re.compile(r"%[-+ #0\d]*\.?\*|\{[^{}:]*:[^{}]*\{")
_BREAKS = " \n\t\r\v\f"


class TooMuch(jinja2.TemplateError):
    """The template produces more than any prompt may have."""

    def __init__(self, limit: int = MAX_OUTPUT, of: str = "characters") -> None:
        super().__init__(f"it made more than {limit} {of}")


def check_length(length: float) -> None:
    """Check the length of a text or list to be created."""
    if length > MAX_OUTPUT:
        raise TooMuch


def check_items(items: float) -> None:
    """Check the number of items of a list to be created."""
    if items > MAX_ITEMS:
        raise TooMuch(MAX_ITEMS, "items")


def check_processed(text: Any) -> None:
    """Check the length of a text that regular expressions process."""
    if isinstance(text, str) and len(text) > MAX_PROCESSED:
        raise TooMuch(MAX_PROCESSED, "characters for a filter that splits words")


def check_numbers(values: Iterable[Any]) -> None:
    """Check widths and counts among arguments."""
    for value in values:
        if isinstance(value, int):
            check_length(value)


def check_bits(bits: int) -> None:
    """Check the size of an integer to be created."""
    if bits > _MAX_BITS:
        raise jinja2.TemplateError("a number is too large")


def weigh(value: Any) -> tuple[int, int, int]:
    """Nodes, characters and depth of `value` as text. A value that is shared, or contains itself, counts as often as it occurs.

    Raises TooMuch before it has looked at more than MAX_NODES nodes.
    """
    if isinstance(value, str | bytes):
        return 1, len(value), 0
    nodes = characters = depth = 0
    level: list[Any] = [(value,)]
    while level:
        below: list[Any] = []
        for container in level:
            nodes += len(container)
            if nodes > MAX_NODES:
                raise TooMuch(MAX_NODES, "items, counting those inside others")
            for item in container:
                if isinstance(item, str | bytes):
                    characters += len(item)
                elif (inside := _contents(item)) is not None:
                    below.append(inside)
        check_length(characters + 2 * nodes)
        level = below
        depth += 1
    return nodes, characters, depth


def _contents(item: Any) -> Sequence[Any] | None:
    """The parts of an item, None if it has none. A mapping's size is checked before its parts are listed."""
    if isinstance(item, list | tuple | set | frozenset):
        return item  # type: ignore[return-value]  # sized and iterable, which is all that is asked of it
    if isinstance(item, jinja2.utils.Namespace):
        item = object.__getattribute__(item, "_Namespace__attrs")
    if not isinstance(item, Mapping):
        items = getattr(item, "mapping", None) if type(item).__name__.startswith("dict_") else None
        if items is None:
            return None
        item = items
    if len(item) > MAX_NODES:
        raise TooMuch(MAX_NODES, "items, counting those inside others")
    return [*item.keys(), *item.values()]


def weighed(value: Any) -> Any:
    """`value`, after a check that it can be compared, hashed, sorted or shown in reasonable time."""
    if not isinstance(value, str | int | float | None):
        weigh(value)
    return value


def weighed_all(values: Iterable[Any]) -> list[Any]:
    """The values of an iterable, checked together."""
    items = listed(values)
    weigh(items)
    return items


def shown(value: Any) -> str:
    """`str(value)`."""
    if type(value) is str:
        return value
    weighed(value)
    text = str(value)
    check_length(len(text))
    return text


def listed(values: Any) -> list[Any]:
    """`list(values)`."""
    if hasattr(values, "__len__"):
        check_items(len(values))
    items = list(islice(values, MAX_ITEMS + 1))
    check_items(len(items))
    return items


def check_join(separator: str | bytes, parts: Sequence[Any]) -> None:
    """Of `separator.join(parts)`."""
    lengths = sum(len(part) for part in parts if isinstance(part, str | bytes))
    check_length(lengths + len(separator) * len(parts))


def check_replace(text: Any, old: Any, new: Any) -> None:
    """Check the result's size of `text.replace(old, new)`."""
    if type(old) is type(new) and isinstance(old, str | bytes) and len(new) > len(old):
        check_length(len(text) + text.count(old) * len(new))


def check_format(text: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Check the result's size of a format. A width may be in the format or, for `%*d` and `{:{}}`, among the values; a value
    may be used several times."""
    widths = 0
    for digits in _DIGITS.findall(text):
        if len(digits) > 7:
            raise TooMuch
        widths += int(digits)
    check_length(widths)
    values = [*args, *kwargs.values()]
    fields = text.count("%") + text.count("{")
    if _WIDTH_FROM_VALUES.search(text):
        check_length(fields * max((value for value in values if isinstance(value, int)), default=0))
    weights = [weigh(value)[1] for value in values]
    has_names = kwargs or "{" in text or any(isinstance(value, Mapping) for value in values)
    check_length(fields * max(weights, default=0) if has_names else sum(weights))


def check_method(text: Any, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Check a call of the method `name` of a text. Returns the arguments, with an iterator among them as a list."""
    check_numbers((*args, *kwargs.values()))
    first = args[0] if args else None
    if name == "join" and args:
        parts = first if isinstance(first, str | list | tuple) else listed(first)
        check_join(text, parts)
        return (parts, *args[1:])
    if name == "replace" and len(args) >= 2:
        check_replace(text, args[0], args[1])
    elif name == "expandtabs":
        width = first if args else kwargs.get("tabsize", 8)
        check_length(len(text) + text.count("\t" if isinstance(text, str) else b"\t") * width)
    elif name == "translate" and isinstance(first, Mapping):
        longest = max((len(to) for to in first.values() if isinstance(to, str)), default=1)
        check_length(len(text) * max(longest, 1))
    elif name in ("split", "rsplit", "splitlines"):
        separator = first if args else kwargs.get("sep")
        check_items(_pieces(text, None if name == "splitlines" else separator))
    elif name in ("strip", "lstrip", "rstrip"):
        check_stripped(first)
    backwards = name in ("rsplit", "rfind", "rindex", "rpartition")
    if backwards and isinstance(first, str | bytes) and len(first) * len(text) > _MAX_BACKWARDS:
        raise TooMuch(_MAX_BACKWARDS, "steps in a search")
    return args


def check_stripped(characters: Any) -> None:
    """Check the number of characters that `strip` removes."""
    if isinstance(characters, str | bytes) and len(characters) > _MAX_STRIPPED:
        raise TooMuch(_MAX_STRIPPED, "characters to strip")


def _pieces(text: Any, separator: Any) -> int:
    """Upper bound on the pieces of a text that is split at `separator`; None: white space."""
    if isinstance(separator, str | bytes) and separator:
        return int(text.count(separator))
    if isinstance(text, bytes):
        return len(text)
    return sum(map(text.count, _BREAKS))
