"""The Jinja environment of chat templates: what transformers offers them, and no more room than a prompt needs.

Jinja's sandbox keeps templates from Python's internals. It does not keep one operation from making gigabytes or counting
for an hour, and such an operation is a single call that no deadline can interrupt: so those that multiply are measured first.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.filters
import jinja2.utils
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.runtime import str_join
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_OUTPUT = 16 * 1024 * 1024
"""Characters. A body may hold as many; a template that makes more is looping."""
_MAX_BITS = 4096
"""Of an integer that `**` may make."""
_WIDTH = re.compile(r"\d{7,}")
"""Field widths of seven digits and more, in format strings."""
_WIDTH_FROM_VALUES = re.compile(r"%[-+ #0\d]*\.?\*|\{[^{}]*:[^{}]*\{")


class TooMuch(jinja2.TemplateError):
    """The template makes more than any prompt may have."""

    def __init__(self) -> None:
        super().__init__(f"it made more than {MAX_OUTPUT} characters")


def chat_environment() -> ImmutableSandboxedEnvironment:
    """As transformers sets it up: blocks take their line break and indentation with them, prompts are no HTML."""
    environment = _Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,
        extensions=[_Generation, jinja2.ext.loopcontrols],
    )
    environment.filters |= {name: _bounded(environment.filters[name]) for name in ("center", "indent")}
    environment.filters |= {"tojson": _tojson, "format": _format, "replace": _replace}
    environment.globals |= {
        "raise_exception": _raise_exception,
        "strftime_now": _strftime_now,
        "namespace": _Namespace,
        "dict": _Dict(),
    }
    return environment


class _Generator(CodeGenerator):
    """Compiles `a ~ b` to a call that looks at the lengths."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.concatenated((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")


class _Environment(ImmutableSandboxedEnvironment):
    code_generator_class = _Generator
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def concatenated(self, parts: Sequence[Any]) -> str:
        """The value of `a ~ b ~ c`."""
        texts = [part if isinstance(part, str) else str(part) for part in parts]
        _check_length(sum(map(len, texts)))
        return str_join(texts)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """An operation whose result may be much larger than its operands."""
        if operator == "+" and _is_sequence(left) and _is_sequence(right):
            _check_length(len(left) + len(right))
        elif operator == "*":
            for one, other in ((left, right), (right, left)):
                if _is_sequence(one) and isinstance(other, int):
                    _check_length(len(one) * other)
            if isinstance(left, int) and isinstance(right, int):
                _check_bits(left.bit_length() + right.bit_length())
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            _check_bits(left.bit_length() * right)
        elif operator == "%" and isinstance(left, str):
            _check_format(left, right if isinstance(right, tuple) else (right,), {})
        return super().call_binop(context, operator, left, right)

    def call(self, context: Any, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """A method of a string may be asked for any width, and `replace` may multiply."""
        text = getattr(obj, "__self__", None)
        if isinstance(text, str):
            name = getattr(obj, "__name__", "")
            if name in ("ljust", "rjust", "center", "zfill", "expandtabs"):
                _check_numbers(args, kwargs)
            elif name == "replace" and len(args) >= 2:
                _check_replace(text, args[0], args[1])
            elif name == "join" and args and isinstance(args[0], list | tuple):
                _check_length(sum(len(part) + len(text) for part in args[0] if isinstance(part, str)))
        return super().call(context, obj, *args, **kwargs)

    def wrap_str_format(self, value: Any) -> Any:
        """Jinja replaces `format` and `format_map` of strings by forms of its own, before `call` sees them."""
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None

        def checked(*args: Any, **kwargs: Any) -> str:
            from_mapping = args[0] if value.__name__ == "format_map" and args else {}
            _check_format(value.__self__, args, kwargs or dict(from_mapping))
            return wrapped(*args, **kwargs)

        return checked


class _Generation(jinja2.ext.Extension):
    """`{% generation %}...{% endgeneration %}` marks the assistant's text for training; here it is its content."""

    tags = {"generation"}

    def parse(self, parser: Any) -> nodes.Node:
        """The block with a scope of its own, as a call block has: what is set inside is not seen after it."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _Namespace(jinja2.utils.Namespace):
    """`namespace()`, whose attributes may not begin with an underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        # No named parameter: `namespace(self=...)` is legal.
        this, *rest = args
        values = dict(*rest, **kwargs)
        for name in values:
            _check_name(name)
        jinja2.utils.Namespace.__init__(this, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


class _Dict:
    """`dict(...)` and `dict.fromkeys(...)` without the type behind them."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        """One value for several keys."""
        return dict.fromkeys(*args)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace cannot hold {name!r}: names begin with a letter")


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As transformers has it: Jinja's own filter escapes characters for HTML and sorts keys."""
    _check_numbers((indent,), {})
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: Any) -> NoReturn:
    raise jinja2.TemplateError(str(message))


def _strftime_now(format_: str) -> str:
    return datetime.now().strftime(format_)


def _bounded(filter_: Any) -> Any:
    def call(value: Any, *args: Any, **kwargs: Any) -> Any:
        _check_numbers(args, kwargs)
        return filter_(value, *args, **kwargs)

    return call


def _format(value: Any, *args: Any, **kwargs: Any) -> str:
    _check_format(str(value), args, kwargs)
    return jinja2.filters.do_format(value, *args, **kwargs)


@jinja2.pass_eval_context
def _replace(context: Any, text: Any, old: str, new: str, count: int | None = None) -> str:
    _check_replace(str(text), old, new)
    return jinja2.filters.do_replace(context, text, old, new, count)


def _check_replace(text: str, old: Any, new: Any) -> None:
    if isinstance(old, str) and isinstance(new, str) and len(new) > len(old):
        _check_length(len(text) + text.count(old) * len(new))


def _check_format(text: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """A field's width may stand in the format or, for `%*d` and `{:{}}`, among the values."""
    if _WIDTH.search(text):
        raise TooMuch
    if _WIDTH_FROM_VALUES.search(text):
        _check_numbers(args, kwargs)


def _check_numbers(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    for value in (*args, *kwargs.values()):
        if isinstance(value, int):
            _check_length(value)


def _check_length(length: int) -> None:
    if length > MAX_OUTPUT:
        raise TooMuch


def _check_bits(bits: int) -> None:
    if bits > _MAX_BITS:
        raise jinja2.TemplateError("a number is too large")


def _is_sequence(value: Any) -> bool:
    return isinstance(value, str | bytes | list | tuple)
