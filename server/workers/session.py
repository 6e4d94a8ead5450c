"""`ServedFront`: all that an engine's process has for one front end elsewhere, an API worker or an ingress."""

from __future__ import annotations

from typing import Any

from starlette.types import ASGIApp

from server.remote.link import Link
from server.state import ServerState
from server.workers import messages as m
from server.workers.forwarded import Inner
from server.workers.questions import Questions
from server.workers.sequences import CoreOf, Desk
from server.workers.stories import WorkerStories


class ServedFront:
    """Acts on what one front end asks for. One writer: the event loop."""

    def __init__(self, state: ServerState, core: CoreOf, app: ASGIApp, link: Link) -> None:
        """`app` answers the requests that are passed on."""
        self.stories = WorkerStories(state.stories)
        self.desk = Desk(core, link, self.stories)
        self.questions = Questions(state, core, link)
        self.inner = Inner(app, link)

    def received(self, message: Any) -> None:
        """Act on a message. Others than those about calls and questions are not for this."""
        match message:
            case m.Submit():
                self.desk.submit(message)
            case m.CallAnswered():
                self.stories.answered(message)
            case m.Abort():
                self.desk.abort(message.key)
            case m.Finish():
                self.desk.finish(message.key, message.num_tokens)
            case m.CallBegins():
                self.desk.begin_call(message.number)
            case m.CallEnds():
                self.desk.end_call(message.number)
            case m.Ask():
                self.questions.ask(message)
            case m.Cancel():
                self.questions.cancel(message.number)
            case m.Forward():
                self.inner.begin(message)
            case m.Gone():
                self.inner.gone(message.number)
            case m.Taken():
                self.inner.taken(message.number)

    def close(self) -> None:
        """The front end is gone, and its clients with it."""
        self.desk.close()
        self.questions.close()
        self.inner.close()
