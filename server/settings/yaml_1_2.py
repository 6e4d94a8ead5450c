"""YAML by the core schema of YAML 1.2.2 (https://yaml.org/spec/1.2.2/, section 10.3), and no key twice in a mapping.

PyYAML reads YAML 1.1, in which `010` is 8, `12:30` is 750, `on` is true and the last of two equal keys counts. Here a plain
scalar is null, true, false, a number as the tables of section 10.3.2 have it, or a string. There is neither a timestamp nor
the merge key `<<`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import yaml

_TAG = "tag:yaml.org,2002:"
_NULL = re.compile(r"null|Null|NULL|~|")
_BOOL = re.compile(r"true|True|TRUE|false|False|FALSE")
_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(
    r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
)
_MAX_DIGITS = 4300
"""Of an integer: Python converts no longer ones."""


class KeyTwice(yaml.constructor.ConstructorError):
    """A mapping has a key twice. The message is a sentence with both lines."""

    def __init__(self, key: Any, first: int, second: int) -> None:
        super().__init__(None, None, f"{key} stands twice, first in line {first}; leave one out")
        self.key, self.line = key, second

    def __str__(self) -> str:
        return f"line {self.line}: {self.problem}"


class CoreLoader(yaml.SafeLoader):
    """Loader of one document. Its constructors read what an explicit tag such as `!!int` names in the same way."""

    # A table of its own: PyYAML's would be shared with SafeLoader.
    yaml_implicit_resolvers: dict[str | None, list[tuple[str, re.Pattern[str]]]] = {}

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """The mapping of a node. Raises KeyTwice."""
        if not isinstance(node, yaml.MappingNode):  # `!!map` before something else
            return super().construct_mapping(node, deep)
        lines: dict[Any, int] = {}
        mapping: dict[Any, Any] = {}
        for key_node, value_node in node.value:
            key, line = self.construct_object(key_node, deep=True), key_node.start_mark.line + 1
            try:
                first = lines.setdefault(key, line)
            except TypeError:
                raise yaml.constructor.ConstructorError(
                    None, None, "a key that is a list or a mapping", key_node.start_mark
                ) from None
            if key in mapping:
                raise KeyTwice(key, first, line)
            mapping[key] = self.construct_object(value_node, deep=deep)
        return mapping


def load_yaml(text: str) -> Any:
    """The one document of `text`, None for none. Raises yaml.YAMLError, of which KeyTwice is one."""
    loader = CoreLoader(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


def _integer(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise ValueError
    if text.startswith(("0o", "0x")):
        return int(text[2:], 8 if text[1] == "o" else 16)
    return int(text)


def _float(text: str) -> float:
    sign, word = (-1.0 if text.startswith("-") else 1.0), text.lstrip("+-").lower()
    return sign * math.inf if word == ".inf" else math.nan if word == ".nan" else float(text)


def _scalar(kind: str, form: re.Pattern[str], read: Callable[[str], Any]) -> None:
    """Plain scalars of this form are of this kind, and so is what is tagged so."""

    def construct(loader: CoreLoader, node: yaml.Node) -> Any:
        assert isinstance(node, yaml.ScalarNode)
        text = str(loader.construct_scalar(node))
        try:
            if form.fullmatch(text):
                return read(text)
        except ValueError:
            pass
        raise yaml.constructor.ConstructorError(None, None, f"{text[:40]!r} is no {kind}", node.start_mark)

    CoreLoader.add_constructor(_TAG + kind, construct)
    # The pattern is matched from the beginning only.
    whole = re.compile(rf"(?:{form.pattern})\Z")
    CoreLoader.add_implicit_resolver(_TAG + kind, whole, None)


# The first that fits counts.
_scalar("null", _NULL, lambda text: None)
_scalar("bool", _BOOL, lambda text: text.lower() == "true")
_scalar("int", _INT, _integer)
_scalar("float", _FLOAT, _float)
