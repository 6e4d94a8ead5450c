"""`Form`: how errors and headers look on the paths of an API. What is not a path of an API with a form of its own has `PLAIN`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from starlette.types import Scope

from server.schemas.answers.errors import ErrorBody, ErrorType


class Failure(NamedTuple):
    """An error that a client is told of. `type`, `code`: as in OpenAI's API; `param`: the client's name of the field at fault."""

    status: int
    message: str
    type: str
    param: str | None
    code: str
    request_id: str | None

    @property
    def named(self) -> str:
        """The message with the name of the field at fault, for forms that have no member for it. Clients recognise a prompt that
        is too long by the beginning of its message."""
        if self.param is None or f"'{self.param}'" in self.message or self.code == "context_length_exceeded":
            return self.message
        return f"{self.param}: {self.message}"


@dataclass(frozen=True, eq=False, slots=True)
class Form:
    """One form. It is asked for every path of its API, whether or not there is a route."""

    speaks: Callable[[str], bool]
    """Whether a path, which need not exist, is one of its API."""
    error: Callable[[Failure], Any]
    """The body of an error as plain data."""
    any_media: bool = False
    """Whether bodies of any Content-Type are read, unless a web page of another origin sent them: see `server.http.media`."""
    id_header: str | None = None
    """Name of another header with the request's id, where clients look for it."""
    key_header: str | None = None
    """Name, in lower case, of another header in which clients send their key, such as "x-goog-api-key"."""


def plain_error(failure: Failure) -> ErrorBody:
    """The whole body in OpenAI's form, as plain data."""
    message, kind, param, code = failure.message, cast(ErrorType, failure.type), failure.param, failure.code
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


PLAIN = Form(lambda path: True, plain_error)
"""OpenAI's form, also that of the server's own paths."""


class Forms:
    """The forms of an application."""

    def __init__(self, forms: Iterable[Form] = ()) -> None:
        """The first that speaks for a path has it."""
        self._forms = tuple(form for form in forms if form is not PLAIN)

    def of(self, path: str) -> Form:
        """The form of a path."""
        return next((form for form in self._forms if form.speaks(path)), PLAIN)


def form_of(scope: Scope) -> Form:
    """The form of a request's path in the application that answers it. That sets `app.state.forms`; without it all is `PLAIN`."""
    app = scope.get("app")
    forms: Forms | None = None if app is None else getattr(app.state, "forms", None)
    return PLAIN if forms is None else forms.of(scope["path"])
