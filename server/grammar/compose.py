"""Grammars as the text that `SequenceStart.grammar` carries: JSON with a list of llguidance's grammars, the first of which
is the answer's, and can name the others as `@NAME`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from server.grammar.forms import Constraint

START = "start"


def alone(constraint: Constraint) -> str:
    """The whole answer follows the constraint."""
    return _text([{"name": START, **constraint.grammar}])


def compose(start_lark: str, parts: Mapping[str, Mapping[str, Any]]) -> str:
    """The answer follows a Lark grammar, in which `@NAME` stands for a part: `{"json_schema": ...}`, `{"lark_grammar": ...}`
    or what a Constraint has as its grammar."""
    return _text(
        [{"name": START, "lark_grammar": start_lark}, *({"name": n, **part} for n, part in parts.items())]
    )


def _text(grammars: list[dict[str, Any]]) -> str:
    return json.dumps({"grammars": grammars}, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
