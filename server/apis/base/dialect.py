"""`Dialect`: all that the server knows of an API. A folder makes one of these, and a line of `server.apis.dialects` names it."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, cast

from fastapi import APIRouter

from server.http.form import PLAIN, Form
from server.openapi.operation import Operation
from server.openapi.schema import Schema


class Described(Protocol):
    """A dialect's module `openapi`."""

    OPERATIONS: tuple[Operation, ...]
    """Its operations, in the order of the docs."""
    ANSWERS: dict[str, Schema]
    """JSON schemas of its answers by their names, which are unique among all dialects."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Dialect:
    """One API. Metrics, the access log and stories call its calls by the paths of its routes."""

    package: str
    """Full name of its folder, which has a module `openapi`: it is imported at the first request for the description."""
    routers: tuple[APIRouter, ...]
    """Its paths."""
    form: Form = PLAIN
    """How errors and headers look on its paths."""
    spans: Mapping[str, str] = field(default_factory=dict)
    """Values of `gen_ai.operation.name` in traces, by the route; a route that is not named is a chat."""

    def described(self) -> Described:
        """Its operations and answers."""
        return cast(Described, importlib.import_module(f"{self.package}.openapi"))
