"""`Call`: what the server knows of one HTTP request, in one place.

The first of our layers that meets a request makes its `Call`, which the request's scope carries under `CALL`. Layers around the
routes and the routes themselves take it from there (`call_of`); everything below them gets it as an argument.
"""

from __future__ import annotations

import secrets
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from server.schemas.extras import MAX_TOLD
from server.telemetry.stories.record import CallStory

if TYPE_CHECKING:
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

CALL = "cohort.call"
"""Key of the `Call` in a request's scope: the only key of ours there."""
CLIENT_CLOSED_REQUEST = 499
"""Status that the access log gives for a client that disconnected; no client receives it."""


class Refusal(NamedTuple):
    """Facts of an error for the log and the metrics: its status, and `code` and `param` of its body."""

    status: int
    code: str
    param: str | None


def new_request_id() -> str:
    """The request's id, for `x-request-id` and the log."""
    return f"req_{secrets.token_hex(12)}"


@dataclass(slots=True, eq=False)
class Call:
    """One request. Each field names its writer; offline, where there is no request, a new `Call` has all that a call needs."""

    request_id: str = field(default_factory=new_request_id)
    tenant: str = ""
    """Identity of the client: a hash of the key's name or of the key, "" where no key is required. Written by `KeyAuth`."""
    key_name: str = ""
    """Name of the client's key for logs and metrics, "" where no key is required. Written by `KeyAuth`."""
    models: Sequence[str] | None = None
    """Patterns of the names of models that the client's key is limited to; None: it knows all. Written by `KeyAuth`."""
    arrival_time: float = field(default_factory=time.monotonic)
    """Time in seconds of the engine's clock from which latencies and the deadline count: when the body was complete, or when
    the `Call` was made if there is none."""
    size: int = 0
    """Bytes of the body and of stored items that it refers to: what work on it is proportional to."""
    story: CallStory | None = None
    """The story of a request for the model. Written by `read`; None where another process has it."""
    response_id: str | None = None
    """Id of the answer, once the engine's request is made. Written by the route."""
    ignored: Sequence[str] = ()
    """Names of the request's parameters that have no effect, at most `MAX_TOLD` + 1 of them. Written by `read` and the route."""
    refusal: Refusal | None = None
    """The error that answered the request or ended its stream. Written by the response."""
    disconnected: bool = False
    """Whether the client closed its connection before the end of a stream. Written by the response."""
    holds: list[Callable[[], None]] = field(default_factory=list)
    """Releases what the call holds until its answer has been sent: its model, where several are served. Written by the route."""
    connection: weakref.ref[RequestResponseCycle] | None = None
    """Where the answer is written, for a stream that writes without a task; None where only ASGI's `send` leads there. Written by
    the protocol. Weak: it knows the request's scope, which knows the `Call`."""
    hang_up: Callable[[], None] | None = None
    """Ends the work of the call when its client is gone. Written by `while_connected`, called by the protocol at most once."""
    counted: bool = False
    """Whether the protocol has answered, and counted, a request whose body did not arrive. Written by the protocol."""

    def receive(self, body: bytes) -> None:
        """Record that the body is complete. Latency metrics and the deadline start here."""
        self.arrival_time, self.size = time.monotonic(), len(body)

    def stay(self) -> None:
        """Do nothing more when the client is gone."""
        self.hang_up = None

    def client_gone(self) -> None:
        """End the work of the call, if there is any. Called by the protocol."""
        if (hang_up := self.hang_up) is not None:
            self.hang_up = None
            hang_up()

    def hold(self, release: Callable[[], None]) -> None:
        """Hold something until the answer has been sent; `release` is called then."""
        self.holds.append(release)

    def release_holds(self) -> None:
        """Release all that the call holds."""
        holds, self.holds = self.holds, []
        for release in holds:
            release()

    def ignore(self, names: Iterable[str]) -> None:
        """Add names to the response's list of ignored parameters."""
        self.ignored = [*self.ignored, *names][: MAX_TOLD + 1]

    def sent_status(self, status: int) -> int:
        """The status for the log. `status`: of the response that was begun, 0 if none was."""
        return CLIENT_CLOSED_REQUEST if self.disconnected or not status else status

    def end_status(self, status: int) -> int:
        """The status for stories and metrics: a stream that failed was begun with 200, and its end counts."""
        return self.refusal.status if self.refusal is not None and status == 200 else status


def call_of(scope: Any) -> Call:
    """The `Call` of the request with this ASGI scope. Whichever of our layers asks first makes it: the protocol, the middleware
    that logs requests or, in an application that answers what another process passes on, the caller of that application."""
    call = scope.get(CALL)
    if call is None:
        call = scope[CALL] = Call()
    return cast(Call, call)
