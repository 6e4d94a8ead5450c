"""Every error a caller of the engine may meet, on one page.

Each knows the HTTP status a front end should answer with, and the `type` and `code` of the OpenAI error body, so that no
table elsewhere has to be kept in step with this tree.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import ClassVar

from engine.refusal import Refusal

FIELD = "{param}"
"""Stands in an error's message for the name of the request field at fault."""
_MARK = re.compile(r"\{param(?::([a-z_.]+))?\}")
Names = Callable[[str, int], str | None]
"""The client's name of a field, by the field's role and the number of the prompt at fault; None if the client has no such
field."""


def field(role: str) -> str:
    """Stands in an error's message for the name of another field than the one at fault."""
    return f"{{param:{role}}}"


class EngineError(Exception):
    """Base of all. `param` names the request field at fault, if one is: by its role, which is the field's name in a chat, in a
    completion or in the engine's request, until the edge that knows the client's names puts those (`render`)."""

    status: ClassVar[int] = 500
    type: ClassVar[str] = "internal_error"
    code: ClassVar[str] = "internal_error"
    repeats: ClassVar[bool] = False
    """The same request would most likely fail again: clients are told not to send it once more by themselves."""

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        """`message` may hold `FIELD` and `field(role)`."""
        self.template = message
        """The message before names of fields were put in."""
        self.param = self._own = param
        self.message = _with_names(message, param, _same)
        super().__init__(self.message)
        self.element: int | None = None
        """Number of the prompt at fault, among those of its call."""
        if code is not None:
            self.code = code  # type: ignore[misc]  # an instance may be more precise than its class

    def rename(self, param: str | None) -> None:
        """Say which field is at fault: another one than so far, or the same by another name. None: no field of the client's is,
        and the message keeps the name that it has."""
        self.param = param
        self._own = self._own if param is None else param
        self.message = _with_names(self.template, self._own, _same)

    def render(self, names: Names) -> None:
        """Name fields as the client does, in `param` and in the message, where a field that the client does not have keeps its
        role."""
        if self.param is not None:
            self.param = names(self.param, self.element or 0)
        self._own = self._own if self.param is None else self.param
        self.message = _with_names(self.template, self._own, names)


def _same(role: str, element: int) -> str:
    return role


def _with_names(template: str, own: str | None, names: Names) -> str:
    """The message. `own`: the name of the field at fault."""
    return _MARK.sub(lambda mark: (names(mark[1], 0) or mark[1]) if mark[1] else own or "", template)


class InvalidRequest(EngineError):
    """The request cannot be served as it stands: it is the client's to change. Never retried."""

    status = 400
    type = "invalid_request_error"
    code: ClassVar[str] = "invalid_value"


class ContextLengthExceeded(InvalidRequest):
    """Prompt plus requested output do not fit the model's context or the KV pool."""

    code = "context_length_exceeded"


class ModelNotFound(InvalidRequest):
    """No such model here."""

    status = 404
    code = "model_not_found"


class Unavailable(EngineError):
    """Loading, draining or closed: try again later or elsewhere."""

    status = 503
    type = "service_unavailable"
    code = "service_unavailable"


class ModelUnavailable(Unavailable):
    """This model cannot be loaded now; others may be. `retry_after` seconds, an integer."""

    code = "model_unavailable"

    def __init__(self, message: str, retry_after: int = 1) -> None:
        super().__init__(message, param="model")
        self.retry_after = retry_after


class Overloaded(EngineError):
    """The queue is full, or too long. `retry_after` seconds, an integer."""

    status = 429
    type = "rate_limit_error"
    code = "overloaded"

    def __init__(self, message: str, retry_after: int = 1, *, refusal: Refusal | None = None) -> None:
        """`refusal`: the reason with its numbers, for the call's story."""
        super().__init__(message)
        self.retry_after = retry_after
        self.refusal = refusal


class DeadlinePassed(Overloaded):
    """The request would not be, or was not, started before its own deadline."""

    code = "deadline_exceeded"


class ExecutorFailed(EngineError):
    """The executor died or a step failed while this request was in flight. The type is OpenAI's for a failure of the server,
    by which clients know that they may ask again."""

    status = 500
    type = "server_error"
    code = "executor_died"


class BrokeExecutor(ExecutorFailed):
    """Steps with this request failed again and again, in the end while it was computed alone: it is the culprit."""

    type = "executor_error"
    repeats = True


class SequenceFailed(EngineError):
    """This request alone failed in the executor (its logits were NaN, say); others were untouched."""

    status = 500
    type = "executor_error"
    code = "sequence_failed"
    repeats = True


class ReaderTooSlow(EngineError):
    """More of the answer waits for its reader than is kept for one."""

    status = 408
    type = "invalid_request_error"
    code = "reader_too_slow"
