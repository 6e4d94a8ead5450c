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
    """By name: `value`, and `given`, which is true if flag, environment or file has set it. A secret's value is null, and `set`
    says whether there is one. An address (`://`) is shown without what may be secret in it."""
    found: dict[str, dict[str, Any]] = {}
    for name, row in TABLE.items():
        value, given = getattr(settings, name), name in settings.given
        if row.secret:
            found[name] = {"value": None, "set": bool(value), "given": given}
        else:
            found[name] = {"value": _plain(value), "given": given}
    return found


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
