"""Reasoning as one opaque text that a client keeps and sends back with the conversation.

`encrypted_content` of a reasoning item and the `signature` of a `thinking` block that shows no text are of this form. It is not
encrypted: the same client can ask for the reasoning as text.
"""

from __future__ import annotations

import base64
import binascii

_MARK = "cohort.1."


def encoded_reasoning(text: str) -> str:
    """The opaque text."""
    return _MARK + base64.urlsafe_b64encode(text.encode("utf-8", "surrogatepass")).decode()


def decoded_reasoning(text: str) -> str | None:
    """The reasoning in a text that `encoded_reasoning` made; None for another text."""
    if not text.startswith(_MARK):
        return None
    try:
        return base64.urlsafe_b64decode(text.removeprefix(_MARK).encode()).decode()
    except (binascii.Error, UnicodeError):
        return None
