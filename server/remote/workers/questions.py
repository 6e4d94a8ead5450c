"""What workers ask: the judge of grammars, the store of responses and the adapters answer."""

from __future__ import annotations

import asyncio

import structlog

from engine.core.engine import EngineCore
from engine.errors import EngineError, Unavailable
from server.remote import messages as m
from server.remote.link import Link
from server.remote.wire_errors import packed
from server.remote.workers.sequences import CoreOf
from server.state.responses.store import StoredResponse
from server.state.server_state import ServerState

log = structlog.get_logger("server")


class Questions:
    """The open questions of one worker, a task each. One writer: the event loop."""

    def __init__(self, state: ServerState, core: CoreOf, link: Link) -> None:
        self._state = state
        self._core = core
        self._link = link
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def ask(self, ask: m.Ask) -> None:
        """Answer a question."""
        task = asyncio.create_task(self._answer(ask), name=f"worker's {type(ask.question).__name__}")
        self._tasks[ask.number] = task
        task.add_done_callback(lambda _: self._tasks.pop(ask.number, None))

    def cancel(self, number: int) -> None:
        """The answer is not needed any more."""
        if (task := self._tasks.get(number)) is not None:
            task.cancel()

    def close(self) -> None:
        """The worker is gone."""
        for task in list(self._tasks.values()):
            task.cancel()

    async def _answer(self, ask: m.Ask) -> None:
        try:
            reply = await self._reply(ask.number, ask.question)
        except EngineError as error:
            reply = m.Reply(ask.number, packed(error))
        except Exception as error:
            log.exception("a question of a worker was not answered", exc_info=error)
            reply = m.Reply(ask.number, packed(EngineError("Internal server error.")))
        self._link.send(reply)

    async def _reply(self, number: int, question: m.Question) -> m.Reply:
        state = self._state
        match question:
            case m.CheckGrammar():
                if state.judge is None:
                    raise Unavailable("The model is still loading.")
                text = await state.judge.check(question.grammar, question.tenant)
                return m.Reply(number, text=None if text == question.grammar else text)
            case m.PrepareGrammar():
                await self._engine().prepare_grammar(question.grammar)
            case m.PutResponse():
                stored = question.response
                await state.responses.put(
                    StoredResponse(stored.id, question.tenant, stored.inputs, stored.body, stored.outputs)
                )
            case m.GetResponse():
                response = await state.responses.get(question.tenant, question.id)
                return m.Reply(number, stored=None if response is None else _stored(response))
            case m.GetItem():
                return m.Reply(number, item=await state.responses.item(question.tenant, question.id))
            case m.FindLora():
                if state.adapters is not None:
                    await state.adapters.find(question.name)
        return m.Reply(number)

    def _engine(self) -> EngineCore:
        core = self._core()
        if core is None:
            raise Unavailable("The model is still loading.")
        return core


def _stored(response: StoredResponse) -> m.Stored:
    return m.Stored(
        response.id, list(response.inputs), response.body, list(response.outputs), response.in_progress
    )
