"""POST /v1/chat/completions."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from engine.text.generation import Generation, TextDelta, Usage
from server.answer.chat import Answer
from server.answer.prompt_tokens import encoded_prompt_logprobs
from server.answer.sse import ChatChoice, ChatLogprobs, Chunks, delta_members, usage_object
from server.http.buffered import AnswerBudget
from server.http.event_stream import DONE, EventStream, while_connected
from server.http.middleware import RESPONSE_ID
from server.prepare.chat import PreparedChat, prepare_chat
from server.routes.common import generation_of, json_response, read, state_of, template_variables
from server.schemas.chat import ChatRequest
from server.state import ServedModel, ServerState

router = APIRouter()


@router.post("/v1/chat/completions")
async def chat_completions(request: Request) -> Response:
    """Answer a conversation."""
    state = state_of(request)
    body = await read(request, ChatRequest)
    body.check()
    model, name = await state.find(body.model, generating=True)
    variables = template_variables(request, model, body)
    asked = await while_connected(request.receive, prepare_chat(state, model, body, variables))
    call = _ChatCall(state, model, name, body, asked)
    request.scope[RESPONSE_ID] = call.id
    if body.stream:
        return EventStream(call.stream())
    return json_response(await while_connected(request.receive, call.collect()))


class _ChatCall:
    """One call: its engine request, and the encoding of its answer."""

    def __init__(
        self,
        state: ServerState,
        model: ServedModel,
        name: str,
        body: ChatRequest,
        asked: PreparedChat,
    ) -> None:
        self._model = model
        self._name = name
        self._body = body
        self._asked = asked.request
        self._grammar_param = asked.grammar_param
        self._reasoning_fields = state.reasoning_fields
        self.id = self._asked.context.request_id
        self._created = int(time.time())
        self._answers = [Answer(index, asked.reading) for index in range(self._asked.n)]

    def _start(self) -> AbstractAsyncContextManager[Generation]:
        """Queue the call."""
        return generation_of(
            self._model, self._asked, self._body, prompt="messages", grammar=self._grammar_param
        )

    @property
    def _reasoning_tokens(self) -> int:
        return sum(answer.reasoning_tokens for answer in self._answers)

    async def collect(self) -> dict[str, Any]:
        """The whole answer."""
        prompt_logprobs = None
        logprobs = [ChatLogprobs() for _ in self._answers]
        room, by = AnswerBudget(), "top_logprobs" if self._body.top_logprobs else "logprobs"
        as_ids = bool(self._body.return_tokens_as_token_ids)
        async with self._start() as generation:
            async for delta in generation:
                self._answers[delta.index].take(delta)
                room.take(logprobs[delta.index].add(delta.logprobs or (), as_ids), by)
                if delta.prompt_logprobs is not None:
                    count = self._body.prompt_logprobs or 0
                    prompt_logprobs = await encoded_prompt_logprobs(delta.prompt_logprobs, count)
            usage = generation.usage
        answer: dict[str, Any] = {
            "id": self._asked.context.request_id,
            "object": "chat.completion",
            "created": self._created,
            "model": self._name,
            "system_fingerprint": self._model.fingerprint,
            "seed": generation.seed,
            "choices": list(map(self._choice, self._answers, logprobs)),
            "usage": usage_object(usage, self._reasoning_tokens),
        }
        if prompt_logprobs is not None:
            answer["prompt_logprobs"] = msgspec.Raw(prompt_logprobs)
        if self._body.return_token_ids:
            answer["prompt_token_ids"] = self._asked.prompts[0]
        return answer

    def _choice(self, answer: Answer, logprobs: ChatLogprobs) -> dict[str, Any]:
        choice: dict[str, Any] = {
            "index": answer.index,
            "message": answer.message(self._reasoning_fields),
            "logprobs": None if self._body.num_logprobs is None else msgspec.Raw(logprobs.encoded()),
            **answer.finish,
        }
        if self._body.return_token_ids:
            choice["token_ids"] = answer.token_ids
        return choice

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """The answer as events: roles, deltas, a finish chunk per choice, usage if requested, [DONE]."""
        continuous = self._body.continuous_usage
        plain = self._body.num_logprobs is None and not self._body.return_token_ids
        as_ids = bool(self._body.return_tokens_as_token_ids)
        wires = [ChatChoice(answer.index, as_ids) for answer in self._answers]
        started = False
        async with self._start() as generation:
            chunks = self._chunks(generation.seed)
            async for delta in generation:
                usage = generation.usage if continuous else None
                out = b""
                if not started:
                    before = usage and replace(usage, completion_tokens=0)
                    out, started = self._roles(chunks, wires, before), True
                answer, wire = self._answers[delta.index], wires[delta.index]
                if plain and answer.plain and delta.finish_reason is None:
                    pieces = [wire.content(delta.text)] if delta.text else []
                else:
                    pieces = self._pieces(answer, wire, delta)
                thought = self._reasoning_tokens if continuous else 0
                for piece in pieces:
                    out += chunks.chunk(piece, usage, reasoning_tokens=thought)
                if out:
                    yield out
            total = generation.usage
        if not started:
            yield self._roles(chunks, wires, total if continuous else None)
        last = chunks.chunk(b"", total, reasoning_tokens=self._reasoning_tokens)
        yield (last if self._body.include_usage else b"") + DONE

    def _chunks(self, seed: int) -> Chunks:
        fingerprint = self._model.fingerprint
        return Chunks("chat.completion.chunk", self.id, self._created, self._name, fingerprint, seed)

    def _roles(self, chunks: Chunks, wires: list[ChatChoice], usage: Usage | None) -> bytes:
        extra = b""
        if self._body.return_token_ids:
            ids = ",".join(map(str, self._asked.prompts[0])).encode()
            extra = b',"prompt_token_ids":[' + ids + b"]"
        first, *others = (wire.role for wire in wires)
        out = chunks.chunk(first, usage, extra)
        return out + b"".join(chunks.chunk(role, usage) for role in others)

    def _pieces(self, answer: Answer, wire: ChatChoice, delta: TextDelta) -> list[bytes]:
        """Encoded choices for a delta that is more than text."""
        members = [delta_members(piece, self._reasoning_fields) for piece in answer.pieces(delta)]
        encoded: list[bytes] = []
        tokens, ids = delta.logprobs, delta.token_ids if self._body.return_token_ids else None
        if tokens is not None or ids is not None:
            # They belong to the delta as a whole, also when its text is held back.
            first = members.pop(0) if members else {"content": ""}
            encoded.append(wire.delta(first, tokens, ids))
        encoded += [wire.delta(one) for one in members]
        if delta.finish_reason is not None:
            encoded.append(wire.finish(answer.reason(delta.finish_reason), delta.stop_reason))
        return encoded
