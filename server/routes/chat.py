"""POST /v1/chat/completions."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from engine.errors import InvalidRequest
from engine.text.generation import Generation, TextDelta, TextRequest, Usage
from server.chat.prompt import chat_prompt
from server.chat.tool_parser import Call, Event, ToolParser
from server.middleware import RESPONSE_ID
from server.routes.common import body_schema, json_response, new_id, read, state_of, text_request
from server.schemas.chat import ChatRequest
from server.state import ServedModel, ServerState
from server.streaming import DONE, EventStream, while_connected
from server.wire import ChatChoice, Chunks, chat_logprobs, usage_object

router = APIRouter()


@router.post("/v1/chat/completions", openapi_extra=body_schema(ChatRequest))
async def chat_completions(request: Request) -> Response:
    """Answer a conversation."""
    state = state_of(request)
    body = await read(request, ChatRequest)
    body.check()
    model, name = state.require(body.model)
    call = await _ChatCall.prepare(state, model, name, body)
    request.scope[RESPONSE_ID] = call.id
    if body.stream:
        return EventStream(call.stream(), state.write_timeout)
    return json_response(await while_connected(request.receive, call.collect()))


class _ChatCall:
    """One call: what to ask of the engine, and how to shape what comes back."""

    def __init__(self, model: ServedModel, name: str, body: ChatRequest, asked: TextRequest) -> None:
        self._model = model
        self._name = name
        self._body = body
        self._asked = asked
        self.id = asked.request_id
        self._created = int(time.time())
        self._choices = [_Choice(index, bool(body.offered_tools)) for index in range(asked.n)]

    @classmethod
    async def prepare(cls, state: ServerState, model: ServedModel, name: str, body: ChatRequest) -> _ChatCall:
        """Render and tokenize. Raises InvalidRequest."""
        extra = dict(body.chat_template_kwargs or {})
        if body.reasoning_effort is not None:
            if model.template is not None and "reasoning_effort" not in model.template.variables:
                message = "'reasoning_effort' is not supported by this model."
                raise InvalidRequest(message, param="reasoning_effort", code="unsupported_parameter")
            extra["reasoning_effort"] = body.reasoning_effort
        prompt = await chat_prompt(
            state,
            model,
            body.messages,
            body.offered_tools,
            add_generation_prompt=body.begins_answer,
            continue_final_message=bool(body.continue_final_message),
            add_special_tokens=bool(body.add_special_tokens),
            extra=extra,
        )
        asked = text_request(
            new_id("chatcmpl"),
            body,
            model,
            (prompt,),
            body.num_logprobs,
            body.output_limit,
            continues_prompt=bool(body.continue_final_message),
        )
        return cls(model, name, body, asked)

    def _start(self) -> Generation:
        """Queue the call. Refusals name fields in the engine's words; here they have the client's."""
        try:
            return self._model.engine.start(self._asked)
        except InvalidRequest as error:
            if error.param == "prompt":
                error.param = "messages"
            elif error.param == "max_tokens" and self._body.max_completion_tokens is not None:
                error.param = "max_completion_tokens"
            raise

    async def collect(self) -> dict[str, Any]:
        """The whole answer."""
        async with self._start() as generation:
            async for delta in generation:
                self._choices[delta.index].take(delta)
            usage = generation.usage
        answer: dict[str, Any] = {
            "id": self._asked.request_id,
            "object": "chat.completion",
            "created": self._created,
            "model": self._name,
            "system_fingerprint": self._model.fingerprint,
            "seed": generation.seed,
            "choices": [choice.answer(self._body) for choice in self._choices],
            "usage": usage_object(usage),
        }
        if self._body.return_token_ids:
            answer["prompt_token_ids"] = self._asked.prompts[0]
        return answer

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """The answer in events: roles, deltas, a finish chunk per choice, usage if asked for, [DONE]."""
        continuous = self._body.continuous_usage
        plain = self._body.num_logprobs is None and not self._body.return_token_ids
        started = False
        async with self._start() as generation:
            chunks = self._chunks(generation.seed)
            async for delta in generation:
                usage = generation.usage if continuous else None
                out = b""
                if not started:
                    out, started = self._roles(chunks, usage), True
                choice = self._choices[delta.index]
                if plain and choice.parser is None and delta.finish_reason is None:
                    if delta.text:
                        out += chunks.chunk(choice.wire.content(delta.text), usage)
                else:
                    for piece in self._pieces(choice, delta):
                        out += chunks.chunk(piece, usage)
                if out:
                    yield out
            total = generation.usage
        if not started:
            yield self._roles(chunks, total if continuous else None)
        yield (chunks.chunk(b"", total) if self._body.include_usage else b"") + DONE

    def _chunks(self, seed: int) -> Chunks:
        fingerprint = self._model.fingerprint
        return Chunks("chat.completion.chunk", self.id, self._created, self._name, fingerprint, seed)

    def _roles(self, chunks: Chunks, usage: Usage | None) -> bytes:
        extra = b""
        if self._body.return_token_ids:
            ids = ",".join(map(str, self._asked.prompts[0])).encode()
            extra = b',"prompt_token_ids":[' + ids + b"]"
        first, *others = (choice.wire.role for choice in self._choices)
        out = chunks.chunk(first, usage, extra)
        return out + b"".join(chunks.chunk(role, usage) for role in others)

    def _pieces(self, choice: _Choice, delta: TextDelta) -> list[bytes]:
        """Encoded choices for a delta that is more than text."""
        events = choice.events(delta)
        pieces: list[bytes] = []
        tokens, ids = delta.logprobs, delta.token_ids if self._body.return_token_ids else None
        if tokens is not None or ids is not None:
            # They belong to the delta as a whole, also when its text is held back.
            text = "".join(event for event in events if isinstance(event, str))
            pieces.append(choice.wire.content_with(text, tokens, ids))
            events = [event for event in events if isinstance(event, Call)]
        for event in events:
            if isinstance(event, Call):
                pieces.extend(choice.wire.call(event))
            elif event:
                pieces.append(choice.wire.content(event))
        if delta.finish_reason is not None:
            pieces.append(choice.wire.finish(choice.reason(delta.finish_reason), delta.stop_reason))
        return pieces


class _Choice:
    """What one choice has become so far. One writer: the task that reads the generation."""

    def __init__(self, index: int, may_call: bool) -> None:
        self.index = index
        self.wire = ChatChoice(index)
        self.parser = ToolParser() if may_call else None
        self._text: list[str] = []
        self._calls: list[Call] = []
        self._tokens: list[Any] = []
        self._ids: list[int] = []
        self._finish: str = "stop"
        self._stop_reason: str | int | None = None

    def events(self, delta: TextDelta) -> list[Event]:
        """The delta's text, with tool calls taken out where tools were offered."""
        if self.parser is None:
            return [delta.text] if delta.text else []
        events = self.parser.push(delta.text)
        if delta.finish_reason is not None:
            events += self.parser.finish()
        return events

    def reason(self, engine_reason: str) -> str:
        """The finish reason a client sees."""
        calls = self.parser is not None and self.parser.num_calls > 0
        return "tool_calls" if calls and engine_reason == "stop" else engine_reason

    def take(self, delta: TextDelta) -> None:
        """Keep a delta for the whole answer."""
        for event in self.events(delta):
            if isinstance(event, Call):
                self._calls.append(event)
            else:
                self._text.append(event)
        self._ids.extend(delta.token_ids)
        self._tokens.extend(delta.logprobs or ())
        if delta.finish_reason is not None:
            self._finish = self.reason(delta.finish_reason)
            self._stop_reason = delta.stop_reason

    def answer(self, body: ChatRequest) -> dict[str, Any]:
        """The choice as part of a whole answer. Keys without a value are left out where clients expect that."""
        text = "".join(self._text)
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
        if self._calls:
            message["content"] = text or None
            message["tool_calls"] = [call.as_message_part() for call in self._calls]
        choice: dict[str, Any] = {
            "index": self.index,
            "message": message,
            "logprobs": None if body.num_logprobs is None else chat_logprobs(self._tokens),
            "finish_reason": self._finish,
            "stop_reason": self._stop_reason,
        }
        if body.return_token_ids:
            choice["token_ids"] = self._ids
        return choice
