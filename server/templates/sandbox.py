"""The Jinja environment of chat templates: that of transformers, with limits on time and memory.

Jinja's sandbox keeps templates from Python's internals. It does not prevent one operation from producing gigabytes or running
for an hour, and such an operation is a single call that no deadline can interrupt: so operations that multiply, compare or show
are checked first (`server/templates/limits.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
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

from server.templates.limited_filters import FILTERS, measured_tests
from server.templates.limits import (
    check_bits,
    check_format,
    check_items,
    check_length,
    check_method,
    check_numbers,
    shown,
    weigh,
    weighed,
)


def chat_environment() -> ImmutableSandboxedEnvironment:
    """The environment as transformers configures it: blocks remove their line break and indentation, and there is no HTML."""
    environment = _Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,
        extensions=[_Generation, jinja2.ext.loopcontrols],
    )
    environment.filters |= {**FILTERS, "tojson": _tojson}
    environment.tests |= measured_tests(environment.tests)
    environment.globals |= {
        "raise_exception": _raise_exception,
        "strftime_now": _strftime_now,
        "namespace": _Namespace,
        "dict": _Dict(),
    }
    return environment


class _Generator(CodeGenerator):
    """Compiles operations that show, join and compare values to calls that check their sizes."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.concatenated((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")

    def visit_Compare(self, node: nodes.Compare, frame: Frame) -> None:
        """Compile a comparison. One with a constant, or of a list's items with a constant, is short and needs no check."""
        sides = (node.expr, *(operand.expr for operand in node.ops))
        short = len(sides) == 2 and any(map(_is_constant, sides))
        self.write("(")
        self._visit_compared(node.expr, frame, short)
        for operand in node.ops:
            self.write(f" {_OPERATORS[operand.op]} ")
            self._visit_compared(operand.expr, frame, short)
        self.write(")")

    def _visit_compared(self, node: nodes.Expr, frame: Frame, short: bool) -> None:
        if short or _is_constant(node):
            self.visit(node, frame)
        else:
            self.write("environment.weighed(")
            self.visit(node, frame)
            self.write(")")

    def _output_child_pre(self, node: nodes.Expr, frame: Frame, finalize: Any) -> None:
        """Compile output: a text is shown without a call, any other value after a check of its size."""
        escaped = frame.eval_ctx.volatile or frame.eval_ctx.autoescape
        if escaped:
            choice = (
                "(escape if context.eval_ctx.autoescape else str)(" if frame.eval_ctx.volatile else "escape("
            )
            self.write(f"{choice}environment.weighed(")
        else:
            self.write("(printed if type(printed := (")

    def _output_child_post(self, node: nodes.Expr, frame: Frame, finalize: Any) -> None:
        escaped = frame.eval_ctx.volatile or frame.eval_ctx.autoescape
        self.write("))" if escaped else ")) is str else environment.text_of(printed))")


def _is_constant(node: nodes.Node) -> bool:
    if isinstance(node, nodes.Tuple | nodes.List):
        return all(isinstance(item, nodes.Const) for item in node.items)
    return isinstance(node, nodes.Const)


_OPERATORS = {
    "eq": "==",
    "ne": "!=",
    "gt": ">",
    "gteq": ">=",
    "lt": "<",
    "lteq": "<=",
    "in": "in",
    "notin": "not in",
}


class _Environment(ImmutableSandboxedEnvironment):
    code_generator_class = _Generator
    intercepted_binops = frozenset({"+", "*", "**", "%"})
    text_of = staticmethod(shown)
    weighed = staticmethod(weighed)

    @staticmethod
    def concat(parts: Iterable[str]) -> str:
        """The text that a macro, a call or filter block or a `set` block has captured."""
        pieces = parts if isinstance(parts, list) else list(parts)
        check_length(sum(map(len, pieces)))
        return "".join(pieces)

    def concatenated(self, parts: Sequence[Any]) -> str:
        """The value of `a ~ b ~ c`."""
        texts = [part if isinstance(part, str) else shown(part) for part in parts]
        check_length(sum(map(len, texts)))
        return str_join(texts)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """An operation whose result may be much larger than its operands."""
        if operator == "+" and type(left) is str and type(right) is str:
            check_length(len(left) + len(right))
            return left + right
        if operator == "+" and _is_sequence(left) and _is_sequence(right):
            (check_length if isinstance(left, str | bytes) else check_items)(len(left) + len(right))
        elif operator == "*":
            for one, other in ((left, right), (right, left)):
                if _is_sequence(one) and isinstance(other, int):
                    (check_length if isinstance(one, str | bytes) else check_items)(len(one) * other)
            if isinstance(left, int) and isinstance(right, int):
                check_bits(left.bit_length() + right.bit_length())
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            check_bits(left.bit_length() * right)
        elif operator == "%" and isinstance(left, str | bytes):
            text = left if isinstance(left, str) else left.decode("latin-1")
            check_format(text, right if isinstance(right, tuple) else (right,), {})
        return super().call_binop(context, operator, left, right)

    def call(self, context: Any, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Check and make a call: methods of texts take any width, and some multiply; methods of lists compare."""
        this = getattr(obj, "__self__", None)
        if this is None:
            pass
        elif isinstance(this, str | bytes):
            args = check_method(this, getattr(obj, "__name__", ""), args, kwargs)
        elif isinstance(this, int | float):
            check_numbers((*args, *kwargs.values()))
        elif isinstance(this, list | tuple | dict):
            for value in (*args, *kwargs.values()):
                weighed(value)
            if getattr(obj, "__name__", "") in ("index", "count"):
                weigh(this)
        return super().call(context, obj, *args, **kwargs)

    def wrap_str_format(self, value: Any) -> Any:
        """Check `format` and `format_map` of strings, which Jinja replaces by its own forms before `call` sees them."""
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None

        def checked(*args: Any, **kwargs: Any) -> str:
            from_mapping = args[0] if value.__name__ == "format_map" and args else {}
            check_format(value.__self__, args, kwargs or dict(from_mapping))
            return wrapped(*args, **kwargs)

        return checked


class _Generation(jinja2.ext.Extension):
    """`{% generation %}...{% endgeneration %}`, which marks the assistant's text for training; here it renders its content."""

    tags = {"generation"}

    def parse(self, parser: Any) -> nodes.Node:
        """The block with a scope of its own, as a call block has: variables set inside are not visible after it."""
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
    """The filter `tojson` of transformers: Jinja's own escapes characters for HTML and sorts keys."""
    items, characters, depth = weigh(value)
    each = sum(len(text) for text in separators or () if isinstance(text, str))
    if indent is not None:
        each += depth * (len(indent) if isinstance(indent, str) else max(indent, 0))
    check_length(items * each + characters * (6 if ensure_ascii else 1))
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: Any) -> NoReturn:
    raise jinja2.TemplateError(str(message))


def _strftime_now(format_: str) -> str:
    return datetime.now().strftime(format_)


def _is_sequence(value: Any) -> bool:
    return isinstance(value, str | bytes | list | tuple)
