"""`CallStory`: the engine's record of a call, and what the HTTP side knows of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from engine.story import Story


@dataclass(frozen=True, slots=True)
class AccessLine:
    """What the access log says of a request by HTTP; that of a call is written when the call is over."""

    event: str
    fields: Mapping[str, Any]


class CallStory(Story):
    """One call by HTTP. Written by the task that answers it, and the inherited part by the engine's loop task; both run on one
    event loop. The call is over when it is answered and no sequence of it is left, whichever comes last."""

    def __init__(
        self,
        received: float,
        request_id: str,
        route: str,
        *,
        key: str = "",
        client_request_id: str | None = None,
        over: Callable[[CallStory], None] = lambda story: None,
    ) -> None:
        """`received`: time of the engine's clock. `over` is called once, when the call is over."""
        super().__init__(received)
        self.received_unix = time.time()
        self.request_id = request_id
        self.client_request_id = client_request_id
        self.route = route
        self.key = key
        """Name of the API key."""
        self.id: str | None = None
        """Id of the answer; None until the call is prepared."""
        self.model = ""
        """Model that the client asked for."""
        self.stream = False
        self.parameters: dict[str, float] = {}
        """What the client asked for, as far as it is a number: `max_tokens`, `temperature` and the like."""
        self.prompt: str | None = None
        """Beginning of the first prompt, for the log; None unless the operator asked for prompts there."""
        self.trace_headers: dict[str, str] = {}
        """`traceparent` and `tracestate` of the client."""
        self.trace_id: str | None = None
        self.answered: float | None = None
        self.status: int | None = None
        self.code: str | None = None
        """Code of the error that answered the call or ended its stream."""
        self.line: AccessLine | None = None
        self._over = over
        self._is_over = False
        self.tell(received, "received")

    def answer(self, now: float, status: int, code: str | None, line: AccessLine | None = None) -> None:
        """The answer is complete, or its client is gone (status 499). `status` of a stream that failed is that of its error."""
        self.answered, self.status, self.code, self.line = now, status, code, line
        fields: dict[str, Any] = {"status": status} if code is None else {"status": status, "code": code}
        self.tell(now, "answered", None, **fields)
        self._settle()

    def finish(self, now: float, choice: int, reason: str, output_tokens: int) -> None:
        """See Story."""
        super().finish(now, choice, reason, output_tokens)
        self._settle()

    def _settle(self) -> None:
        if self.answered is not None and not self.parts and not self._is_over:
            self._is_over = True
            self._over(self)

    @property
    def state(self) -> str:
        """Where the call is: preparing, waiting, running, interrupted (no sequence of it runs) or ended."""
        if self._is_over:
            return "ended"
        if self.queued is None:
            return "preparing"
        if self.admitted is None:
            return "waiting"
        if self.parts and all(part.paused for part in self.parts.values()):
            return "interrupted"
        return "running"

    @property
    def outcome(self) -> str | None:
        """How the call ended: stop, length, abort, error or refused (its client's fault, or to be sent again later). None while
        it is under way."""
        if not self._is_over:
            return None
        if self.status == 499 or (self.code is None and "abort" in self.finish_reasons.values()):
            return "abort"
        if self.code is not None or self.status is None or self.status >= 400:
            return (
                "error" if self.status is None or (self.status >= 500 and self.status != 503) else "refused"
            )
        if self.error is not None:
            return "error"
        return "length" if "length" in self.finish_reasons.values() else "stop"

    def e2e_seconds(self, now: float) -> float:
        """From the arrival to the end of the last sequence; of a call without any to the answer; so far to `now`."""
        end = now if self.parts or self.answered is None else self.ended or self.answered
        return max(0.0, end - self.received)
