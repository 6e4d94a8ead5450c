"""POST /v1/completions, the legacy endpoint that evaluation tools live on."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from engine.errors import InvalidRequest
from engine.text.generation import TextDelta, TextRequest, TokenText
from server.chat.prompt import check_length, check_token_ids, decoded, text_prompt
from server.middleware import RESPONSE_ID
from server.routes.common import body_schema, json_response, new_id, read, state_of, text_request
from server.schemas.completions import DEFAULT_MAX_TOKENS, CompletionRequest
from server.state import ServedModel, ServerState
from server.streaming import DONE, EventStream, while_connected
from server.wire import Chunks, CompletionChoice, completion_logprobs, usage_object

router = APIRouter()


@router.post("/v1/completions", openapi_extra=body_schema(CompletionRequest))
async def completions(request: Request) -> Response:
    """Continue one prompt or many."""
    state = state_of(request)
    body = await read(request, CompletionRequest)
    body.check()
    model, name = state.require(body.model)
    call = await _CompletionCall.prepare(state, model, name, body)
    request.scope[RESPONSE_ID] = call.id
    if body.stream:
        return EventStream(call.stream(), state.write_timeout)
    return json_response(await while_connected(request.receive, call.collect()))


async def _tokenize(
    state: ServerState, model: ServedModel, body: CompletionRequest
) -> tuple[tuple[int, ...], ...]:
    """The prompts in token ids. Raises InvalidRequest for one that is empty or holds unknown ids."""
    prompts = []
    for prompt in body.prompts:
        if isinstance(prompt, str):
            ids = await text_prompt(state, model, prompt, body.add_special_tokens is not False)
        else:
            check_length(model, len(prompt), "prompt")
            check_token_ids(model, prompt, "prompt")
            ids = tuple(prompt)
        if not ids:
            raise InvalidRequest("'prompt' is empty.", param="prompt", code="invalid_value")
        prompts.append(ids)
    return tuple(prompts)


async def _echoes(state: ServerState, model: ServedModel, body: CompletionRequest) -> list[str]:
    """What each prompt's choices begin with: where asked for, its text as the client wrote it or decoded from its ids."""
    if not body.echo:
        return [""] * len(body.prompts)
    ids = [prompt for prompt in body.prompts if not isinstance(prompt, str)]
    texts = iter(await decoded(state, model, ids, False, "prompt"))
    return [prompt if isinstance(prompt, str) else next(texts) for prompt in body.prompts]


class _CompletionCall:
    """One call: what to ask of the engine, and how to shape what comes back."""

    def __init__(
        self,
        model: ServedModel,
        name: str,
        body: CompletionRequest,
        asked: TextRequest,
        echoes: Sequence[str],
    ) -> None:
        self._model = model
        self._name = name
        self._body = body
        self._asked = asked
        self.id = asked.request_id
        self._created = int(time.time())
        count = len(asked.prompts) * asked.n
        self._choices = [_Choice(index, echoes[index // asked.n]) for index in range(count)]

    @classmethod
    async def prepare(
        cls, state: ServerState, model: ServedModel, name: str, body: CompletionRequest
    ) -> _CompletionCall:
        """Tokenize. Raises InvalidRequest."""
        prompts = await _tokenize(state, model, body)
        limit = body.output_limit
        if limit is None:
            # Nobody asked for that many: near the end of the context it is what still fits. The engine has one limit
            # for all prompts of a call; without any room it says that the prompt is too long.
            room = min(model.max_model_len - len(ids) for ids in prompts)
            limit = max(1, min(DEFAULT_MAX_TOKENS, room))
        asked = text_request(
            new_id("cmpl"), body, model, prompts, body.num_logprobs, limit, continues_prompt=True
        )
        return cls(model, name, body, asked, await _echoes(state, model, body))

    async def collect(self) -> dict[str, Any]:
        """The whole answer."""
        async with self._model.engine.start(self._asked) as generation:
            async for delta in generation:
                self._choices[delta.index].take(delta)
            usage = generation.usage
        return {
            "id": self._asked.request_id,
            "object": "text_completion",
            "created": self._created,
            "model": self._name,
            "system_fingerprint": self._model.fingerprint,
            "seed": generation.seed,
            "choices": [self._answer(choice) for choice in self._choices],
            "usage": usage_object(usage),
        }

    def _answer(self, choice: _Choice) -> dict[str, Any]:
        logprobs = None if self._body.logprobs is None else completion_logprobs(choice.tokens)
        answer: dict[str, Any] = {
            "index": choice.index,
            "text": choice.echo + "".join(choice.text),
            "logprobs": logprobs,
            "finish_reason": choice.finish,
            "stop_reason": choice.stop_reason,
        }
        if self._body.return_token_ids:
            answer["token_ids"] = choice.ids
            answer["prompt_token_ids"] = self._asked.prompts[choice.index // self._asked.n]
        return answer

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """The answer in events; the last one of a choice carries its finish reason."""
        continuous = self._body.continuous_usage
        fingerprint = self._model.fingerprint
        async with self._model.engine.start(self._asked) as generation:
            chunks = Chunks(
                "text_completion", self.id, self._created, self._name, fingerprint, generation.seed
            )
            async for delta in generation:
                piece = self._piece(self._choices[delta.index], delta)
                if piece:
                    yield chunks.chunk(piece, generation.usage if continuous else None)
            total = generation.usage
        yield (chunks.chunk(b"", total) if self._body.include_usage else b"") + DONE

    def _piece(self, choice: _Choice, delta: TextDelta) -> bytes:
        text = delta.text
        if choice.echo:
            text, choice.echo = choice.echo + text, ""
        ids = delta.token_ids if self._body.return_token_ids else None
        if delta.finish_reason is None and delta.logprobs is None and ids is None:
            return choice.wire.text(text) if text else b""
        logprobs = None if delta.logprobs is None else completion_logprobs(delta.logprobs)
        return choice.wire.full(text, logprobs, ids, delta.finish_reason, delta.stop_reason)


@dataclass(slots=True)
class _Choice:
    """What one choice has become so far. One writer: the task that reads the generation."""

    index: int
    echo: str
    text: list[str] = field(default_factory=list)
    tokens: list[TokenText] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    finish: str = "stop"
    stop_reason: str | int | None = None
    wire: CompletionChoice = field(init=False)

    def __post_init__(self) -> None:
        self.wire = CompletionChoice(self.index)

    def take(self, delta: TextDelta) -> None:
        """Keep a delta for the whole answer."""
        self.text.append(delta.text)
        self.ids.extend(delta.token_ids)
        self.tokens.extend(delta.logprobs or ())
        if delta.finish_reason is not None:
            self.finish, self.stop_reason = delta.finish_reason, delta.stop_reason
