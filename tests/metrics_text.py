"""/metrics for tests that look for one series."""

from __future__ import annotations

import re

_MODEL = re.compile(r'(\{|,)model="(?:[^"\\]|\\.)*"')


def without_model(text: str) -> str:
    """The text without the label `model`, which is the same in every series of a server."""
    plain = _MODEL.sub(r"\1", text)
    return plain.replace("{,", "{").replace("{}", "").replace(",,", ",").replace(",}", "}")
