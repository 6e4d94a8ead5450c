"""POST /v1/completions, the legacy endpoint that evaluation tools use."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace

from fastapi import APIRouter, Request
from starlette.responses import Response

from engine.text.generation import Generation, TextDelta, TextRequest, Usage
from server.answer.prompt_tokens import PromptSide
from server.answer.sse import Chunks, before_choices, encode, usage_object
from server.answer.timings import timings
from server.apis.base.answering import EventWriter
from server.apis.base.common import find_model, generation_of, read
from server.apis.base.waiting import answer_once_loaded
from server.apis.completions.encode import CompletionProgress, best
from server.http.buffered import AnswerBudget, ChunkedJSON, YieldRegularly
from server.http.call import Call, call_of
from server.http.direct_writer import DirectWriter
from server.http.disconnect import while_connected
from server.http.event_stream import DONE, EventStream
from server.prepare.chat_prompt import decoded
from server.prepare.completions import FIELD_NAMES, prepare_completion
from server.prepare.field_names import named
from server.prepare.prompts import added_ids, place_in, text_span
from server.schemas.answers.completions import Completion
from server.schemas.completions import CompletionRequest
from server.state.server_state import ServedModel, ServerState

router = APIRouter()


@router.post("/v1/completions")
async def completions(request: Request) -> Response:
    """Continue one prompt or many."""
    body = await read(request, CompletionRequest)
    with named(FIELD_NAMES.of_body(prompt="prompt", limit=body.output_limit_name)):
        body.check()
    return await answer_once_loaded(request, body.model, bool(body.stream), lambda: _answer(request, body))


async def _answer(request: Request, body: CompletionRequest) -> Response:
    call = call_of(request.scope)
    names = FIELD_NAMES.of_body(prompt="prompt", limit=body.output_limit_name)
    with named(names):
        state, model, name = await find_model(
            request, body.model, generating=True, deadline_ms=body.deadline_ms, keep=body.ttl
        )
        work = _CompletionCall.prepare(state, call, model, name, body)
        completion = await while_connected(request.receive, work, call)
    call.response_id = completion.id
    if body.stream:
        writer = DirectWriter()
        return EventStream(completion.stream(writer), writer=writer)
    return ChunkedJSON(await while_connected(request.receive, completion.collect(), call))


class _CompletionCall:
    """One call: its engine request, and the encoding of its answer."""

    def __init__(
        self,
        model: ServedModel,
        name: str,
        body: CompletionRequest,
        text_request: TextRequest,
        sides: Sequence[PromptSide],
        grammar_param: str | None,
    ) -> None:
        self._model = model
        self._name = name
        self._body = body
        self._text_request = text_request
        self._grammar_param = grammar_param
        self.id = text_request.context.request_id
        self._created = int(time.time())
        self._sides = sides
        self._choices = [
            CompletionProgress(index, body, sides[index // text_request.n])
            for index in range(len(sides) * text_request.n)
        ]

    @classmethod
    async def prepare(
        cls, state: ServerState, call: Call, model: ServedModel, name: str, body: CompletionRequest
    ) -> _CompletionCall:
        """Tokenize the prompts and validate the grammar. Raises InvalidRequest."""
        prepared = await prepare_completion(state, call, model, body)
        sides = await _sides(state, model, body, prepared.request.prompts)
        return cls(model, name, body, prepared.request, sides, prepared.grammar_param)

    def _start(self) -> AbstractAsyncContextManager[Generation]:
        """Queue the call."""
        names = FIELD_NAMES.of_body(
            prompt=place_in("prompt", self._body.prompt), limit=self._body.output_limit_name
        )
        return generation_of(self._model, self._text_request, names, self._grammar_param)

    async def collect(self) -> list[bytes]:
        """The whole answer, encoded, in pieces."""
        room = AnswerBudget()
        await self._repeat_prompts(room)
        async with self._start() as generation:
            async for delta in generation:
                choice = self._choices[delta.index]
                await choice.side.take(delta)
                room.take(choice.take(delta), "logprobs")
            usage = self._usage(generation)
        answer: Completion = {
            "id": self._text_request.context.request_id,
            "object": "text_completion",
            "created": self._created,
            "model": self._name,
            "system_fingerprint": self._model.fingerprint,
            "seed": generation.seed,
            "choices": [],
            "usage": usage_object(usage),
        }
        pieces = [before_choices(answer)]
        pauses = YieldRegularly()
        for index, choice in enumerate(self._shown()):
            pieces += [b","] * (index > 0) + choice.answer(index)
            await pauses.pause()
        pieces += [b'],"usage":', encode(answer["usage"])]
        if self._body.timings:
            pieces += [b',"timings":', encode(timings(generation))]
        return [*pieces, b"}"]

    async def _repeat_prompts(self, room: AnswerBudget) -> None:
        """Encode the parts of prompts that choices repeat. Raises InvalidRequest, before any step, if they are too large."""
        answers, pauses = self._body.n or 1, YieldRegularly()
        for side in self._sides:
            if self._body.echo:
                room.take(len(side.encoded_echo) * answers, "echo")
            if self._body.return_token_ids:
                room.take(len(side.encoded_ids) * answers, "return_token_ids")
            await pauses.pause()

    def _shown(self) -> list[CompletionProgress]:
        """The choices of the answer, in order."""
        if not self._body.ranks:
            return self._choices
        per_prompt, answers = self._text_request.n, self._body.n or 1
        groups = (
            self._choices[first : first + per_prompt] for first in range(0, len(self._choices), per_prompt)
        )
        return [choice for group in groups for choice in best(group, answers)]

    def _usage(self, generation: Generation) -> Usage:
        """The token counts, without the token that is computed for `max_tokens` 0."""
        if self._body.output_limit != 0:
            return generation.usage
        return replace(generation.usage, completion_tokens=0)

    async def stream(self, writer: DirectWriter) -> AsyncGenerator[bytes, None]:
        """The answer as events; the last event of a choice carries its finish reason. Events that `writer` is ready for are
        written by it and not given here."""
        continuous = self._body.continuous_usage
        fingerprint = self._model.fingerprint
        async with self._start() as generation:
            chunks = Chunks(
                "text_completion", self.id, self._created, self._name, fingerprint, generation.seed
            )

            def encoded(delta: TextDelta) -> bytes:
                piece = self._choices[delta.index].piece(delta)
                return piece and chunks.chunk(piece, self._usage(generation) if continuous else None)

            def plain(index: int) -> Callable[[str], bytes] | None:
                around = None if continuous else self._choices[index].around_text
                return None if around is None else chunks.text_events(around)

            if all(side.complete for side in self._sides):  # no delta has to wait for another
                generation.sink = EventWriter(encoded, plain, writer)
            async for delta in self._in_order(generation):
                if event := encoded(delta):
                    yield event
            total = self._usage(generation)
        measured = timings(generation) if self._body.timings else None
        yield chunks.totals(total if self._body.include_usage else None, measured) + DONE

    async def _in_order(self, generation: Generation) -> AsyncIterator[TextDelta]:
        """The deltas. Those of a choice come after its prompt's logprobs, which arrive with another choice."""
        waiting: dict[int, list[TextDelta]] = {}
        async for delta in generation:
            number = delta.index // self._text_request.n
            side = self._sides[number]
            await side.take(delta)
            if not side.complete:
                waiting.setdefault(number, []).append(delta)
                continue
            yield delta
            for other in waiting.pop(number, ()):
                yield other


async def _sides(
    state: ServerState, model: ServedModel, body: CompletionRequest, prompts: Sequence[tuple[int, ...]]
) -> list[PromptSide]:
    """The text that each prompt's choices begin with: if requested, the prompt as the client wrote it or decoded from its ids."""
    if not body.echo:
        return [PromptSide(body, ids) for ids in prompts]
    around = added_ids(model) if body.add_special_tokens is not False else ([], [])
    sides, unwritten = [], {}
    for number, (prompt, ids) in enumerate(zip(body.prompts, prompts, strict=True)):
        if isinstance(prompt, str):
            begin, end = text_span(ids, around)
            sides.append(PromptSide(body, ids, prompt, end))
            if body.truncate_prompt_tokens is not None:
                unwritten[number] = list(ids[begin:end])
        else:
            sides.append(PromptSide(body, ids))
            unwritten[number] = prompt if body.suffix else list(ids)
    texts = await decoded(state, model, list(unwritten.values()), False, "prompt")
    for number, text in zip(unwritten, texts, strict=True):
        sides[number].echo = text
    return sides
