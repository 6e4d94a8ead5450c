"""`FrontEndSession`: all that an engine's process has for one front end elsewhere, an API worker or an ingress."""

from __future__ import annotations

from typing import Any

from starlette.types import ASGIApp

from server.remote import messages as m
from server.remote.link import Link
from server.remote.workers.forwarded import ForwardedRequests
from server.remote.workers.questions import Questions
from server.remote.workers.sequences import CoreOf, WorkerSequences
from server.remote.workers.stories import WorkerStories
from server.state.server_state import ServerState


class FrontEndSession:
    """Acts on what one front end asks for. One writer: the event loop."""

    def __init__(self, state: ServerState, core: CoreOf, app: ASGIApp, link: Link) -> None:
        """`app` answers the requests that are passed on."""
        self.stories = WorkerStories(state.stories)
        self.sequences = WorkerSequences(core, link, self.stories)
        self.questions = Questions(state, core, link)
        self.forwarded = ForwardedRequests(app, link)

    def received(self, message: Any) -> None:
        """Act on a message. Others than those about calls and questions are not for this."""
        match message:
            case m.Submit():
                self.sequences.submit(message)
            case m.CallAnswered():
                self.stories.answered(message)
            case m.Abort():
                self.sequences.abort(message.key)
            case m.Finish():
                self.sequences.finish(message.key, message.num_tokens)
            case m.CallBegins():
                self.sequences.begin_call(message.number)
            case m.CallEnds():
                self.sequences.end_call(message.number)
            case m.Ask():
                self.questions.ask(message)
            case m.Cancel():
                self.questions.cancel(message.number)
            case m.Forward():
                self.forwarded.begin(message)
            case m.Disconnected():
                self.forwarded.disconnected(message.number)
            case m.BodySent():
                self.forwarded.body_sent(message.number)

    def close(self) -> None:
        """The front end is gone, and its clients with it."""
        self.sequences.close()
        self.questions.close()
        self.forwarded.close()
