"""Validation of grammars in a process that a grammar may crash.

    check(text)  ->  known? answered at once
                     asked already? waits for the same answer
                     else: its tenant's queue  ->  ONE task, a question of each queue in turn  ->  the process

A grammar's time limit begins with its own turn, so that hostile grammars delay the others but fail none of them; those of one
API key delay a question of another key by one turn. Only the task talks to the process: a client that disconnects cancels only
its own wait, and a question without waiting clients is removed from its queue.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from engine.errors import InvalidRequest, Overloaded, Unavailable
from server.grammar.client import COMMAND, Child, ChildDied
from server.grammar.messages import Validation

log = structlog.get_logger("server")

DEADLINE = 5.0
"""Time limit for one grammar, in seconds."""
START_DEADLINE = 60.0
"""Time limit for the process to read its tokenizer, in seconds."""
MAX_WAITING = 64
"""Most queued questions of one tenant. Each may take its full time limit: the last of them is then answered after minutes."""
MAX_WAITING_IN_ALL = 256
MAX_KNOWN = 1024
MAX_KNOWN_BYTES = 16 * 2**20
"""Limit in bytes on cached texts that differ from the question (GBNF translated to Lark); other entries are small."""
REMEMBER_DEATH = 60.0
"""Time for which a failure is cached, in seconds: a grammar may have taken too long because the machine was slow."""


@dataclass(slots=True, eq=False)
class _Question:
    text: str
    key: bytes
    tenant: str
    answer: asyncio.Future[Validation | None]
    """Future of the result; None: the process could not be started."""
    waiters: int = 0


@dataclass(frozen=True, slots=True)
class _Known:
    verdict: Validation
    until: float


@dataclass(slots=True)
class _Memory:
    """Cache of results, the least recently used first. An accepted text that did not change is not stored again."""

    clock: Callable[[], float]
    entries: OrderedDict[bytes, _Known] = field(default_factory=OrderedDict)
    size: int = 0

    def get(self, key: bytes) -> Validation | None:
        entry = self.entries.get(key)
        if entry is None:
            return None
        if entry.until < self.clock():
            self._drop(key)
            return None
        self.entries.move_to_end(key)
        return entry.verdict

    def put(self, key: bytes, verdict: Validation, seconds: float) -> None:
        self._drop(key)
        self.entries[key] = _Known(verdict, self.clock() + seconds)
        self.size += len(verdict.grammar)
        while len(self.entries) > MAX_KNOWN or self.size > MAX_KNOWN_BYTES:
            self._drop(next(iter(self.entries)))

    def _drop(self, key: bytes) -> None:
        entry = self.entries.pop(key, None)
        if entry is not None:
            self.size -= len(entry.verdict.grammar)


class GrammarJudge:
    """Starts its process with the first question. `close` ends the process, and no question is answered after it."""

    def __init__(
        self,
        tokenizer: Path,
        logits_width: int,
        *,
        command: Sequence[str] = COMMAND,
        deadline: float = DEADLINE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tokenizer, self._logits_width = tokenizer, logits_width
        self._command, self._deadline = command, deadline
        self._memory = _Memory(clock)
        self._questions: dict[bytes, _Question] = {}
        """Questions that are not answered yet."""
        self._lines: OrderedDict[str, deque[_Question]] = OrderedDict()
        """Queues by tenant, the next one first; none is empty."""
        self._more = asyncio.Event()
        """Event that is set when a question is queued while all queues are empty."""
        self._judged: _Question | None = None
        """Question that the process is working on."""
        self._task: asyncio.Task[None] | None = None
        self._child: Child | None = None
        """Process that validates. One writer: the task."""
        self._unusable = ""
        """Reason why this tokenizer supports no grammars, once the process has reported it."""
        self._closed = False

    @property
    def pid(self) -> int | None:
        """The id of the process, None while there is none."""
        return None if self._child is None else self._child.pid

    async def check(self, grammar: str, tenant: str = "") -> str:
        """The validated text for the executor. `tenant`: the key of the queue; queues take turns.

        Raises InvalidRequest with the reason, Overloaded, or Unavailable.
        """
        key = hashlib.sha256(grammar.encode("utf-8", "surrogatepass")).digest()
        verdict = self._memory.get(key)
        if verdict is None and not self._unusable:
            verdict = await self._ask(grammar, key, tenant)
        if self._unusable:
            raise InvalidRequest(self._unusable, code="unsupported_parameter")
        if verdict is None:
            raise Unavailable("Grammars cannot be checked at the moment.")
        if verdict.refused:
            raise InvalidRequest(verdict.refused, code="invalid_value")
        return verdict.grammar or grammar

    async def close(self) -> None:
        """End the process, and fail the questions that wait for it."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for question in self._questions.values():
            if not question.answer.done():
                question.answer.set_result(None)
        self._questions.clear()
        self._lines.clear()

    async def _ask(self, grammar: str, key: bytes, tenant: str) -> Validation | None:
        if self._closed:
            return None
        question = self._questions.get(key)
        if question is None:
            if len(self._lines.get(tenant, ())) >= MAX_WAITING or len(self._questions) >= MAX_WAITING_IN_ALL:
                raise Overloaded("Too many grammars are waiting to be checked.", math.ceil(self._deadline))
            question = _Question(grammar, key, tenant, asyncio.get_running_loop().create_future())
            self._questions[key] = question
            self._lines.setdefault(tenant, deque()).append(question)
            self._more.set()
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="grammar judge")
        question.waiters += 1
        try:
            return await asyncio.shield(question.answer)
        finally:
            question.waiters -= 1
            if not question.waiters and self._questions.get(key) is question is not self._judged:
                self._leave(question)

    def _leave(self, question: _Question) -> None:
        """Remove a question that no client waits for."""
        del self._questions[question.key]
        line = self._lines[question.tenant]
        line.remove(question)
        if not line:
            del self._lines[question.tenant]

    async def _next(self) -> _Question:
        """The first question of the next queue, which then goes behind the others."""
        while not self._lines:
            self._more.clear()
            await self._more.wait()
        tenant, line = self._lines.popitem(last=False)
        question = line.popleft()
        if line:
            self._lines[tenant] = line
        return question

    async def _run(self) -> None:
        try:
            while True:
                self._judged = question = await self._next()
                verdict: Validation | None = None
                seconds = 0.0
                try:
                    verdict, seconds = await self._judge(question)
                except Exception:
                    log.exception("a grammar could not be validated")
                    await self._end_child()
                self._answer(question, verdict, seconds)
        finally:
            await self._end_child()

    def _answer(self, question: _Question, verdict: Validation | None, seconds: float) -> None:
        del self._questions[question.key]
        self._judged = None
        if verdict is not None and seconds > 0:
            stored = Validation(refused=verdict.refused) if verdict.grammar == question.text else verdict
            self._memory.put(question.key, stored, seconds)
        question.answer.set_result(verdict)

    async def _judge(self, question: _Question) -> tuple[Validation | None, float]:
        """The verdict, and the seconds for which it is cached. A process killed from outside is no verdict on the grammar: the
        question is asked once more."""
        for attempt in range(2):
            try:
                if self._unusable or (self._child is None and not await self._start()):
                    return None, 0.0
                assert self._child is not None
                return await self._child.check(question.text, self._deadline), math.inf
            except _NotStarted as error:
                log.error("the grammar process could not be started", reason=str(error))
                return None, 0.0
            except TimeoutError:
                await self._end_child()
                log.warning("a grammar took too long to compile", seconds=self._deadline)
                reason = f"it took longer than {self._deadline:g} seconds to compile"
                return Validation(refused=reason), REMEMBER_DEATH
            except ChildDied as error:
                await self._end_child()
                log.warning("the grammar process died", reason=str(error))
                if attempt or not error.outside:
                    break
        return Validation(refused="it is too complex: the grammar compiler crashed"), REMEMBER_DEATH

    async def _start(self) -> bool:
        """Start the process; False if it supports no grammars."""
        try:
            child, self._unusable = await Child.start(
                self._tokenizer, self._logits_width, START_DEADLINE, self._command
            )
        except (OSError, TimeoutError, ChildDied) as error:
            raise _NotStarted(str(error) or "it says nothing") from None
        if self._unusable:
            await child.kill()
            return False
        self._child = child
        return True

    async def _end_child(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.shield(child.kill())


class _NotStarted(Exception):
    """No process."""
