"""The text below each field of a wire type: where the parameter comes from, what it means, and its default.

The text has the form `ORIGIN: Meaning. Default: a word or two.`; a field without a default of its own has no last sentence.
Pydantic's `use_attribute_docstrings` reads such texts when a class is created, at every start of the server; here they are read
when the description is first asked for.
"""

from __future__ import annotations

import ast
import functools
import inspect
import re
import sys
from itertools import pairwise
from typing import NamedTuple

from server.schemas.base import WireModel

_ORIGIN = re.compile(r"[A-Z][A-Za-z]+|vLLM|LM Studio|llama\.cpp")
"""The API that a parameter comes from, or this server."""


class FieldText(NamedTuple):
    """What a person reads of one field. `default` is empty for a field that is simply absent if it is left out."""

    origin: str
    meaning: str
    default: str


def field_texts(model: type[WireModel]) -> dict[str, FieldText]:
    """The texts of a wire type's fields by their names in the client's JSON. A subclass's text replaces its base's.

    Raises OSError if the source of the type is not installed, and ValueError for a text of another form.
    """
    texts: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if issubclass(base, WireModel):
            texts |= _texts_of_module(base.__module__).get(base.__name__, {})
    return {
        field.alias or name: _parsed(model, name, texts[name])
        for name, field in model.model_fields.items()
        if name in texts
    }


def _parsed(model: type[WireModel], name: str, text: str) -> FieldText:
    origin, _, rest = text.partition(": ")
    if _ORIGIN.fullmatch(origin) is None or not rest:
        raise ValueError(
            f"the text of {model.__name__}.{name} does not begin with the name of an API and a colon"
        )
    meaning, _, default = rest.partition(" Default: ")
    return FieldText(origin, meaning, default.removesuffix("."))


@functools.cache
def _texts_of_module(module: str) -> dict[str, dict[str, str]]:
    """The texts of all classes of a module, by class and field, each on one line."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {node.name: _texts_of_class(node) for node in tree.body if isinstance(node, ast.ClassDef)}


def _texts_of_class(node: ast.ClassDef) -> dict[str, str]:
    texts = {}
    for pair in pairwise(node.body):
        match pair:
            case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(text))):
                texts[name] = " ".join(text.split())
    return texts
