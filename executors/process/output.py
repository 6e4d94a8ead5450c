"""What the owner of executor processes gives them for their stderr; without it they inherit the owner's."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

JSON_VARIABLE = "EXECUTOR_LOG_JSON"
"""Environment variable of the child, set if its lines are objects."""


class ChildOutput(Protocol):
    """A log that children write to through pipes."""

    @property
    def json(self) -> bool:
        """Whether each line is a JSON object."""

    def pipe(self, process: str) -> AbstractContextManager[int]:
        """The writing end of a pipe for a child that is started inside the block. `process` names the child in the log."""
