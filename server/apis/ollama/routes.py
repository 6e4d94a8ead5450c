"""POST /api/chat, /api/generate, /api/embed and /api/embeddings, in Ollama's form."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from engine.text.generation import Usage
from server.answer.choice import Reading
from server.answer.notation import ModelNotation
from server.answer.reasoning import Place
from server.answer.sse import encode
from server.apis.base.answering import AnsweredCall
from server.apis.base.common import find_model as model_of_name
from server.apis.base.common import json_response, models_of, read, state_of
from server.apis.base.waiting import Answering, answer_once_loaded
from server.apis.ollama.answers import OllamaEmbedding, OllamaEmbeddings
from server.apis.ollama.convert import (
    CHAT_NAMES,
    LATEST,
    PROMPT_NAMES,
    VECTOR_NAMES,
    ConvertedOllama,
    chat_of_messages,
    chat_of_prompt,
    completion_of,
    embedding_of,
    template_variables_of,
    without_effect,
)
from server.apis.ollama.encode import LineContent, OllamaAnswer, OllamaStream, OllamaWhole, line, nanoseconds
from server.apis.ollama.errors import error_object
from server.apis.ollama.schema import (
    OllamaCallFields,
    OllamaChatRequest,
    OllamaEmbeddingsRequest,
    OllamaEmbedRequest,
    OllamaGenerateRequest,
    OllamaGenerationFields,
)
from server.http.buffered import YieldRegularly
from server.http.call import Call, Refusal, call_of
from server.http.direct_writer import DirectWriter
from server.http.disconnect import while_connected
from server.http.event_stream import EventStream, failure_of
from server.http.large_body import run_off_loop_if_large
from server.prepare.chat import PreparedChat, prepare_chat
from server.prepare.completions import prepare_completion
from server.prepare.embeddings import prepare_embedding, shaped
from server.prepare.field_names import FieldNames, named
from server.prepare.prompts import place_in
from server.schemas.tool_choice import ToolChoice
from server.state.server_state import ModelsLike, ServedModel, ServerState

router = APIRouter()

NDJSON = "application/x-ndjson"
_PREFIX = "ollama-"


@router.post("/api/chat")
async def chat(request: Request) -> Response:
    """Answer a conversation."""
    call = call_of(request.scope)
    body = await read(request, OllamaChatRequest)
    if not body.messages and (models := models_of(request)) is not None and body.take_keep() == 0:
        return _unloaded(models, call, body, OllamaAnswer(body.model, call.arrival_time, as_text=False))
    return await _once_loaded(request, body, lambda: _answer_chat(request, body))


async def _answer_chat(request: Request, body: OllamaChatRequest) -> Response:
    call = call_of(request.scope)
    state, model = await find_model(request, body, generating=True)
    if not body.messages:
        return _loaded(call, body, OllamaAnswer(body.model, call.arrival_time, as_text=False))
    converted = await run_off_loop_if_large(
        call, state.threads, lambda: chat_of_messages(body, state.unread_parts)
    )
    prepared = await _prepared_chat(request, call, state, model, body, converted)
    return await _answered(request, model, body, prepared, CHAT_NAMES)


@router.post("/api/generate")
async def generate(request: Request) -> Response:
    """Answer a prompt, or continue a text."""
    call = call_of(request.scope)
    body = await read(request, OllamaGenerateRequest)
    body.check()
    loads = not (body.prompt or body.suffix or body.images)
    if loads and (models := models_of(request)) is not None and body.take_keep() == 0:
        return _unloaded(models, call, body, OllamaAnswer(body.model, call.arrival_time, as_text=True))
    return await _once_loaded(request, body, lambda: _answer_generate(request, body, loads))


async def _answer_generate(request: Request, body: OllamaGenerateRequest, loads: bool) -> Response:
    call = call_of(request.scope)
    state, model = await find_model(request, body, generating=True)
    if loads:
        return _loaded(call, body, OllamaAnswer(body.model, call.arrival_time, as_text=True))
    if body.continues:
        call.ignore(without_effect(body))
        prepared = await while_connected(request.receive, _prepared_text(state, call, model, body), call)
    else:
        converted = await run_off_loop_if_large(
            call, state.threads, lambda: chat_of_prompt(body, state.unread_parts)
        )
        prepared = await _prepared_chat(request, call, state, model, body, converted)
    return await _answered(request, model, body, prepared, PROMPT_NAMES)


@router.post("/api/embed")
async def embed(request: Request) -> Response:
    """A vector for each text."""
    body = await read(request, OllamaEmbedRequest)
    vectors, usage, started = await _vectors(request, body, "input", body.input)
    arrived = call_of(request.scope).arrival_time
    answer: OllamaEmbeddings = {
        "model": body.model,
        "embeddings": vectors,
        "total_duration": nanoseconds(time.monotonic() - arrived),
        "load_duration": nanoseconds(started - arrived),
        "prompt_eval_count": usage.prompt_tokens,
    }
    return json_response(answer)


@router.post("/api/embeddings")
async def embeddings(request: Request) -> Response:
    """The vector of one text, not normalised: Ollama's older endpoint."""
    body = await read(request, OllamaEmbeddingsRequest)
    vectors, _, _ = await _vectors(request, body, "prompt", body.prompt)
    answer: OllamaEmbedding = {"embedding": vectors[0] if vectors else []}
    return json_response(answer)


async def find_model(
    request: Request, body: OllamaCallFields, *, generating: bool = False
) -> tuple[ServerState, ServedModel]:
    """The model of a name, which may have the tag that Ollama gives to names without one, and its state. Raises EngineError."""
    several = state_of(request).models is not None
    state, model, _ = await model_of_name(
        request,
        without_tag(state_of(request), body.model),
        generating=generating,
        deadline_ms=body.deadline_ms,
        keep=body.take_keep() if several else None,
    )
    return state, model


def without_tag(state: ServerState, name: str) -> str:
    """The name without Ollama's tag, unless it is served with it."""
    bare, served = name.removesuffix(LATEST), state.served_name(name)
    is_served = served in state.names or (state.adapters is not None and state.adapters.get(name) is not None)
    return name if is_served else bare


def _loaded(call: Call, body: OllamaGenerationFields, answer: OllamaAnswer) -> Response:
    """The answer to a request without a prompt, by which clients load a model: it is loaded. As Ollama's, it is one object, also
    for clients that take lines: Open WebUI reads nothing else here."""
    call.ignore(without_effect(body))
    return json_response(answer.loaded())


def _unloaded(models: ModelsLike, call: Call, body: OllamaGenerationFields, answer: OllamaAnswer) -> Response:
    """The answer to a request without a prompt that ends the time for which the model is kept, as `ollama stop` sends it."""
    call.ignore(without_effect(body))
    models.unload(body.model)
    return json_response(answer.unloaded())


async def _prepared_chat(
    request: Request,
    call: Call,
    state: ServerState,
    model: ServedModel,
    body: OllamaGenerationFields,
    converted: ConvertedOllama,
) -> PreparedChat:
    """The call. What has no effect is listed in the response's header. Raises EngineError, in the names of the body's fields."""
    names_read = frozenset[str]() if model.template is None else model.template.variables
    reasons = model.notation.reasoning is not None
    variables, unread = template_variables_of(body.thinking, names_read, reasons)
    if converted.chat.choice.forced and model.notation.for_calls(True).tools is None:
        # No grammar can force calls whose form is unknown. Ollama never forces any, so its clients expect text as well.
        converted.chat.tool_choice = None
        unread.append("tool_choice")
    call.ignore([*converted.ignored, *unread])
    with named(converted.names):
        work = prepare_chat(state, call, model, converted.chat, variables, _PREFIX)
        prepared = await while_connected(request.receive, work, call_of(request.scope))
    call.ignore(converted.names(name) or name for name in prepared.ignored)
    return prepared


async def _prepared_text(
    state: ServerState, call: Call, model: ServedModel, body: OllamaGenerateRequest
) -> PreparedChat:
    """The call that continues a text, in which neither reasoning nor calls are looked for. Raises EngineError."""
    with named(PROMPT_NAMES):
        prepared = await prepare_completion(state, call, model, completion_of(body))
    reading = Reading(ModelNotation(tools=None), ToolChoice(), Place.AFTER, model.tokenizer.token_bytes)
    text_request = replace(prepared.request, default_tokens=model.preset.max_tokens)
    return PreparedChat(text_request, reading, prepared.grammar_param)


async def _answered(
    request: Request,
    model: ServedModel,
    body: OllamaGenerationFields,
    prepared: PreparedChat,
    names: FieldNames,
) -> Response:
    """The answer, as lines unless the body says otherwise."""
    text_request = prepared.request
    room = model.max_model_len - len(text_request.prompts[0])
    if text_request.max_tokens is not None and room > 0:
        # As with Ollama, a limit may be more than fits: an answer that fills the context ends with `length`.
        text_request = replace(text_request, max_tokens=min(text_request.max_tokens, room))
    ollama_call = AnsweredCall(model, replace(prepared, request=text_request), names)
    call_of(request.scope).response_id = ollama_call.id
    as_text = isinstance(body, OllamaGenerateRequest)
    answer = OllamaAnswer(body.model, text_request.context.arrival_time, as_text=as_text)
    [choice] = ollama_call.choices
    if body.stream is not False:
        encoder, writer = OllamaStream(answer, choice), DirectWriter()
        lines = ollama_call.stream(encoder, writer=writer)
        return EventStream(lines, form=_Form(encoder), media_type=NDJSON, writer=writer)
    whole = OllamaWhole(answer, choice, bool(body.logprobs))
    answer.begin()
    generation = await while_connected(request.receive, ollama_call.collect(whole), call_of(request.scope))
    return json_response(whole.body(generation))


async def _vectors(
    request: Request,
    body: OllamaEmbedRequest | OllamaEmbeddingsRequest,
    prompt: str,
    texts: str | Sequence[str] | None,
) -> tuple[list[msgspec.Raw], Usage, float]:
    """The vectors, encoded, their tokens, and when the model began, in seconds of the monotonic clock. `prompt`: the body's name
    for its `texts`. Raises EngineError."""
    state, call = state_of(request), call_of(request.scope)
    state, model = await find_model(request, body)
    call.ignore(body.without_effect())
    if not texts:
        return [], Usage(), time.monotonic()
    asked_for = embedding_of(body, model.info.embedding_size)

    async def work() -> tuple[list[msgspec.Raw], Usage, float]:
        place = place_in(prompt, texts)
        with named(VECTOR_NAMES.of_body(text=place)):
            embedding = await prepare_embedding(state, call, model, asked_for)
            call.response_id = embedding.context.request_id
            started = time.monotonic()
            vectors, usage = await model.engine.embed(embedding)
        encoded, pauses = [], YieldRegularly()
        for vector in vectors:
            encoded.append(msgspec.Raw(encode(shaped(vector, asked_for).tolist())))
            await pauses.pause()
        return encoded, usage, started

    return await while_connected(request.receive, work(), call)


async def _once_loaded(request: Request, body: OllamaGenerationFields, answer: Answering) -> Response:
    as_text = isinstance(body, OllamaGenerateRequest)
    form = _LoadForm(OllamaAnswer(body.model, call_of(request.scope).arrival_time, as_text))
    return await answer_once_loaded(request, body.model, body.stream is not False, answer, form, NDJSON)


class _LoadForm:
    """The same of a stream whose model is not loaded yet."""

    def __init__(self, answer: OllamaAnswer) -> None:
        self._answer = answer

    def keep_alive(self) -> bytes:
        """A line without text."""
        return line(self._answer.line(LineContent(), {"done": False}))

    def error(self, error: Exception) -> tuple[Refusal, bytes]:
        """The error."""
        refusal, failure = failure_of(error)
        return refusal, line(error_object(failure))


class _Form:
    """A line without text keeps a stream alive, and a line with the error ends a failed one."""

    def __init__(self, encoder: OllamaStream) -> None:
        self._encoder = encoder

    def keep_alive(self) -> bytes:
        """A line without text."""
        return self._encoder.keep_alive()

    def error(self, error: Exception) -> tuple[Refusal, bytes]:
        """The error."""
        refusal, failure = failure_of(error)
        return refusal, line(error_object(failure))
