"""How answers of a conversation are sampled: what /set and the flags take, and what of it is in force, and why.

A value that a person gave is sent with each request. The others are the server's to choose, with one exception: a model without
sampling defaults is sampled from all tokens of its vocabulary, and unlikely ones derail a small model, so that the conversation
excludes them by a default of its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

SOFT = {"min_p": 0.1}
"""Sent where neither the model nor a person has sampling defaults. What was compared: docs/decisions, 145."""

_NEUTRAL = {
    "temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "typical_p": 1.0, "repetition_penalty": 1.0,
    "presence_penalty": 0.0, "frequency_penalty": 0.0,
}  # fmt: skip
"""What this server applies where neither a request nor the model has a value: OpenAI's defaults."""
_INTEGER_LIMIT = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Parameter:
    """A field of a request. `kind`: of its values, `low` to `high` for numbers. `absent`: what applies if no value is known."""

    name: str
    kind: type[float] | type[int] | type[list[str]]
    absent: str
    low: float = 0
    high: float = 0

    def parse(self, text: str) -> Any:
        """The value that a person typed. Raises ValueError with a sentence that names the parameter."""
        if self.kind is list:
            return _strings(text)
        noun = "a number" if self.kind is float else "an integer"
        expected = (
            f"{self.name} should be {noun} from {_limit(self.low)} to {_limit(self.high)}, not {text[:40]!r}"
        )
        try:
            value = int(text) if self.kind is int else float(text)
        except ValueError:
            raise ValueError(expected) from None
        if not self.low <= value <= self.high:  # NaN is within no limits
            raise ValueError(expected)
        return value


def _limit(limit: float) -> str:
    return f"{limit:,}" if isinstance(limit, int) else f"{limit:g}"


def _strings(text: str) -> list[str]:
    """One text as it is, or JSON: "a text" or ["several", "texts"], for those with line ends or spaces around them."""
    value: Any = text
    if text.startswith(('"', "[")):
        try:
            value = json.loads(text)
        except ValueError:
            value = text
    strings = [value] if isinstance(value, str) else value
    if not (isinstance(strings, list) and all(isinstance(one, str) and one for one in strings) and strings):
        raise ValueError('stop should be a text, or JSON such as ["one", "another"]')
    return strings


PARAMETERS = {
    one.name: one
    for one in (
        Parameter("temperature", float, "the server's", 0, 100),
        Parameter("top_p", float, "the server's", 0, 1),
        Parameter("top_k", int, "the server's", -1, _INTEGER_LIMIT),
        Parameter("min_p", float, "the server's", 0, 1),
        Parameter("typical_p", float, "the server's", 0, 1),
        Parameter("repetition_penalty", float, "the server's", 0.01, 100),
        Parameter("presence_penalty", float, "the server's", -2, 2),
        Parameter("frequency_penalty", float, "the server's", -2, 2),
        Parameter("max_tokens", int, "what fits the context", 1, _INTEGER_LIMIT),
        Parameter("seed", int, "random", -(2**63), 2**64 - 1),
        Parameter("stop", list, "none"),
    )
}
"""What /set and the flags of `cohort chat` take, by name. The limits are those of the server's requests."""
_OLLAMA = {"num_predict": "max_tokens", "repeat_penalty": "repetition_penalty"}
_AT_START = {"num_ctx": "--max-model-len"}
"""What a running server cannot change, and the flag that sets it at its start."""


class Parameters:
    """What is in force in a conversation. Owns `own`: what a person set, by flags or /set."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.own = {name: value for name, value in values.items() if value is not None}
        self._defaults: Mapping[str, Any] | None = None
        """The model's, or the server's for it, by its card; None: not known."""
        self._soft: Mapping[str, Any] = {}

    def take_card(self, card: Mapping[str, Any]) -> None:
        """The server's description of the model. `sampling_defaults` is {} where neither the model nor a setting of the server
        has any, and null while the model loads; without it the server is another one, whose defaults are not known."""
        defaults = card.get("sampling_defaults")
        self._defaults = defaults if isinstance(defaults, dict) else None
        self._soft = SOFT if defaults == {} and card.get("generates") is not False else {}

    @property
    def options(self) -> dict[str, Any]:
        """What goes into each request."""
        return {**self._soft, **self.own}

    def set(self, text: str) -> str:
        """`NAME VALUE`, or `NAME` to leave it to the server again; returns a sentence on what is in force then.

        Raises ValueError with a sentence on what is wrong."""
        name, _, value = text.partition(" ")
        name = name.lower().replace("-", "_")
        name, value = _OLLAMA.get(name, name), value.strip()
        if name in _AT_START:
            raise ValueError(f"{name} is set when the server starts: {_AT_START[name]}")
        if name not in PARAMETERS:
            raise ValueError(f"there is no parameter {name[:40]!r}: there are {', '.join(PARAMETERS)}")
        if value:
            self.own[name] = PARAMETERS[name].parse(value)
        else:
            self.own.pop(name, None)
        [line] = self.lines([name])
        return " ".join(line.split())

    def lines(self, names: Iterable[str] = tuple(PARAMETERS)) -> list[str]:
        """A line for each parameter: its name, the value in force, and where that comes from."""
        rows = [(name, *self._in_force(name)) for name in names]
        widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
        return [f"{name:<{widths[0]}}  {value:<{widths[1]}}  {why}".rstrip() for name, value, why in rows]

    def _in_force(self, name: str) -> tuple[str, str]:
        if name in self.own:
            return _shown(self.own[name]), "set here"
        if name in self._soft:
            return _shown(self._soft[name]), "cohort chat's: the model has no sampling defaults"
        if self._defaults is not None and name in self._defaults:
            return _shown(self._defaults[name]), "the model's default at this server"
        if self._defaults is not None and name in _NEUTRAL:
            return _shown(_NEUTRAL[name]), "neutral: the model has no default"
        return "-", PARAMETERS[name].absent


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else json.dumps(value, ensure_ascii=False)
