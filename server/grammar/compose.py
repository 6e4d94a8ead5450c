"""Grammars as the text in `SequenceStart.grammar`: JSON with a list of llguidance's grammars. The first grammar is the
answer's, and can refer to the others as `@NAME`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from server.grammar.forms import Constraint

START = "start"


def alone(constraint: Constraint) -> str:
    """The grammar of an answer that follows the constraint as a whole."""
    return _text([{"name": START, **constraint.grammar}])


def compose(start_lark: str, parts: Mapping[str, Mapping[str, Any]]) -> str:
    """The grammar of an answer that follows a Lark grammar, in which `@NAME` stands for a part: `{"json_schema": ...}`,
    `{"lark_grammar": ...}` or the grammar of a Constraint."""
    return _text(
        [{"name": START, "lark_grammar": start_lark}, *({"name": n, **part} for n, part in parts.items())]
    )


def _text(grammars: list[dict[str, Any]]) -> str:
    return json.dumps({"grammars": grammars}, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
