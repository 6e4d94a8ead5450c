"""Parts of the server as a worker has them: the judge of grammars, the store of responses, the adapters."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from engine.errors import EngineError, Unavailable
from executors.contract import ExecutorCapabilities
from server.remote import messages as m
from server.remote.link import Link
from server.remote.wire_errors import unpacked
from server.remote.workers.stories import facts_of
from server.state.responses.store import StoredResponse
from server.state.server_state import ServedModel
from server.telemetry.stories.record import CallStory
from server.telemetry.stories.ring import Stories


class QuestionClient:
    """Asks the server and waits for its answers. One writer: the event loop."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._numbers = itertools.count(1)
        self._replies: dict[int, asyncio.Future[m.Reply]] = {}

    async def ask(self, question: m.Question) -> m.Reply:
        """The answer. Cancelling it withdraws the question. Raises EngineError, as the server did."""
        number = next(self._numbers)
        future = self._replies[number] = asyncio.get_running_loop().create_future()
        self._link.send(m.Ask(number, question))
        try:
            reply: m.Reply = await future
        except asyncio.CancelledError:
            self._link.send(m.Cancel(number))
            raise
        finally:
            self._replies.pop(number, None)
        if reply.fault is not None:
            raise unpacked(reply.fault)
        return reply

    def replied(self, reply: m.Reply) -> None:
        """An answer came."""
        future = self._replies.get(reply.number)
        if future is not None and not future.done():
            future.set_result(reply)

    def close(self, error: EngineError) -> None:
        """The server is gone: its answers are this error."""
        for future in self._replies.values():
            if not future.done():
                future.set_exception(error)

    def unsendable(self, ask: m.Ask, reason: str) -> None:
        """A question cannot travel."""
        future = self._replies.get(ask.number)
        if future is not None and not future.done():
            future.set_exception(Unavailable(f"The request cannot be passed on: {reason}"))


class DeclaredExecutor:
    """The executor as a process knows it that does not schedule."""

    def __init__(self, capabilities: ExecutorCapabilities) -> None:
        self._capabilities = capabilities

    def capabilities(self) -> ExecutorCapabilities:
        """What it declared when it was loaded."""
        return self._capabilities


class RemoteJudge:
    """See `server.grammar.validator.GrammarJudge`: there is one for all workers."""

    def __init__(self, questions: QuestionClient) -> None:
        self._questions = questions

    async def check(self, grammar: str, tenant: str = "") -> str:
        """The validated text for the executor."""
        reply = await self._questions.ask(m.CheckGrammar(grammar, tenant))
        return grammar if reply.text is None else reply.text

    async def close(self) -> None:
        """The judge is the server's."""


class _InProgress(StoredResponse):
    """A response that the server still generates."""

    __slots__ = ()

    @property
    def in_progress(self) -> bool:
        """Always true."""
        return True


class RemoteResponseStore:
    """See `server.state.responses.store.SharedResponseStore`. The server generates background responses itself."""

    def __init__(self, questions: QuestionClient, enabled: bool) -> None:
        self._questions = questions
        self._enabled = enabled

    @property
    def enabled(self) -> bool:
        """Whether anything is kept."""
        return self._enabled

    async def put(self, response: StoredResponse) -> None:
        """Keep a response that has ended. Raises StoreFull."""
        stored = m.Stored(response.id, list(response.inputs), response.body, list(response.outputs), False)
        await self._questions.ask(m.PutResponse(response.tenant, stored))

    async def get(self, tenant: str, response_id: str) -> StoredResponse | None:
        """The response of this id."""
        stored = (await self._questions.ask(m.GetResponse(tenant, response_id))).stored
        if stored is None:
            return None
        kind = _InProgress if stored.in_progress else StoredResponse
        return kind(stored.id, tenant, stored.inputs, stored.body, stored.outputs)

    async def item(self, tenant: str, item_id: str) -> bytes | None:
        """An output item of a stored response, as JSON."""
        return (await self._questions.ask(m.GetItem(tenant, item_id))).item

    async def close(self) -> None:
        """The store is the server's."""


class RemoteStories(Stories):
    """Stories of the calls that this worker answers. None is kept, and listeners run in the server's process, where the whole
    story is."""

    def __init__(self, link: Link) -> None:
        super().__init__(0)
        self._link = link

    def on_end(self, listener: Callable[[CallStory], None]) -> None:
        """See `Stories`: it is the server's to call."""

    def begin(
        self, received: float, request_id: str, route: str, key: str, client_request_id: str | None
    ) -> CallStory:
        """The story of a call that has arrived."""
        return CallStory(
            received, request_id, route, key=key, client_request_id=client_request_id, over=self._tell
        )

    def _tell(self, story: CallStory) -> None:
        """The call is answered."""
        line = story.line
        assert line is not None and story.answered is not None and story.status is not None
        self._link.send(
            m.CallAnswered(
                facts_of(story), story.answered, story.status, story.code, line.event, dict(line.fields)
            )
        )


@dataclass(frozen=True, slots=True)
class RemoteLora:
    """An adapter of the table. `facts`: the message that describes it."""

    facts: m.LoraFacts
    model: ServedModel

    @property
    def name(self) -> str:
        """Name that requests give as `model`."""
        return self.facts.name

    @property
    def root(self) -> str:
        """Where it was loaded from."""
        return self.facts.root

    @property
    def created(self) -> int:
        """When it was loaded, in Unix seconds."""
        return self.facts.created

    @property
    def notes(self) -> tuple[str, ...]:
        """A sentence for each thing in its files that is not used."""
        return tuple(self.facts.notes)


ServedBy = Callable[[m.LoraFacts], Awaitable[ServedModel]]
"""Makes the model that answers for an adapter."""


class RemoteLoras:
    """The table of adapters, as the server last sent it. One writer: the worker's task that reads messages."""

    def __init__(
        self, questions: QuestionClient, served_by: ServedBy, max_loras: int, on_demand: bool
    ) -> None:
        self.max_loras = max_loras
        self._questions = questions
        self._served_by = served_by
        self._on_demand = on_demand
        self._adapters: dict[str, RemoteLora] = {}

    async def replace(self, table: list[m.LoraFacts]) -> None:
        """Take over a table. Models of adapters that did not change stay."""
        adapters: dict[str, RemoteLora] = {}
        for facts in table:
            before = self._adapters.get(facts.name)
            same = before is not None and before.facts == facts
            adapters[facts.name] = (
                before if same and before else RemoteLora(facts, await self._served_by(facts))
            )
        self._adapters = adapters

    def get(self, name: str) -> RemoteLora | None:
        """The adapter of this name."""
        return self._adapters.get(name)

    def all(self) -> list[RemoteLora]:
        """By name."""
        return sorted(self._adapters.values(), key=lambda one: one.name)

    async def find(self, name: str) -> RemoteLora | None:
        """The adapter of this name, loaded if that is allowed. Where adapters are loaded on demand the server is always asked: it
        unloads the one that was unused for longest. Raises EngineError."""
        if self._on_demand:
            await self._questions.ask(m.FindLora(name))
        return self.get(name)
