"""JSON schemas of what the answers of several dialects consist of, and of errors in the form of those without their own.

Objects are closed, so that a test fails if an answer has a member that is missing here.
"""

from __future__ import annotations

from server.openapi.components import derived
from server.openapi.schema import STRING, Schema, closed
from server.schemas.answers import common, errors

ANSWERS: dict[str, Schema] = {
    **derived(errors.COMPONENTS),
    **derived(common.COMPONENTS),
    "Version": closed({"version": STRING}),
}
