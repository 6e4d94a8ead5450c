"""The engine on an event loop in a thread of its own, so that any caller can block on it: a script, a notebook whose loop
runs already, several threads at once."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from engine.core.engine import EngineCore
from engine.stop_limits import STOP_SECONDS
from engine.text.generation import TextRequest
from server.http.call import Call
from server.offline.outputs import Gathered, RequestOutput, prompt_entries
from server.prepare.chat import prepare_chat
from server.prepare.completions import prepare_completion
from server.schemas.base import parse
from server.schemas.chat import ChatRequest
from server.schemas.completions import CompletionRequest
from server.schemas.extras import screen
from server.settings.table import Settings
from server.startup.model_loader import ModelLoader
from server.startup.pending_core import PendingCore
from server.state.server_state import ServedModel, ServerState
from server.telemetry.metrics import Metrics

Result = TypeVar("Result")
_SIGNALS_SEEN = 0.5
"""Seconds after which a thread that waits looks for Ctrl-C."""


@dataclass(frozen=True, slots=True)
class OfflineRequest:
    """One prompt or conversation: `body` is the JSON that would ask the server for it, `n` the answers it has.

    `prompt`: its text where that is known. `unlimited`: the body names no limit, and none is meant.
    """

    body: bytes
    chat: bool
    n: int
    prompt: str | None = None
    unlimited: bool = False


class OfflineEngine:
    """One engine and its executor process. `run` and `close` may be called from any thread but its own."""

    def __init__(self, settings: Settings) -> None:
        """Load the model. Raises what `ModelLoader` raises; nothing is left running then."""
        self._loader = ModelLoader(settings)
        self._core = PendingCore()
        self._state = ServerState(self._loader.names, Metrics())
        self._places = _Places(1)
        """Replaced as soon as the executor says how many sequences a step may have."""
        # asyncio's own loop: another one may take over the process's handler of SIGCHLD, which is the caller's.
        self._loop = asyncio.new_event_loop()
        self._closing = asyncio.Event()
        self._is_closed = False
        self._error: BaseException | None = None
        self._started = threading.Event()
        # A daemon: a script that ends without `close` must not wait for this thread before `close` is called for it.
        self._thread = threading.Thread(target=self._work, name="cohort-engine", daemon=True)
        self._thread.start()
        try:
            while not self._started.wait(_SIGNALS_SEEN):
                pass
        except BaseException:  # Ctrl-C while the model loads
            self.close()
            raise
        if self._error is not None:
            self._thread.join()
            raise self._error

    @property
    def core(self) -> EngineCore:
        """The engine."""
        return self._core.core

    def run(self, requests: Sequence[OfflineRequest]) -> list[RequestOutput]:
        """The answers to all requests, in their order. Raises EngineError for the first that fails, and ends the others."""
        if self._is_closed:
            raise RuntimeError("this LLM is closed")
        return self._call(self._run(requests))

    def close(self) -> None:
        """End the executor process and the thread. Idempotent; a `run` that another thread waits for raises."""
        self._is_closed = True
        with contextlib.suppress(RuntimeError):  # the loop is closed already
            self._loop.call_soon_threadsafe(self._closing.set)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    # -- in any thread -------------------------------------------------------------------------------------------------

    def _call(self, work: Coroutine[Any, Any, Result]) -> Result:
        try:
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:  # it was closed meanwhile
            work.close()
            raise
        try:
            while not future.done():
                # In slices: a signal that comes just before this thread blocks does not wake it.
                concurrent.futures.wait((future,), _SIGNALS_SEEN)
            return future.result()
        except BaseException:
            future.cancel()  # after Ctrl-C nothing waits for it
            raise

    # -- in the engine's thread ------------------------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._live())
        except BaseException as error:
            self._error = error
        finally:
            self._started.set()

    async def _live(self) -> None:
        state = self._state
        try:
            loading = asyncio.create_task(self._loader.load(state, self._core))
            closing = asyncio.create_task(self._closing.wait())
            await asyncio.wait((loading, closing), return_when=asyncio.FIRST_COMPLETED)
            if not loading.done():
                loading.cancel()
                await asyncio.gather(loading, return_exceptions=True)
                return
            loading.result()
            self._places = _Places(2 * self.core.executor.capabilities().max_batch_size)
            self._started.set()
            await closing
        finally:
            async with asyncio.timeout(STOP_SECONDS):
                await self._core.stop()
            if state.judge is not None:
                await state.judge.close()
            state.threads.close()

    async def _run(self, requests: Sequence[OfflineRequest]) -> list[RequestOutput]:
        answers: list[asyncio.Task[RequestOutput]] = []
        try:
            for request in requests:
                await self._places.take(request.n)
                answer = asyncio.create_task(self._answer(request))
                # Not in the task itself: one that is cancelled before it begins runs no line.
                answer.add_done_callback(partial(self._places.give_back, request.n))
                answers.append(answer)
                failed = next((one for one in answers if one.done() and one.exception()), None)
                if failed is not None:
                    break
            return list(await asyncio.gather(*answers))
        finally:
            for answer in answers:
                answer.cancel()
            await asyncio.gather(*answers, return_exceptions=True)

    async def _answer(self, offline: OfflineRequest) -> RequestOutput:
        model, _ = self._state.require(None, generating=True)
        request = await self._prepared(offline, model)
        gathered = [Gathered(index) for index in range(request.n)]
        prompt_logprobs = None
        async with model.engine.start(request) as generation:
            async for delta in generation:
                gathered[delta.index].take(delta)
                if delta.prompt_logprobs is not None:
                    prompt_logprobs = prompt_entries(delta.prompt_logprobs)
            cached = generation.usage.cached_tokens
        ids = list(request.prompts[0])
        return RequestOutput(
            request.context.request_id,
            model.tokenizer.decode(ids, False) if offline.prompt is None else offline.prompt,
            ids,
            [one.output(request.sampling.logprobs is not None) for one in gathered],
            prompt_logprobs,
            cached,
        )

    async def _prepared(self, offline: OfflineRequest, model: ServedModel) -> TextRequest:
        state = self._state
        if offline.chat:
            chat = parse(ChatRequest, offline.body)
            screen(chat)
            chat.check()
            read = frozenset[str]() if model.template is None else model.template.variables
            variables, unused = chat.variables(read)
            if unused:
                raise ValueError(f"{unused[0]}: the model's chat template does not read it")
            return (await prepare_chat(state, Call(), model, chat, variables)).request
        completion = parse(CompletionRequest, offline.body)
        completion.check()
        request = (await prepare_completion(state, Call(), model, completion)).request
        return replace(request, default_tokens=None) if offline.unlimited else request


class _Places:
    """How many sequences may be with the engine at once: enough to keep every step full, and no more than its queue
    takes. A call takes its places in one go, in the order of asking."""

    def __init__(self, places: int) -> None:
        self._all = self._free = places
        self._turn = asyncio.Lock()
        self._freed = asyncio.Event()

    async def take(self, count: int) -> None:
        """Wait for `count` places; for all of them, if it is more than there are."""
        async with self._turn:
            while self._free < min(count, self._all):
                self._freed.clear()
                await self._freed.wait()
            self._free -= min(count, self._all)

    def give_back(self, count: int, _: object = None) -> None:
        """Free what `take` took. Takes the task that is done as well: it is a task's callback."""
        self._free += min(count, self._all)
        self._freed.set()
