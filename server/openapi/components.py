"""Schemas of the answers of a dialect, derived from its types."""

from __future__ import annotations

from server.openapi.derive import Derivation
from server.openapi.schema import Schema
from server.schemas.answers import common
from server.schemas.answers.common import Components


def derived(*dialects: Components) -> dict[str, Schema]:
    """The schemas of these components, by name. They may refer to each other and to `common.COMPONENTS`."""
    components: dict[str, tuple[object, str]] = {}
    for dialect in dialects:
        components |= dialect
    schemas = {**common.COMPONENTS, **components}
    derivation = Derivation({kind: name for name, (kind, _) in schemas.items()})
    return {name: derivation.component(kind, about) for name, (kind, about) in components.items()}
