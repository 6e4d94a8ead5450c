"""Exit codes of `cohort serve`, by which a supervisor decides whether to start it again. docs/operate.md has them as a table."""

from __future__ import annotations

STOPPED = 0
"""Told to stop."""
FAILED = 1
"""The executor could not be started, or an unexpected error."""
MISTAKE = 2
"""A setting, a file or a model is wrong: the next start fails in the same way, until a person corrects it."""
GAVE_UP = 3
"""The executor could not be brought back."""
NOT_YET = 75
"""Something outside of the server is not there at the moment: an address, a port, the hub, a GPU. C's header of exit codes calls
it EX_TEMPFAIL."""


class NotYet(Exception):
    """What is missing may be there at a later start, without a change of settings. Mixed into errors of one line."""


def code_of(error: BaseException) -> int:
    """The exit code of an error that is one line for the operator."""
    return NOT_YET if isinstance(error, NotYet) else MISTAKE
