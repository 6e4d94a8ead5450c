"""The line that Claude Code writes into its system prompt for Anthropic's accounts.

    x-anthropic-billing-header: cc_version=2.1.37.0d9; cc_entrypoint=cli; cch=fa690;

It differs from request to request and stands before everything else: with it, no prompt would find the one before it in the
prefix cache. It says nothing to a model, and is left out of system prompts.
"""

from __future__ import annotations

import re

_NAME = "x-anthropic-billing-header:"
_LINE = re.compile(rf"^{_NAME}(?:(?:[ \t]*[\w.-]+=[^;\n]*;)+|[^;\n]*;|[^;\n]*$)[ \t]*\n*", re.MULTILINE)


def without_billing_header(text: str) -> str:
    """The text without such lines."""
    return _LINE.sub("", text) if _NAME in text else text
