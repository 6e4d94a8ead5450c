"""Filters and tests of templates that may take long or produce much, each with a check of its inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jinja2
import markupsafe
from jinja2 import filters

from server.templates.limits import (
    TooMuch,
    check_format,
    check_items,
    check_join,
    check_length,
    check_numbers,
    check_processed,
    check_replace,
    check_stripped,
    listed,
    shown,
    weigh,
    weighed,
    weighed_all,
)

_MAX_PRECISION = 1000
"""Most digits to round to: digits before the point become a power of ten."""


def _passing_on(original: Any, check: Callable[..., Any]) -> Any:
    """The filter with its value and arguments replaced by those that `check` returns. Jinja passes some filters a context first,
    and marks them by an attribute."""
    mark = getattr(original, "jinja_pass_arg", None)

    def call(*args: Any, **kwargs: Any) -> Any:
        head, rest = (args[:1], args[1:]) if mark is not None else ((), args)
        value, *others = check(*rest, **kwargs)
        return original(*head, value, *others, **kwargs)

    if mark is not None:
        call.jinja_pass_arg = mark  # type: ignore[attr-defined]
    return call


def _sized(value: Any, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
    """Check for filters that only need bounds on numbers and texts, and whose value may be shown."""
    check_numbers((*args, *kwargs.values()))
    text = shown(value) if not isinstance(value, str) else value
    return (text, *args)


def _processed(value: Any, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
    """Check for filters built on regular expressions."""
    text, *others = _sized(value, *args, **kwargs)
    for one in (text, *others, *kwargs.values()):
        check_processed(one)
    return (text, *others)


def _compared(value: Any, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
    """Check for filters that compare or hash the items of a list."""
    return (weighed_all(value), *args)


def _shown_whole(value: Any, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
    weigh(value)
    return (value, *args)


def _batch(value: Any, linecount: Any, fill_with: Any = None) -> Any:
    check_items(linecount)
    return filters.do_batch(value, linecount, fill_with)


def _slice(value: Any, slices: Any, fill_with: Any = None) -> Any:
    check_items(slices)
    return filters.sync_do_slice(listed(value), slices, fill_with)


def _indent(s: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    text = s if isinstance(s, str) else shown(s)
    lines = sum(map(text.count, "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029")) + 1
    check_items(lines)
    check_length(len(text) + lines * (len(width) if isinstance(width, str) else max(width, 0)))
    return filters.do_indent(text, width, first, blank)


@jinja2.pass_environment
def _wordwrap(
    environment: Any,
    s: str,
    width: int = 79,
    break_long_words: bool = True,
    wrapstring: str | None = None,
    break_on_hyphens: bool = True,
) -> str:
    check_processed(s)
    lines = len(s) + 1 if width < 2 else 2 * len(s) // width + s.count("\n") + 1
    check_length(len(s) + lines * len(wrapstring or "\n"))
    return filters.do_wordwrap(environment, s, width, break_long_words, wrapstring, break_on_hyphens)


@jinja2.pass_eval_context
def _join(context: Any, value: Any, d: str = "", attribute: str | int | None = None) -> str:
    if attribute is not None:
        value = map(filters.make_attrgetter(context.environment, attribute), value)
    parts = []
    length = 0
    for item in value:
        part = item if isinstance(item, str) or hasattr(item, "__html__") else shown(item)
        length += len(d) + (len(part) if isinstance(part, str) else 0)
        check_length(length)
        parts.append(part)
        check_items(len(parts))
    check_join(str(d), parts)
    return filters.sync_do_join(context, parts, d)


@jinja2.pass_environment
def _sum(environment: Any, iterable: Any, attribute: str | int | None = None, start: Any = 0) -> Any:
    """Sum item by item, so that each addition is checked as `+` is. A list grows in place: a new one for each addition would copy
    all items before it."""
    if attribute is not None:
        iterable = map(filters.make_attrgetter(environment, attribute), iterable)
    total, is_own = start, False
    for item in iterable:
        if isinstance(total, str) or isinstance(item, str):
            raise TypeError("sum adds numbers and lists: texts are joined")
        if is_own and type(item) is list:
            check_items(len(total) + len(item))
            total += item
        else:
            total = environment.call_binop(None, "+", total, item)
            is_own = type(total) is list
    return total


def _string(value: Any) -> str:
    return value if isinstance(value, str) else shown(value)


def _list(value: Any) -> list[Any]:
    return listed(value)


def _escape(value: Any) -> Any:
    text = value if isinstance(value, str) or hasattr(value, "__html__") else shown(value)
    if isinstance(text, str):
        check_length(len(text) + 5 * sum(map(text.count, "&<>'\"")))
    return markupsafe.escape(text)


def _format(value: Any, *args: Any, **kwargs: Any) -> str:
    text = _string(value)
    check_format(text, args, kwargs)
    return filters.do_format(text, *args, **kwargs)


@jinja2.pass_eval_context
def _replace(context: Any, s: Any, old: str, new: str, count: int | None = None) -> str:
    text = _string(s)
    check_replace(text, old, new)
    return filters.do_replace(context, text, old, new, count)


def _trim(value: Any, chars: str | None = None) -> str:
    check_stripped(chars)
    return filters.do_trim(_string(value), chars)


def _round(value: Any, precision: int = 0, method: Any = "common") -> Any:
    if abs(precision) > _MAX_PRECISION:
        raise TooMuch(_MAX_PRECISION, "digits")
    return filters.do_round(value, precision, method)


_CHECKS: dict[str, Callable[..., tuple[Any, ...]]] = {
    **dict.fromkeys(("center", "truncate", "upper", "lower", "capitalize"), _sized),
    **dict.fromkeys(("striptags", "title", "urlize", "wordcount"), _processed),
    **dict.fromkeys(("sort", "unique", "groupby", "min", "max"), _compared),
    **dict.fromkeys(("dictsort", "pprint", "urlencode", "xmlattr"), _shown_whole),
}

FILTERS: dict[str, Any] = {
    **{name: _passing_on(filters.FILTERS[name], check) for name, check in _CHECKS.items()},
    "batch": _batch,
    "e": _escape,
    "escape": _escape,
    "forceescape": lambda value: _escape(_string(value)),
    "format": _format,
    "indent": _indent,
    "join": _join,
    "list": _list,
    "replace": _replace,
    "round": _round,
    "safe": lambda value: filters.do_mark_safe(_string(value)),
    "slice": _slice,
    "string": _string,
    "sum": _sum,
    "trim": _trim,
    "wordwrap": _wordwrap,
}
"""Filters by name, in place of Jinja's own."""

_COMPARING = (
    "==",
    "eq",
    "equalto",
    "!=",
    "ne",
    ">",
    "gt",
    "greaterthan",
    ">=",
    "ge",
    "<",
    "lt",
    "lessthan",
    "<=",
    "le",
    "in",
)


def measured_tests(tests: Mapping[str, Any]) -> dict[str, Any]:
    """The tests that compare, with a check of both sides."""

    def measured(original: Any) -> Any:
        return lambda one, other: original(weighed(one), weighed(other))

    return {name: measured(tests[name]) for name in _COMPARING}
