"""Reads values of flags, variables and YAML files: numbers, byte sizes, switches, strings, lists, mappings.

Standard library only: `--help` imports this module and has to be quick. YAML is imported when a value is read as YAML.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

_UNITS = {
    "": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "ki": 2**10,
    "mi": 2**20,
    "gi": 2**30,
    "ti": 2**40,
}
# Compiled at the first use, so that `--help` does not wait for it.
_SIZE = r"\s*(\d+(?:\.\d+)?)\s*([kmgt]i?|)b?\s*"
_INTEGER = r"[+-]?[0-9]+(_[0-9]+)*(\.0+)?"
_SCALED = r"([0-9]+)(\.[0-9]+)?([kmgKMG])"
_SCALES = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}
"""As in vLLM."""
_MAX_DIGITS = 4300
"""Of an integer in a string: Python converts no longer ones."""
_TRUE = frozenset({"1", "on", "t", "true", "y", "yes"})
_FALSE = frozenset({"0", "off", "f", "false", "n", "no"})

Scalar = str | int | float | bool


class Unfit(ValueError):
    """A value that a setting does not accept. The message is a sentence about "it"; `value` is the part that is wrong."""

    def __init__(self, message: str, value: Any) -> None:
        super().__init__(message)
        self.value = value


def parse_bytes(value: Any) -> Any:
    """A number of bytes from a string with or without a unit: 4GiB, 512M, 1000000. Anything but a string is returned as it is.

    Raises Unfit.
    """
    if not isinstance(value, str):
        return value
    match = re.fullmatch(_SIZE, value.lower())
    if match is None:
        raise Unfit("it should be a number of bytes such as 4GiB, 512MiB or 1000000000", value)
    size = float(match[1]) * _UNITS[match[2]]
    if size > 2**63:
        raise Unfit("it is more than any machine has", value)
    return int(size)


def read_integer(value: Any) -> int:
    """A whole number, also from a string, such as 32K, or from a float without a fraction."""
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise Unfit("it should be a finite number", value)
        if not value.is_integer():
            raise Unfit("it should be a valid integer, got a number with a fractional part", value)
        return int(value)
    if isinstance(value, str):
        if (scaled := re.fullmatch(_SCALED, value.strip())) and len(value) <= _MAX_DIGITS:
            return _scaled(scaled, value)
        if re.fullmatch(_INTEGER, value.strip()) is None or len(value) > _MAX_DIGITS:
            raise Unfit("it should be a valid integer, unable to parse string as an integer", value)
        return int(value.strip().partition(".")[0])
    raise Unfit("it should be a valid integer", value)


def _scaled(match: re.Match[str], value: str) -> int:
    whole, fraction, scale = int(match[1]), (match[2] or ".")[1:], _SCALES[match[3]]
    part_of_unit, rest = divmod(int(f"0{fraction}") * scale, int(f"1{'0' * len(fraction)}"))
    if rest:
        raise Unfit("it should be a valid integer, got a number with a fractional part", value)
    return whole * scale + part_of_unit


def read_number(value: Any) -> float:
    """A number, perhaps not a finite one, also from a string."""
    try:
        if isinstance(value, int | float) or (isinstance(value, str) and value.isascii()):
            return float(value)
    except (OverflowError, ValueError):
        pass
    parsed = ", unable to parse string as a number" if isinstance(value, str) else ""
    raise Unfit(f"it should be a valid number{parsed}", value)


def read_switch(value: Any) -> bool:
    """True or false, also as YAML and shells write them: on, yes, 1."""
    if isinstance(value, bool):
        return value
    word = value.lower() if isinstance(value, str) else str(int(value)) if value in (0, 1) else None
    if word in _TRUE or word in _FALSE:
        return word in _TRUE
    raise Unfit("it should be true or false", value)


def read_string(value: Any) -> str:
    """A string of any length."""
    if not isinstance(value, str):
        cure = ", in quotes" if isinstance(value, int | float) else ""
        raise Unfit(f"it should be a valid string{cure}", value)
    return value


def read_text(value: Any) -> str:
    """A string of at least one character, all of it valid UTF-8."""
    text = read_string(value)
    try:
        text.encode()
    except UnicodeEncodeError:
        message = "it should be a valid string, unable to parse raw data as a unicode string"
        raise Unfit(message, value) from None
    if not text:
        raise Unfit("it should have at least 1 character", value)
    return text


def read_key(value: Any) -> str:
    """A secret as the header will carry it: what a file or a mounted secret ends with is not part of it."""
    if isinstance(value, str) and not value.strip():
        raise Unfit("it is given but empty; leave it out to serve without a key", value)
    return read_string(value.strip() if isinstance(value, str) else value)


def read_keys(value: Any) -> tuple[str, ...]:
    """Several secrets, with commas between them in a string. An empty one is a secret that was not filled in: leaving it out
    would open the server to everybody."""
    parts = value.split(",") if isinstance(value, str) else value
    return tuple(read_key(part) for part in _items(parts) or [""])


def read_names(value: Any, *, json_lists: bool = False, commas_in_items: bool = False) -> tuple[str, ...]:
    """Several names, with commas between them in a string.

    `commas_in_items`: also in the strings of a list. `json_lists`: a string may be a JSON list of names, as vLLM has it.
    """
    if isinstance(value, str):
        parts, split = [value], True
    else:
        parts, split = _items(value), commas_in_items
    names: list[Any] = []
    for part in parts:
        if json_lists and isinstance(part, str) and part.lstrip().startswith("["):
            try:
                names += json.loads(part)
            except ValueError:
                raise Unfit("it should be a name, or a JSON list of names", value) from None
        else:
            names += split_at_commas(part) if split and isinstance(part, str) else [part]
    return tuple(map(read_text, names))


def read_aliases(value: Any) -> tuple[str, ...]:
    """PATTERN=NAME, with commas between several in a string."""
    aliases = read_names(value)
    for one in aliases:
        pattern, _, name = one.partition("=")
        if not (pattern.strip() and name.strip()):
            raise Unfit("it should be PATTERN=NAME, such as claude-*=my-model", one)
    return aliases


def read_modules(value: Any) -> tuple[str, ...]:
    """NAME=PATH, with commas between several in a string; or JSON objects, also as mappings of a YAML list. Objects are returned
    as JSON."""
    modules: list[str] = []
    for item in [value] if isinstance(value, str | dict) else _items(value):
        if isinstance(item, dict):
            modules.append(json.dumps(item))
        elif isinstance(item, str) and item.lstrip().startswith("["):
            try:
                modules += read_modules(json.loads(item))
            except ValueError:
                raise Unfit("it should be NAME=PATH or a JSON object", value) from None
        elif isinstance(item, str) and item.lstrip().startswith("{"):
            modules.append(item)
        else:
            modules += map(read_text, split_at_commas(item) if isinstance(item, str) else [item])
    return tuple(modules)


def read_pairs(value: Any) -> dict[str, Scalar]:
    """A mapping, or NAME=VALUE several times, with commas between them in a string; values are read as YAML has them."""
    pairs = split_at_commas(value) if isinstance(value, str) else value
    if isinstance(pairs, list):
        pairs = dict(_pair(str(pair), value) for pair in pairs)
    pairs_read = _mapping(pairs)
    for one in pairs_read.values():
        if not isinstance(one, Scalar):
            raise Unfit("it should be a valid string", one)
    return pairs_read


def _pair(pair: str, whole: Any) -> tuple[str, Any]:
    import yaml

    from server.settings.yaml_1_2 import load_yaml

    name, separator, text = pair.partition("=")
    if not separator:
        raise Unfit("it should be NAME=VALUE", whole)
    try:
        return name.strip(), load_yaml(text)
    except yaml.YAMLError:
        raise Unfit("it should be NAME=VALUE, with the value as YAML has it", whole) from None


def read_json_object(value: Any) -> dict[str, Any]:
    """A mapping, or a JSON object written out."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            raise Unfit('it should be a JSON object such as {"temperature": 0.5}', value) from None
    return _mapping(value)


def split_at_commas(value: str) -> list[str]:
    """The parts that are not empty, without blanks around them."""
    return [part.strip() for part in value.split(",") if part.strip()]


def _items(value: Any) -> list[Any]:
    if isinstance(value, int | float):
        read_string(value)
    if not isinstance(value, list | tuple):
        raise Unfit("it should be a valid list", value)
    return list(value)


def _mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Unfit("it should be a valid dictionary", value)
    return {read_string(name): one for name, one in value.items()}
