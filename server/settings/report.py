"""The settings of a running server as plain data, without secrets."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from server.settings.table import TABLE, Settings

_IN_ADDRESS = re.compile(r"(?<=://)[^/?#\s]*(?=@)|(?<=\?).*", re.DOTALL)
"""User and password of an address, and its parameters, in which services take their tokens."""


def report(settings: Settings) -> dict[str, dict[str, Any]]:
    """By name: `value`, and `is_set`, which is true if flag, environment or file has set it. A secret's value is null, and `set`
    says whether there is one. An address (`://`) is shown without what may be secret in it."""
    rows: dict[str, dict[str, Any]] = {}
    for name, row in TABLE.items():
        value, is_set = getattr(settings, name), name in settings.explicit
        if row.secret:
            rows[name] = {"value": None, "set": bool(value), "given": is_set}
        else:
            rows[name] = {"value": _plain(value), "given": is_set}
    return rows


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, str) and "://" in value:
        return _IN_ADDRESS.sub("(removed)", value)
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value
